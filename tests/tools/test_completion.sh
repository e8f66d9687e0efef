#!/usr/bin/env bash
# test_completion.sh BUILD: what bash offers for the programs' options, commands and values, and that bash-completion,
# where it is installed, loads it by itself for an installed tshard.
set -uo pipefail
bin=$1/bin
root=$(cd "$(dirname "$0")/../.." && pwd)
code=0
fail() { code=1; echo "FAILED: $*"; }
. "$root/tools/completion.bash"
compopt() { COMPREPLY+=("files"); } # works within a completion alone

# offers WANTED PROGRAM WORDS...: for the last of the words; WANTED lists some of the words that are offered.
offers() {
    local wanted=$1 word
    shift
    [ -x "$bin/$1" ] || return 0
    COMP_WORDS=("$bin/$1" "${@:2}") COMP_CWORD=$(($# - 1))
    _tshard "$bin/$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
    for word in $wanted; do
        [[ " ${COMPREPLY[*]} " == *" $word "* ]] || fail "$*: '$word' is not among '${COMPREPLY[*]:0:9}'"
    done
}
# offers_only WANTED PROGRAM WORDS...
offers_only() {
    offers "$@"
    [ ! -x "$bin/$2" ] || [ "${COMPREPLY[*]}" = "$1" ] || fail "${*:2}: '${COMPREPLY[*]:0:9}' and not '$1'"
}

offers "--ranks --bind --nnodes --rdzv-endpoint --help --settings --redirects" tshard-run --
offers "-n -r -h --ranks" tshard-run -
offers_only "--no-prefix --node-rank --nodes" tshard-run --no
offers_only "cores" tshard-run --bind c
offers_only "0 1 2 3" tshard-run -r ""
offers_only "files" tshard-run --hostfile ho
offers_only "" tshard-run -n ""
offers "grep files" tshard-run -n 2 gre
offers_only "files" tshard-run -np 2 --bind none cat fi
offers "--plan" tshard-run --
offers "--ranks --machine --search --memory-limit" tshard-plan --
offers "grep files" tshard-plan -n 2 gre
offers "linear collectives data_parallel support" tshard-bench ""
offers_only "linear" tshard-bench lin
offers "--batch --in --shard --dtype --json" tshard-bench linear --
offers_only "float32 float64 float16" tshard-bench linear --dtype floa
offers_only "list show verify merge split" tshard-checkpoint ""
offers_only "--file-size --files" tshard-checkpoint merge --fi
offers_only "files" tshard-checkpoint show st

if [ -r /usr/share/bash-completion/bash_completion ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/completions"
    cp "$root/tools/completion.bash" "$work/completions/tshard-run"
    said=$(BASH_COMPLETION_USER_DIR=$work bash --norc -c '. /usr/share/bash-completion/bash_completion
        _completion_loader tshard-run; complete -p tshard-run')
    [ "$said" = "complete -F _tshard tshard-run" ] || fail "bash-completion: '$said'"
else
    echo "without bash-completion: its loader is not tested"
fi
exit $code
