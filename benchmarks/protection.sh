#!/usr/bin/env bash
# protection.sh BUILD [TURNS] [OPTION...]: what protection costs a step: any_machines on two ranks that share a model of 10.7
# million parameters (or with those options), without copies, with one after each tenth step, and after each step, by turns.
# Prints the mean ms of a step in each turn, and the median over the turns of the ratio to the run without protection in the
# same turn.
set -euo pipefail
bin=$(realpath "$1")/bin turns=${2:-3}
shift $(($# < 2 ? $# : 2))
options=(--model 2 --layers 6 --heads 6 --embed 384 --block 256 --batch 8 --steps 25 "$@")
ms() { "$bin/tshard-run" -n 2 --no-prefix "$bin/any_machines" "${options[@]}" "$@" | sed -n 's/ ms a step$//p'; }
for ((turn = 0; turn < turns; turn++)); do
    echo "$(ms) $(ms --survive --every 10) $(ms --survive --every 1)"
done | awk '
    { printf "turn %d: none %.1f ms, every tenth step %.1f ms, every step %.1f ms\n", NR, $1, $2, $3; ten[NR] = $2 / $1; one[NR] = $3 / $1 }
    function median(a, n,   i, k, t) {
        for (i = 2; i <= n; i++) for (k = i; k > 1 && a[k] < a[k - 1]; k--) { t = a[k]; a[k] = a[k - 1]; a[k - 1] = t }
        return a[int((n + 1) / 2)]
    }
    END { printf "every tenth step %.3fx, every step %.3fx\n", median(ten, NR), median(one, NR) }'
