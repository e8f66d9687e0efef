#!/usr/bin/env bash
# test_nccl_hosts.sh BUILD [TIMES]: NCCL's side without MPI. Ranks are processes over NCCL's stand-in, which share a folder; the
# environment is torchrun's. On one host, a network namespace: a run, a rank that is killed, each TIMES
# times (1), and one that is stopped. The time until all others knew of a death is printed, and more than MOST seconds is a
# failure: 30 where it is not set, for machines that are busy.
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../support/hosts.sh"
program=$1/tests/cuda/nccl_host
[ -x "$program" ] || { echo "skipped: stand-ins are not built with sanitizers"; exit 77; }
times=${2:-1}
code=0
port=29700 counts=1
hosts_up ipv4

fail() {
    code=1
    echo "FAILED: $1"
    tail -n 20 "$folder"/log.* "$folder"/err.*
}

# start HOSTS WHAT...: four ranks, the first half on the first host.
start() {
    local hosts=$1 rank side
    shift
    port=$((port + 1))
    rm -rf "$folder"/nccl "$folder"/log.* "$folder"/err.*
    mkdir "$folder/nccl"
    pid=()
    for rank in 0 1 2 3; do
        side=a local_size=4
        [ "$hosts" = 1 ] || { side=$(cut -c $((rank / 2 + 1)) <<< ab) local_size=2; }
        on "$side" env STANDIN_NCCL_FOLDER="$folder/nccl" MASTER_ADDR="$net.1" MASTER_PORT=$port RANK=$rank WORLD_SIZE=4 \
            LOCAL_RANK=$((rank % local_size)) LOCAL_WORLD_SIZE=$local_size TSHARD_DEVICE=cuda TSHARD_BACKEND=nccl \
            TSHARD_TIMEOUT="${timeout:-60}" "$program" "$@" > "$folder/log.$rank" 2> "$folder/err.$rank" &
        pid[rank]=$!
    done
}

# others PATTERN: ranks 0, 2 and 3 have ended with such a line.
others() {
    local rank
    for rank in 0 2 3; do
        wait "${pid[rank]}"
        grep -qE -- "$1" "$folder/log.$rank" || { fail "$what: rank $rank"; return 1; }
    done
}

for hosts in $counts; do
    what="$hosts hosts, a run"
    start "$hosts" run
    for rank in 0 1 2 3; do wait "${pid[rank]}" || { fail "$what: rank $rank"; break; }; done
    [ -n "$(find "$folder/nccl" -name '*call*' -print -quit)" ] || fail "$what: NCCL has not moved the data"

    : > "$folder/seconds"
    for ((round = 0; round < times; round++)); do
        what="$hosts hosts, a death"
        start "$hosts" kill "$folder/time"
        others 'TSH_ERR_PEER.*rank 1.*died' || break
        cat "$folder"/log.[023] | sed -nE 's/^rank .: ([0-9.]+) s.*/\1/p' | sort -n | tail -n 1 >> "$folder/seconds"
    done
    sort -n "$folder/seconds" | awk -v what="$what" -v most="${MOST:-30}" '{ s[NR] = $1 } END {
        printf "%s: %d times, median %.3f s, longest %.3f s\n", what, NR, s[int((NR + 1) / 2)], s[NR]; exit s[NR] > most }' ||
        fail "$what took too long"

    what="$hosts hosts, a stopped rank"
    timeout=3
    start "$hosts" stop "$folder/time"
    others 'not done within 3 s' && echo "$what: all others have said so"
    timeout=60
    for side in a b; do processes_on $side | xargs -r kill -9 2> /dev/null; done
    wait
done
exit $code
