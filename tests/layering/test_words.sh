#!/usr/bin/env bash
# The comments and messages of this tree pass check_words.sh; and that check notices one that does not.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
check=$here/check_words.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect good|bad LINE: a tree with one file of this line.
expect() {
    local want=$1 got=good
    mkdir -p "$tree/src"
    printf '%s\n' "$2" > "$tree/src/a.c"
    bash "$check" "$tree" > /dev/null || got=bad
    [ "$got" = "$want" ] || { echo "judged $got, not $want: $2"; failures=$((failures + 1)); }
}

expect good '/* True when the rank has posted its slot. */'
expect good 'const char *same = "the same"; /* the same bytes on every rank */'
expect good 'int untold, offset; // Offsets of the blocks.'
expect bad '/* Nobody waits here. */'
expect bad 'return fail("somebody else listens here");'
expect bad '/* The peers are told of it. */'
expect bad '/* The same for two ranks. */'
expect bad '    // Of all threads.'
expect bad '/* Whether it is there. */'
rm -rf "${tree:?}"/*
bash "$check" "$tree" > /dev/null && { echo "an empty tree passed"; failures=$((failures + 1)); }

bash "$check" "$here/../.." || failures=$((failures + 1))
[ $failures = 0 ]
