#!/usr/bin/env python3
"""tshard's all_reduce beside MPI_Allreduce, in one run: in-place float32 sums over ranks of this machine.

The two are started in turn, round after round, each rank pinned to a core; of each size the median over the rounds is
compared with what tshard demands of itself. The exit code is 0 when all demands are met and every sum was right.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

KIB, MIB = 1 << 10, 1 << 20


def required(size):
    """The least ratio of MPI's time to tshard's, at 2 ranks."""
    if 16 * KIB <= size <= 256 * KIB or size == 64 * MIB:
        return 4.0
    return 1.5 if 256 * KIB < size < 64 * MIB else 1.0


def parse_bytes(text):
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    value = int(text[:-1] if shift else text) << shift
    if value < 4:
        raise ValueError(text)
    return value


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s; the demands are made for 2")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.1, help="per size and round (default: %(default)s)")
    parser.add_argument("--min-bytes", type=parse_bytes, default=4, help="default: 4")
    parser.add_argument("--max-bytes", type=parse_bytes, default=64 * MIB, help="default: 64M")
    parser.add_argument("--factor", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object a size instead of a table")
    return parser.parse_args()


def commands(options):
    """The two command lines; ends the program when a part is missing."""
    binaries = os.path.join(options.build, "bin")
    tools = {name: os.path.join(binaries, name) for name in ("tshard-run", "tshard-bench", "mpi_allreduce")}
    for name, path in tools.items():
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: build first (mpi_allreduce is built where CMake finds MPI)")
    mpirun = shutil.which("mpirun")
    if not mpirun:
        sys.exit("mpirun is missing (Debian: apt-get install openmpi-bin)")
    ranks, sizes = str(options.ranks), [str(options.min_bytes), str(options.max_bytes)]
    ours = [tools["tshard-run"], "-n", ranks, "--no-prefix", tools["tshard-bench"], "collectives", "--json",
            "--op", "all_reduce", "--min-bytes", sizes[0], "--max-bytes", sizes[1], "--factor", str(options.factor),
            "--seconds", str(options.seconds)]
    theirs = [mpirun, "-n", ranks]
    enough = len(os.sched_getaffinity(0)) >= options.ranks
    theirs += ["--bind-to", "core"] if enough else ["--oversubscribe"]
    if os.geteuid() == 0:
        theirs.append("--allow-run-as-root")
    theirs += [tools["mpi_allreduce"], *sizes, str(options.factor), str(options.seconds)]
    return ours, theirs


def run(command):
    """Rows of one run, by size."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {row["bytes"]: row for row in rows}


def progress(text):
    if sys.stderr.isatty():
        print(f"\r{text:40}", end="", file=sys.stderr, flush=True)


def measure(options):
    ours, theirs = commands(options)
    rounds = []
    for i in range(options.rounds):
        progress(f"round {i + 1} of {options.rounds}")
        # Whoever comes first changes, so that a machine that drifts favours nobody.
        order = [ours, theirs] if i % 2 == 0 else [theirs, ours]
        results = [run(command) for command in order]
        rounds.append(results if i % 2 == 0 else results[::-1])
    progress("")
    progress("\r")
    return rounds


def summary(rounds):
    rows = []
    for size in rounds[0][0]:
        ours, theirs = ([one[side][size]["time_us"] for one in rounds] for side in (0, 1))
        ratios = [b / a for a, b in zip(ours, theirs)]
        wrong = sum(one[side][size]["wrong"] for one in rounds for side in (0, 1))
        row = {"bytes": size, "tshard_us": statistics.median(ours), "mpi_us": statistics.median(theirs),
               "ratio": statistics.median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios),
               "required": required(size), "wrong": wrong}
        row["met"] = row["ratio"] >= row["required"] and wrong == 0
        rows.append(row)
    return rows


def print_table(rows, peer, options):
    print(f"all_reduce float32 in place, {options.ranks} ranks, median of {options.rounds} rounds; peer: {peer}\n")
    print(f"{'bytes':>10} {'tshard us':>12} {'MPI us':>12} {'ratio':>7} {'(range)':>15} {'required':>9}  met")
    for row in rows:
        spread = f"({row['ratio_least']:.2f}-{row['ratio_most']:.2f})"
        verdict = "yes" if row["met"] else "NO" if row["wrong"] == 0 else "WRONG"
        print(f"{row['bytes']:>10} {row['tshard_us']:>12.3f} {row['mpi_us']:>12.3f} {row['ratio']:>7.2f} {spread:>15} "
              f"{row['required']:>8.1f}x  {verdict}")
    met = sum(row["met"] for row in rows)
    print(f"\n{met} of {len(rows)} sizes meet what is required.")


def main():
    options = arguments()
    rounds = measure(options)
    rows = summary(rounds)
    if options.json:
        for row in rows:
            print(json.dumps(row))
    else:
        peer = next(iter(rounds[0][1].values()))["backend"]
        print_table(rows, peer, options)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
