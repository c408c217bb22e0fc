#!/bin/bash
# Help, version, flags, configuration files, exit codes and streams of the program as a whole.
. "$(dirname "$0")/lib.sh"

# ---- bare, help, version ----
run 2
quiet_out
tells 'commands:'
run 0 help
says 'commands:'
quiet_err
run 0 --help
says 'train'
run 0 help train
says 'examples:'
says '--batch-size'
run 0 train --help-all
says 'loader.prefetch'
run 0 version
says 'ttv '
says 'cuda: '
says 'libjpeg'
for flag in -V --version; do
    run 0 "$flag"
    says 'git '
done
run 0 version --json
json_ok out
says '"libpng":"'
# no start waits for half a gigabyte of CUDA's libraries
if command -v ldd >/dev/null; then
    checks=$((checks + 1))
    ! ldd "$TTV" | grep -q cublas || fail 'the program links cuBLAS instead of loading it with a card'
fi
run 2 version surplus
run 2 help nonsense
tells "unknown command 'nonsense'"
run 0 help --help
says 'commands:'
# the first word of several commands
run 0 help nvs
says 'nvs render'
run 0 nvs --help
says 'nvs render'
run 2 nvs
quiet_out
tells 'nvs render'
run 2 nvs nonsense
tells 'nvs render'
run 2 nvs trian
tells "unknown command 'nvs trian'; did you mean 'nvs train'"
run 2 ckpt
tells "'ckpt' is the first word of several commands"
tells 'ckpt average'
run 2 nvs fly
tells "unknown command 'nvs fly'"
# networks by name; each name is taken by the flag that it is told with
run 0 models
says '6149416 parameters'
says 'l24_d768_ttt4x'
run 0 model list --json
json_ok out
if command -v python3 >/dev/null; then
    while read -r line; do run 0 $line --print-config; done < <(json_get out '"\n".join(m["flag"] + " " + m["name"] for m in d)')
fi
run 0 models 'vittt_h_*'
equal 'hierarchical models' "$(grep -c '^vittt_h_' out)" "$(wc -l <out)"
run 0 model info ViTTT-T lact_nvs_l14_d768_ttt2x --json
json_ok out
equal 'names, however they are written' "$(grep -o '"name":"[^"]*"' out | tr '\n' ' ')" '"name":"vittt_tiny" "name":"l14_d768_ttt2x" '
run 2 models vittt_tny
tells "no network is called 'vittt_tny'; did you mean 'vittt_tiny'?"
quiet_out
run 2 models 'resnet*'
tells "no network is called 'resnet*'"
# who wins, as --help says
run 0 train --lr 1 --set optim.lr=2 --print-config
says 'lr = 2'
run 0 train --set optim.lr=2 --lr 1 --print-config
says 'lr = 1'

# ---- commands, their aliases and typos ----
run 2 trian
tells "did you mean 'train'"
run 0 cls train --help
says 'ttv train'
run 0 validate --help
says 'ttv eval'

# ---- forms ----
run 0 train -b 3 --print-config
says 'batch_size = 3'
run 0 train -b3 --print-config
says 'batch_size = 3'
run 0 train --batch-size=3 --epochs 2 --set loader.batch_size=4 --print-config
says 'batch_size = 4'
run 0 train --no-aug --print-config
says 'aug = false'
run 0 train --aug=false --print-config
says 'aug = false'
TTV_BATCH_SIZE=5 run 0 train --print-config
says 'batch_size = 5'
says 'environment TTV_BATCH_SIZE'
TTV_BATCH_SIZE=5 run 0 train -b 6 --print-config
says 'batch_size = 6'

# ---- mistakes on the line: exit 2, the nearest name, a hint ----
run 2 train --batchsize 3
tells 'did you mean --batch-size'
tells "see 'ttv train --help'"
quiet_out
# names of other tools, keys without a flag, underscores
run 2 train --data-path x
tells 'did you mean --data-dir?'
run 2 nvs train --actckpt
tells 'did you mean --recompute?'
run 2 eval --pretrained_path x
tells 'did you mean --checkpoint?'
run 2 train --mean-r 0.5
tells 'that key is --set preprocess.mean_r=VALUE'
run 2 train --no-batch-size
tells 'unknown flag --no-batch-size'
run 2 train --batch-size three
tells 'batch-size'
run 2 train --batch-size 0
tells 'batch-size'
run 2 train --lr nan
run 2 train --precision int8
tells 'bf16'
run 2 train -Z
tells 'unknown flag -Z'
run 2 train --set loader.batchsize=3
tells "batch_size"
run 2 train --set nonsense
run 2 train --set
tells '--set needs a value'
run 2 train surplus
tells "unexpected argument 'surplus'"
run 2 train -- -surplus
tells "unexpected argument '-surplus'"
run 2 train --quiet=maybe

# ---- configuration files: file, line, nearest name ----
printf '[model]\nwidht = 3\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:2'
tells "did you mean 'width'"
printf '[modle]\nwidth = 3\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:2'
tells '[model]'
printf '\n\n[loader]\nbatch_size = many\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:4'
printf '[loader]\nbatch_size = 3\nbatch_size = 4\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:3'
tells 'duplicate'
printf 'batch_size = 3\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:1'
printf '[loader]\nnothing\n' >bad.ini
run 3 train -c bad.ini
tells 'bad.ini:2'
run 4 train -c missing.ini
tells 'missing.ini'
mkdir folder
run 3 train -c folder
tells 'folder'
: >empty.ini
run 0 train -c empty.ini --print-config
mkfifo pipe
run 3 train -c pipe
tells 'pipe'

# every configuration of the repository is understood, by training and by scoring
for file in "$SOURCE"/configs/*.ini; do
    case $file in
    */nvs_*) users='nvs train:nvs eval:nvs render' ;;
    *) users=train:eval ;;
    esac
    IFS=: read -ra users <<<"$users"
    for command in "${users[@]}"; do run 0 $command -c "$file" --print-config; done
done
# what --print-config prints is a configuration that gives the same values
"$TTV" train --batch-size 7 --print-config >printed.ini
"$TTV" train -c printed.ini --print-config | sed 's/ *;.*//' >again.txt
checks=$((checks + 1))
sed 's/ *;.*//' printed.ini | cmp -s - again.txt || fail 'the printed configuration does not read back'

# ---- names that need care ----
name=$'odd name\n\xff-.ini'
printf '[loader]\nbatch_size = 9\n' >"$name"
run 0 train -c "$name" --print-config
says 'batch_size = 9'
printf '[loader]\nx = 9\n' >"$name"
run 3 train -c "$name"
tells '\xff'
printf '[loader]\nbatch_size = 8\n' >-dash.ini
run 0 train -c -dash.ini --print-config
says 'batch_size = 8'

# ---- streams ----
checks=$((checks + 1))
command_line='ttv help train >/dev/full'
"$TTV" help train >/dev/full 2>err
got=$?
err=$(cat err)
[ "$got" -eq 4 ] || fail "exit code $got instead of 4"
tells 'standard output'
checks=$((checks + 1))
command_line='ttv help-all | true'
("$TTV" train --help-all; echo $? >code) 2>err | true
got=$(cat code)
err=$(cat err)
case $got in 0 | 141) ;; *) fail "exit code $got after a broken pipe" ;; esac
quiet_err
run 2 train --color always --nonsense
out= err=
command_line='NO_COLOR'
checks=$((checks + 1))
NO_COLOR=1 "$TTV" train --nonsense 2>&1 | grep -q $'\033' && fail 'colour in spite of NO_COLOR'

finish
