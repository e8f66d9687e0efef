#!/usr/bin/env bash
# test_any_machines_hosts.sh BUILD [TIMES [STEPS]]: ranks on two and three hosts, which are network namespaces, go on after
# deaths, with the losses of one rank; and who cannot go on ends, and says why. Cases with random deaths run TIMES times (1)
# with STEPS steps (30), from the seed SEED (1). With STEPS only these run where one rank of two, three or five dies, on one
# host, two or three. The times from deaths to the next steps are printed last.
set -uo pipefail
build=$1 times=${2:-1} steps=${3:-30} only_one=${3:+1}
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
options="--survive --every 3 --dtype float64 --times"
RANK=0 WORLD_SIZE=1 "$program" --steps $((steps > 150 ? steps : 150)) --dtype float64 > "$folder/one" || { echo "FAILED: one rank"; exit 1; }

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
    hosts=$(printf '%s\n' "${sides[@]}" | sort -u | wc -l)
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

# Where one rank has died: the seconds until the first step that has ended after the others have gone on.
note_time() {
    cat "$folder"/out.* | awk -v hosts="$hosts" '
        /^dies at / { deaths++; died = $3 }
        / ranks go on after step / { goes_on = 1 }
        /^step .* at / && goes_on && !ended { ended = $5 }
        END { if (deaths == 1 && ended) print hosts, ended - died }' >> "$folder/times"
}

# print_times: of the runs on one host, and of those on several.
print_times() {
    [ -s "$folder/times" ] || return
    sort -k1n -k2n "$folder/times" | awk '
        { k = $1 > 1; time[k, ++n[k]] = $2 }
        END { for (k = 0; k < 2; k++) if (n[k])
            printf "from a death to the next step, %s: median %.2f s, longest %.2f s, %d deaths\n", k ? "several hosts" : "one host",
                   time[k, int((n[k] + 1) / 2)], time[k, n[k]], n[k] }'
}

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
        END { for (i = 0; i < steps && !bad; i++) if (!(i ":" in seen)) { print "FAILED: no step " i; bad = 1 }; exit bad }' \
        "$folder/one" - || fail "the losses"
    grep -hq "^$1 ranks go on after step" "$folder"/out.* || fail "not $1 ranks"
    note_time
    rm -f "$folder"/out.*
    echo "$what: done"
}

says() { grep -qE -- "$2" "$folder/out.$1" || fail "rank $1 does not say '$2'"; }

# death RANK: in a random step, at a random moment. Not in a subshell, whose RANDOM does not follow the seed.
death() { deaths=${deaths:+$deaths,}$1:$((RANDOM % (steps - 10) + 3)):$((RANDOM % 30000)); }

for ((round = 0; round < times; round++)); do
    what="two ranks, 3:1" deaths=
    death 1
    start "a b" --model 3:1 --kill "$deaths"
    finish 1
    what="two ranks of one host, 3:1" deaths=
    death $((RANDOM % 2))
    start "a a" --model 3:1 --kill "$deaths"
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
    [ "$only_one" ] && continue
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
if [ "$only_one" ]; then
    print_times
    exit $code
fi

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
print_times
exit $code
