#!/usr/bin/env bash
# test_search.sh BUILD: tshard-plan with a machine file, and --search: every combination is planned, what fits is
# listed with the best first, what does not run is counted with its words.
set -uo pipefail
bin=$1/bin
[ -x "$bin/train_gpt" ] || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TSHARD_INIT TSHARD_BACKEND
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # an example that fails does not tidy up
code=0
fail() { code=1; echo "FAILED: $*"; }

# 1 GFLOP/s, memory and links that cost nothing beside that.
cat > "$folder/machine.json" << 'END'
{"format": "tshard machine", "version": 1,
 "products": [{"m": [1], "n": [1], "k": [1], "gflop_per_s": [1]}],
 "attention": [{"queries": [1], "dim": [1], "gflop_per_s": [1]}],
 "kernels": [{"bytes": [1], "gb_per_s": [1e12]}],
 "networks": [{"latency_us": 0, "bus_gb_per_s": 1e12}]}
END
program=("$bin/train_gpt" --layers 1 --embed 32 --heads 4 --block 8 --batch 8 --steps 2 --sample 0 --eval-every 100)
run() { timeout -k 5 300 "$bin/tshard-plan" "$@" < /dev/null > "$folder/out" 2> "$folder/err"; }
number() { grep -o "\"$1\": [-0-9.e+]*" "$folder/out" | head -1 | cut -d' ' -f2; }

# Seconds are the arithmetic's GFLOP.
run -n 4 --machine "$folder/machine.json" --json "${program[@]}" || fail "--machine: $(cat "$folder/err")"
awk -v s="$(number step_seconds)" -v g="$(number gflop)" 'BEGIN { exit !(g > 0 && s > 0.9999 * g && s < 1.0001 * g) }' ||
    fail "a step of $(number gflop) GFLOP takes $(number step_seconds) s at 1 GFLOP/s"
run -n 1 --machine "$folder/machine.json" "$bin/mlp" || fail "--machine: $(cat "$folder/err")"
grep -q "^time of a step" "$folder/out" || fail "no time in $(cat "$folder/out")"

# More ranks a model, less arithmetic a rank; 5 does not divide 4.
run -n 4 --machine "$folder/machine.json" --search model-parallel=1,2,5 --json "${program[@]}" || fail "search: $(cat "$folder/err")"
grep -q '"tried": 3' "$folder/out" || fail "not 3 combinations: $(cat "$folder/out")"
grep -q '"failed": 1' "$folder/out" || fail "not 1 failure: $(cat "$folder/out")"
grep -q '"first_failure": "train_gpt: ' "$folder/out" || fail "no words of the failure: $(cat "$folder/out")"
grep -o '"step_seconds": [-0-9.e+]*' "$folder/out" | cut -d' ' -f2 | sort -gc || fail "the best does not come first"
grep -q "of 3: " "$folder/err" && fail "a progress line is for terminals: $(cat "$folder/err")"

