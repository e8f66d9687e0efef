#!/usr/bin/env bash
# test_search.sh BUILD: tshard-run --plan with a machine file, and --search: every combination is planned, what fits is
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
run() { timeout -k 5 300 "$bin/tshard-run" "$@" < /dev/null > "$folder/out" 2> "$folder/err"; }
number() { grep -o "\"$1\": [-0-9.e+]*" "$folder/out" | head -1 | cut -d' ' -f2; }

# Seconds are the arithmetic's GFLOP.
run --plan 4 --machine "$folder/machine.json" --json "${program[@]}" || fail "--machine: $(cat "$folder/err")"
awk -v s="$(number step_seconds)" -v g="$(number gflop)" 'BEGIN { exit !(g > 0 && s > 0.9999 * g && s < 1.0001 * g) }' ||
    fail "a step of $(number gflop) GFLOP takes $(number step_seconds) s at 1 GFLOP/s"
run --plan 4 --machine "$folder/machine.json" "${program[@]}" || fail "--machine: $(cat "$folder/err")"
grep -q "^time of a step" "$folder/out" || fail "no time in $(cat "$folder/out")"

# More ranks a model, less arithmetic a rank; 5 does not divide 4.
search=(--search model-parallel=1,2,5 --search --sequence-parallel=off,on)
run --plan 4 --machine "$folder/machine.json" "${search[@]}" --json "${program[@]}" || fail "search: $(cat "$folder/err")"
grep -q '"tried": 6' "$folder/out" || fail "not 6 combinations: $(cat "$folder/out")"
grep -q '"failed": 2' "$folder/out" || fail "not 2 failures: $(cat "$folder/out")"
grep -q '"first_failure": "train_gpt: ' "$folder/out" || fail "no words of the failure: $(cat "$folder/out")"
[ "$(grep -c '"sequence-parallel": "on"' "$folder/out")" = 2 ] || fail "not both with the bare option"
grep -o '"step_seconds": [-0-9.e+]*' "$folder/out" | cut -d' ' -f2 | sort -gc || fail "the best does not come first"
grep -q "6 of 6: model-parallel=5 sequence-parallel=on" "$folder/err" || fail "no progress: $(cat "$folder/err")"

# Without a machine file the one that needs least comes first; a limit between two leaves one.
run --plan 4 --search model-parallel=1,4 --json "${program[@]}" || fail "search: $(cat "$folder/err")"
peaks=($(grep -o '"peak_bytes": [0-9]*' "$folder/out" | cut -d' ' -f2))
[ "${#peaks[@]}" = 2 ] && [ "${peaks[0]}" -lt "${peaks[1]}" ] || fail "peaks ${peaks[*]}"
run --plan 4 --search model-parallel=1,4 --memory-limit "$((peaks[1] - 1))" "${program[@]}" || fail "$(cat "$folder/err")"
grep -q "^1 of 2 combinations fit into $((peaks[1] - 1)) bytes a rank; 1 need more$" "$folder/out" || fail "$(cat "$folder/out")"
run --plan 4 --search model-parallel=1,4 --memory-limit 1K "${program[@]}" && fail "nothing fits, and the code is 0"

# wrong WORDS ARGS...: a usage error.
wrong() {
    local words=$1 got
    shift
    run "$@"
    got=$?
    [ $got = 2 ] && grep -qF -- "$words" "$folder/err" || fail "$*: code $got, $(cat "$folder/err")"
}
wrong "NAME=A,B,..." --plan 4 --search model-parallel true
wrong "values that are not empty" --plan 4 --search model-parallel=1,,2 true
wrong "--search needs --plan" -n 1 --search a=1 true
wrong "--memory-limit needs --search" --plan 4 --memory-limit 1G true
wrong "/nowhere" --plan 4 --machine /nowhere true

# An interrupt of the terminal, which the whole process group gets, ends a long search at once.
sleeper=$folder/sleeper
printf '#!/bin/sh\nexec sleep 60\n' > "$sleeper"
chmod +x "$sleeper"
setsid bash -c 'trap - INT; exec "$@"' - "$bin/tshard-run" --plan 4 --search a=1,2,3,4,5,6,7,8 "$sleeper" > /dev/null 2>&1 &
pid=$!
sleep 1
begin=$SECONDS
kill -INT -- "-$pid"
wait "$pid"
got=$?
[ $got = 130 ] || fail "an interrupted search exits with $got"
[ $((SECONDS - begin)) -lt 20 ] || fail "an interrupted search went on for $((SECONDS - begin)) s"
exit $code
