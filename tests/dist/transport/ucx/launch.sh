#!/usr/bin/env bash
# launch.sh [options] -n RANKS PROGRAM...: starts ranks over UCX, with the variables of torchrun, and ends no rank because
# another one has ended. HOSTS: on how many hosts, which are network namespaces: 1 (default) to 3. LINK: of the link of
# host-b, words for `tc qdisc add`. Exits with the code of the first rank that did not end with 0.
set -uo pipefail
[ "${1:-}" != --version ] || { echo "ranks"; exit; }
while [ "${1#-}" != "$1" ]; do [ "$1" != -n ] || { shift; ranks=$1; }; shift; done
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((RANDOM % 10000 + 20000)) TSHARD_TOKEN=a-secret-of-these-ranks-$$
hosts=(here)
[ "${HOSTS:-1}" -gt "$ranks" ] && HOSTS=$ranks
if [ "${HOSTS:-1}" -gt 1 ]; then
    # shellcheck source=tests/support/hosts.sh
    . "$(dirname "$0")/../../../support/hosts.sh"
    hosts_up ipv4
    hosts=(a b)
    MASTER_ADDR=$net.1
    # shellcheck disable=SC2086
    [ -z "${LINK:-}" ] || ip netns exec "tsb$$" tc qdisc add dev "tsvb$$" root $LINK
    if [ "$HOSTS" = 3 ]; then
        hosts_third
        hosts=(a b c)
        # Any two hosts reach each other, over host-a.
        ip netns exec "tsa$$" sysctl -qw net.ipv4.ip_forward=1
        ip -n "tsb$$" route add "$net_c.0/24" via "$net.1"
        ip -n "tsc$$" route add "$net.0/24" via "$net_c.1"
    fi
else
    export TSHARD_BACKEND=ucx
fi

pids=() ended=()
for ((i = 0; i < ranks; i++)); do
    host=${hosts[$((i * ${#hosts[@]} / ranks))]}
    if [ "$host" = here ]; then
        RANK=$i "$@" < /dev/null &
    else
        RANK=$i "$folder/on" "$host" "$@" < /dev/null &
    fi
    pids+=($!)
done
# The processes of a rank: behind `ip netns exec` and `unshare` there is one, as each executes the next.
is_stopped() { grep -q '^State:.[Tt]' "/proc/$1/status" 2> /dev/null; }
while :; do
    left=0
    for pid in "${pids[@]}"; do kill -0 "$pid" 2> /dev/null && ! is_stopped "$pid" && left=1; done
    [ $left = 1 ] || break
    sleep 0.05
done
code=0
for pid in "${pids[@]}"; do
    is_stopped "$pid" && kill -9 "$pid"
    wait "$pid"
    got=$?
    [ $code != 0 ] || code=$got
done
exit $code
