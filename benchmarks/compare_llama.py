#!/usr/bin/env python3
"""A Llama of 125 million parameters beside PyTorch and llama.cpp, and the tape's cost beside PyTorch's, in one run, by turns.

generate reads a prompt and writes tokens one by one, with random weights (examples/transformer/llama-125m), on as many
ranks as the peers have threads; a node is one of 1,000 sums of 8 elements, forward and backward, on one rank. Rows show
medians over the rounds. Without torch in python3, and without --llama-bench, these peers are left out. Ends with 1 where
tshard is not as much faster as is asked, or reads less of the memory's bandwidth.
"""
import importlib.util
import json
import os
import statistics
import subprocess
import sys

import command_line

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(os.path.dirname(HERE), "examples", "transformer", "llama-125m")
ENVIRONMENT = dict(os.environ, OPENBLAS_NUM_THREADS="1")
HAS_TORCH = importlib.util.find_spec("torch") is not None
NODES = 1000
PEERS = ("torch", "llama.cpp")
# How much faster than a peer each is asked to be; the part of a stream read, and a node's microseconds.
PROMPT, GENERATION, NODE = {"torch": 1.4, "llama.cpp": 1.4}, {"llama.cpp": 1.7}, {"torch": 20}
PART, NODE_US = 0.85, 0.3


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=command_line.folder, default="build", help="build directory (default: %(default)s)")
    parser.add_argument("--ranks", type=command_line.whole, default=2, help="and threads of the peers (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=3, help="default: %(default)s")
    parser.add_argument("--prompt", type=command_line.whole, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--tokens", type=command_line.whole, default=48, help="to generate (default: %(default)s)")
    parser.add_argument("--llama-bench", metavar="PROGRAM", help="llama.cpp's; it wants a model of this shape:")
    parser.add_argument("--gguf-float32", metavar="FILE", help="the model in float32; without it llama.cpp has no such rows")
    parser.add_argument("--gguf-bfloat16", metavar="FILE", help="the model in bfloat16, likewise")
    return parser.parse_args()


def llama_cpp(options, file):
    """Tokens a second of the prompt and of generation, by the names that the other programs have for them."""
    command = [options.llama_bench, "-m", file, "-p", str(options.prompt), "-n", str(options.tokens), "-t",
               str(options.ranks), "-r", "3", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    rows = json.loads(done.stdout)
    return {"prompt_tokens_per_s" if row["n_prompt"] else "tokens_per_s": row["avg_ts"] for row in rows}


def programs(options, dtype):
    """A function for each program that can be measured here, which returns a row."""
    start = [os.path.join(options.build, "bin", "tshard-run"), "-n", str(options.ranks), "--no-prefix"]
    sizes = ["--tokens", str(options.tokens), "--repeat", "3", "--dtype", dtype]
    ours = [*start, os.path.join(options.build, "bin", "generate"), "--model", MODEL, "--random-weights", "--prompt-tokens",
            str(options.prompt), *sizes, "--json"]
    found = {"tshard": lambda: command_line.last_row(ours, ENVIRONMENT)}
    if HAS_TORCH:
        theirs = [sys.executable, os.path.join(HERE, "peers", "torch_llama.py"), "--threads", str(options.ranks),
                  "--prompt", str(options.prompt), *sizes]
        found["torch"] = lambda: command_line.last_row(theirs, ENVIRONMENT)
    file = getattr(options, "gguf_" + dtype)
    if options.llama_bench and file:
        found["llama.cpp"] = lambda: llama_cpp(options, file)
    return found


def by_turns(found, rounds):
    """For each program the medians of the numbers of its rows."""
    rows = {name: [] for name in found}
    for _ in range(rounds):
        for name, measure in found.items():
            rows[name].append(measure())
    return {name: {key: statistics.median(row[key] for row in all_of) for key, value in all_of[0].items()
                   if isinstance(value, (int, float))} for name, all_of in rows.items()}


def show(what, unit, got, key, asked):
    """A line of the table; ratios are those by which tshard is faster. Returns whether it is as much faster as asked."""
    line, good = f"{what:24} {unit:9} {got['tshard'][key]:10.2f}", True
    for peer in PEERS:
        if peer not in got:
            line += f" {'-':>10} {'-':>6} {'-':>6}"
            continue
        ratio = got["tshard"][key] / got[peer][key]
        ratio = 1 / ratio if unit == "us" else ratio
        good = good and ratio >= asked.get(peer, 0)
        line += f" {got[peer][key]:10.2f} {ratio:6.2f} {asked.get(peer, ''):>6}"
    print(line, flush=True)
    return good


def language_model(options, dtype):
    got = by_turns(programs(options, dtype), options.rounds)
    prompt = show(f"prompt of {options.prompt}, {dtype}", "tokens/s", got, "prompt_tokens_per_s",
                  PROMPT if dtype == "float32" else {})
    generation = show(f"generation, {dtype}", "tokens/s", got, "tokens_per_s", GENERATION)
    part = got["tshard"]["weight_bytes_per_s"] / got["tshard"]["stream_bytes_per_s"]
    print(f"  reads weights at {part:.2f} of a stream read of memory, asked {PART}", flush=True)
    return prompt and generation and part >= PART


def dispatch(options):
    bench = [os.path.join(options.build, "bin", "tshard-bench"), "dispatch", "--nodes", str(NODES), "--elements", "8",
             "--seconds", "1", "--json"]
    found = {"tshard": lambda: command_line.last_row(bench, ENVIRONMENT)}
    if HAS_TORCH:
        peer = [sys.executable, os.path.join(HERE, "peers", "torch_dispatch.py"), "--nodes", str(NODES)]
        found["torch"] = lambda: command_line.last_row(peer, ENVIRONMENT)
    got = by_turns(found, options.rounds)
    good = show("node of the tape", "us", got, "node_us", NODE)
    print(f"  asked {NODE_US} us at most", flush=True)
    return good and got["tshard"]["node_us"] <= NODE_US


def say_who_is_missing(options):
    if not HAS_TORCH:
        print("without PyTorch: python3 has no torch")
    for dtype in ("float32", "bfloat16"):
        if not options.llama_bench or not getattr(options, "gguf_" + dtype):
            print(f"without llama.cpp in {dtype}: --llama-bench and --gguf-{dtype} name its program and a model")


def main():
    options = arguments()
    say_who_is_missing(options)
    print(f"{'':24} {'':9} {'tshard':>10}" + "".join(f" {peer:>10} {'ratio':>6} {'asked':>6}" for peer in PEERS))
    results = [language_model(options, dtype) for dtype in ("float32", "bfloat16")] + [dispatch(options)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(command_line.run(main))
