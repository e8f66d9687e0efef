#!/usr/bin/env bash
# test_plan.sh BUILD [all]: what a plan says is what a run counts, and words for programs that cannot be planned.
#
# A rank's peak is to be within 2 % of the run's, what ranks of one machine share to find each other included, and that
# of a pipeline equal to it; its collectives and messages, their bytes, axes and the calls of a step are to be the same.
set -uo pipefail
bin=$1/bin which=${2:-some}
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
configurations=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

peak() {
    awk '/^peak /{print $2}' "$1"
}

# compare RANKS PROGRAM ARGUMENTS...
compare() {
    compare_within 0.02 "$@"
}

compare_exactly() {
    compare_within 0 "$@"
}

compare_within() {
    local share=$1 n=$2 rank real planned
    shift 2
    configurations=$((configurations + 1))
    [ "$which" = all ] || [ $((configurations % 6)) = 3 ] || return # of the whole list every sixth says most
    rm -f "$work"/real.* "$work"/planned.*
    TSHARD_RECORD=$work/real "$bin/tshard-run" -n "$n" "$bin/$@" > "$work/out" 2>&1 ||
        { fail "$n ranks of $*"; tail -3 "$work/out"; return; }
    for ((rank = 0; rank < n; rank++)); do
        TSHARD_RECORD=$work/planned TSHARD_BACKEND=plan RANK=$rank WORLD_SIZE=$n "$bin/$@" > "$work/out" 2>&1 ||
            { fail "the plan of rank $rank of $n of $*"; tail -3 "$work/out"; return; }
        real=$(peak "$work/real.$rank")
        planned=$(peak "$work/planned.$rank")
        awk -v a="$real" -v b="$planned" -v s="$share" 'BEGIN { exit !(a > 0 && b >= (1 - s) * a && b <= (1 + s) * a) }' ||
            fail "rank $rank of $n of $*: the peak is $real, the plan says $planned"
        diff <(grep '^call 3 ' "$work/real.$rank" | sort) <(grep '^call 3 ' "$work/planned.$rank" | sort) > /dev/null ||
            fail "rank $rank of $n of $*: other collectives"
        diff <(grep '^steps' "$work/real.$rank") <(grep '^steps' "$work/planned.$rank") || fail "$*: other steps"
    done
}

gpt=(train_gpt --steps 2 --eval-batches 1 --sample 0 --layers 2 --heads 4 --embed 192 --block 64 --batch 12)
compare 1 "${gpt[@]}"
compare 2 "${gpt[@]}"
compare 3 "${gpt[@]}" # heads, features and vocabulary divide by nothing
compare 4 "${gpt[@]}"
compare 2 "${gpt[@]}" --sequence-parallel
compare 3 "${gpt[@]}" --sequence-parallel
compare 2 "${gpt[@]}" --data-parallel 2
compare 4 "${gpt[@]}" --data-parallel 2
compare 4 "${gpt[@]}" --data-parallel 2 --sequence-parallel
compare 4 "${gpt[@]}" --data-parallel 4
compare 3 "${gpt[@]}" --data-parallel 3
compare 1 "${gpt[@]}" --dtype bfloat16
compare 2 "${gpt[@]}" --dtype bfloat16
compare 4 "${gpt[@]}" --dtype float16 --data-parallel 2
compare 2 "${gpt[@]}" --dtype float64
compare 2 "${gpt[@]}" --kv-heads 2
compare 2 "${gpt[@]}" --recompute
compare 3 "${gpt[@]}" --kv-heads 1
compare 2 "${gpt[@]}" --data-parallel 2 --zero 1
compare 3 "${gpt[@]}" --data-parallel 3 --zero 2 # slices are uneven
compare 2 "${gpt[@]}" --data-parallel 2 --zero 3
compare 4 "${gpt[@]}" --data-parallel 2 --zero 3 --recompute
compare 4 "${gpt[@]}" --data-parallel 4 --zero 2 --dtype bfloat16 --master-weights
compare 2 "${gpt[@]}" --dtype bfloat16 --master-weights
compare 2 "${gpt[@]}" --data-parallel 2 --zero 3 --dtype float16 --master-weights --loss-scale
compare 2 "${gpt[@]}" --arithmetic bfloat16
compare 2 "${gpt[@]}" --arithmetic bfloat16 --data-parallel 2 --zero 3
compare 3 "${gpt[@]}" --embed 200 --heads 5
# Ranks with weights hold more and less, and nothing.
compare 2 "${gpt[@]}" --model-parallel 3:1
compare 3 "${gpt[@]}" --model-parallel 2:0:1 --sequence-parallel
compare 3 "${gpt[@]}" --data-parallel 2:1:1 --zero 3
compare 4 "${gpt[@]}" --data-parallel 3:1 --model-parallel 1:2 --zero 2 --recompute
# Each thread of attention and of batches of products has scratch memory of its own.
which=all TSHARD_BLAS_THREADS=3 compare 1 "${gpt[@]}"
which=all TSHARD_BLAS_THREADS=3 compare 1 "${gpt[@]}" --dtype bfloat16
text=(train_text --steps 2 --sample 0)
compare 1 "${text[@]}"
compare 2 "${text[@]}"
compare 3 "${text[@]}"
classes=(many_classes --classes 20001 --steps 2 --evaluate 64)
compare 2 "${classes[@]}"
compare 3 "${classes[@]}" --optimizer sgd --in-backward
compare_exactly 2 pipeline stage=2,data=1,model=1
compare_exactly 3 pipeline stage=3,data=1,model=1 7
compare_exactly 4 pipeline stage=2,data=2,model=1
[ "$configurations" -ge 40 ] || fail "$configurations configurations"

