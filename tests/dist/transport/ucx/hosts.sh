#!/usr/bin/env bash
# hosts.sh BIN PROGRAM starts|failures|routes: ranks over UCX on two hosts, which are network namespaces: started by
# tshard-run and with the variables of torchrun and srun; killed, stopped and cut off; beside strangers that connect to
# their ports; and with a third host that one of the two cannot reach.
set -uo pipefail
bin=$1 program=$2 part=$3
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../../../support/hosts.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TSHARD_INIT TSHARD_BACKEND
export TSHARD_TOKEN=a-secret-of-two-hosts TSHARD_HEAP=512M TSHARD_TIMEOUT=60 OPENBLAS_NUM_THREADS=1 EXPECT_BACKEND=ucx
export EXPECT_NODES=2
code=0
fail() { code=1; echo "FAILED: $1"; }
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
# fails: neither side has succeeded.
fails() {
    finish
    [ "${codes[0]}" != 0 ] && [ "${codes[1]}" != 0 ] || { fail "$what: exit codes ${codes[*]}"; show; }
}
# says SIDE PATTERN
says() { grep -qE -- "$2" "$folder/out.$1" || { fail "$what: host-$1 does not say '$2'"; show; }; }
# ranks_on SIDE: their process ids, in the order of their ranks.
ranks_on() {
    local pid
    for pid in $(processes_on "$1"); do
        [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = ranks ] || continue
        echo "$(tr '\0' '\n' < "/proc/$pid/environ" | sed -n 's/^RANK=//p') $pid"
    done | sort -n | cut -d ' ' -f 2
}
# lingers: all four ranks make calls.
lingers() {
    for ((i = 0; i < 600; i++)); do
        [ "$(cat "$folder/out.a" "$folder/out.b" | grep -c lingering)" = 4 ] && { sleep 0.3; return; }
        sleep 0.05
    done
    fail "$what: the ranks do not start"
}

# The ranks have the variables of torchrun or srun, and there is no launcher.
by_torchrun() {
    there "$1" env WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR="$net.1" MASTER_PORT=29521 NODE="$2" PROGRAM="$program" bash -c '
        for i in 0 1; do RANK=$((2 * NODE + i)) LOCAL_RANK=$i timeout 200 "$PROGRAM" groups & pids+=" $!"; done
        for pid in $pids; do wait "$pid" || exit; done' < /dev/null > "$folder/out.$1" 2>&1
}
by_srun() {
    there "$1" env SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID="$2" "SLURM_TASKS_PER_NODE=2(x2)" \
        SLURM_JOB_NODELIST="$net.1,$net.2" SLURM_NODELIST="$net.1,$net.2" SLURM_JOB_ID=77 SLURM_JOBID=77 \
        SLURM_STEP_ID=0 PROGRAM="$program" bash -c '
        for i in 0 1; do
            SLURM_PROCID=$((2 * SLURM_NODEID + i)) SLURM_LOCALID=$i timeout 200 "$PROGRAM" place & pids+=" $!"
        done
        for pid in $pids; do wait "$pid" || exit; done' < /dev/null > "$folder/out.$1" 2>&1
}

case $part in
    starts)
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
        what="without libucp"
        echo "no library" > "$folder/libucp.so.0"
        LD_LIBRARY_PATH=$folder start "$program" place
        fails
        says a "ranks on several machines need UCX: .*libucp.so.0"
        # A bridge of a container engine has one address on every host, and is not the way to the other one.
        for side in a b; do
            ip -n "ts$side$$" link add docker0 type veth peer name docker1
            ip -n "ts$side$$" addr add 172.17.0.1/16 dev docker0
            ip -n "ts$side$$" link set docker1 up
            ip -n "ts$side$$" link set docker0 up
        done
        runs "beside a bridge" "$program" groups
        ;;
    failures)
        export TSHARD_TIMEOUT=8
        # Killed at any time from the start on.
        for after in 0.05 0.2 0.3 0.4 0.6; do
            what="killed after $after s"
            start "$program" linger
            sleep $after
            victim=$(ranks_on b | tail -n 1)
            [ -z "$victim" ] || kill -9 "$victim"
            [ -n "$victim" ] || { lingers; kill -9 "$(ranks_on b | tail -n 1)"; }
            fails
        done
        what="killed"
        start "$program" linger
        lingers
        kill -9 "$(ranks_on b | tail -n 1)"
        fails
        says a 'rank 3 died|rank 3 .*was killed|signal 9'
        what="stopped"
        start "$program" linger
        lingers
        kill -STOP "$(ranks_on b | tail -n 1)"
        fails
        says a 'told: .*(did not come|not done) within 8 s'
        what="cut off"
        start "$program" linger
        lingers
        hosts_apart
        fails
        says a 'told: .*(within 8 s|cannot be reached)'
        hosts_joined
        sleep 1.2
        # UCX and the rendezvous close the connections of strangers; the job goes on.
        what="strangers"
        start "$program" linger
        lingers
        for side in a b; do
            for address in $net.1 $net.2; do
                # shellcheck disable=SC2016
                on $side bash -c '
                    for port in $(ss -Hltn "src $1" | sed "s/.*:\([0-9]*\) .*/\1/" | sort -u) 29500; do
                        for size in 1 8 4096 100000; do
                            { timeout 1 head -c $size /dev/urandom > "/dev/tcp/$1/$port"; } 2> /dev/null
                        done
                    done' bash $address
            done
        done
        finish
        [ "$(cat "$folder/out.a" "$folder/out.b" | grep -c '^\[.\] told: *$')" = 4 ] || { fail "$what"; show; }
        ;;
    routes)
        # Hosts b and c have a way to each other over host-a, which drops what is not for itself.
        what="no way between two of three"
        hosts_third
        ip netns exec "tsa$$" sysctl -qw net.ipv4.ip_forward=0
        ip -n "tsb$$" route add "$net_c.0/24" via "$net.1"
        ip -n "tsc$$" route add "$net.0/24" via "$net_c.1"
        begun=$SECONDS
        for host in a:0 b:1 c:2; do
            on ${host%:*} env RANK=${host#*:} WORLD_SIZE=3 MASTER_ADDR="$net.1" MASTER_PORT=29524 EXPECT_NODES=3 \
                TSHARD_TIMEOUT=60 TSHARD_SILENCE=3 timeout 100 "$program" place < /dev/null > "$folder/out.${host%:*}" 2>&1 &
            pids[${host#*:}]=$!
        done
        for pid in "${pids[@]}"; do wait "$pid" && fail "$what: a rank has started"; done
        [ $((SECONDS - begun)) -lt 30 ] || fail "$what: it took $((SECONDS - begun)) s"
        says a 'machine host-[bc] \(rank [12]\) has not answered a connection from machine host-[bc] for 3 s'
        ;;
esac
exit $code
