#!/usr/bin/env bash
# test_python.sh BUILD: the declarations for Python beside the headers: every function of the library, and every structure
# as the compiler lays it out. Then, where NumPy is, the example on 1, 2 and 3 ranks.
set -uo pipefail
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
example=$root/examples/python
command -v python3 > /dev/null || { echo "there is no python3 here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
code=0
fail() { code=1; echo "FAILED: $*"; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TSHARD_INIT TSHARD_BACKEND
export LD_LIBRARY_PATH=$build/lib PYTHONPATH=$work OPENBLAS_NUM_THREADS=1 TSHARD_TIMEOUT=60 PYTHONDONTWRITEBYTECODE=1
python3 "$example/make_api.py" "$root/include" > "$work/tshard_api.py" || fail "make_api.py"

# tshard/mpi.h belongs to C programs that have an MPI.
nm -D --defined-only "$build/lib/libtshard.so" | awk '$3 ~ /^tsh_/ && $3 !~ /_mpi(_f)?$/ { print $3 }' | sort > "$work/library"
python3 -c 'import tshard_api; print("\n".join(sorted(tshard_api.FUNCTIONS)))' | LC_ALL=C sort > "$work/python"
LC_ALL=C sort -o "$work/library" "$work/library"
diff "$work/library" "$work/python" || fail "the functions are not those of the library"

# Values of constants, sizes and offsets of structures, by Python and by the compiler.
python3 - "$work" << 'PYTHON' || fail "the structures cannot be listed"
import ctypes
import sys
import tshard_api as api
with open(sys.argv[1] + "/python", "w") as mine, open(sys.argv[1] + "/c.c", "w") as program:
    program.write("#include <stddef.h>\n#include <stdio.h>\n#include <tshard/tshard.h>\nint main(void) {\n")
    for name, value in vars(api).items():
        if name.startswith("TSH_"):
            mine.write(f"{name} {value}\n")
            program.write(f'printf("{name} %d\\n", (int){name});\n')
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and hasattr(value, "_fields_"):
            mine.write(f"{name} {ctypes.sizeof(value)}\n")
            program.write(f'printf("{name} %zu\\n", sizeof({name}));\n')
            for field, _ in value._fields_:
                place = getattr(value, field)
                mine.write(f"{name}.{field} {place.offset} {place.size}\n")
                program.write(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                              f'sizeof((({name} *)0)->{field}));\n')
    program.write("}\n")
PYTHON
"${CC:-cc}" -std=c11 -I"$root/include" "$work/c.c" -o "$work/c" && "$work/c" > "$work/headers"
diff "$work/python" "$work/headers" || fail "constants or structures are not those of the headers"
[ "$(wc -l < "$work/headers")" -gt 500 ] || fail "only $(wc -l < "$work/headers") lines of constants and structures"

python=""
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2> /dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "no python3 here has NumPy (Debian: python3-numpy)"; exit $((code ? code : 77)); }
nm -D "$build/lib/libtshard.so" | grep '__[at]san_' > /dev/null &&
    { echo "a library with a sanitizer cannot be loaded"; exit $((code ? code : 77)); }
for ranks in 1 2 3; do
    said=$("$build/bin/tshard-run" -n $ranks --no-prefix "$python" "$example/tshard.py" 2> "$work/err") ||
        fail "$ranks ranks: exit code $?"
    [ -s "$work/err" ] && fail "$ranks ranks: $(cat "$work/err")"
    for ((rank = 0; rank < ranks; rank++)); do
        grep -qx "rank $rank of $ranks: loss 14.8718 to 0.1673, as NumPy: True" <<< "$said" || fail "$ranks ranks: '$said'"
        grep -q "^rank $rank: TSH_ERR_SHAPE: .*linear_forward.*6.*7" <<< "$said" || fail "$ranks ranks, no exception: '$said'"
    done
done
exit $code
