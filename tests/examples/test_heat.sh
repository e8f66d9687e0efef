#!/usr/bin/env bash
# test_heat.sh BUILD: the example of a program with MPI of its own. The solver's field has the same bits with the surrogate
# beside it and without, on any number of ranks, and the surrogate's field is closer to it than the field before.
set -uo pipefail
build=$1
heat=$build/bin/heat
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=\(\/.*\)/\1/p' "$build/CMakeCache.txt")
[ -x "$heat" ] && [ -n "$launcher" ] || { echo "no heat, or no launcher of MPI"; exit 77; }
# shellcheck source=tests/support/mpi.sh
. "$(dirname "$0")/../support/mpi.sh"
failures=0
fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# run RANKS ARGUMENT...: the example's line.
run() { mpi_run "$1" "$heat" --json "${@:2}" | grep '^{'; }
# number NAME LINE
number() { sed -n "s/.*\"$1\": \"*\([0-9a-f.e+-]*\).*/\1/p" <<< "$2"; }

alone=$(run 4 --alone)
field=$(number field "$alone")
[ ${#field} = 16 ] || fail "the solver alone: '$alone'"
for ranks in 4 1 3; do
    line=$(run $ranks) || fail "$ranks ranks ended with $?"
    echo "$ranks ranks: $line"
    [ "$(number field "$line")" = "$field" ] || fail "$ranks ranks: another field than the solver's alone, $field"
    awk -v error="$(number error "$line")" -v before="$(number unchanged "$line")" \
        'BEGIN { exit !(error > 0 && error < 0.01 && 3 * error < before) }' || fail "$ranks ranks: the error is too large"
done
line=$(TSHARD_BACKEND=mpi run 4 --fields 3) || fail "over mpi it ended with $?"
[ "$(number field "$line")" = "$(number field "$(run 4 --fields 3 --alone)")" ] || fail "over mpi: another field"
mpi_run 1 "$heat" --help | grep '^usage: mpirun' > /dev/null || fail "--help"
mpi_run 2 "$heat" --size x > /dev/null 2>&1 && fail "a wrong option is taken"
[ $failures = 0 ]
