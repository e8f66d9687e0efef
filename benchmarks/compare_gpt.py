#!/usr/bin/env python3
"""train_gpt beside the same model in PyTorch, eager and compiled, in one run, by turns; the medians over the rounds.

Without torch in python3 it says so and does nothing. A training step is forward, backward, clipping and AdamW, in
float32. Ends with 1 where tshard is not as much faster as is asked, or its matrix products are a smaller part of it.
"""
import importlib.util
import os
import statistics
import sys

import command_line

# sizes, steps, what is asked against the better of the peers, and of the products' part of a step
SETTINGS = [("--layers 4 --heads 4 --embed 128 --block 64 --batch 12", 200, 1.7, 0.80),
            ("--layers 6 --heads 6 --embed 384 --block 256 --batch 4", 20, 1.25, 0.88)]


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--ranks", type=command_line.whole, default=2, help="and threads of the peers (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=3, help="default: %(default)s")
    parser.add_argument("--text", help="a text file to train on (default: the peer's own source)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes a minute")
    return parser.parse_args()


def measure(options, sizes, steps):
    """Medians over the rounds, in ms: tshard's step, its products alone, the peer's eager and compiled step (or None)."""
    here = os.path.dirname(os.path.abspath(__file__))
    peer = os.path.join(here, "peers", "torch_gpt.py")
    text = options.text or peer
    run, train, bench = (os.path.join(options.build, "bin", name) for name in ("tshard-run", "train_gpt", "tshard-bench"))
    start = [run, "-n", str(options.ranks), "--no-prefix"]
    ours = [*start, train, *sizes.split(), "--text", text, "--steps", str(steps), "--sample", "0", "--json"]
    alone = [*start, bench, "gpt", *sizes.split(), "--seconds", "1", "--json"]
    theirs = [sys.executable, peer, text, *sizes.split(), "--steps", str(steps), "--threads", str(options.ranks)]
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    times = ([], [], [], [])
    for _ in range(options.rounds):
        times[0].append(command_line.last_row(ours, environment)["step_ms"])
        times[1].append(command_line.last_row(alone, environment)["gemm_only_ms"])
        times[2].append(command_line.last_row(theirs, dict(os.environ))["step_ms"])
        row = None if options.no_compile else command_line.last_row([*theirs, "--compile"], dict(os.environ), True)
        times[3].extend([row["step_ms"]] if row else [])
    return [statistics.median(values) if values else None for values in times]


def main():
    options = arguments()
    if importlib.util.find_spec("torch") is None:
        print("compare_gpt: skipped, python3 has no torch")
        return 0
    bad = 0
    print(f"{'model':56} {'tshard ms':>10} {'eager ms':>9} {'compiled':>9} {'ratio':>6} {'asked':>6} {'products':>9} {'part':>6} {'asked':>6}")
    for sizes, steps, asked, asked_part in SETTINGS:
        ours, alone, eager, compiled = measure(options, sizes, steps)
        ratio, part = min(eager, compiled or eager) / ours, alone / ours
        bad += ratio < asked or part < asked_part
        shown = f"{compiled:9.2f}" if compiled else f"{'-':>9}"
        print(f"{sizes:56} {ours:10.2f} {eager:9.2f} {shown} {ratio:6.2f} {asked:6.2f} {alone:9.2f} {part:6.2f} {asked_part:6.2f}",
              flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(command_line.run(main))
