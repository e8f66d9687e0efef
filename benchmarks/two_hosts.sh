#!/bin/bash
# two_hosts.sh BUILD RATE COMMAND...: tshard-bench COMMAND on two ranks over mpi, each in a network namespace of its own,
# that are joined by a link of that rate (of tc: 2gbit, 500mbit). Wants root, iproute2 and Open MPI. For instance:
#   benchmarks/two_hosts.sh build 2gbit data_parallel --width 512 --layers 12 --batch 1024 --bucket 4M
set -u
[ $# -ge 3 ] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
build=$(realpath "$1") rate=$2
shift 2
# shellcheck source=tests/support/hosts.sh
. "$(dirname "$0")/../tests/support/hosts.sh"
hosts_up ipv4
for host in a b; do
    on $host tc qdisc add dev "tsv$host$$" root tbf rate "$rate" burst 256kb latency 50ms || skip "there is no tc"
done
# What mpirun starts on the other host: its arguments are options, an address and a command.
cat > "$folder/agent" << EOF
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in $net.1) host=a ;; *) host=b ;; esac
shift
exec "$folder/on" \$host sh -c "\$*"
EOF
chmod +x "$folder/agent"
printf '%s slots=1\n' "$net.1" "$net.2" > "$folder/hosts"
export TSHARD_INIT=mpi:// TSHARD_HEAP=2G OPENBLAS_NUM_THREADS=1 TSHARD_BLAS_THREADS=1
on a mpirun --allow-run-as-root --bind-to none --map-by slot -n 2 --hostfile "$folder/hosts" \
    --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self --mca btl_tcp_if_include "$net.0/24" \
    --mca oob_tcp_if_include "$net.0/24" --mca orte_keep_fqdn_hostnames 1 \
    -x TSHARD_INIT -x TSHARD_HEAP -x OPENBLAS_NUM_THREADS -x TSHARD_BLAS_THREADS \
    "$build/bin/tshard-bench" "$@" < /dev/null
