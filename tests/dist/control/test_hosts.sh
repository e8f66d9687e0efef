#!/usr/bin/env bash
# test_hosts.sh BUILD [TIMES]: deaths, failures and a cut link on two and three hosts, which are network namespaces, each
# with a relay. Each kind of death TIMES times (1), with the seconds until every host knew: those are printed, and more than
# MOST, or on the slow links MOST_SLOW, is a failure: 30 where it is not set, for machines that are busy.
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../../support/hosts.sh"
build=$1
program=$build/tests/control/host
times=${2:-1}
code=0
hosts_up ipv4
hosts_third
declare -A input pid address
address=([a]=0.0.0.0 [b]=$net.1 [c]=$net_c.1)
port=29600

fail() {
    code=1
    echo "FAILED: $1"
    for side in $sides; do sed "s/^/    $side: /" "$folder/$side.log" "$folder/$side.err"; done
}

# await SIDE PATTERN: its log has such a line; false when it has not for a minute.
await() {
    for ((i = 0; i < 3000; i++)); do
        grep -qE -- "$2" "$folder/$1.log" && return
        sleep 0.02
    done
    fail "$what: host $1 does not say '$2'"
    return 1
}

# begin SIDES TIMEOUT: two ranks on each: 0 and 1 on a, 2 and 3 on b, 4 and 5 on c.
begin() {
    local node=0 count side fd
    sides=$1 count=$(wc -w <<< "$1")
    port=$((port + 1))
    for side in $sides; do
        rm -f "$folder/$side.in"
        mkfifo "$folder/$side.in"
        exec {fd}<> "$folder/$side.in"
        input[$side]=$fd
        on "$side" "$program" $node "$count" 2 "${address[$side]}" $port "$2" \
            < "$folder/$side.in" > "$folder/$side.log" 2> "$folder/$side.err" {fd}>&- &
        pid[$side]=$!
        node=$((node + 1))
    done
    for side in $sides; do await "$side" connected || return 1; done
}

tell() { echo "$2" >&"${input[$1]}"; }

finish() {
    local side fd
    for side in $sides; do
        tell "$side" end
        fd=${input[$side]}
        exec {fd}>&-
        wait "${pid[$side]}"
    done
}

# spread SIDE LINE RANK STATE BUT MOST: after this line there, that rank has that state on every host but BUT, within
# MOST seconds; the longest of them is printed to $folder/seconds.
spread() {
    local side
    tell "$1" "$2"
    for side in $sides; do
        [ "$side" = "$5" ] || await "$side" "rank $3 $4" || return 1
    done
    for side in $sides; do
        [ "$side" = "$5" ] || awk -v rank="$3" -v state="$4" '$2 == "rank" && $3 == rank && $4 == state { print $1; exit }' "$folder/$side.log"
    done | sort -n | tail -n 1 | awk -v start="$(awk -v line="$2" 'index($0, line) { print $1; exit }' "$folder/$1.log")" \
        '{ printf "%.3f\n", $1 - start }' > "$folder/one"
    cat "$folder/one" >> "$folder/seconds"
    awk -v most="$6" '$1 > most { bad = 1 } END { exit bad }' "$folder/one" || fail "$what took $(cat "$folder/one") s, more than $6"
}

# deaths NAME MOST RANKS: of each of these ranks, of which the even ones have the relays; with a failure before that of 3.
deaths() {
    local rank side
    : > "$folder/seconds"
    for ((round = 0; round < times; round++)); do
        for rank in $3; do
            side=$(cut -c $((rank / 2 + 1)) <<< abc)
            what="$1: the death of rank $rank"
            begin "a b c" 60 || return
            [ "$rank" = 3 ] && spread c "fail 5" 5 failed - "$2"
            spread "$side" "kill $rank" "$rank" dead "$([ $((rank % 2)) = 1 ] || echo "$side")" "$2"
            finish
        done
    done
    sort -n "$folder/seconds" | awk -v name="$1" '{ s[NR] = $1 } END {
        printf "%s: %d times, median %.3f s, 95 %% %.3f s, longest %.3f s\n", name, NR, s[int((NR + 1) / 2)], s[int(NR * 0.95 + 0.5)], s[NR] }'
}

deaths "three hosts" "${MOST:-30}" "1 3 5 2 4 0"

what="a cut link"
if begin "a b c" 5; then
    hosts_apart
    for rank in 2 3; do
        for side in a c; do await $side "rank $rank stuck machine b \(ranks 2, 3\) cannot be reached: nothing has come from it for 5 s"; done
    done
    await b "rank 0 stuck machine a \(ranks 0, 1\) cannot be reached: nothing has come from it for 5 s"
    await b "rank 4 stuck machine c is reached over machine a \(ranks 0, 1\), which cannot be reached: nothing has come"
    # The hosts that still have each other go on.
    spread c "fail 4" 4 failed b 30
    echo "$what: all have said so"
    hosts_joined
fi
finish

# slow HOST NUMBER: another link between host-a and that one, over which packets take 400 ms each way and 5 % get lost.
slow() {
    local device=tsl$1$$
    mkfifo "$folder/slow$1"
    exec {fd}<> "$folder/slow$1"
    "$build/tests/control/slow_link" "tsa$$" "ts$1$$" "$device" 0.4 5 < "$folder/slow$1" > "$folder/slow$1.log" &
    local link=$!
    disown $link
    until [ -s "$folder/slow$1.log" ]; do
        kill -0 $link 2> /dev/null || return 1
        sleep 0.02
    done
    ip -n "tsa$$" addr add "10.241.$2.1/24" dev "$device"
    ip -n "ts$1$$" addr add "10.241.$2.2/24" dev "$device"
    ip -n "tsa$$" link set "$device" up
    ip -n "ts$1$$" link set "$device" up
    address[$1]=10.241.$2.1
}
if slow b 2 && slow c 3; then
    deaths "400 ms and 5 % loss" "${MOST_SLOW:-30}" "3 4 0"
else
    echo "left out: there are no TUN devices here, for links with delay and loss"
fi
exit $code
