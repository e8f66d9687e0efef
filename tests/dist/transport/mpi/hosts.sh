#!/usr/bin/env bash
# hosts.sh MPIEXEC PROGRAM: ranks on two hosts, which are network namespaces; the launcher's agent enters one instead of
# logging in.
set -uo pipefail
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../../../support/hosts.sh"
launcher=$1 program=$2
hosts_up ipv4

# AGENT [options] HOST COMMAND...: as ssh does, with the environment that matters.
cat > "$folder/agent" << EOF
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in $net.1) host=a ;; $net.2) host=b ;; *) echo "agent: no host \$1" >&2; exit 1 ;; esac
shift
exec "$folder/on" \$host sh -c "\$*"
EOF
chmod +x "$folder/agent"
export TSHARD_HEAP=512M TSHARD_TIMEOUT=60 OPENBLAS_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

case $("$launcher" --version 2>&1) in
    *"Open MPI"* | *OpenRTE*)
        printf '%s slots=2\n' "$net.1" "$net.2" > "$folder/hosts"
        flags="--allow-run-as-root --oversubscribe --bind-to none --hostfile $folder/hosts
            --mca plm_rsh_agent $folder/agent --mca btl tcp,self,vader --mca btl_tcp_if_include $net.0/24
            --mca oob_tcp_if_include $net.0/24 --mca orte_keep_fqdn_hostnames 1 --mca mpi_yield_when_idle 1 --map-by slot
            -x TSHARD_HEAP -x TSHARD_TIMEOUT -x TSHARD_CHECK -x OPENBLAS_NUM_THREADS -x EXPECT_NODES -x TSHARD_INIT -x ASAN_OPTIONS -x TEST_FOLDER -x TEST_WHEN"
        recovery=--enable-recovery
        ;;
    *)
        printf '%s:2\n' "$net.1" "$net.2" > "$folder/hosts"
        recovery= # MPICH's launcher ends every rank when one dies
        flags="-launcher ssh -launcher-exec $folder/agent -f $folder/hosts -iface tsva$$"
        ;;
esac

code=0
for run in "4 place 2" "4 short 2" "4 groups 2" "4 messages 2" "4 misuse 2" "4 recover 2" "3 leave 2" "4 levels 2" "3 levels 2"; do
    read -r ranks scenario nodes <<< "$run"
    # The first without TSHARD_INIT: that the ranks are on several machines is enough.
    export TSHARD_INIT=mpi://
    [ "$scenario" != place ] || unset TSHARD_INIT
    # shellcheck disable=SC2086
    EXPECT_NODES=$nodes timeout -k 5 200 "$folder/on" a "$launcher" $flags -n "$ranks" "$program" "$scenario" \
        < /dev/null > "$folder/out" 2>&1
    result=$?
    cat "$folder/out"
    echo "$scenario on $ranks ranks of two hosts: $result"
    [ $result = 0 ] || code=1
done
# A rank that is killed: all others hear of it, on both hosts. The launcher may go on without any of them.
export TEST_FOLDER=$folder TEST_WHEN
for TEST_WHEN in collective between computing; do
    [ "$recovery" ] || break
    rm -f "$folder"/arrived-*
    # shellcheck disable=SC2086
    timeout -k 5 200 "$folder/on" a "$launcher" $flags $recovery -n 4 "$program" vanishes < /dev/null > "$folder/out" 2>&1 &
    until [ "$(grep -c '^told: ' "$folder/out")" = 3 ] || ! kill -0 $! 2> /dev/null; do sleep 0.1; done
    kill $! 2> /dev/null
    wait $!
    cat "$folder/out"
    echo "vanishes, $TEST_WHEN"
    [ "$(grep -c '^told: .*rank 3 died (killed by a signal, or exited)' "$folder/out")" = 3 ] || code=1
done
# A model that is split over the hosts has the losses of one rank.
TSHARD_INIT=env:// "$program" losses | grep '^loss' > "$folder/one"
export TSHARD_INIT=mpi://
# shellcheck disable=SC2086
timeout -k 5 200 "$folder/on" a "$launcher" $flags -n 3 "$program" losses < /dev/null | grep '^loss' > "$folder/many"
paste "$folder/one" "$folder/many" | tee "$folder/both"
awk 'function far(a, b) { return a - b > 1e-5 || b - a > 1e-5 }
     NF != 6 || far($2, $5) || far($3, $6) { bad = 1 } END { exit bad || NR != 8 }' "$folder/both" || code=1
exit $code
