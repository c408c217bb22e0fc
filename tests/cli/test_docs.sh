#!/bin/bash
# The documents against the program and the tree: flags, commands, keys, files that they name are there.
. "$(dirname "$0")/lib.sh"
command_line='documents'
docs=("$SOURCE"/README.md "$SOURCE"/docs/*.md "$SOURCE"/data/README.md)

# ---- every command of `ttv help` is in the table of cli.md, with every alias that the table gives ----
"$TTV" help | sed -n '/^commands:/,$p' | sed -n 's/^  \([a-z][a-z -]*[a-z]\)  .*/\1/p' | sed 's/ COMMAND//' >commands
while read -r name; do
    checks=$((checks + 1))
    grep -qE "^\| \`?$name( |\`)|, \`$name\`" "$SOURCE/docs/cli.md" || fail "docs/cli.md has no row for '$name'"
done < <(grep -v '^help' commands)
grep -oE '^\| `[a-z][^|]*' "$SOURCE/docs/cli.md" | grep -oE '`[a-z][a-z -]*' | tr -d '`' | sort -u >named
while read -r name; do
    read -ra words <<<"$name"
    case $name in rand* | trivial | none | interpolate | spiral | orbit | steps | ascent | swap | qk | config* | metrics* | log* | last* | best* | checkpoints* | lock) continue ;; esac
    checks=$((checks + 1))
    "$TTV" "${words[@]}" --help >out 2>err || "$TTV" help "${words[@]}" >out 2>err || "$TTV" "$name" >out 2>err </dev/null ||
        fail "docs/cli.md names a command '$name'"
done <named

# ---- every flag that a document names belongs to some command, or to one of the scripts and tools beside it ----
while read -r name; do
    read -ra words <<<"$name"
    "$TTV" "${words[@]}" --help-all 2>/dev/null
done <commands | grep -oE -- '--(\[no-\])?[a-z][a-z0-9-]*' | sed 's/\[no-\]//' | sort -u >flags
printf '%s\n' --json --help --version --no-python --set --prefix --build --install --flag --no-flag >>flags # of version, cmake, and placeholders
printf '%s\n' --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint >>flags                 # of torchrun
printf '%s\n' --nodes --ntasks-per-node --gpus-per-node --signal --requeue >>flags                       # of sbatch
cat "$SOURCE"/scripts/* "$SOURCE"/tests/gpu/*.sh 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u >>flags
grep -hoE -- '(^|[^A-Za-z0-9-])--[a-z][a-z0-9-]*' "${docs[@]}" | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u >told
while read -r flag; do
    checks=$((checks + 1))
    grep -qxF -- "$flag" flags || grep -qxF -- "--${flag#--no-}" flags ||
        fail "a document names $flag, which no command has: $(grep -lE -- "$flag" "${docs[@]}" | xargs -n 1 basename | tr '\n' ' ')"
done <told

# ---- every file that a document names in backquotes or as a link is in the tree ----
for doc in "${docs[@]}"; do
    here=$(dirname "$doc")
    while read -r path; do
        checks=$((checks + 1))
        [ -e "$SOURCE/$path" ] || [ -e "$here/$path" ] || fail "$(basename "$doc") names $path, which is not there"
    done < <({
        grep -oE '\]\([^)#:]+\)' "$doc" | sed 's/^](//; s/)$//'
        grep -oE '`[A-Za-z0-9_./-]+`' "$doc" | tr -d '`' |
            grep -E '^(core|kernels|nn|ttt|vision|nvs|datasets|tools|tests|scripts|configs|docs|cmake)/[A-Za-z0-9_./-]*[a-z]$'
    } | sort -u)
done

# ---- and so is every source file that is named without its room ----
find "$SOURCE" -path "$SOURCE/build*" -prune -o -type f -print | sed 's|.*/||' | sort -u >files
for doc in "${docs[@]}"; do
    while read -r name; do
        checks=$((checks + 1))
        grep -qxF -- "$name" files || fail "$(basename "$doc") names $name, which is not there"
    done < <(grep -oE '`[A-Za-z0-9_]+\.(c|h|cu|cuh|sh|py)`' "$doc" | tr -d '`' | sort -u)
done
# ---- every command line that README and the help show is understood: flags, values, configuration files ----
{
    sed -n '/^```sh/,/^```/p' "$SOURCE/README.md"
    sed -n 's/^    ttv /ttv /p' "$SOURCE/docs/cifar10.md"
    while read -r name; do
        read -ra words <<<"$name"
        "$TTV" "${words[@]}" --help 2>/dev/null | sed -n '/^examples:/,/^usage:/p'
    done <commands
} | sed 's/^ *//; s/ #.*//' | tr ';|' '\n\n' | sed 's/^ *//; s/ >.*//' | grep '^ttv [a-z]' | sort -u >lines
ttv() { "$TTV" "$@" --print-config; }
while read -r line; do
    case $line in 'ttv help'* | 'ttv man'* | 'ttv completion'* | 'ttv version'* | *'$'* | *'`'*) continue ;; esac
    command_line=$line
    checks=$((checks + 1))
    line=${line//-c configs/-c $SOURCE/configs}
    case $line in *'-c '[!/]*) continue ;; esac # of the reader's own
    eval "$line" >out 2>err </dev/null || { err=$(cat err); fail "is not understood"; }
done <lines
checks=$((checks + 1))
[ "$(wc -l <lines)" -gt 60 ] || fail "only $(wc -l <lines) command lines were found"
finish
