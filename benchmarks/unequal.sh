#!/usr/bin/env bash
# unequal.sh BUILD [TURNS] [OPTION...]: tshard-bench mlp on two ranks of which one shares its core with a process that spins,
# with weights that the ranks measure (auto), and balanced. Cores 0 and 1 are taken. In each turn the speeds of one rank on
# core 0, and of one on core 1 beside the spinning process, are measured, too: their sum is what two ranks can reach. Prints
# the speed of the two ranks as a part of that sum in each turn, and the medians.
set -euo pipefail
bin=$(realpath "$1")/bin turns=${2:-3}
shift $(($# < 2 ? $# : 2))
options=(--json "$@")
export TSHARD_BLAS_THREADS=1 OMP_NUM_THREADS=1
step() { sed -n 's/.*"step_ms": *\([0-9.e-]*\).*/\1/p' | tail -n 1; }
spin() { taskset -c 1 bash -c 'while :; do :; done' & spinner=$!; }
trap 'kill "${spinner:-}" 2> /dev/null || :' EXIT
for ((turn = 0; turn < turns; turn++)); do
    free=$(taskset -c 0 "$bin/tshard-bench" mlp "${options[@]}" | step)
    spin
    shared=$(taskset -c 1 "$bin/tshard-bench" mlp "${options[@]}" | step)
    auto=$("$bin/tshard-run" -n 2 --no-prefix --bind '0:1' "$bin/tshard-bench" mlp --weights auto "${options[@]}" | step)
    balanced=$("$bin/tshard-run" -n 2 --no-prefix --bind '0:1' "$bin/tshard-bench" mlp "${options[@]}" | step)
    kill "$spinner"
    wait "$spinner" 2> /dev/null || :
    echo "$free $shared $auto $balanced"
done | awk '
    { sum = 1 / $1 + 1 / $2; auto[NR] = 1 / $3 / sum; balanced[NR] = 1 / $4 / sum
      printf "turn %d: speeds 1 and %.2f; of their sum two ranks have %.2f with measured weights, %.2f balanced\n", NR, $1 / $2, auto[NR], balanced[NR] }
    function median(a, n,   i, k, t) {
        for (i = 2; i <= n; i++) for (k = i; k > 1 && a[k] < a[k - 1]; k--) { t = a[k]; a[k] = a[k - 1]; a[k - 1] = t }
        return a[int((n + 1) / 2)]
    }
    END { printf "measured weights %.2f, balanced %.2f\n", median(auto, NR), median(balanced, NR) }'
