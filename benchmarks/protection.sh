#!/usr/bin/env bash
# protection.sh BUILD [TURNS] [OPTION...]: what protection costs a step: any_machines on two ranks that share a model of 10.7
# million parameters (or with those options), without copies, with one after each tenth step, and after each step, by turns.
# Prints the mean ms of a step in each turn, and the medians over the turns of two ratios to the run without protection in the
# same turn: of these times, and of the processors' times for the whole run, which busy machines change less.
set -euo pipefail
bin=$(realpath "$1")/bin turns=${2:-3}
shift $(($# < 2 ? $# : 2))
exec 3>&2
options=(--model 2 --layers 6 --heads 6 --embed 384 --block 256 --batch 8 --steps 25 "$@")

# The ms of a step, and the seconds of user and system time.
run() {
    local TIMEFORMAT='%U %S'
    { time "$bin/tshard-run" -n 2 --no-prefix "$bin/any_machines" "${options[@]}" "$@" 2>&3 | sed -n 's/ ms a step$//p'; } 2>&1
}

for ((turn = 0; turn < turns; turn++)); do
    echo "$(run)" "$(run --survive --every 10)" "$(run --survive --every 1)" | tr '\n' ' '
    echo
done | awk '
    { none = $2 + $3; ten = $5 + $6; one = $8 + $9
      printf "turn %d: none %.1f ms, every tenth step %.1f ms, every step %.1f ms\n", NR, $1, $4, $7
      ms10[NR] = $4 / $1; ms1[NR] = $7 / $1; cpu10[NR] = ten / none; cpu1[NR] = one / none }
    function median(a, n,   i, k, t) {
        for (i = 2; i <= n; i++) for (k = i; k > 1 && a[k] < a[k - 1]; k--) { t = a[k]; a[k] = a[k - 1]; a[k - 1] = t }
        return a[int((n + 1) / 2)]
    }
    END { printf "every tenth step %.3fx, every step %.3fx; of processor time %.3fx and %.3fx\n",
                 median(ms10, NR), median(ms1, NR), median(cpu10, NR), median(cpu1, NR) }'
