# Two or three hosts on this machine, for scripts to source: network namespaces with names, addresses, a /dev/shm and a TMPDIR of
# their own, joined by a pair of virtual interfaces. Where that is not to be had, hosts_up ends the script with 77.
#   hosts_up ipv4|ipv6     makes host-a and host-b; all of it goes when the script ends
#   hosts_third            adds host-c, which has a link to host-a: $net_c.1 and $net_c.3
#   $net.1 $net.2          their addresses; $net6::1 and $net6::2 of ipv6 where $have_ipv6 is 1
#   on a|b|c COMMAND...    runs it there; $folder/on is the same as a program
#   processes_on a|b|c     their numbers
#   hosts_apart, hosts_joined     host-b's link
#   $folder                for the script's files; $folder/a and $folder/b are the hosts' TMPDIR
# shellcheck shell=bash disable=SC2034

# LeakSanitizer of GCC 12 crashes when UCX's thread is just ending.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

skip() { echo "skipped: $1"; exit 77; }

hosts_clean() {
    local host
    for host in a b c; do
        processes_on $host | xargs -r kill -9 2> /dev/null
        ip netns del "ts$host$$" 2> /dev/null
    done
    rm -rf "$folder"
}

processes_on() { ip netns pids "ts$1$$" 2> /dev/null; }
on() { "$folder/on" "$@"; }
hosts_apart() { ip -n "tsb$$" link set "tsvb$$" down; }
hosts_joined() { ip -n "tsb$$" link set "tsvb$$" up; }

hosts_third() {
    net_c=10.$((RANDOM % 20 + 221)).$((RANDOM % 250))
    mkdir "$folder/c"
    ip netns add "tsc$$"
    ip link add "tsca$$" netns "tsa$$" type veth peer name "tsvc$$" netns "tsc$$"
    ip -n "tsa$$" addr add "$net_c.1/24" dev "tsca$$"
    ip -n "tsa$$" link set "tsca$$" up
    ip -n "tsc$$" addr add "$net_c.3/24" dev "tsvc$$"
    ip -n "tsc$$" link set "tsvc$$" up
    ip -n "tsc$$" link set lo up
}

# hosts_address HOST NUMBER ipv4|ipv6
hosts_address() {
    local name=ts$1$$ device=tsv$1$$
    ip -n "$name" addr add "$net.$2/24" dev "$device"
    if [ "$3" = ipv6 ]; then
        ip -n "$name" addr add "$net6::$2/64" dev "$device" nodad 2> /dev/null || have_ipv6=0
    fi
    ip -n "$name" link set "$device" up
    ip -n "$name" link set lo up
}

hosts_up() {
    [ "$(id -u)" = 0 ] || skip "only root may make network namespaces"
    command -v ip > /dev/null || skip "there is no ip (Debian: apt-get install iproute2)"
    net=10.$((RANDOM % 200 + 20)).$((RANDOM % 250)) net6=fd00:$((RANDOM % 9000 + 1000)) have_ipv6=1
    folder=$(mktemp -d)
    trap hosts_clean EXIT
    mkdir "$folder/a" "$folder/b"
    { ip netns add "tsa$$" && ip netns add "tsb$$"; } 2> /dev/null || skip "network namespaces are not allowed here"
    ip link add "tsva$$" netns "tsa$$" type veth peer name "tsvb$$" netns "tsb$$" 2> /dev/null ||
        skip "veth pairs are not allowed here"
    hosts_address a 1 "$1"
    hosts_address b 2 "$1"
    cat > "$folder/on" << EOF
#!/bin/sh
host=\$1
shift
export TMPDIR=$folder/\$host
exec ip netns exec "ts\${host}$$" unshare --uts sh -c '
    hostname "host-\$0" && mount -t tmpfs none /dev/shm || exit 99
    exec "\$@"' "\$host" "\$@"
EOF
    chmod +x "$folder/on"
}
