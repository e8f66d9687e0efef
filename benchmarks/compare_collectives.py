#!/usr/bin/env python3
"""tshard's collectives beside MPI's, in one run: float32 over ranks of this machine.

    compare_collectives.py --what mpi      the mpi backend against calling the same MPI directly, by turns in one
                                           process and on the same memory (--apart: in programs of their own, each
                                           with the memory that it would take)
    compare_collectives.py --what local    the local backend against the best of the MPIs that are here; with more
                                           --ranks than cores, MPI yields
    two_hosts.sh BUILD RATE compare        the ucx backend against Open MPI, on two hosts

Each program is started in turn, round after round, its ranks pinned to cores; ratios are medians over the rounds of
MPI's time to tshard's. --peer adds a build directory with another MPI's mpi_collectives (-DMPI_C_COMPILER=mpicc.mpich)
and its launcher, as BUILD:MPIEXEC. The exit code is 0 when all demands are met and every result was right.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

import command_line

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
MORE_OPS = ["reduce", "gather", "scatter", "barrier", "send_recv"]  # local alone
KIB, MIB = 1 << 10, 1 << 20


def arguments():
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["mpi", "local", "ucx"], default="local", help="default: %(default)s")
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--mpiexec", default="mpirun", help="launcher of that build's MPI (default: %(default)s)")
    parser.add_argument("--launchers", metavar="FOLDER", help="of two_hosts.sh: FOLDER/ucx and FOLDER/mpi start ranks")
    parser.add_argument("--peer", action="append", default=[], metavar="BUILD:MPIEXEC")
    parser.add_argument("--apart", action="store_true", help="mpi: programs of their own")
    parser.add_argument("--ranks", type=command_line.whole, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=command_line.whole, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=command_line.seconds, default=0.05, help="per size and round (default: %(default)s)")
    parser.add_argument("--op", choices=OPS + MORE_OPS + ["all"], default="all")
    parser.add_argument("--min-bytes", type=command_line.size, default=4 * KIB, help="default: 4K")
    parser.add_argument("--max-bytes", type=command_line.size, default=64 * MIB, help="default: 64M")
    parser.add_argument("--factor", type=command_line.whole, default=4, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object a size instead of a table")
    options = parser.parse_args()
    if options.factor < 2 or options.min_bytes > options.max_bytes:
        parser.error("--factor must be 2 or more, and --min-bytes no more than --max-bytes")
    if any(":" not in peer for peer in options.peer):
        parser.error("--peer wants BUILD:MPIEXEC")
    return options


def leave_real_time(name):
    """For all programs of this run, so that none has an advantage."""
    if os.sched_getscheduler(0) not in (os.SCHED_FIFO, os.SCHED_RR):
        return
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    print(f"{name}'s ranks never yield: with real-time priority on fewer cores they would wait for each other for good. "
          "Everything runs without that priority.", file=sys.stderr)


def launch(mpiexec, ranks):
    """The command that starts ranks of this MPI, each bound to a core where there are enough."""
    path = shutil.which(mpiexec) or sys.exit(f"{mpiexec} is missing")
    version = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             check=False).stdout
    enough = len(os.sched_getaffinity(0)) >= ranks
    if "Open MPI" not in version and "OpenRTE" not in version:
        if not enough:
            leave_real_time(mpiexec)
        return [path] + (["-bind-to", "core"] if enough else []) + ["-n", str(ranks)]
    crowd = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    command = [path] + (["--bind-to", "core"] if enough else crowd)
    return command + (["--allow-run-as-root"] if os.geteuid() == 0 else []) + ["-n", str(ranks)]


def program(build, name):
    path = os.path.join(build, "bin", name)
    return path if os.path.exists(path) else sys.exit(f"{path} is missing: build first")


def sizes_of(options, op):
    least = min(options.min_bytes, 8) if op == "send_recv" else options.min_bytes
    return [str(least), str(options.max_bytes), str(options.factor), str(options.seconds)]


def commands(options, op):
    """Ours, then the peers'."""
    sizes = sizes_of(options, op)
    bench = [program(options.build, "tshard-bench"), "collectives", "--json", "--op", op, "--min-bytes", sizes[0],
             "--max-bytes", sizes[1], "--factor", sizes[2], "--seconds", sizes[3]]
    if options.what == "ucx":
        return [[os.path.join(options.launchers, "ucx")] + bench,
                [os.path.join(options.launchers, "mpi"), program(options.build, "mpi_collectives"), op, *sizes]]
    if options.what == "mpi":
        ours = ["env", "TSHARD_INIT=mpi://"] + launch(options.mpiexec, options.ranks) + bench
    else:
        ours = [program(options.build, "tshard-run"), "-n", str(options.ranks), "--no-prefix"] + bench
    peers = [(options.build, options.mpiexec)]
    if options.what == "local":
        peers += [tuple(peer.rsplit(":", 1)) for peer in options.peer]
    return [ours] + [launch(mpiexec, options.ranks) + [program(build, "mpi_collectives"), op, *sizes]
                     for build, mpiexec in peers]


