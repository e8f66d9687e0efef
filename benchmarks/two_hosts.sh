#!/bin/bash
# two_hosts.sh BUILD RATE [--each RANKS] COMMAND...: tshard-bench COMMAND over ucx on two hosts of RANKS ranks (1): network
# namespaces that are joined by a link of that rate (of tc: 2gbit, 500mbit). Wants root and iproute2. `compare OP...` with
# options of compare_collectives.py has Open MPI beside it. For instance:
#   benchmarks/two_hosts.sh build 2gbit data_parallel --width 512 --layers 12 --batch 1024 --bucket 4M
#   benchmarks/two_hosts.sh build 10gbit --each 2 compare --op all_reduce --min-bytes 64K
# Host a's ranks are bound to cores 0, 2, ..., host b's to 1, 3, ..., as far as there are cores.
set -u
[ $# -ge 3 ] || { sed -n '2,7s/^# //p' "$0"; exit 2; }
build=$(realpath "$1") rate=$2 here=$(dirname "$0") each=1
shift 2
[ "$1" = --each ] && { each=$2; shift 2; }
# shellcheck source=tests/support/hosts.sh
. "$here/../tests/support/hosts.sh"
hosts_up ipv4
for host in a b; do
    on $host tc qdisc add dev "tsv$host$$" root tbf rate "$rate" burst 256kb latency 50ms || skip "there is no tc"
done
export TSHARD_HEAP=2G OPENBLAS_NUM_THREADS=1 TSHARD_BLAS_THREADS=1 TSHARD_TOKEN=a-secret-of-two-hosts
# Both start a program's ranks.
cat > "$folder/ucx" << EOF
#!/bin/bash
export WORLD_SIZE=$((2 * each)) LOCAL_WORLD_SIZE=$each MASTER_ADDR=$net.1 MASTER_PORT=\$((RANDOM % 10000 + 20000))
code=0 pids=
for ((i = 2 * $each - 1; i >= 0; i--)); do
    [ \$i -lt $each ] && host=a odd=0 || { host=b; odd=1; }
    export RANK=\$i LOCAL_RANK=\$((i % $each))
    taskset -c \$(((2 * LOCAL_RANK + odd) % \$(nproc))) "$folder/on" \$host "\$@" < /dev/null &
    pids+=" \$!"
done
for pid in \$pids; do wait \$pid || code=\$?; done
exit \$code
EOF
# What mpirun starts on the other host: its arguments are options, an address and a command.
cat > "$folder/agent" << EOF
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in $net.1) host=a ;; *) host=b ;; esac
shift
exec "$folder/on" \$host sh -c "\$*"
EOF
# Ranks of other hosts than this one would all be bound to core 0. With fewer cores than ranks Open MPI yields.
cat > "$folder/mpi" << EOF
#!/bin/bash
exec "$folder/on" a mpirun --allow-run-as-root --bind-to none --map-by slot -n $((2 * each)) --hostfile "$folder/hosts" \
    --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self,vader --mca btl_tcp_if_include "$net.0/24" \
    --mca oob_tcp_if_include "$net.0/24" --mca orte_keep_fqdn_hostnames 1 \
    --mca mpi_yield_when_idle $((2 * each > $(nproc))) \
    sh -c 'i=\$OMPI_COMM_WORLD_RANK
    exec taskset -c \$(((2 * (i % $each) + i / $each) % \$(nproc))) "\$@"' sh "\$@" < /dev/null
EOF
chmod +x "$folder/ucx" "$folder/mpi" "$folder/agent"
printf "%s slots=$each\n" "$net.1" "$net.2" > "$folder/hosts"
if [ "$1" = compare ]; then
    "$here/compare_collectives.py" --what ucx --ranks $((2 * each)) --build "$build" \
        --launchers "$folder" "${@:2}"
else
    "$folder/ucx" "$build/bin/tshard-bench" "$@"
fi
