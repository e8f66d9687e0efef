#!/usr/bin/env bash
# rank_losses.sh BUILD [STEPS]: the losses of train_text on one, two and three ranks, as lines "RANKS STEP LOSS".
# cmake/site/pictures.py draws docs/pictures/ranks.svg from cmake/site/rank_losses.txt, which is what this prints.
set -euo pipefail
bin=$(realpath "$1")/bin steps=${2:-200}
export TSHARD_BLAS_THREADS=1
for ranks in 1 2 3; do
    "$bin/tshard-run" --no-prefix -n $ranks "$bin/train_text" --json --steps "$steps" |
        python3 -c '
import json
import sys
for line in sys.stdin:
    row = json.loads(line) if line.startswith("{") else {}
    if "loss" in row:
        print(sys.argv[1], row["step"], row["loss"])' $ranks
done
