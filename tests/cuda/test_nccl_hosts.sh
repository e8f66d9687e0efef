#!/usr/bin/env bash
# test_nccl_hosts.sh BUILD [TIMES [PROGRAM]]: NCCL's side without MPI. Ranks are processes over NCCL's stand-in, which share
# a folder; the environment is torchrun's. On one host and on two, which are network namespaces: runs, recoveries, ranks
# that are killed, each TIMES times (1), that are stopped, or leave; on two, a link that is cut, the other ways to start a
# job, and ranks that cannot join. The time until all others knew of a death is printed, and more than MOST seconds is a
# failure: 30 where it is not set, for machines that are busy.
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../support/hosts.sh"
program=$1/tests/cuda/${3:-nccl_host} launcher=$1/bin/tshard-run
[ -x "$program" ] || { echo "skipped: the stand-ins are not built"; exit 77; }
times=${2:-1}
code=0
port=29700
hosts_up ipv4
export STANDIN_NCCL_FOLDER=$folder/nccl TSHARD_DEVICE=cuda OPENBLAS_NUM_THREADS=1
unset TSHARD_BACKEND RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

fail() {
    code=1
    echo "FAILED: $1"
    tail -n 20 "$folder"/log.* "$folder"/err.*
}

anew() {
    port=$((port + 1))
    rm -rf "$folder"/nccl "$folder"/log.* "$folder"/err.*
    mkdir "$folder/nccl"
    pid=()
}

# start HOSTS WHAT...: four ranks, the first half on the first host.
start() {
    local hosts=$1 rank side
    shift
    anew
    for rank in 0 1 2 3; do
        side=a local_size=4
        [ "$hosts" = 1 ] || { side=$(cut -c $((rank / 2 + 1)) <<< ab) local_size=2; }
        on "$side" env MASTER_ADDR="$net.1" MASTER_PORT=$port RANK=$rank WORLD_SIZE=4 \
            LOCAL_RANK=$((rank % local_size)) LOCAL_WORLD_SIZE=$local_size EXPECT_NODES="$hosts" \
            TSHARD_TIMEOUT="${timeout:-60}" "$program" "$@" > "$folder/log.$rank" 2> "$folder/err.$rank" &
        pid[rank]=$!
    done
}

# clean: no sanitizer has found anything.
clean() {
    ! grep -qE 'Sanitizer|runtime error' "$folder"/err.* && return
    fail "$what: a sanitizer's report"
    return 1
}

# others VICTIM PATTERN: all ranks but that one have ended with such a line.
others() {
    local rank
    for rank in 0 1 2 3; do
        [ "$rank" = "$1" ] && continue
        wait "${pid[rank]}"
        grep -qE -- "$2" "$folder/log.$rank" || { fail "$what: rank $rank"; return 1; }
    done
    clean
}

# all_well: the ranks, or launchers, have ended without an error, and NCCL has moved the data.
all_well() {
    local rank
    for rank in "${!pid[@]}"; do wait "${pid[rank]}" || { fail "$what: rank $rank"; return; }; done
    clean || return
    [ -n "$(find "$folder/nccl" -name '*call*' -print -quit)" ] || { fail "$what: NCCL has not moved the data"; return; }
    echo "$what: all ranks are well"
}

end_all() {
    for side in a b; do processes_on $side | xargs -r kill -9 2> /dev/null; done
    wait
}

for hosts in 1 2; do
    for run in run recover; do
        what="$hosts hosts, $run"
        start "$hosts" $run
        all_well
    done
    what="$hosts hosts, run with TSHARD_CHECK=1"
    export TSHARD_CHECK=1
    start "$hosts" run
    unset TSHARD_CHECK
    all_well

    # On two hosts ranks 0 and 2 have the relays: with each of them its host is lost to the other.
    victims=1
    [ "$hosts" = 1 ] || victims="1 2 0"
    for victim in $victims; do
        : > "$folder/seconds"
        for ((round = 0; round < times; round++)); do
            what="$hosts hosts, the death of rank $victim"
            start "$hosts" kill "$victim" "$folder/time"
            others "$victim" "TSH_ERR_PEER.*rank $victim(.*died|: machine host-. .*cannot be reached: its connection ended)" || break
            wait
            cat "$folder"/log.? | sed -nE 's/^rank .: ([0-9.]+) s.*/\1/p' | sort -n | tail -n 1 >> "$folder/seconds"
        done
        sort -n "$folder/seconds" | awk -v what="$what" -v most="${MOST:-30}" '{ s[NR] = $1 } END {
            printf "%s: %d times, median %.3f s, longest %.3f s\n", what, NR, s[int((NR + 1) / 2)], s[NR]; exit s[NR] > most }' ||
            fail "$what took too long"
        end_all
    done

    # With a relay its host is silent, which the other one may notice first.
    timeout=5
    for victim in $victims; do
        what="$hosts hosts, rank $victim is stopped"
        start "$hosts" stop "$victim" "$folder/time"
        others "$victim" 'not done within 5 s|machine host-. .*cannot be reached: nothing has come from it for 5 s' &&
            echo "$what: all others have said so"
        end_all
    done
    timeout=60

    # Those that have an error leave, too, which others may notice first.
    for victim in $victims; do
        what="$hosts hosts, rank $victim leaves"
        start "$hosts" leave "$victim" "$folder/time"
        others "$victim" "TSH_ERR_PEER.*rank . has left the world" && echo "$what: all others have said so"
        wait "${pid[victim]}" || fail "$what: rank $victim"
    done
done

what="2 hosts, a link that is cut"
timeout=5
start 2 endless
for rank in 0 1 2 3; do
    until grep -q begun "$folder/log.$rank" || ! kill -0 "${pid[rank]}" 2> /dev/null; do sleep 0.05; done
done
hosts_apart
others - 'TSH_ERR_PEER.*machine host-. .*cannot be reached: nothing has come from it for 5 s' && echo "$what: all ranks have said so"
hosts_joined
timeout=60
end_all

what="2 hosts, tshard-run"
anew
export EXPECT_NODES=2 TSHARD_TIMEOUT=60
for node in 0 1; do
    on "$(cut -c $((node + 1)) <<< ab)" "$launcher" --nnodes 2 --node-rank $node --master-addr "$net.1" --master-port $port -n 2 \
        "$program" run > "$folder/log.$node" 2> "$folder/err.$node" &
    pid[node]=$!
done
all_well

# tcp WHAT...: of each rank.
tcp() {
    local rank
    anew
    for rank in 0 1 2 3; do
        on "$(cut -c $((rank / 2 + 1)) <<< ab)" env TSHARD_INIT="tcp://$net.1:$port" RANK=$rank WORLD_SIZE=4 "$program" \
            "${@:rank + 1:1}" > "$folder/log.$rank" 2> "$folder/err.$rank" &
        pid[rank]=$!
    done
}

what="2 hosts, tcp://"
tcp run run run run
all_well

# A rank that cannot join: all say which, and why.
what="2 hosts, no NCCL on one"
tcp run run run lacks
others - 'TSH_ERR_UNSUPPORTED: world_init: GPUs on several machines need NCCL, or TSHARD_BACKEND=mpi, but rank 3: ' &&
    echo "$what: all ranks have said so"
for victim in 1 2; do
    what="2 hosts, no GPU on rank $victim"
    commands=(run run run run)
    commands[victim]=gpuless
    tcp "${commands[@]}"
    others "$victim" "TSH_ERR_PEER: rank $victim: no GPU: " && echo "$what: all ranks have said so"
done
exit $code
