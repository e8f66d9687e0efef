#!/usr/bin/env python3
"""All figures of tshard in one run: each with its command, the demand, and whether the demand is fulfilled.

A linear layer by column, by row and dense, the efficiency of a large MLP, how much faster a small one is on two ranks
than on one, and beside MPI (compare_collectives.py): the all-reduce at every size, every collective and messages, more
ranks than cores, the mpi backend. Every rank has a core and one thread. The exit code is 0 when all demands are
fulfilled. On a machine that does other work meanwhile the figures are those of that work.
"""
import json
import os
import shlex
import statistics
import subprocess
import sys

import command_line

RANKS = 2
LEAST_EFFICIENCY = 0.95
MOST_STEP_RATIO = 0.60
ALONE = dict(os.environ, TSHARD_BLAS_THREADS="1", OMP_NUM_THREADS="1")


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=5, help="of which medians are taken (default: %(default)s)")
    parser.add_argument("--seconds", type=command_line.seconds, default=1.0, help="per measurement and round (default: %(default)s)")
    parser.add_argument("--no-mpi", action="store_true", help="leave out the comparisons with MPI")
    parser.add_argument("--mpiexec", default="mpirun", help="launcher of the build's MPI (default: %(default)s)")
    parser.add_argument("--peer", action="append", default=[], metavar="BUILD:MPIEXEC",
                        help="another MPI, as compare_collectives.py takes it")
    return parser.parse_args()


def show(command):
    print("$ " + " ".join(shlex.quote(word) for word in command), flush=True)


def bench(options, ranks, *words):
    """The command line of tshard-bench on so many ranks."""
    binaries = os.path.join(options.build, "bin")
    return [os.path.join(binaries, "tshard-run"), "-n", str(ranks), "--no-prefix",
            os.path.join(binaries, "tshard-bench"), *words]


def rows(command):
    """The JSON rows that a command prints."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=ALONE)
    if result.returncode:
        sys.exit(f"{shlex.join(command)} ended with {result.returncode}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def demand(what, value, required, met):
    return {"what": what, "value": value, "required": required, "met": met}


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def compare(options, what, *words):
    """The demand that compare_collectives.py makes, and shows."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare_collectives.py")
    command = [sys.executable, script, "--build", options.build, "--rounds", str(options.rounds), "--mpiexec",
               options.mpiexec, *words]
    show(command)
    code = subprocess.run(command, check=False).returncode
    return [demand(what, "as above", "as above", code == 0)]


def against_mpi(options, what, *words):
    peers = [word for peer in options.peer for word in ("--peer", peer)]
    return compare(options, what, *peers, *words)


def all_reduce(options):
    return against_mpi(options, "all_reduce beside MPI", "--op", "all_reduce", "--min-bytes", "4", "--ranks",
                       str(RANKS))


def collectives(options):
    return against_mpi(options, "every collective and messages beside MPI", "--ranks", str(RANKS))


def crowded(options):
    # The build's own MPI alone: ranks that do not yield take minutes here.
    return compare(options, "all_reduce of 1 MiB, two ranks a core, beside MPI that yields", "--op", "all_reduce",
                   "--ranks", str(2 * len(os.sched_getaffinity(0))), "--min-bytes", "1M", "--max-bytes", "1M",
                   "--seconds", "0.2")


def backend(options):
    return against_mpi(options, "the mpi backend beside the same MPI", "--what", "mpi", "--ranks", str(RANKS))


def linear(options):
    command = bench(options, RANKS, "linear", "--batch", "1024", "--in", "1024", "--out", "4096", "--seconds",
                    str(options.seconds))
    show(command)
    sys.stdout.flush()
    if subprocess.run(command, check=False, env=ALONE).returncode:
        sys.exit("tshard-bench linear failed")
    split = rows(bench(options, 4, "linear", "--batch", "2", "--in", "8", "--out", "13", "--shard", "column",
                       "--json"))[0]
    held = split["weight_bytes_per_rank"] / (8 * 4)
    return [demand("rows of 13 that a rank of 4 holds", f"{held:g}", "4", held == 4)]


def mlp_efficiency(options):
    command = bench(options, RANKS, "mlp", "--batch", "1024", "--hidden", "1024", "--ffn", "4096", "--json",
                    "--seconds", str(options.seconds))
    show(command)
    taken = [rows(command)[0] for _ in range(options.rounds)]
    efficiencies = [row["efficiency"] for row in taken]
    for row in taken:
        print(f"  forward {row['forward_ms']:.1f} ms, backward {row['backward_ms']:.1f} ms, of these communication "
              f"{row['comm_ms']:.1f} ms; products alone {row['gemm_only_ms']:.1f} ms: {row['efficiency']:.3f}")
    allocations = sum(row["allocations"] for row in taken)
    return [demand(f"efficiency of the large MLP, {RANKS} ranks", spread(efficiencies), f"at least {LEAST_EFFICIENCY}",
                   statistics.median(efficiencies) >= LEAST_EFFICIENCY),
            demand("allocations in its steps", str(allocations), "0", allocations == 0)]


def mlp_ratio(options):
    sizes = ("mlp", "--batch", "64", "--hidden", "256", "--ffn", "1024", "--json", "--seconds", str(options.seconds))
    one, many = bench(options, 1, *sizes), bench(options, RANKS, *sizes)
    show(one)
    show(many)
    ratios, alone = [], []
    for _ in range(options.rounds):
        first, second = rows(one)[0], rows(many)[0]
        ratios.append(second["step_ms"] / first["step_ms"])
        alone.append(second["gemm_only_ms"] / first["gemm_only_ms"])
        print(f"  step {first['step_ms']:.3f} ms on 1 rank, {second['step_ms']:.3f} ms on {RANKS}: {ratios[-1]:.3f}; "
              f"products alone: {alone[-1]:.3f}")
    return [demand(f"small MLP, step on {RANKS} ranks over step on 1", spread(ratios), f"at most {MOST_STEP_RATIO:.2f}",
                   statistics.median(ratios) <= MOST_STEP_RATIO)]


def main():
    options = arguments()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    row = rows(bench(options, 1, "linear", "--batch", "1", "--in", "1", "--out", "1", "--shard", "dense", "--json"))[0]
    print(f"{cores} cores, load {load:.1f} before; each rank with {row['products']}")
    if cores < RANKS:
        print(f"{RANKS} ranks share {cores} core: nothing below says anything about speed.")
    parts = [linear, mlp_efficiency, mlp_ratio]
    if not options.no_mpi:
        parts += [all_reduce, collectives, crowded, backend]
    demands = []
    for part in parts:
        print()
        demands += part(options)
    print("\ndemands:")
    for item in demands:
        print(f"  {'met' if item['met'] else 'NOT MET':8} {item['what']}: {item['value']}; required: {item['required']}")
    return 0 if all(item["met"] for item in demands) else 1


if __name__ == "__main__":
    sys.exit(command_line.run(main))
