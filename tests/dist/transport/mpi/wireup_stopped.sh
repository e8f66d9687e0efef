#!/usr/bin/env bash
# wireup_stopped.sh BIN PROGRAM: ranks over MPI that no launcher of MPI has started, with a tshard-pmix that is stopped,
# at any time, or says nothing. One machine, and no right to anything.
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # MPI itself leaks
bin=$1 program=$2
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TSHARD_INIT TSHARD_BACKEND
export TSHARD_TOKEN=a-secret-of-the-stopped-wireup TSHARD_HEAP=512M TSHARD_TIMEOUT=30 OPENBLAS_NUM_THREADS=1
export OMPI_MCA_mpi_yield_when_idle=1
folder=$(mktemp -d)
code=0
fail() { code=1; echo "FAILED: $1"; }
export TSHARD_BACKEND=mpi TEST_MARK=mark$$ TSHARD_WARN=1
# ours COMM: processes of that name that come from here.
ours() {
    local pid
    for pid in $(pgrep "$1"); do
        { tr '\0' '\n' < "/proc/$pid/environ"; } 2> /dev/null | grep -qx "TEST_MARK=$TEST_MARK" && echo "$pid"
    done
}
end_ours() {
    for pid in $(ours tshard-) $(ours '^ranks$') $(ours '^alone$') $(ours '^sleep$'); do kill -9 "$pid" 2> /dev/null; done
    rm -rf "$folder"
}
trap end_ours EXIT
# until COMMAND...: it succeeds, or the test fails.
until_() {
    for ((i = 0; i < 600; i++)); do "$@" > /dev/null 2>&1 && return; sleep 0.05; done
    fail "$what: waited for $*"
    return 1
}
both_helpers() { [ "$(ours '^tshard-pmix' | wc -l)" -ge 2 ]; }
a_rank_is_stopped() {
    local pid
    for pid in $(ours '^ranks$'); do grep -q '^State:.T' "/proc/$pid/status" && return; done
    false
}
stop_helpers() { until_ both_helpers; ours '^tshard-pmix' | xargs kill -STOP; }
no_helper() { [ -z "$(ours '^tshard-pmix')" ]; }
finish() { # CODE: that the job ends with
    local got
    wait "$job"
    got=$?
    case $1 in
        0) [ $got = 0 ] || fail "$what: exit code $got: $(cat "$folder/out")" ;;
        *) [ $got != 0 ] && [ $got != 124 ] && [ $got != 137 ] ||
            fail "$what: exit code $got: $(cat "$folder/out")" ;;
    esac
    until_ no_helper
    echo "$what: $got"
}
says() { grep -qF -- "$1" "$folder/out" || fail "$what: no word of '$1': $(cat "$folder/out")"; }
run() { timeout -k 5 60 "$bin/tshard-run" -n 2 --bind none "$@" < /dev/null > "$folder/out" 2>&1 & job=$!; }

what="stopped while MPI starts"
TEST_INIT="1 19 0" run "$program" place
until_ a_rank_is_stopped && stop_helpers
for pid in $(ours '^ranks$'); do kill -CONT "$pid"; done
finish 0
says "was stopped"

what="stopped before the ranks leave"
TEST_END=$folder/end run "$program" place
until_ test -e "$folder/end0" && until_ test -e "$folder/end1" && stop_helpers
rm -f "$folder"/end?
finish 0
says "was stopped"

mkdir "$folder/bin"
cp "$program" "$folder/bin/alone"
what="stopped at its start"
printf '#!/bin/sh\nkill -STOP $$\nexec %s/tshard-pmix "$@"\n' "$bin" > "$folder/bin/tshard-pmix"
chmod +x "$folder/bin/tshard-pmix"
run "$folder/bin/alone" place
finish 0

export TSHARD_TIMEOUT=4
what="one that does not start"
printf '#!/bin/sh\nexec sleep 1000\n' > "$folder/bin/tshard-pmix"
run "$folder/bin/alone" place
finish failure
says "tshard-pmix has not started within"

what="one that says nothing"
printf '#!/bin/sh\nsleep 1000 3<&3 &\n' > "$folder/bin/tshard-pmix"
run "$folder/bin/alone" place
finish failure
says "tshard-pmix does not answer"
export TSHARD_TIMEOUT=30

# The helper ends with the ranks, also where no launcher looks for what they leave behind.
what="ranks are killed"
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 TSHARD_INIT="file://$folder/meeting" "$program" linger \
        < /dev/null > "$folder/out$rank" 2>&1 &
    job=$!
done
until_ grep -q lingering "$folder/out1" && stop_helpers
ours '^ranks$' | xargs kill -9
until_ no_helper
echo "$what"
exit $code
