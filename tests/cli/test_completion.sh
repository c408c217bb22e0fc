#!/bin/bash
# ttv completion, ttv man: they offer and describe what the parser takes.
. "$(dirname "$0")/lib.sh"

# ---- completion ----
run 0 completion bash
quiet_err
checks=$((checks + 1))
bash -n out || fail 'the script has an error'
cp out ttv.bash
. ./ttv.bash

# offers LINE...: what is offered for the last word
offers() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _ttv
    printf '%s ' "${COMPREPLY[@]}"
}
equal 'first word' "$(offers ttv cla)" 'classify '
equal 'second word' "$(offers ttv nvs '')" 'train eval render '
equal 'second word, begun' "$(offers ttv data sy)" 'synth-scenes '
equal 'first word behind help' "$(offers ttv help ps)" 'psnr '
equal 'a flag' "$(offers ttv nvs render --data-d)" '--data-dir '
equal 'the same of an alias' "$(offers ttv score --min)" '--min-psnr '
equal 'of an alias of two words' "$(offers ttv cls train --epo)" '--epochs '
equal 'a boolean' "$(offers ttv train --no-a)" '--no-aug '
equal 'flags of every command' "$(offers ttv export --print)" '--print-config '
equal 'values' "$(offers ttv nvs render --trajectory '')" 'interpolate spiral orbit '
equal 'values behind =' "$(offers ttv psnr --average = s)" 'scene '
equal 'values behind = without a letter' "$(offers ttv psnr --channels =)" 'rgb y '
equal 'shells' "$(offers ttv completion '')" 'bash zsh fish '
equal 'file names are left to the shell' "$(offers ttv psnr a.p)" ' '
# every flag of the help, of every command
mapfile -t all < <("$TTV" man | sed -n 's/^\.SS "\(.*\)"$/\1/p' | sed 's/\\-/-/g')
for command in "${all[@]}"; do
    offered=" $(offers ttv $command --) "
    for flag in $("$TTV" $command --help | sed -n 's/^  \(    \|-[A-Za-z], \)--\(\[no-\]\)\{0,1\}\([a-z0-9-]*\).*/\3/p'); do
        checks=$((checks + 1))
        case $offered in *" --$flag "*) ;; *) fail "$command: --$flag is not offered" ;; esac
    done
done
run 2 completion
tells 'the name of a shell is expected'
run 2 completion tcsh
run 2 completion bash zsh

# zsh takes bash's through its bridge; fish has lines of its own
run 0 completion zsh
quiet_err
cp out ttv.zsh
if command -v zsh >/dev/null; then
    zsh -n ttv.zsh || fail 'zsh finds an error in the script'
else
    skip 'the script as zsh reads it: no zsh'
fi
run 0 completion fish
quiet_err
cp out ttv.fish
for command in "${all[@]}"; do
    for flag in $("$TTV" $command --help | sed -n 's/^  \(    \|-[A-Za-z], \)--\(\[no-\]\)\{0,1\}\([a-z0-9-]*\).*/\3/p'); do
        case $flag in help | help-all | version | config | set | print-config) continue ;; esac
        checks=$((checks + 1))
        grep -q "__ttv_in '$command'.* -l $flag " ttv.fish || fail "fish, $command: --$flag is not offered"
    done
done
if command -v fish >/dev/null; then
    fish_offers() { fish --no-config -c "source ttv.fish; complete -C '$1'" | cut -f 1 | tr '\n' ' '; }
    equal 'fish: second word' "$(fish_offers 'ttv nvs r')" 'render '
    equal 'fish: a flag of an alias' "$(fish_offers 'ttv cls train --epo')" '--epochs '
    equal 'fish: values' "$(fish_offers 'ttv nvs render --trajectory o')" 'orbit '
    equal 'fish: behind help' "$(fish_offers 'ttv help ps')" 'psnr '
else
    skip 'what fish offers: no fish'
fi

# ---- the manual page ----
run 0 man
quiet_err
cp out ttv.1
equal 'title' "$(head -c 7 ttv.1)" '.TH TTV'
for command in "${all[@]}"; do
    checks=$((checks + 1))
    "$TTV" help | grep -q "^  $command " || fail "ttv help lacks $command"
