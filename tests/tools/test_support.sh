#!/usr/bin/env bash
# The README's table of what is supported is what `tshard-bench support` prints, between two marks. A build may have
# columns less (no MPI) or more (CUDA) than the README: those that both have are compared.  test_support.sh BUILD
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${TSHARD_BIN_DIR:-$1/bin}/tshard-bench

# README FILE: what stands between the marks
marked() {
    awk '/^<!-- end of tshard-bench support -->$/ { inside = 0 }
         inside
         /^<!-- tshard-bench support -->$/ { inside = 1 }' "$1"
}
# The table's cells as lines "row column: cell", then the other lines, of the columns that the table in file $1 has too
cells() {
    awk -F' *[|] *' 'NR == FNR { if (/`self`/) for (i = 3; i < NF; i++) known[$i]; next }
                     /`self`/ { for (i = 3; i < NF; i++) name[i] = $i; next }
                     /^[|]---/ { next }
                     /^[|]/ { for (i = 3; i < NF; i++) if (name[i] in known) print $2, name[i] ": " $i; next }
                     { print }' "$1" "$2"
}
# compare README PRINTED
compare() {
    marked "$1" > "$work/readme"
    diff -u <(cells "$2" "$work/readme") <(cells "$work/readme" "$2")
}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$program" support > "$work/printed" || { echo "$program support failed"; exit 1; }
# shellcheck disable=SC2016  # Markdown's backquotes
lines=$(cells "$work/printed" "$work/printed" | grep -cE '^(all_reduce|send|barrier) `(self|local)`: ')
[ "$lines" -eq 6 ] || { echo "the table is not what this test reads: $lines"; exit 1; }
# shellcheck disable=SC2016
marked "$root/README.md" | grep -q '^| | `self` | `local` | `mpi` |' || { echo "README.md lacks a backend"; exit 1; }
compare "$root/README.md" "$work/printed" || { echo "README.md: put there what tshard-bench support prints"; exit 1; }

# The comparison sees a cell that differs.
sed 's/^| broadcast | F I C/| broadcast | F I/' "$root/README.md" > "$work/other"
if compare "$work/other" "$work/printed" > /dev/null; then
    echo "a cell that differs was not noticed"
    exit 1
fi
