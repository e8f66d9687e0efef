#!/usr/bin/env bash
# test_models.sh BUILD: models as Hugging Face writes them have the sums that Python finds, at 1 to 4 ranks; GPT-2's are
# transposed, and its queries, keys and values lie in one tensor.
set -uo pipefail
data=$(cd "$(dirname "$0")/../data/models" && pwd)
failures=0

# check RANKS MODEL [OPTION]: the last line says that no tensor is wrong
check() {
    local said
    said=$("$1/bin/tshard-run" -n "$2" "$1/tests/io/load_sums" "$data/$3" "$data/$3/sums.txt" ${4:+"$4"} 2>&1) ||
        failures=$((failures + 1))
    echo "$3: $said"
    grep -q "$2 ranks: [1-9][0-9]* tensors, 0 wrong" <<< "$said" || failures=$((failures + 1))
}

for ranks in 1 2 3 4; do
    check "$1" $ranks llama
    check "$1" $ranks gpt2 --gpt2
done

# The comparison sees a sum that differs.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
sed '1s/[0-9]$/&7/; 2s/0\./1./' "$data/llama/sums.txt" > "$work/sums.txt"
if "$1/tests/io/load_sums" "$data/llama" "$work/sums.txt" > "$work/said" 2>&1; then
    echo "a sum that differs was not noticed: $(cat "$work/said")"
    failures=$((failures + 1))
fi
[ $failures = 0 ]
