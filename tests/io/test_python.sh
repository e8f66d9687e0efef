#!/usr/bin/env bash
# test_python.sh BUILD: files that Python's safetensors writes open here, and files written here open there, in one piece
# and in several: sums of all elements are the same.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python3 -c 'import numpy, safetensors' 2> /dev/null || { echo "skipped: there is no python3 with numpy and safetensors"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

python3 - "$work/model.safetensors" << 'END' || exit 1
import sys
import numpy
import safetensors.numpy

random = numpy.random.default_rng(1)
shapes = [(40, 30), (7,), (), (3, 0, 2), (5, 4, 3, 6), (300, 1), (1, 300), (129, 257)]
tensors = {}
for dtype in ["float64", "float32", "float16", "int64", "int32", "uint8"]:
    for i, shape in enumerate(shapes):
        tensors[f"{dtype}.{i}"] = numpy.asarray(random.normal(size=shape) * 20 + 120).astype(dtype)
safetensors.numpy.save_file(tensors, sys.argv[1], metadata={"format": "np"})
END
python3 "$here/sums.py" "$work/model.safetensors" > "$work/sums.txt" || exit 1
failures=0

# round RANKS PATH [BYTES]: loads Python's file and writes it again; Python finds the sums that it found before
round() {
    local path=$2
    "$build/bin/tshard-run" -n "$1" "$build/tests/io/load_sums" "$work/model.safetensors" "$work/sums.txt" --save "$path" \
        ${3:+"$3"} > "$work/said" 2>&1 && grep -q " 0 wrong" "$work/said" &&
        python3 "$here/sums.py" "$path" > "$work/again.txt" 2>> "$work/said" && cmp "$work/sums.txt" "$work/again.txt" && return
    echo "$1 ranks, $path:"
    cat "$work/said"
    failures=$((failures + 1))
}

build=$1
for ranks in 1 2 3 4; do
    round $ranks "$work/again.safetensors"
    mkdir "$work/folder-$ranks"
    round $ranks "$work/folder-$ranks" 100000
    ls "$work/folder-$ranks" | grep -q '^model-00003-of-' || { echo "no third file"; failures=$((failures + 1)); }
done
[ $failures = 0 ]
