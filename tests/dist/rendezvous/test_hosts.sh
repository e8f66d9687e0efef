#!/usr/bin/env bash
# test_hosts.sh BUILD: the rendezvous of ranks on two hosts, which are network namespaces, with a tshard-run each. The
# tests of mpi cover MPI's part: here the backend is `local`, which ranks of several hosts cannot take. Their error,
# which names both hosts, shows that the rendezvous has succeeded.
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../../support/hosts.sh"
bin=$1/bin
code=0
hosts_up ipv6

export TSHARD_BACKEND=local TSHARD_TOKEN=hosts TSHARD_HEAP=64M TSHARD_TIMEOUT=20 OPENBLAS_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TSHARD_INIT
join="exec $bin/tshard-bench collectives --op all_reduce --min-bytes 64 --max-bytes 64"

fail() {
    code=1
    echo "FAILED: $1"
    [ "${shown:-}" != "$what" ] || return 0
    shown=$what
    for side in a b; do sed "s/^/    $side: /" "$folder/$side.err"; done
}

# launch SIDE NODE_RANK SCRIPT [OPTION...]: two ranks of `sh -c SCRIPT` there, in the background.
launch() {
    local side=$1 node=$2 script=$3
    shift 3
    on "$side" "$bin/tshard-run" --nnodes 2 --node-rank "$node" -n 2 --bind none "$@" sh -c "$script" \
        < /dev/null > "$folder/$side.out" 2> "$folder/$side.err" &
}

# finish PID...: their exit codes into `codes`; none hangs, and nothing is left on either host.
finish() {
    local pid started=$SECONDS
    codes=()
    for pid in "$@"; do
        while kill -0 "$pid" 2> /dev/null && [ $((SECONDS - started)) -le 60 ]; do sleep 0.05; done
        kill -0 "$pid" 2> /dev/null && { fail "still running after 60 s"; kill -9 "$pid"; }
        wait "$pid"
        codes+=($?)
    done
    for host in a b; do
        [ -z "$(processes_on $host)" ] || fail "processes are left: $(processes_on $host | xargs ps -o pid,args -p)"
    done
}

# says SIDE TEXT: the launcher there, or one of its ranks, has printed the text.
says() { grep -qF -- "$2" "$folder/$1.err" || fail "$what: host-$1 does not say '$2'"; }
# last SIDE RANK END: the last line names the first failure: the rank, the host, how it ended.
last() { tail -n 1 "$folder/$1.err" | grep -qE "^tshard-run: rank $2 \(pid [0-9]+ on host-$1\) $3" || fail "$what: the last line of host-$1"; }

# rendezvous NAME ADDRESS [TSHARD_INIT]: four ranks of the two hosts find each other.
rendezvous() {
    what=$1
    [ -n "${3:-}" ] && export TSHARD_INIT=$3
    launch a 0 "$join" --master-addr "$2"
    local first=$!
    launch b 1 "$join" --master-addr "$2"
    finish $first $!
    unset TSHARD_INIT
    for side in a b; do
        says $side "the ranks are on 2 machines (host-a: ranks 0, 1; host-b: ranks 2, 3), but TSHARD_BACKEND is local"
        last $side '[0-3]' 'exited with code '
    done
    [ "${codes[0]}" != 0 ] && [ "${codes[1]}" != 0 ] || fail "$what: exit codes ${codes[*]}"
    local words="TSHARD_TOKEN has 5 characters"
    [ -n "$TSHARD_TOKEN" ] || words="TSHARD_TOKEN is not set: any program"
    [ "$(cat "$folder/a.err" "$folder/b.err" | grep -cF "[0] tshard warning: rendezvous: $words")" = 1 ] || fail "$what: not once '$words'"
    echo "$what: found each other"
}

rendezvous "env" "$net.1"
TSHARD_TOKEN="" rendezvous "env, no token" "$net.1"
rendezvous "tcp, IPv4" "$net.1" "tcp://$net.1:29511"
rendezvous "multicast, IPv4" "$net.1" "tcp://239.255.17.9:29512"
if [ "$have_ipv6" = 1 ]; then
    rendezvous "tcp, IPv6" "$net6::1" "tcp://[$net6::1]:29513"
    rendezvous "multicast, IPv6" "$net6::1" "tcp://[ff15::7473]:29514"
else
    echo "left out: IPv6 is not to be had here"
fi

# A host is cut off while ranks wait for the last one: each side reports what it knows, in time.
export TSHARD_TIMEOUT=5
what="cut off"
export TSHARD_WARN=0.2
launch a 0 "$join" --master-addr "$net.1"
first=$!
launch b 1 "test \$RANK = 3 && until [ -e $folder/apart ]; do sleep 0.05; done; $join" --master-addr "$net.1"
second=$!
for ((i = 0; i < 600; i++)); do
    grep -qF "3/4 joined, missing rank 3" "$folder/a.err" && break
    sleep 0.05
done
hosts_apart
touch "$folder/apart"
finish $first $second
says a "3/4 joined, missing rank 3"
last a '[01]' 'exited with code '
says b "found no rank 0 at $net.1:29500"
last b '[23]' 'exited with code '
echo "$what: both said so"

# The host stays cut off: the master cannot be reached.
what="no way"
launch b 1 "$join" --master-addr "$net.1"
finish $!
says b "found no rank 0 at $net.1:29500 ($net.1:29500: "
echo "$what: reported"

# The host stays cut off, with a multicast address.
what="no way by multicast"
export TSHARD_INIT=tcp://239.255.17.9:29515
launch a 0 "$join" --master-addr "$net.1"
first=$!
launch b 1 "$join" --master-addr "$net.1"
finish $first $!
for side in a b; do says $side "/4 joined"; done
unset TSHARD_INIT
hosts_joined
echo "$what: both said so"

# A rank fails on one host before the rendezvous: the ranks of both hosts start again, and find each other.
export TSHARD_TIMEOUT=20
what="restart"
launch a 0 "$join" --master-addr "$net.1" --max-restarts 1
first=$!
launch b 1 "test \$RANK\$TORCHELASTIC_RESTART_COUNT = 30 && sleep 1 && exit 7; $join" --master-addr "$net.1" --max-restarts 1
finish $first $!
for side in a b; do
    says $side "rank 3 (pid "
    says $side "on host-b) exited with code 7"
    says $side "starting all ranks again, 1 of 1 times"
    says $side "(host-a: ranks 0, 1; host-b: ranks 2, 3)"
    tail -n 1 "$folder/$side.err" | grep -qE '^tshard-run: rank [0-3] \(pid [0-9]+ on host-[ab]\) exited with code ' ||
        fail "$what: the last line of host-$side"
done
echo "$what: found each other after it"
exit $code
