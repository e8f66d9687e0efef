#!/usr/bin/env bash
# unequal.sh BUILD [TURNS] [mlp|train_gpt] [OPTION...]: tshard-bench mlp (the default) or train_gpt on two ranks of which one
# shares its core with a process that spins, with weights that the ranks measure (auto), and balanced. Cores 0 and 1 are taken.
# In each turn the speeds of one rank on core 0, and of one on core 1 beside the spinning process, are measured, too: their sum
# is what two ranks can reach. Prints the speed of the two ranks as a part of that sum in each turn, and the medians. Steps must
# take 100 ms or more on one core: a rank that shares its core runs for some milliseconds at a time, so the median of shorter
# steps is that of steps in which it was not interrupted. Where other processes have taken more than a twentieth of the
# processors meanwhile, the turn says so.
set -euo pipefail
bin=$(realpath "$1")/bin turns=${2:-3}
shift $(($# < 2 ? $# : 2))
program=mlp
case ${1:-} in mlp | train_gpt)
    program=$1
    shift
    ;;
esac
export TSHARD_BLAS_THREADS=1 OMP_NUM_THREADS=1
gpt=(--layers 4 --heads 12 --embed 384 --block 128 --batch 6 --steps 12 --eval-batches 1 --sample 0)
step() { sed -n 's/.*"step_ms": *\([0-9.e-]*\).*/\1/p' | tail -n 1; }
spin() { taskset -c 1 bash -c 'while :; do :; done' & spinner=$!; }
trap 'kill "${spinner:-}" 2> /dev/null || :' EXIT

# measure WEIGHTS LAUNCHER...: the ms of a step; WEIGHTS "": balanced.
measure() {
    local weights=$1
    shift
    if [ "$program" = mlp ]; then
        "$@" "$bin/tshard-bench" mlp --json ${weights:+--weights "$weights"} "${options[@]}" | step
    else
        "$@" "$bin/train_gpt" --json "${gpt[@]}" ${weights:+--model-parallel "$weights"} "${options[@]}" | step
    fi
}

# Hundredths of seconds that all processes have run; those that the turns and their children have.
all_ran() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
own_ran() { awk '{ print $14 + $15 + $16 + $17 }' "/proc/$self/stat"; }

options=("$@") two=("$bin/tshard-run" -n 2 --no-prefix --bind 0:1)
for ((turn = 0; turn < turns; turn++)); do
    self=$BASHPID
    all=$(all_ran) own=$(own_ran) began=$(date +%s%N)
    free=$(measure "" taskset -c 0)
    spin
    shared=$(measure "" taskset -c 1)
    auto=$(measure auto "${two[@]}")
    balanced=$(measure "" "${two[@]}")
    kill "$spinner"
    wait "$spinner" 2> /dev/null || :
    others=$((1000000000 * ($(all_ran) - all - ($(own_ran) - own)) / ($(nproc --all) * ($(date +%s%N) - began))))
    echo "$free $shared $auto $balanced $others"
done | awk '
    { sum = 1 / $1 + 1 / $2; auto[NR] = 1 / $3 / sum; balanced[NR] = 1 / $4 / sum
      printf "turn %d: speeds 1 and %.2f; of their sum two ranks have %.2f with measured weights, %.2f balanced%s\n", NR, $1 / $2, auto[NR], balanced[NR],
             ($5 > 5 ? sprintf(" (other processes took %d %% of the processors)", $5) : "") }
    function median(a, n,   i, k, t) {
        for (i = 2; i <= n; i++) for (k = i; k > 1 && a[k] < a[k - 1]; k--) { t = a[k]; a[k] = a[k - 1]; a[k - 1] = t }
        return a[int((n + 1) / 2)]
    }
    END { printf "measured weights %.2f, balanced %.2f\n", median(auto, NR), median(balanced, NR) }'
