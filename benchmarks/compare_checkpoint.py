#!/usr/bin/env python3
"""tshard's checkpoints beside cp of as many bytes and torch.distributed.checkpoint, by turns; medians over the rounds.

Without torch in python3 it compares with cp alone.
"""
import importlib.util
import json
import os
import statistics
import subprocess
import sys

import command_line

# What is asked for, and whether a ratio is to be at least or at most that.
ASKED = {"save / cp": 0.7, "load / cp": 0.7, "save / torch": 2, "load / torch": 2}
AT_MOST = {"bytes read": 1.05, "memory, MiB": 128, "step beside a save": 1.3}


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--ranks", type=command_line.whole, default=2, help="default: %(default)s")
    parser.add_argument("--bytes", type=command_line.size, default=1 << 30, help="of the model (default: 1G)")
    parser.add_argument("--folder", type=command_line.folder, default="/dev/shm", help="to save in (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=3, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object a row instead of a table")
    return parser.parse_args()


def rows_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode or not rows:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}, {len(rows)} results")
    return rows


def measure(options, with_torch):
    """Name -> one figure a round."""
    here = os.path.dirname(os.path.abspath(__file__))
    words = ["--bytes", str(options.bytes), "--folder", options.folder, "--rounds"]
    ours = [os.path.join(options.build, "bin", "tshard-run"), "-n", str(options.ranks), "--no-prefix",
            os.path.join(options.build, "bin", "tshard-bench"), "checkpoint", "--json", *words, "3"]
    theirs = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks),
              os.path.join(here, "peers", "torch_checkpoint.py"), *words, "3"]
    figures = {}
    for _ in range(options.rounds):
        rows = {row["what"]: row for row in rows_of(ours)}
        found = {"save / cp": rows["save"]["ratio"], "load / cp": rows["load"]["ratio"],
                 "bytes read": rows["load: bytes read"]["ratio"], "step beside a save": rows["step beside a save"]["ratio"],
                 "memory, MiB": max(rows["save"]["memory_mib"], rows["load"]["memory_mib"])}
        if with_torch:
            peer = rows_of(theirs)[0]
            found["save / torch"] = peer["save_ms"] / rows["save"]["ms"]
            found["load / torch"] = peer["load_ms"] / rows["load"]["ms"]
        for name, value in found.items():
            figures.setdefault(name, []).append(value)
    return figures


def main():
    options = arguments()
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        print("compare_checkpoint: without torch, which python3 lacks", file=sys.stderr)
    bad = 0
    if not options.json:
        print(f"{'what':20} {'median':>8} {'asked':>9}")
    for name, values in measure(options, with_torch).items():
        median = statistics.median(values)
        met = median >= ASKED[name] if name in ASKED else median <= AT_MOST[name]
        bad += not met
        asked = f">= {ASKED[name]}" if name in ASKED else f"<= {AT_MOST[name]}"
        if options.json:
            print(json.dumps({"what": name, "median": median, "asked": asked, "met": met}), flush=True)
        else:
            print(f"{name:20} {median:8.3g} {asked:>9}{'' if met else '  not met'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(command_line.run(main))
