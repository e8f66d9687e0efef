#!/usr/bin/env bash
# From a fresh clone to a sharded language model that learns a text on two ranks, and the cost of sharding beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

heading() { printf '\n== %s\n' "$1"; }

heading "1. What is needed"
tshard_setup build
echo "Everything that is needed is here."

heading "2. Building into build/"
mkdir -p build
# Kernels for GPUs compile for minutes, in vain where there is none.
cuda=OFF
have_command nvidia-smi && cuda=AUTO
if ! { cmake -S . -B build -G Ninja -DTSHARD_CUDA=$cuda -DTSHARD_BUILD_TESTS=OFF && cmake --build build; } > build/quickstart.log 2>&1; then
    tail -n 40 build/quickstart.log >&2
    echo "The build failed; all of its output is in build/quickstart.log." >&2
    exit 1
fi
echo "Programs are in build/bin, libraries in build/lib."

heading "3. Two ranks learn a text together (about 20 seconds)"
cat << 'TEXT'
A byte-level language model, split over 2 processes: each holds half of the vocabulary, of the hidden layer and of the
output head. It reads tshard's own sources, and the loss falls from the value of guessing. Then the model writes.
TEXT
set -x
build/bin/tshard-run -n 2 build/bin/train_text
{ set +x; } 2> /dev/null

heading "4. What a split by column or by row costs"
cat << 'TEXT'
One linear layer, forward and backward, on 2 processes. dense: each holds the whole weight. column: each holds half of
the outputs and pays an all-reduce in backward. row: each holds half of the inputs and pays one in forward.
efficiency is the time of the bare matrix products over the time of the step: 1.00 would be sharding for free.
TEXT
set -x
build/bin/tshard-run -n 2 build/bin/tshard-bench linear --batch 512 --in 1024 --out 1024 --shard all
{ set +x; } 2> /dev/null

heading "Next"
cat << 'TEXT'
docs/start.md goes on from here to a program of your own. examples/ has whole programs, include/tshard the interface,
README.md the picture of how it fits together; make docs makes a site of all pages.
scripts/test.sh runs the tests that say whether it works here; --all: everything else as well.
TEXT
