#!/usr/bin/env bash
# The README's table of what is supported is what `tshard-bench support` prints, between two marks. A build without MPI
# has one column less; the others are compared.  test_support.sh BUILD
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${TSHARD_BIN_DIR:-$1/bin}/tshard-bench

# README FILE: what stands between the marks
marked() {
    awk '/^<!-- end of tshard-bench support -->$/ { inside = 0 }
         inside
         /^<!-- tshard-bench support -->$/ { inside = 1 }' "$1"
}
# compare README PRINTED
compare() {
    # shellcheck disable=SC2016  # Markdown's backquotes
    if grep -q '`mpi`' <<< "$2"; then
        diff -u <(marked "$1") - <<< "$2"
    else
        diff -u <(marked "$1" | awk -F'|' '/^\|/ { print $1 "|" $2 "|" $3 "|" $4 "|"; next } { print }') - <<< "$2"
    fi
}

printed=$("$program" support) || { echo "$program support failed"; exit 1; }
rows=$(grep -c '^| [a-z_]* |' <<< "$printed")
[ "$rows" -eq 11 ] || { echo "$rows collectives are in the table, not 11"; exit 1; }
compare "$root/README.md" "$printed" || { echo "README.md: put there what tshard-bench support prints"; exit 1; }

# The comparison sees a cell that differs.
copy=$(mktemp) || exit 1
trap 'rm -f "$copy"' EXIT
sed 's/^| broadcast | F I C/| broadcast | F I/' "$root/README.md" > "$copy"
if compare "$copy" "$printed" > /dev/null; then
    echo "a cell that differs was not noticed"
    exit 1
fi
