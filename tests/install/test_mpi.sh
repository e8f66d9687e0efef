#!/usr/bin/env bash
# test_mpi.sh BUILD: install what BUILD holds, then build programs with MPI of their own against it as a user would, in C
# by the MPI's compiler wrapper and pkg-config, in Fortran too where there is one, and run them as ranks of MPI.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
cmake=${CMAKE:-cmake}
cached() { sed -n "s/^$1:[A-Z]*=\(\/.*\)/\1/p" "$build/CMakeCache.txt"; }
launcher=$(cached MPIEXEC_EXECUTABLE) mpicc=$(cached MPI_C_COMPILER)
[ -n "$launcher" ] && [ -n "$mpicc" ] || { echo "the build has no MPI with a compiler wrapper"; exit 77; }
# shellcheck source=tests/support/mpi.sh
. "$here/../support/mpi.sh"
work=$mpi_folder
failures=0
fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

"$cmake" --install "$build" --prefix "$work/prefix" > "$work/install.log" || { cat "$work/install.log"; exit 1; }
[ -f "$work/prefix/include/tshard/mpi.h" ] || { echo "the library was built without MPI"; exit 77; }
libdir=$(dirname "$(find "$work/prefix" -name libtshard.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig LD_LIBRARY_PATH=$libdir

# shellcheck disable=SC2046
"$mpicc" -std=c11 -O1 -Wall -Wextra -Werror "$here/mpi_host.c" $(pkg-config --cflags --libs tshard) -o "$work/host" ||
    fail "a program in C"
for run in single-3 multiple-2 half-4 overlap-4 anew-4 traffic-3 misuse-4 finalized-2 variables-4; do
    mpi_run "${run#*-}" "$work/host" "${run%-*}" || fail "$run ended with $?"
done

# The page's program, which has one code block.
sed -n '/^```c/,/^```/{/^```/!p}' "$here/../../docs/mpi-programs.md" > "$work/page.c"
# shellcheck disable=SC2046
"$mpicc" -std=c11 -Wall -Wextra -Werror "$work/page.c" $(pkg-config --cflags --libs tshard) -o "$work/page" ||
    fail "the program of docs/mpi-programs.md"
[ "$(mpi_run 4 "$work/page")" = "the sum over the ranks of the world is 6" ] || fail "the program of docs/mpi-programs.md"

mpifort=$(dirname "$mpicc")/$(basename "$mpicc" | sed 's/mpicc/mpifort/')
if command -v "$mpifort" > /dev/null && "$mpifort" --version > /dev/null 2>&1; then
    # shellcheck disable=SC2046
    (cd "$work" && "$mpifort" "$here/mpi_fortran.f90" $(pkg-config --libs tshard) -o fortran) || fail "a program in Fortran"
    [ "$(mpi_run 4 "$work/fortran")" = "fortran: good" ] || fail "the program in Fortran"
else
    echo "skipped: the program in Fortran, for there is no $mpifort with a Fortran compiler"
fi
[ $failures = 0 ]
