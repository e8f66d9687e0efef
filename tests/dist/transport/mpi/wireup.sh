#!/usr/bin/env bash
# wireup.sh BIN PROGRAM one|hosts|losses|failures: ranks over MPI that no launcher of MPI has started, on one machine or
# on two hosts, which are network namespaces.
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # MPI itself leaks
bin=$1 program=$2 part=$3
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../../../support/hosts.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TSHARD_INIT TSHARD_BACKEND
export TSHARD_TOKEN=wireup TSHARD_HEAP=512M TSHARD_TIMEOUT=60 OPENBLAS_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
code=0
fail() { code=1; echo "FAILED: $1"; }

# One machine, where the ranks would work without MPI but TSHARD_BACKEND asks for it. Needs no privileges.
if [ "$part" = one ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    export TSHARD_BACKEND=mpi
    for run in "2 place" "3 short" "4 twice"; do
        read -r ranks scenario <<< "$run"
        timeout -k 5 200 "$bin/tshard-run" -n "$ranks" --bind none "$program" "$scenario" < /dev/null || fail "$run: $?"
    done
    # A rank that exits with an error before it destroys its world is named, not one that notices.
    TEST_CODE=7 TEST_DEADLINE=10 timeout -k 5 200 "$bin/tshard-run" -n 3 --bind none "$program" exits < /dev/null \
        2> "$folder/out"
    [ $? = 7 ] && grep -q "rank 2 (pid .*exited with code 7" "$folder/out" || fail "exits: $(cat "$folder/out")"
    # The next job removes what a job that was killed as a whole has left.
    stale=/dev/shm/tshard-pmix-stale$$
    mkdir "$stale" && touch "$stale/segment" && touch -d "1 hour ago" "$stale"
    timeout -k 5 200 "$bin/tshard-run" -n 2 --bind none "$program" place < /dev/null || fail "after a stale folder: $?"
    [ ! -e "$stale" ] || { rm -r "$stale"; fail "a stale folder is still there"; }
    mkdir -p "$folder/a/b/c"
    cp "$program" "$folder/a/b/c/alone"
    PATH=/usr/bin:/bin timeout -k 5 200 "$bin/tshard-run" -n 2 --bind none "$folder/a/b/c/alone" place \
        < /dev/null > "$folder/out" 2>&1 && fail "no tshard-pmix, and no error"
    grep -q "tshard-pmix.*is neither beside tshard nor on PATH" "$folder/out" ||
        fail "no word of it: $(cat "$folder/out")"
    exit $code
fi

hosts_up ipv4

# there SIDE COMMAND...: runs it on that host, where nothing may be left.
there() {
    on "$1" sh -c '"$@"; code=$?; sleep 0.2; { find /dev/shm -mindepth 1; find "$TMPDIR" -mindepth 2; } | sed "s/^/LEFT: /"
        exit $code' sh "${@:2}"
}

# start COMMAND...: both sides of a job in the background, with their process ids in `first` and `second`.
start() {
    for side in a b; do
        local node=0
        [ $side = b ] && node=1
        there $side timeout -k 5 200 "$bin/tshard-run" --nnodes 2 --node-rank $node -n 2 --bind none \
            --master-addr "$net.1" "$@" < /dev/null > "$folder/out.$side" 2>&1 &
        [ $side = a ] && first=$! || second=$!
    done
}

# finish: waits for both sides; their exit codes go into `codes`, and nothing may be left of them.
finish() {
    codes=()
    for pid in $first $second; do wait "$pid"; codes+=($?); done
    for side in a b; do
        left=$(processes_on $side)
        [ -z "$left" ] || fail "$what: processes are left: $(xargs ps -o pid,args -p <<< "$left")"
    done
    left=$(grep -h '^LEFT: ' "$folder/out.a" "$folder/out.b") && fail "$what: files are left: $left"
    [[ " ${codes[*]} " != *" 124 "* && " ${codes[*]} " != *" 137 "*" 137 "* ]] || fail "$what: it took too long"
    echo "$what: ${codes[*]}"
}

show() { for side in a b; do sed "s/^/    $side: /" "$folder/out.$side"; done; }
# runs WHAT COMMAND...: both sides succeed.
runs() {
    what=$1
    shift
    start "$@"
    finish
    [ "${codes[*]}" = "0 0" ] || { fail "$what"; show; }
}
# says SIDE WORDS
says() { grep -qF -- "$2" "$folder/out.$1" || { fail "$what: host-$1 does not say '$2'"; show; }; }

# The ranks have the variables of torchrun or srun, and there is no launcher.
by_torchrun() {
    local side=$1 node=$2
    there "$side" env WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR="$net.1" MASTER_PORT=29521 NODE="$node" \
        PROGRAM="$program" bash -c '
        for i in 0 1; do RANK=$((2 * NODE + i)) LOCAL_RANK=$i timeout 200 "$PROGRAM" groups & pids+=" $!"; done
        for pid in $pids; do wait "$pid" || exit; done' < /dev/null > "$folder/out.$side" 2>&1
}
by_srun() {
    local side=$1 node=$2
    there "$side" env SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID="$node" "SLURM_TASKS_PER_NODE=2(x2)" \
        SLURM_JOB_NODELIST="$net.1,$net.2" SLURM_NODELIST="$net.1,$net.2" SLURM_JOB_ID=77 SLURM_JOBID=77 \
        SLURM_STEP_ID=0 PROGRAM="$program" bash -c '
        for i in 0 1; do
            SLURM_PROCID=$((2 * SLURM_NODEID + i)) SLURM_LOCALID=$i timeout 200 "$PROGRAM" place & pids+=" $!"
        done
        for pid in $pids; do wait "$pid" || exit; done' < /dev/null > "$folder/out.$side" 2>&1
}

export EXPECT_NODES=2
case $part in
    hosts)
        for scenario in place short messages recover twice; do runs $scenario "$program" $scenario; done
        for launcher in torchrun srun; do
            what="variables of $launcher"
            by_$launcher a 0 &
            first=$!
            by_$launcher b 1 &
            second=$!
            finish
            [ "${codes[*]}" = "0 0" ] || { fail "$what"; show; }
        done
        TSHARD_INIT=tcp://$net.1:29522 runs "tcp" "$program" place
        TSHARD_INIT=tcp://239.255.17.21:29523 runs "multicast" "$program" place
        ;;
    losses)
        TSHARD_INIT=env:// "$program" losses > "$folder/one" || fail "one rank"
        runs losses --no-prefix "$program" losses
        sed -n '/^loss/p' "$folder/out.a" > "$folder/many"
        sed -i '/^loss/!d' "$folder/one"
        paste "$folder/one" "$folder/many" | tee "$folder/both"
        awk 'function far(a, b) { return a - b > 1e-5 || b - a > 1e-5 }
             NF != 6 || far($2, $5) || far($3, $6) { bad = 1 } END { exit bad || NR != 8 }' "$folder/both" ||
            fail "losses"
        ;;
    failures)
        export TSHARD_TIMEOUT=8
        # A rank that dies, or stops, while MPI starts.
        for trouble in "3 9 0" "1 9 0" "0 9 0" "3 9 30" "2 19 0" "0 19 30"; do
            read -r rank signal after <<< "$trouble"
            host=a other=b
            [ "$rank" -ge 2 ] && host=b other=a
            what="rank $rank gets signal $signal after $after ms"
            TEST_INIT=$trouble start "$program" place
            finish
            [ "${codes[0]}" != 0 ] && [ "${codes[1]}" != 0 ] || fail "$what: exit codes ${codes[*]}"
            words="ended while MPI started"
            [ "$signal" = 19 ] && words="is stopped"
            says $other "rank $rank on host-$host $words"
        done
        # A host that is cut off meanwhile.
        what="cut off"
        TEST_INIT="3 19 0" start "$program" place
        # The helpers have found each other by the time that rank 3 stops.
        for ((i = 0; i < 150; i++)); do
            processes_on b | xargs -r ps -o stat=,comm= -p | grep -q '^T.* ranks$' && break
            sleep 0.05
        done
        hosts_apart
        finish
        says a "host-b (ranks 2, 3) did not come within"
        says b "rank 3 on host-b is stopped"
        hosts_joined
        # A helper that is killed much later: MPI ends the ranks there, perhaps inside a call, which only a watching
        # rank (TSHARD_CHECK) notices.
        what="no helper"
        TSHARD_CHECK=1 start "$program" linger
        for ((i = 0; i < 600; i++)); do
            [ "$(cat "$folder/out.a" "$folder/out.b" | grep -c lingering)" = 4 ] && break
            sleep 0.1
        done
        for pid in $(processes_on b); do
            [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = tshard-pmix-srv ] && kill -9 "$pid"
        done
        finish
        says b "tshard-pmix on host-b, which MPI cannot do without, was ended by signal 9"
        [ "${codes[0]}" != 0 ] && [ "${codes[1]}" != 0 ] || fail "$what: exit codes ${codes[*]}"
        ;;
esac
exit $code