done
sed 's/\\-/-/g; s/\\f[BIR]//g' ttv.1 >plain.txt
for flag in $("$TTV" nvs render --help | sed -n 's/^  \(    \|-[A-Za-z], \)--\(\[no-\]\)\{0,1\}\([a-z0-9-]*\).*/\3/p'); do
    checks=$((checks + 1))
    grep -q -e "--\(\[no-\]\)\{0,1\}$flag" plain.txt || fail "the manual lacks --$flag"
done
if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww -z ttv.1 >warnings.txt 2>&1
    equal 'warnings of groff' "$(head -n 3 warnings.txt)" ''
else
    skip 'the manual as groff reads it: no groff'
fi
run 2 man surplus
if [ -w /dev/full ]; then
    for command in man 'completion bash'; do
        "$TTV" $command >/dev/full 2>err
        equal "exit code of $command on /dev/full" $? 4
    done
fi

# ---- a page for each command ----
while read -r name; do
    read -ra words <<<"$name"
    run 0 man "${words[@]}"
    says ".SH OPTIONS"
    equal "title of $name" "$(head -n 1 out | cut -d'"' -f2)" "$(echo "ttv-$name" | tr 'a-z ' 'A-Z-')"
    if command -v groff >/dev/null; then
        groff -man -Tutf8 -ww -z out >warnings.txt 2>&1
        equal "groff on $name" "$(cat warnings.txt)" ''
    fi
done < <("$TTV" help | sed -n '/^commands:/,$p' | sed -n 's/^  \([a-z][a-z -]*[a-z]\)  .*/\1/p' | grep -vE '^(help|version)')
# ---- section 5: configuration files, from the tables; the other formats, from docs/ ----
run 0 man config
quiet_err
mkdir man5
cp out man5/ttv-config.5
sed 's/\\-/-/g; s/\\f[BIR]//g' out >plain.txt
for name in train 'nvs train' eval; do
    read -ra words <<<"$name"
    section=
    while read -r line; do
        case $line in
        '['*) section=$line ;;
        *' = '*)
            checks=$((checks + 1))
            awk -v s=".SS \"$section\"" -v k="${line%% = *} = " '/^\.SS/ {on = $0 == s} on && index($0, k) == 1 {found = 1} END {exit !found}' plain.txt ||
                fail "ttv-config(5) lacks ${line%% = *} of $section"
            ;;
        esac
    done < <("$TTV" "${words[@]}" --print-config)
done
sh "$SOURCE/scripts/man_pages.sh" 0.1 man5 || fail 'scripts/man_pages.sh'
for text in data:LOC_val_solution.csv scenes:world.-to.-camera checkpoint:last.safetensors checkpoint:ttv.class_names; do
    checks=$((checks + 1))
    grep -q "${text#*:}" "man5/ttv-${text%%:*}.5" || fail "ttv-${text%%:*}(5) lacks ${text#*:}"
done
checks=$((checks + 1))
grep -n '`\|^|\|\*\*\|](' man5/ttv-[ds]*.5 man5/ttv-ch*.5 && fail 'Markdown is left in a page'
if command -v groff >/dev/null; then
    for page in man5/*.5; do
        groff -man -Tutf8 -ww -z "$page" >warnings.txt 2>&1
        equal "groff on $page" "$(head -n 3 warnings.txt)" ''
    done
fi

# Another name of a command shows that command's page, as help does.
for pair in 'predict=CLASSIFY' 'ckpt info=INSPECT' 'render=NVS-RENDER' 'cls train=TRAIN'; do
    read -ra words <<<"${pair%=*}"
    run 0 man "${words[@]}"
    equal "title of ${pair%=*}" "$(head -n 1 out | cut -d'"' -f2)" "TTV-${pair#*=}"
done
run 2 man nonsense
tells "there is no command 'nonsense'"
run 2 man train surplus
tells "there is no command 'train surplus'"
run 2 man nvs
tells 'several commands'
tells 'nvs render'
finish