def run(command):
    """Rows of one run, by size."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {row["bytes"]: row for row in rows}


def measure(options, op):
    programs = commands(options, op)
    rounds = []
    for i in range(options.rounds):
        # The order changes each round, so that a drift of the machine favours no program.
        order = list(enumerate(programs))
        order = order[i % len(order):] + order[:i % len(order)]
        results = {index: run(command) for index, command in order}
        rounds.append([results[index] for index in range(len(programs))])
    return rounds


def least_ratio(options, op, size):
    """Of local: what is required of each size; more of the all-reduce, on which a sharded layer waits most."""
    crowded = len(os.sched_getaffinity(0)) < options.ranks
    if crowded or size < 4 * KIB or op in ("barrier", "send_recv"):
        return 1.0
    if op == "all_reduce" and (16 * KIB <= size <= 256 * KIB or size == 64 * MIB):
        return 4.0
    return 1.5 if op == "all_reduce" and size > 256 * KIB else 1.3


def judge(options, row, more):
    """True when a row fulfils its demand; `more`: microseconds that tshard takes longer."""
    if row["wrong"]:
        return False
    if options.what == "local":
        return row["ratio"] >= least_ratio(options, row["op"], row["bytes"])
    if options.what == "ucx":
        return row["ratio"] >= 0.95
    return more < 1 if row["bytes"] < 64 * KIB else row["ratio"] >= 0.97


def summary_of_pairs(options, op):
    command = ["env", "TSHARD_INIT=mpi://"] + launch(options.mpiexec, options.ranks) + [
        program(options.build, "mpi_pairs"), op, *sizes_of(options, op)]
    rounds = [run(command) for _ in range(options.rounds)]
    rows = []
    for size in rounds[0]:
        row = {key: statistics.median(one[size][key] for one in rounds)
               for key in ("tshard_us", "mpi_us", "ratio", "more_us")}
        row = {"op": op, "bytes": size, **row, "peer": "the same", "wrong": sum(one[size]["wrong"] for one in rounds)}
        row["met"] = judge(options, row, row["more_us"])
        rows.append(row)
    return rows


def summary(options, op):
    if options.what == "mpi" and not options.apart:
        return summary_of_pairs(options, op)
    rounds = measure(options, op)
    rows = []
    for size in rounds[0][0]:
        if any(size not in one for one in rounds[0]):
            continue
        ours = [one[0][size]["time_us"] for one in rounds]
        theirs = [min(peer[size]["time_us"] for peer in one[1:]) for one in rounds]
        best = min(rounds[0][1:], key=lambda peer: peer[size]["time_us"])[size]["backend"]
        row = {"op": op, "bytes": size, "tshard_us": statistics.median(ours), "mpi_us": statistics.median(theirs),
               "ratio": statistics.median(b / a for a, b in zip(ours, theirs)), "peer": best,
               "wrong": sum(side[size]["wrong"] for one in rounds for side in one)}
        row["met"] = judge(options, row, row["tshard_us"] - row["mpi_us"])
        rows.append(row)
    return rows


def main():
    options = arguments()
    rows = []
    if not options.json:
        print(f"float32, {options.ranks} ranks, median of {options.rounds} rounds; {options.what} backend\n")
        print(f"{'op':<15} {'bytes':>10} {'tshard us':>12} {'MPI us':>12} {'ratio':>7}  {'peer':<8} met")
    every = OPS + (MORE_OPS if options.what == "local" else [])
    for op in every if options.op == "all" else [options.op]:
        for row in summary(options, op):
            rows.append(row)
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            verdict = "yes" if row["met"] else "NO" if row["wrong"] == 0 else "WRONG"
            print(f"{op:<15} {row['bytes']:>10} {row['tshard_us']:>12.3f} {row['mpi_us']:>12.3f} {row['ratio']:>7.2f}  "
                  f"{row['peer']:<8} {verdict}", flush=True)
    # A geometric mean of collectives: a message is none, and a barrier has no size.
    ratios = [math.log(row["ratio"]) for row in rows if row["op"] not in ("barrier", "send_recv")]
    mean = math.exp(statistics.mean(ratios)) if ratios else 2.0
    if not options.json:
        mean_words = f"; geometric mean {mean:.2f}" if ratios else ""
        print(f"\n{sum(row['met'] for row in rows)} of {len(rows)} fulfil their demands{mean_words}")
    demands_mean = options.what == "local" and len(os.sched_getaffinity(0)) >= options.ranks
    return 0 if all(row["met"] for row in rows) and (not demands_mean or mean >= 2) else 1


if __name__ == "__main__":
    sys.exit(command_line.run(main))