# A program that leaves the record of a plan at once: a rank's peak is 8 MiB over --share, and 1 MiB more with --extra.
cat > "$folder/planned" << 'END'
#!/bin/sh
peak=8388608
for option; do
    case $option in
        --share=*) peak=$((8388608 / ${option#*=})) ;;
        --extra) peak=$((peak + 1048576)) ;;
        *) echo "planned: $option is no option"; exit 1 ;;
    esac
done
printf 'tshard plan 1\nrank %d %d\nplanned 1\nsteps 1\npeak %d\nend\n' "$RANK" "$WORLD_SIZE" "$peak" \
    > "/proc/self/fd/${TSHARD_RECORD#fd:}"
END
chmod +x "$folder/planned"

# Without a machine file the one that needs least comes first; a limit between two leaves one.
run -n 4 --search share=1,4 --search --extra=off,on --search what=off --json "$folder/planned" || fail "search: $(cat "$folder/err")"
peaks=$(grep -o '"peak_bytes": [0-9]*' "$folder/out" | cut -d' ' -f2 | tr '\n' ' ')
[ "$peaks" = "2097152 3145728 8388608 9437184 " ] || fail "peaks $peaks"
[ "$(grep -c '"extra": "on"' "$folder/out")" = 2 ] || fail "not both with the bare option: $(cat "$folder/out")"
run -n 4 --search share=4,1 --memory-limit 8388607 "$folder/planned" || fail "$(cat "$folder/err")"
grep -q "^1 of 2 combinations fit into 8388607 bytes a rank; 1 need more$" "$folder/out" || fail "$(cat "$folder/out")"
grep -qE "^ +4 +2\.0$" "$folder/out" || fail "what needs least is not listed: $(cat "$folder/out")"
! grep -qE "^ +1 +8\.0$" "$folder/out" || fail "what needs more than the limit is listed: $(cat "$folder/out")"
run -n 4 --search share=1,4 --search what=off,on --memory-limit 1K "$folder/planned" && fail "nothing fits, and the code is 0"
grep -q "^0 of 4 combinations fit into 1024 bytes a rank; 2 need more, the least of them 2097152: share=4 what=off; 2 do not run, the first of them: planned: --what is no option$" "$folder/out" || fail "$(cat "$folder/out")"

# Weights: a rank's peak is 2 MiB and its share of 16 MiB.
cat > "$folder/weighed" << 'END'
#!/bin/sh
for option; do weights=${option#--model-parallel=}; done
part=$(echo "$weights" | tr : ' ' | awk -v r="$RANK" '{ for (i = 1; i <= NF; i++) all += $i; print int(16777216 * $(r % NF + 1) / all) }')
printf 'tshard plan 1\nrank %d %d\nplanned 1\naxis model 2 %s\nsteps 1\npeak %d\nend\n' "$RANK" "$WORLD_SIZE" \
    "$weights" $((2097152 + part)) > "/proc/self/fd/${TSHARD_RECORD#fd:}"
END
chmod +x "$folder/weighed"
weights() { tr -d '\n' < "$folder/out" | grep -o '"weights": "[0-9:]*"' | cut -d'"' -f4; }
run -n 2 --search weights --speed 3,1 --json "$folder/weighed" || fail "weights: $(cat "$folder/err")"
[ "$(weights)" = 3:1 ] || fail "weights of speeds 3,1 are $(weights)"
# 12 MiB and 2 MiB are three quarters.
run -n 2 --search weights --memory-limit 14M,6M --json "$folder/weighed" || fail "weights: $(cat "$folder/err" "$folder/out")"
[ "$(weights)" = 3:1 ] || fail "weights within 14 and 6 MiB are $(weights)"
run -n 4 --search --model-parallel=weights --speed 9:1 --memory-limit 8M,32M "$folder/weighed" || fail "weights: $(cat "$folder/err")"
grep -q '^--model-parallel=3:5$' "$folder/out" || fail "weights within 8 MiB on rank 0: $(cat "$folder/out")"
run -n 2 --search weights --memory-limit 8M "$folder/weighed" && fail "two times 8 MiB hold 2 times 2 and 16 MiB"
grep -q "^no weights fit" "$folder/out" || fail "$(cat "$folder/out")"
# A real model fits by its dry run.
run -n 2 --search weights --json "${program[@]}" --embed 64 --batch 2 || fail "weights: $(cat "$folder/err")"
peak=$(number peak_bytes)
run -n 2 --search weights --memory-limit "$((peak * 8 / 10)),$((peak * 2))" --json "${program[@]}" --embed 64 --batch 2 ||
    fail "weights: $(cat "$folder/err" "$folder/out")"
[ "$(number peak_bytes)" -le $((peak * 8 / 10)) ] || fail "rank 0 has $(number peak_bytes) of $peak bytes"

# Levels of sharding and recomputation on two copies of a model beside which the memory of groups is small: what is shared
# out, or made again, is saved.
run -n 2 --machine "$folder/machine.json" --search zero=0,1,2,3 --search recompute=off,on --json "${program[@]}" \
    --layers 12 --embed 64 --data-parallel 2 || fail "search: $(cat "$folder/err")"
peak_of() {
    tr -d '\n' < "$folder/out" | grep -o "\"zero\": \"$1\", *\"recompute\": \"$2\" *}, *\"peak_bytes\": [0-9]*" | grep -o '[0-9]*$'
}
for recompute in off on; do
    peaks=($(for level in 0 1 2 3; do peak_of $level $recompute; done))
    [ "${#peaks[@]}" = 4 ] && [ "${peaks[0]}" -gt "${peaks[1]}" ] && [ "${peaks[1]}" -gt "${peaks[3]}" ] &&
        [ "${peaks[2]}" -gt "${peaks[3]}" ] || fail "peaks of levels 0 to 3, recomputation $recompute: ${peaks[*]}"
done
[ "$(peak_of 3 on)" -lt "$(peak_of 3 off)" ] || fail "recomputation saves nothing at level 3"

# wrong WORDS ARGS...: a usage error.
wrong() {
    local words=$1 got
    shift
    run "$@"
    got=$?
    [ $got = 2 ] && grep -qF -- "$words" "$folder/err" || fail "$*: code $got, $(cat "$folder/err")"
}
wrong "NAME=A,B,..." -n 4 --search model-parallel true
wrong "values that are not empty" -n 4 --search model-parallel=1,,2 true
wrong "--speed needs --search weights" -n 4 --speed 3,1 true
wrong "whole numbers from 1" -n 4 --search weights --speed 3,0 true
wrong "bytes, like 80G" -n 4 --search weights --memory-limit 3G,x true
wrong "an axis of the 4 ranks has as many" -n 4 --search weights --speed 3,1 --memory-limit 1G,1G,1G,1G true
wrong "one number of bytes" -n 4 --search zero=0,1 --memory-limit 1G,2G true
wrong "excludes --machine and another --search" -n 4 --search zero=0,1 --search weights true
wrong "--memory-limit needs --search" -n 4 --memory-limit 1G true
wrong "/nowhere" -n 4 --machine /nowhere true

# The ranks leave word of their file and of their child, and wait.
sleeper=$folder/sleeper
cat > "$sleeper" << 'END'
#!/bin/sh
sleep 60 &
echo "$! $TSHARD_RECORD" > "$0.$$"
mv "$0.$$" "$0.up"
wait
END
chmod +x "$sleeper"

# ended SIGNAL CODE TARGET ARGS...: a signal to the process ("") or to its group ("-") ends it at once, with its ranks
# and with what those have started. The files of a plan have no name: nothing is left of them, whatever ends it.
ended() {
    local signal=$1 wanted=$2 target=$3 pid begin got child record tries=0
    shift 3
    rm -f "$sleeper.up"
    setsid env --default-signal=INT "$bin/tshard-plan" -n 4 "$@" "$sleeper" > /dev/null 2>&1 &
    pid=$!
    while [ ! -s "$sleeper.up" ] && [ $((tries++)) -lt 200 ]; do sleep 0.1; done
    read -r child record < "$sleeper.up"
    begin=$SECONDS
    kill "-$signal" -- "$target$pid"
    wait "$pid"
    got=$?
    [ "$got" = "$wanted" ] || fail "SIG$signal: $* exits with $got"
    [ $((SECONDS - begin)) -lt 20 ] || fail "SIG$signal: $* went on for $((SECONDS - begin)) s"
    [[ $record = fd:* ]] || fail "a rank writes to '$record'"
    ! kill -0 "$child" 2> /dev/null || fail "SIG$signal: $* leaves a process"
}
ended INT 130 - --search a=1,2,3,4,5,6,7,8 # as a terminal sends it
ended TERM 143 "" --search a=1,2,3,4,5,6,7,8
ended INT 130 -
ended TERM 143 ""
ended HUP 129 -
exit $code
