#!/usr/bin/env bash
# test_joins_hosts.sh BUILD: ranks on two and three hosts, which are network namespaces, join jobs and die, with the losses of
# one rank.
set -uo pipefail
build=$1
program=$build/bin/any_machines
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../support/hosts.sh"
grep -rqs TSHARD_HAVE_UCX "$build/compile_commands.json" || skip "a build without UCX"
unset TSHARD_INIT TSHARD_BACKEND TSHARD_JOIN
export TSHARD_TOKEN=a-secret-of-the-hosts TSHARD_HEAP=512M TSHARD_TIMEOUT=60 TSHARD_SILENCE=5 TSHARD_MIN_RANKS=1
export TSHARD_BLAS_THREADS=1 OPENBLAS_NUM_THREADS=1
hosts_up ipv4
hosts_third
# Any two hosts reach each other, over host-a.
ip netns exec "tsa$$" sysctl -qw net.ipv4.ip_forward=1
ip -n "tsb$$" route add "$net_c.0/24" via "$net.1"
ip -n "tsc$$" route add "$net.0/24" via "$net_c.1"
code=0 port=$((RANDOM % 10000 + 20000)) # a port that the system gives to no connection
steps=30
options="--survive --every 3 --dtype float64 --steps $steps"
"$program" --steps $steps --dtype float64 > "$folder/one" || { echo "FAILED: one rank"; exit 1; }

# start N HOST ARGUMENT...: a job of N ranks on that host, with an address that others reach. Its processes become pids.
start() {
    local ranks=$1 host=$2
    shift 2
    port=$((port + 1)) pids=()
    # shellcheck disable=SC2086
    "$folder/on" "$host" "$build/bin/tshard-run" --no-prefix -n "$ranks" --min-ranks 1 --master-addr "$net.1" --port $port \
        "$program" $options "$@" < /dev/null > "$folder/out.0" 2>&1 &
    pids+=($!)
}

# join N HOST ARGUMENT...: with the arguments of the job, --wait too: all ranks ask for joiners in the same steps.
join() {
    local ranks=$1 host=$2
    shift 2
    # shellcheck disable=SC2086
    "$folder/on" "$host" "$build/bin/tshard-run" --no-prefix -n "$ranks" --join "$net.1:$port" \
        "$program" $options "$@" < /dev/null > "$folder/out.$port.$RANDOM" 2>&1 &
    pids+=($!)
}

# finish RANKS: all launchers end well; so many ranks go on at last, with the losses of one rank.
finish() {
    local pid bad=0
    for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
    cat "$folder"/out.* | awk -v steps="$steps" '
        NR == FNR { if ($1 == "step") one[$2] = $3; next }
        $1 != "step" { next }
        { seen[$2]; off = ($3 - one[$2]) / one[$2]; if (off > 1e-6 || off < -1e-6) { print "FAILED: " $0 " and " one[$2]; bad = 1 } }
        END { for (i = 0; i < steps; i++) if (!(i ":" in seen)) { print "FAILED: no step " i; bad = 1 }; exit bad }' \
        "$folder/one" - || bad=1
    grep -hq "^$1 ranks go on after step" "$folder"/out.* || { echo "FAILED: not $1 ranks"; bad=1; }
    if [ $bad = 1 ]; then
        code=1
        echo "FAILED: $what"
        grep -hv '^step ' "$folder"/out.*
    fi
    rm -f "$folder"/out.*
    echo "$what: done"
}

what="one rank, and one of another host"
start 1 a --model 2 --wait 8:2
join 1 b --model 2 --wait 8:2
finish 2

what="two ranks, two of another host, then one of a third"
start 2 a --model 4 --wait 5:4,12:5
join 2 b --model 4 --wait 5:4,12:5
join 1 c --model 4 --wait 5:4,12:5
finish 5

what="a rank of another host joins and dies, then one of the first host joins"
start 2 a --model 1 --wait 5:3,15:3
join 1 b --model 1 --wait 5:3,15:3 --kill 2:10:1000
wait "${pids[1]}" && { echo "FAILED: the rank has not died"; code=1; }
unset 'pids[1]'
join 1 a --model 1 --wait 5:3,15:3
finish 3

what="rank 0 dies, and two of another host join the rank that is left; one is killed on the way"
start 2 a --model 2 --wait 12:3 --kill 0:6:500
for ((i = 0; i < 3000; i++)); do
    grep -qs "^1 ranks go on" "$folder"/out.* && break
    sleep 0.02
done
"$folder/on" c env TSHARD_JOIN="$net.1:$port" timeout -s KILL "0.$((RANDOM % 80 + 20))" "$program" $options --model 2 --wait 12:3 > /dev/null 2>&1
join 2 c --model 2 --wait 12:3
finish 3
exit $code
