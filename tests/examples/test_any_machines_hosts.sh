#!/usr/bin/env bash
# test_any_machines_hosts.sh BUILD [TIMES]: ranks on two and three hosts, which are network namespaces, go on after deaths,
# with the losses of one rank; and who cannot go on ends, and says why. Cases with random deaths run TIMES times (1), from
# the seed SEED (1). The longest time from a death to the next step is printed.
set -uo pipefail
build=$1 times=${2:-1}
program=$build/bin/any_machines
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../support/hosts.sh"
grep -rqs TSHARD_HAVE_UCX "$build/compile_commands.json" || skip "a build without UCX"
unset TSHARD_INIT TSHARD_BACKEND
export TSHARD_TOKEN=a-secret-of-two-hosts TSHARD_HEAP=512M TSHARD_TIMEOUT=60 TSHARD_SILENCE=5 TSHARD_MIN_RANKS=1
export TSHARD_BLAS_THREADS=1 OPENBLAS_NUM_THREADS=1
hosts_up ipv4
hosts_third
# Any two hosts reach each other, over host-a.
ip netns exec "tsa$$" sysctl -qw net.ipv4.ip_forward=1
ip -n "tsb$$" route add "$net_c.0/24" via "$net.1"
ip -n "tsc$$" route add "$net.0/24" via "$net_c.1"
code=0 port=$((RANDOM % 10000 + 20000)) RANDOM=${SEED:-1} # a port that the system gives to no connection
export MASTER_ADDR=$net.1 WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT RANK LOCAL_RANK
steps=30
options="--survive --every 3 --dtype float64"
RANK=0 WORLD_SIZE=1 "$program" --steps 150 --dtype float64 > "$folder/one" || { echo "FAILED: one rank"; exit 1; }

fail() {
    code=1
    echo "FAILED: $what: $1"
    for ((i = 0; i < ${#pids[@]}; i++)); do grep -v '^step ' "$folder/out.$i" | sed "s/^/    rank $i: /"; done
}

# start HOSTS ARGUMENT...: rank i on the i-th of the hosts, as "a a b".
start() {
    local side
    read -ra sides <<< "$1"
    shift
    port=$((port + 1)) pids=() MASTER_PORT=$port WORLD_SIZE=${#sides[@]}
    local -A here=()
    for side in "${sides[@]}"; do here[$side]=$((${here[$side]:-0} + 1)); done
    local -A next=()
    for side in "${sides[@]}"; do
        RANK=${#pids[@]} LOCAL_RANK=${next[$side]:-0} LOCAL_WORLD_SIZE=${here[$side]}
        next[$side]=$((LOCAL_RANK + 1))
        # shellcheck disable=SC2086
        "$folder/on" "$side" "$program" $options --steps "$steps" "$@" < /dev/null > "$folder/out.$RANK" 2>&1 &
        pids+=($!)
        disown $!
    done
}

# await RANK PATTERN: its output has such a line; false when it has not for two minutes.
await() {
    local until=$((SECONDS + 120))
    while [ $SECONDS -lt $until ]; do
        grep -qsE -- "$2" "$folder/out.$1" && return
        sleep 0.02
    done
    fail "rank $1 does not say '$2'"
    return 1
}

ended() { ! kill -0 "$1" 2> /dev/null; }

# finish RANKS: all processes end; so many ranks go on at last, with the losses of one rank, from the first step to the last.
# A rank 0 that dies may take its last line with it.
finish() {
    local pid until
    for pid in "${pids[@]}"; do
        until=$((SECONDS + 120))
        while [ $SECONDS -lt $until ] && ! ended "$pid"; do sleep 0.02; done
        ended "$pid" || { fail "a rank has not ended"; kill -9 "$pid"; }
    done
    cat "$folder"/out.* | awk -v steps="$steps" '
        NR == FNR { one[$2] = $3; next }
        / ranks go on after step / { seen[$NF - 1 ":"] }
        !/^step / { next }
        { seen[$2]; off = ($3 - one[$2]) / one[$2]; if (off > 1e-6 || off < -1e-6) { print "FAILED: " $0 " and " one[$2]; bad = 1 } }
        END { for (i = 0; i < steps; i++) if (!(i ":" in seen)) { print "FAILED: no step " i; bad = 1 }; exit bad }' \
        "$folder/one" - || fail "the losses"
    grep -hq "^$1 ranks go on after step" "$folder"/out.* || fail "not $1 ranks"
    rm -f "$folder"/out.*
    echo "$what: done"
}

says() { grep -qE -- "$2" "$folder/out.$1" || fail "rank $1 does not say '$2'"; }

# death RANK: in a random step, at a random moment. Not in a subshell, whose RANDOM does not follow the seed.
death() { deaths=${deaths:+$deaths,}$1:$((RANDOM % 20 + 3)):$((RANDOM % 30000)); }

for ((round = 0; round < times; round++)); do
    what="two ranks, 3:1" deaths=
    death 1
    start "a b" --model 3:1 --kill "$deaths"
    finish 1
    for rank in 0 1 2; do
        what="rank $rank of three on two hosts, 2:1:1" deaths=
        death $rank
        start "a a b" --model 2:1:1 --kill "$deaths"
        finish 2
    done
    rank=$((RANDOM % 5)) deaths=
    what="rank $rank of five on three hosts"
    death $rank
    start "a a b c c" --model $((RANDOM % 2 * 4 + 1)) --kill "$deaths"
    finish 4
    what="three ranks, one after another, of six in turn on two hosts" deaths=
    for rank in 0 2 4; do death $rank; done
    start "a b b a b a" --model 2 --kill "$deaths"
    finish 3
    what="a whole host of three"
    at=$((RANDOM % 20 + 3))
    start "a a b c c" --model 5 --kill "3:$at:0,4:$at:$((RANDOM % 100))"
    finish 3
    first=$((RANDOM % 4)) second=$(((first + 1 + RANDOM % 2) % 4)) at=$((RANDOM % 20 + 3))
    [ $first$second = 01 ] && second=2 # some rank of rank 0's host must live
    what="rank $second while others go on without rank $first"
    start "a a b b" --kill "$first:$at:0,$second:$at:$((10000 + RANDOM * 4))"
    finish 2
done

what="a rank that was stopped wakes when the others have gone on"
steps=150 TSHARD_TIMEOUT=3
start "a a b b" --model 4
await 0 '^step 9:' && kill -STOP "${pids[3]}"
await 0 'ranks go on after step' && kill -CONT "${pids[3]}"
await 3 'gone on without rank 3|the other ranks have declared rank 3 lost'
finish 3

what="a host that is cut off ends, and the others go on"
start "a a b b" --model 4
await 0 '^step 9:' && hosts_apart
for rank in 2 3; do await $rank "cannot be reached at $net.1:$port: this rank ends"; done
finish 2
hosts_joined

what="rank 0's host dies: the others end"
steps=30 TSHARD_TIMEOUT=60
start "a a b b" --kill 0:9,1:9
for rank in 2 3; do
    await $rank "the ranks of rank 0's machine, which decide who goes on, have all ended"
done
exit $code
