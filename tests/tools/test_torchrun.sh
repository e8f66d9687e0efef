#!/bin/bash
# test_torchrun.sh BUILD: a program whose ranks torchrun starts, as docs/launchers.md has it. Skipped where there is no
# torchrun (pip install torch).
set -u
command -v torchrun > /dev/null || { echo "skipped: there is no torchrun (pip install torch)"; exit 77; }
bin=$(realpath "$1")/bin
export OPENBLAS_NUM_THREADS=1 TSHARD_HEAP=256M
for ranks in 1 3; do
    torchrun --nnodes 1 --node-rank 0 --master-addr 127.0.0.1 --nproc-per-node $ranks --no-python "$bin/mlp" > /dev/null ||
        { echo "$ranks ranks: exit code $?"; exit 1; }
done
# A rank that fails ends the others and torchrun.
# shellcheck disable=SC2016 # the ranks' own variables
timeout 60 torchrun --nproc-per-node 2 --no-python sh -c '[ "$RANK" = 0 ] || exit 3; exec "$0"' "$bin/mlp" > /dev/null 2>&1
code=$?
[ $code -ne 0 ] && [ $code -ne 124 ] || { echo "a rank that fails: exit code $code"; exit 1; }
