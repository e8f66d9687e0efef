#!/usr/bin/env bash
# test_checkpoint.sh BUILD: tshard-checkpoint on what train_text has saved: what it prints, files that it finds changed,
# and what it writes, which loads, has the same checksums and is what Python reads.
set -uo pipefail
bin=$1/bin
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TSHARD_INIT TSHARD_BACKEND
export OPENBLAS_NUM_THREADS=1 TSHARD_TIMEOUT=60
code=0
fail() { code=1; echo "FAILED: $*"; }
tool() { "$bin/tshard-checkpoint" "$@"; }

# expect CODE WORDS ARGS...: on stdout or stderr.
expect() {
    local wanted=$1 words=$2 got
    shift 2
    tool "$@" > "$folder/out" 2>&1
    got=$?
    [ $got = "$wanted" ] || fail "$*: exit code $got, not $wanted: $(cat "$folder/out")"
    grep -qF -- "$words" "$folder/out" || fail "$*: no word of '$words': $(cat "$folder/out")"
}

train() {
    local ranks=$1
    shift
    "$bin/tshard-run" -n "$ranks" --no-prefix "$bin/train_text" --json --steps 12 --batch 6 --context 4 --embed 5 \
        --hidden 17 --lr 0.01 "$@" || fail "train_text on $ranks ranks $*"
}
train 3 --save "$folder/run" --every 5 > "$folder/all" 2>&1

# What it prints: aligned columns, the newest step first.
expect 0 "        10  " list "$folder/run"
[ "$(awk 'NR > 1 { print $1 }' "$folder/out" | paste -sd' ')" = "12 10 5" ] || fail "list: $(cat "$folder/out")"
[ "$(awk '{ print match($0, "saved|20[0-9][0-9]-") }' "$folder/out" | sort -u)" = 41 ] || fail "list: $(cat "$folder/out")"
expect 0 "step        12" show "$folder/run"
expect 0 "optimizer   adamw, learning rate " show "$folder/run"
expect 0 "value       batch (int64) 6" show "$folder/run"
grep -q '^optimizer.down.weight.exp_avg_sq  *float32    \[17,17\]  *1.1 KiB  *3  [0-9a-f]\{16\}$' "$folder/out" || fail "show: $(cat "$folder/out")"
expect 0 "21 tensors, " verify "$folder/run/step-00000005"
expect 0 ": all checksums fit" verify "$folder/run"

# Merged and split again: the same tensors, whatever the files.
sums() { tool show "$1" | awk '/^name / { on = 1; next } on { print $1, $NF }' | sort; }
sums "$folder/run/step-00000010" > "$folder/sums"
[ "$(wc -l < "$folder/sums")" = 21 ] || fail "show lists no 21 tensors"
expect 0 "7 tensors, " merge "$folder/run/step-00000010" "$folder/model"
expect 0 "21 tensors, " merge "$folder/run/step-00000010" "$folder/files" --file-size 1K --optimizer
expect 1 "is there already" merge "$folder/run" "$folder/model"
[ "$(ls "$folder/model")" = model.safetensors ] || fail "merge: $(ls "$folder/model")"
[ -f "$folder/files/model.safetensors.index.json" ] || fail "merge: $(ls "$folder/files")"
expect 0 "21 tensors in 4 files" split "$folder/files" "$folder/again" --files 4 --step 77
sums "$folder/again" | diff - "$folder/sums" || fail "checksums differ after merge and split"
expect 0 "7 tensors in 2 files" split "$folder/model/model.safetensors" "$folder/again" --files 2
expect 0 "all checksums fit" verify "$folder/again/step-00000000"
expect 0 "21 tensors in 5 files" split "$folder/run/step-00000010" "$folder/five" --files 5
sums "$folder/five" | diff - "$folder/sums" || fail "checksums differ after a split"
train 2 --resume "$folder/five" > "$folder/resumed" 2>&1
python3 - "$folder" << 'PYTHON' || fail "python"
import json, struct, sys
folder = sys.argv[1]

# Losses of the run that was resumed from the split checkpoint.
losses = lambda name: [json.loads(line)["loss"] for line in open(f"{folder}/{name}") if line.startswith("{")]
whole, resumed = losses("all"), losses("resumed")
assert len(whole) == 12 and len(resumed) == 2, (whole, resumed)
assert all(abs(a - b) < 1e-5 * abs(a) for a, b in zip(whole[10:], resumed)), (whole[10:], resumed)

# Checksums by their formula, from the merged file.
sums = dict(line.split() for line in open(f"{folder}/sums"))
data = open(f"{folder}/model/model.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
assert header.pop("__metadata__") == {"format": "pt"} and len(header) == 7, header
for name, entry in header.items():
    begin, end = entry["data_offsets"]
    words = struct.unpack(f"<{(end - begin) // 4}I", data[8 + length + begin:8 + length + end])
    total, mask = 0, 2**64 - 1
    for i, word in enumerate(words):
        h = i * 0x9E3779B97F4A7C15 & mask
        total += word * ((h ^ h >> 32) | 1)
    assert f"{total & mask:016x}" == sums[name], (name, f"{total & mask:016x}", sums[name])
index = json.load(open(f"{folder}/files/model.safetensors.index.json"))
assert len(index["weight_map"]) == 21 and len(set(index["weight_map"].values())) > 2, index
PYTHON

# What is wrong is said.
changed=$folder/again/step-00000077/rank-00002.safetensors
printf x | dd of="$changed" bs=1 seek=$(($(stat -c %s "$changed") - 5)) conv=notrunc 2> /dev/null
expect 1 "tensors have changed" verify "$folder/again/step-00000077"
expect 1 "has a wrong checksum" merge "$folder/again/step-00000077" "$folder/bad" --optimizer
[ ! -e "$folder/bad" ] && [ ! -e "$folder/bad.partial" ] || fail "merge leaves a folder of changed tensors"
truncate -s 100 "$folder/run/step-00000012/rank-00000.safetensors"
expect 0 "not whole: " list "$folder/run"
expect 0 "step        10" show "$folder/run"
expect 1 "is truncated: " show "$folder/run/step-00000012"
expect 1 "no complete checkpoint found" verify "$folder"
expect 1 "cannot be opened" list "$folder/nowhere"
expect 1 "there is no checkpoint" list "$folder"
expect 2 "unknown command 'what'" what "$folder"
expect 2 "a command is missing"
expect 2 "split wants --files N" split "$folder/run" "$folder/x"
expect 2 "--files wants a whole number from 1 to 100000, not '0'" split "$folder/run" "$folder/x" --files 0
expect 2 "--file-size wants bytes" merge "$folder/run" "$folder/x" --file-size 5GB
expect 2 "list takes no --files" list "$folder/run" --files 3
expect 2 "--files wants a value" split "$folder/run" "$folder/x" --files
expect 2 "unknown option '--what'" list "$folder/run" --what
expect 0 "usage: tshard-checkpoint" --help
tool list "$folder/run" > /dev/full 2> "$folder/out" && fail "list > /dev/full"
grep -q "cannot write all of the output" "$folder/out" || fail "list > /dev/full: $(cat "$folder/out")"
exit $code
