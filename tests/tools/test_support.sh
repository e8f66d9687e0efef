#!/usr/bin/env bash
# test_support.sh BUILD: the table in docs/collectives.md, between two marks, is what `tshard-bench support` prints. A
# build may lack columns of the page (no MPI) or have more (CUDA): the columns that both have are compared.
set -uo pipefail
page=$(cd "$(dirname "$0")/../.." && pwd)/docs/collectives.md
program=$1/bin/tshard-bench

# marked FILE: the lines between the marks
marked() {
    awk '/^<!-- end of tshard-bench support -->$/ { inside = 0 }
         inside
         /^<!-- tshard-bench support -->$/ { inside = 1 }' "$1"
}
# cells KNOWN FILE: the cells of FILE's table as lines "row column: cell", of the columns that KNOWN's table has too,
# then its other lines
cells() {
    awk -F' *[|] *' 'NR == FNR { if (/`self`/) for (i = 3; i < NF; i++) known[$i]; next }
                     /`self`/ { for (i = 3; i < NF; i++) name[i] = $i; next }
                     /^[|]---/ { next }
                     /^[|]/ { for (i = 3; i < NF; i++) if (name[i] in known) print $2, name[i] ": " $i; next }
                     { print }' "$1" "$2"
}
# compare PAGE PRINTED
compare() {
    marked "$1" > "$work/table"
    diff -u <(cells "$2" "$work/table") <(cells "$work/table" "$2")
}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$program" support > "$work/printed" || { echo "$program support failed"; exit 1; }
# shellcheck disable=SC2016  # Markdown's backquotes
lines=$(cells "$work/printed" "$work/printed" | grep -cE '^(all_reduce|send|barrier) `(self|local)`: ')
[ "$lines" -eq 6 ] || { echo "the table is not what this test reads: $lines"; exit 1; }
# shellcheck disable=SC2016
marked "$page" | grep -q '^| | `self` | `local` | `ucx` | `mpi` |' || { echo "$page lacks a backend"; exit 1; }
compare "$page" "$work/printed" || { echo "$page: replace the table by what tshard-bench support prints"; exit 1; }

# The comparison sees a cell that differs.
sed 's/^| broadcast | F I C/| broadcast | F I/' "$page" > "$work/other"
if compare "$work/other" "$work/printed" > /dev/null; then
    echo "a cell that differs was not noticed"
    exit 1
fi
