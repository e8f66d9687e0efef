#!/usr/bin/env bash
# hosts.sh MPIEXEC PROGRAM: ranks on two hosts. The hosts are network namespaces with addresses of their own, joined by
# a pair of virtual interfaces; the launcher's agent enters one instead of logging in.
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # MPI itself leaks
launcher=$1 program=$2
skip() { echo "skipped: $1"; exit 77; }

[ "$(id -u)" = 0 ] || skip "only root may make network namespaces"
command -v ip > /dev/null || skip "there is no ip (Debian: apt-get install iproute2)"
a=tsa$$ b=tsb$$ net=10.$((RANDOM % 200 + 20)).$((RANDOM % 250))
folder=$(mktemp -d)
clean() {
    ip netns del "$a" 2> /dev/null
    ip netns del "$b" 2> /dev/null
    rm -rf "$folder"
}
trap clean EXIT
{ ip netns add "$a" && ip netns add "$b"; } 2> /dev/null || skip "network namespaces are not allowed here"
ip link add v$$a netns "$a" type veth peer name v$$b netns "$b" 2> /dev/null || skip "veth pairs are not allowed here"
for side in "$a v$$a 1" "$b v$$b 2"; do
    read -r name device host <<< "$side"
    ip -n "$name" addr add "$net.$host/24" dev "$device"
    ip -n "$name" link set "$device" up
    ip -n "$name" link set lo up
done

# AGENT [options] HOST COMMAND...: as ssh does, with the environment that matters.
cat > "$folder/agent" << EOF
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in $net.1) name=$a ;; $net.2) name=$b ;; *) echo "agent: no host \$1" >&2; exit 1 ;; esac
shift
exec ip netns exec \$name unshare --uts sh -c "hostname host-\$name; \$*"
EOF
chmod +x "$folder/agent"
export TSHARD_HEAP=512M TSHARD_TIMEOUT=20 OPENBLAS_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

case $("$launcher" --version 2>&1) in
    *"Open MPI"* | *OpenRTE*)
        printf '%s slots=2\n' "$net.1" "$net.2" > "$folder/hosts"
        flags="--allow-run-as-root --oversubscribe --bind-to none --hostfile $folder/hosts
            --mca plm_rsh_agent $folder/agent --mca btl tcp,self,vader --mca btl_tcp_if_include $net.0/24
            --mca oob_tcp_if_include $net.0/24 --mca orte_keep_fqdn_hostnames 1 --map-by slot
            -x TSHARD_HEAP -x TSHARD_TIMEOUT -x TSHARD_CHECK -x OPENBLAS_NUM_THREADS -x EXPECT_NODES -x TSHARD_INIT -x ASAN_OPTIONS"
        ;;
    *)
        printf '%s:2\n' "$net.1" "$net.2" > "$folder/hosts"
        flags="-launcher ssh -launcher-exec $folder/agent -f $folder/hosts -iface v$$a"
        ;;
esac

code=0
for run in "4 place 2" "4 short 2" "4 groups 2" "4 messages 2" "4 misuse 2" "4 recover 2" "3 leave 2"; do
    read -r ranks scenario nodes <<< "$run"
    # The first without TSHARD_INIT: that the ranks are on several machines is enough.
    [ "$scenario" = place ] && unset TSHARD_INIT || export TSHARD_INIT=mpi://
    # shellcheck disable=SC2086
    EXPECT_NODES=$nodes timeout -k 5 120 ip netns exec "$a" unshare --uts sh -c "hostname host-$a; exec \"\$@\"" sh \
        "$launcher" $flags -n "$ranks" "$program" "$scenario" < /dev/null > "$folder/out" 2>&1
    result=$?
    cat "$folder/out"
    echo "$scenario on $ranks ranks of two hosts: $result"
    [ $result = 0 ] || code=1
done
exit $code
