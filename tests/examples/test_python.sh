#!/usr/bin/env bash
# test_python.sh BUILD: the example in Python on 1, 2 and 3 ranks, and its structures beside those of the headers.
set -uo pipefail
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
example=$root/examples/python/tshard.py
python=""
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2> /dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "no python3 here has NumPy (Debian: python3-numpy)"; exit 77; }
nm -D "$build/lib/libtshard.so" | grep '__[at]san_' > /dev/null && { echo "a library with a sanitizer cannot be loaded"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
code=0
fail() { code=1; echo "FAILED: $*"; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TSHARD_INIT TSHARD_BACKEND
export LD_LIBRARY_PATH=$build/lib OPENBLAS_NUM_THREADS=1 TSHARD_TIMEOUT=60 PYTHONDONTWRITEBYTECODE=1

for ranks in 1 2 3; do
    said=$("$build/bin/tshard-run" -n $ranks --no-prefix "$python" "$example" 2> "$work/err") ||
        fail "$ranks ranks: exit code $?: $(cat "$work/err")"
    for ((rank = 0; rank < ranks; rank++)); do
        grep -qx "rank $rank of $ranks: 5 rows, as NumPy: True" <<< "$said" || fail "$ranks ranks: '$said'"
        grep -q "^rank $rank: TSH_ERR_SHAPE: .*linear_forward.*6.*7" <<< "$said" || fail "$ranks ranks, no exception: '$said'"
    done
done

# Sizes and offsets of the structures, by Python and by the compiler.
"$python" - "$(dirname "$example")" "$work" << 'PYTHON' || fail "the structures cannot be listed"
import sys
sys.path.insert(0, sys.argv[1])
import tshard, ctypes
with open(sys.argv[2] + "/python", "w") as mine, open(sys.argv[2] + "/c.c", "w") as program:
    program.write("#include <stddef.h>\n#include <stdio.h>\n#include <tshard/tshard.h>\nint main(void) {\n")
    for name, kind in {"tsh_layout": tshard.Layout, "tsh_tensor_config": tshard.TensorConfig, "tsh_init": tshard.Init,
                       "tsh_linear_config": tshard.LinearConfig}.items():
        mine.write(f"{name} {ctypes.sizeof(kind)}\n")
        program.write(f'printf("{name} %zu\\n", sizeof({name}));\n')
        for field, _ in kind._fields_:
            mine.write(f"{name}.{field} {getattr(kind, field).offset} {getattr(kind, field).size}\n")
            program.write(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));\n')
    program.write("}\n")
PYTHON
"${CC:-cc}" -std=c11 -I"$root/include" "$work/c.c" -o "$work/c" && "$work/c" > "$work/headers"
diff "$work/python" "$work/headers" || fail "the structures are not those of the headers"
exit $code
