#!/usr/bin/env python3
"""tshard's linear, mlp and attention beside the same layers in PyTorch, in one run, by turns; the medians over the rounds.

Without torch in python3 it says so and does nothing. A step here is forward and backward: PyTorch drops gradients where
tshard keeps their memory.
"""
import importlib.util
import json
import os
import statistics
import subprocess
import sys

import command_line

# name, tshard-bench's and the peer's words, on a GPU captured too, what is asked of eager and of captured steps there
GPU = [("linear 8192x8192, batch 8192", "linear --batch 8192 --in 8192 --out 8192 --dtype bfloat16", True, None, None),
       ("mlp 4096/4096/16384", "mlp --batch 4096 --hidden 4096 --ffn 16384 --dtype bfloat16", True, 1.05, None),
       ("mlp 64/1024/4096", "mlp --batch 64 --hidden 1024 --ffn 4096 --dtype bfloat16", True, 2.0, 1.0)]
CPU = [("linear 1024x1024, batch 256", "linear --batch 256 --in 1024 --out 1024", False, 1.0, None),
       ("mlp 64/256/1024", "mlp --batch 64 --hidden 256 --ffn 1024", False, 1.0, None),
       ("mlp 256/1024/4096", "mlp --batch 256 --hidden 1024 --ffn 4096", False, 1.0, None),
       ("attention 4 x 6 x 256 x 64", "attention --batch 4 --heads 6 --queries 256 --dim 64", False, 1.5, None),
       ("attention 4 x 6 x 1024 x 64", "attention --batch 4 --heads 6 --queries 1024 --dim 64", False, 1.3, None),
       ("attention 12 x 4 x 64 x 32", "attention --batch 12 --heads 4 --queries 64 --dim 32", False, 1.5, None)]


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=command_line.whole, default=1, help="of a CPU, for both (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=command_line.seconds, default=1, help="per measurement (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a row instead of a table")
    return parser.parse_args()


def line_of(command, environment, keep):
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    rows = [row for row in rows if keep(row)]
    if done.returncode or len(rows) != 1:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}, {len(rows)} results")
    return rows[0]


def step_of(row):
    return row["step_ms"] if "step_ms" in row else row["forward_ms"] + row["backward_ms"]


def measure(options, words, graph):
    """Medians over the rounds: both times of forward and backward, and those of the products alone."""
    here = os.path.dirname(os.path.abspath(__file__))
    flags = ["--seconds", str(options.seconds)] + (["--graph"] if graph else [])
    threads = {"TSHARD_BLAS_THREADS": str(options.threads), "OMP_NUM_THREADS": str(options.threads)}
    environment = dict(os.environ, TSHARD_DEVICE=options.device, **threads)
    ours = [os.path.join(options.build, "bin", "tshard-bench"), *words.split(), *flags, "--json"]
    if words.startswith("linear"):
        ours += ["--shard", "dense"]
    theirs = [sys.executable, os.path.join(here, "peers", "torch_layers.py"), *words.split(), *flags,
              "--device", options.device, "--threads", str(options.threads)]
    times, peer_times, products = [], [], []
    for _ in range(options.rounds):
        row = line_of(ours, environment, lambda row: True)
        times.append(step_of(row))
        products.append(row.get("gemm_only_ms", 0))
        row = line_of(theirs, environment, lambda row: True)
        peer_times.append(step_of(row))
    return statistics.median(times), statistics.median(peer_times), statistics.median(products)


def main():
    options = arguments()
    if importlib.util.find_spec("torch") is None:
        print("compare_torch: skipped, python3 has no torch")
        return 0
    bad = 0
    if not options.json:
        print(f"{'layers':30} {'':9} {'tshard ms':>10} {'torch ms':>10} {'ratio':>7} {'asked':>6} {'products alone ms':>18}")
    for name, words, captures, eager, captured in GPU if options.device == "cuda" else CPU:
        for graph, asked in [(False, eager)] + ([(True, captured)] if captures else []):
            ours, theirs, products = measure(options, words, graph)
            ratio = theirs / ours
            bad += asked is not None and ratio < asked
            kind = "captured" if graph else "eager"
            if options.json:
                print(json.dumps({"layers": name, "kind": kind, "tshard_ms": ours, "torch_ms": theirs, "ratio": ratio,
                                  "asked": asked, "gemm_only_ms": products}), flush=True)
            else:
                print(f"{name:30} {kind:9} {ours:10.4f} {theirs:10.4f} {ratio:7.2f} "
                      f"{'' if asked is None else asked:>6} {f'{products:.4f}' if products else '':>18}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(command_line.run(main))
