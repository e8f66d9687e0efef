#!/usr/bin/env bash
# elastic_losses.sh BUILD [STEPS]: the losses of any_machines on one rank, and on two, three and five ranks of which some are
# killed and others join, as lines "RUN STEP LOSS", RUN being the number of ranks at the start; lines "RUN STEP WORDS" say
# what has happened before that step. cmake/site/pictures.py draws cmake/site/losses.txt, which is what this prints.
set -euo pipefail
bin=$(realpath "$1")/bin steps=${2:-120}
TSHARD_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export TSHARD_TOKEN
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TSHARD_BLAS_THREADS=1
program=("$bin/any_machines" --steps "$steps" --survive --every 5)
port=$((RANDOM % 10000 + 20000))

# run RANKS OPTION...
run() {
    local ranks=$1
    shift
    "$bin/tshard-run" --no-prefix -n "$ranks" --min-ranks 1 --port $port "${program[@]}" "$@" 2> "$folder/err" |
        tee "$folder/$ranks" | awk -v run="$ranks" '
            / go on after step / { print run, $NF, $1, ($1 > 1 ? "ranks" : "rank") }
            $1 == "step" { loss[$2 + 0] = $3; if ($2 + 0 > last) last = $2 + 0 }
            END { for (i = 0; i <= last; i++) if (i in loss) print run, i, loss[i] }' | sort -s -k2n
}

run 1
run 2 --model 2 --kill 1:40
run 3 --model 3 --kill 2:55
{
    until grep -qs '^step 89:' "$folder/5"; do sleep 0.05; done
    "$bin/tshard-run" --no-prefix -n 2 --join 127.0.0.1:$port "${program[@]}" --model 5 > "$folder/joined" 2>&1
} &
run 5 --model 5 --kill 1:30,4:30,2:70 --wait 90:4
wait
