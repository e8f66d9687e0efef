#!/usr/bin/env python3
"""tshard's redistributions beside PyTorch's DTensor over gloo, in one run, by turns; the medians over the rounds.

Without torch in python3 it says so and does nothing. Ends with 1 where tshard is not as much faster as is asked.
"""
import importlib.util
import json
import os
import statistics
import subprocess
import sys

import command_line

ASKED = 5.0


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--ranks", type=command_line.whole, default=2, help="default: %(default)s")
    parser.add_argument("--bytes", type=command_line.size, default="64M", help="of the whole matrix (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=command_line.seconds, default=1, help="per measurement (default: %(default)s)")
    return parser.parse_args()


def times_of(command, environment):
    """Milliseconds of each change of layouts."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    rows = {row["change"]: row for row in rows if "change" in row}
    if done.returncode or not rows or any(row["wrong"] for row in rows.values()):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}, {len(rows)} results")
    return {name: row["time_ms"] for name, row in rows.items()}


def main():
    options = arguments()
    if importlib.util.find_spec("torch") is None:
        print("compare_redistribute: skipped, python3 has no torch")
        return 0
    here = os.path.dirname(os.path.abspath(__file__))
    flags = ["--bytes", str(options.bytes), "--seconds", str(options.seconds)]
    programs = [os.path.join(options.build, "bin", name) for name in ("tshard-run", "tshard-bench")]
    ours = [programs[0], "-n", str(options.ranks), "--no-prefix", programs[1], "redistribute", *flags, "--json"]
    theirs = [sys.executable, os.path.join(here, "peers", "torch_redistribute.py"), "--ranks", str(options.ranks), *flags]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    rounds = [(times_of(ours, environment), times_of(theirs, environment)) for _ in range(options.rounds)]
    bad = 0
    print(f"{'change':20} {'ranks':>5} {'tshard ms':>10} {'torch ms':>10} {'ratio':>7} {'asked':>6}")
    for name in rounds[0][0]:
        mine, peer = (statistics.median(turn[side][name] for turn in rounds) for side in (0, 1))
        bad += peer / mine < ASKED
        print(f"{name:20} {options.ranks:5} {mine:10.3f} {peer:10.3f} {peer / mine:7.1f} {ASKED:6.1f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(command_line.run(main))
