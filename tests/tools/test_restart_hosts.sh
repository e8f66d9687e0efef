#!/usr/bin/env bash
# test_restart_hosts.sh BUILD: tshard-run --max-restarts on two and three hosts, which are network namespaces.
# shellcheck disable=SC2016,SC2317  # the ranks expand $RANK; wait_for calls all_are_here
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../support/hosts.sh"
bin=$1/bin
code=0
hosts_up ipv4
hosts_third
ip -n "tsc$$" route add "$net.0/24" via "$net_c.1" # host-a's address is one for all

export TSHARD_TOKEN=one-secret-for-all-hosts TSHARD_HEAP=64M TSHARD_TIMEOUT=60 OPENBLAS_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TSHARD_INIT TSHARD_BACKEND

fail() {
    code=1
    echo "FAILED: $what: $1"
    [ "${shown:-}" != "$what" ] || return 0
    shown=$what
    for side in $sides; do sed "s/^/    $side: /" "$folder/$side.out"; done
}

# launch SCRIPT: two ranks of `sh -c SCRIPT` on each of $sides, in the background; the launchers into $launchers.
launch() {
    local node=0 side count
    count=$(wc -w <<< "$sides")
    launchers=()
    for side in $sides; do
        on "$side" "$bin/tshard-run" --nnodes "$count" --node-rank $node --master-addr "$net.1" -n 2 --bind none \
            --max-restarts 1 sh -c "$1" < /dev/null > "$folder/$side.out" 2>&1 &
        launchers+=($!)
        node=$((node + 1))
    done
}

# finish SECONDS: the launchers' exit codes into `codes`; none takes longer, and nothing is left on any host.
finish() {
    local pid started=$SECONDS
    codes=()
    for pid in "${launchers[@]}"; do
        while kill -0 "$pid" 2> /dev/null && [ $((SECONDS - started)) -le "$1" ]; do sleep 0.05; done
        kill -0 "$pid" 2> /dev/null && { fail "still running after $1 s"; kill -9 "$pid"; }
        wait "$pid"
        codes+=($?)
    done
    for side in $sides; do
        [ -z "$(processes_on "$side")" ] || fail "processes are left: $(processes_on "$side" | xargs ps -o pid,args -p)"
    done
}

says() { grep -qF -- "$2" "$folder/$1.out" || fail "host-$1 does not say '$2'"; }

# wait_for COMMAND...: for a minute.
wait_for() {
    local i
    for ((i = 0; i < 1200; i++)); do "$@" && return; sleep 0.05; done
    fail "waited for $*"
}
all_are_here() { [ "$(cat "$folder"/[abc].out | grep -c 'here$')" = "$1" ]; }

# A rank of the second host is killed while it trains; all ranks go on from the newest checkpoint.
sides="a b" what="a rank that trains is killed"
if grep -q "libucp.so" "$bin/../lib/libtshard.so" 2> /dev/null; then
    train="$bin/train_text --steps 20 --batch 6 --context 4 --embed 5 --hidden 17 --save $folder/run"
    launch "test \$TSHARD_RESTART = 1 && exec $train --every 10 --resume $folder/run
        test \$RANK = 3 || exec $train --every 1
        $train --every 1 & until test -e $folder/run/step-00000002; do sleep 0.01; done
        kill -9 \$! \$\$"
    finish 100
    [ "${codes[*]}" = "0 0" ] || fail "exit codes ${codes[*]}"
    for side in $sides; do says "$side" "starting all ranks again, 1 of 1 times"; done
    says a "[0] resumed after step "
    [ -e "$folder/run/step-00000020" ] || fail "there is no step 20"
    echo "$what: tried"
else
    echo "left out: this build has no UCX"
fi

# A rank of the third host dies twice: every host says so, and ends with its code.
sides="a b c" what="restarts are used up"
launch 'test $RANK = 5 && kill -9 $$; exec sleep 100'
finish 60
[ "${codes[*]}" = "137 137 137" ] || fail "exit codes ${codes[*]}"
for side in $sides; do
    says "$side" "starting all ranks again, 1 of 1 times"
    tail -n 1 "$folder/$side.out" |
        grep -qE '^tshard-run: rank 5 \(pid [0-9]+ on host-c\) was killed by signal 9 \(Killed\); the others were stopped$' ||
        fail "the last line of host-$side"
done
echo "$what: tried"

# The second host is cut off: each side names the one that it cannot reach, and no rank is left.
export TSHARD_TIMEOUT=10
what="a host is cut off"
launch 'echo here; exec sleep 100'
wait_for all_are_here 6
hosts_apart
finish 60
hosts_joined
[ "${codes[*]}" = "1 1 1" ] || fail "exit codes ${codes[*]}"
for side in a c; do says "$side" "tshard-run on host-b (node 1) cannot be reached: nothing has come from it for 10 s"; done
says b "tshard-run on host-a (node 0) cannot be reached: nothing has come from it for 10 s"
echo "$what: tried"
exit $code