# A model that no machine has room for.
"$bin/tshard-plan" -n 1024 --json "$bin/train_gpt" \
    --layers 96 --heads 96 --embed 12288 --block 2048 --batch 1536 --model-parallel 8 --data-parallel 128 --steps 2 \
    --warmup 1 --sample 0 --eval-every 100 > "$work/gpt3" || fail "GPT-3 has no plan"
grep -q '"uniform": true' "$work/gpt3" || fail "GPT-3's ranks differ"
grep -q '"parameters": 8708' "$work/gpt3" || fail "GPT-3's parameters: $(cut -c -300 "$work/gpt3")"
grep -q '{"name": "all_reduce", "axis": "data", "ranks": 128,' "$work/gpt3" || fail "GPT-3's collectives"

# expect CODE WORDS ARGUMENTS...: of $tool
expect() {
    local code=$1 words=$2 got
    shift 2
    "$bin/$tool" "$@" > "$work/out" 2>&1
    got=$?
    [ "$got" -eq "$code" ] || fail "$tool $*: code $got in place of $code"
    grep -qF -- "$words" "$work/out" || fail "$tool $*: no '$words' in '$(tail -2 "$work/out")'"
}

tool=tshard-plan
expect 2 "-n wants a number of ranks from 1 to 65536, not '0'" -n 0 true
expect 2 "--ranks wants a number of ranks from 1 to 65536, not '65537'" --ranks 65537 true
expect 2 "-n wants a value that is not empty" -n "" true
expect 2 "-n wants a value (tshard-plan --help" -n
expect 2 "unknown option '--what'" -n 2 --what true
expect 2 "-n N, the number of ranks, is missing" true
expect 2 "the PROGRAM to plan is missing" -n 2
expect 1 "'true' has left no record of a plan" -n 4 true
expect 1 "rank 0 of the plan exited with code 1" -n 4 false
expect 127 "cannot run 'no-such-program'" -n 4 no-such-program
expect 137 "was killed by signal 9" -n 1 sh -c 'kill -9 $$'
expect 1 "a mesh of a multiple of 4 ranks, the world has 6" -n 6 "$bin/train_gpt" --model-parallel 4
expect 0 "plan of 1 rank" -n 1 "$bin/mlp"
expect 0 "plan of 65536 ranks, data=1,model=65536" -n 65536 "$bin/mlp"
expect 0 "plan of 4 ranks, data=1,model=3:2:1:0" -n 4 "$bin/train_gpt" --steps 2 --layers 1 --model-parallel 3:2:1:0 --sample 0
expect 0 "the program reads values" -n 2 "$bin/mlp"
expect 0 '"uniform": false' -n 2 --json "$bin/mlp" # rank 0 has what the ranks of a group share
cp "$work/out" "$work/json"

# tshard-run hands its options of plans over, and drops those that say how ranks are started.
tool=tshard-run
expect 0 '"uniform": false' --bind none --plan=2 --grace 1 --json "$bin/mlp"
cmp -s "$work/out" "$work/json" || fail "tshard-run --plan prints another plan than tshard-plan"
expect 0 "1 of 1 combinations fit" --plan 1 --search x=off --memory-limit 1G -- "$bin/mlp"
expect 2 "tshard-plan: --plan wants a number of ranks from 1 to 65536, not '0'" --plan 0 true
expect 2 "-n and nodes do not go with it" --plan 4 -n 2 true
expect 2 "--json needs --plan" --json -n 1 true
expect 2 "--search needs --plan" -n 1 --search a=1 true
expect 2 "the PROGRAM to run is missing" --plan 2
expect 127 "cannot run 'no-such-program'" --plan 4 no-such-program
cp "$bin/tshard-run" "$work"
LD_LIBRARY_PATH=$1/lib "$work/tshard-run" --plan 2 true > "$work/out" 2>&1 && fail "without tshard-plan: code 0"
grep -qF "tshard-run: cannot run '$work/tshard-plan': No such file" "$work/out" || fail "without tshard-plan: $(cat "$work/out")"

[ "$failures" -eq 0 ] && echo "$configurations configurations"
exit $((failures > 0))
