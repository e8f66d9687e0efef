#!/usr/bin/env python3
"""GPT-2 of 124 million parameters on a GPU: training beside PyTorch, and generation beside the reads of its weights.

train     train_gpt in bfloat16 with float32 master weights, and the same model in PyTorch, eager and compiled, by turns;
          asked: as many tokens a second as the better of them. Without torch in python3 train_gpt runs alone.
generate  tokens one by one; asked: 0.85 of the bandwidth that a copy reaches, counting the weights alone.
"""
import importlib.util
import json
import os
import statistics
import sys
import tempfile

import command_line

MODEL = {"layers": 12, "heads": 12, "embed": 768, "block": 1024, "vocabulary": 50304}
SMALL = {"layers": 2, "heads": 2, "embed": 16, "block": 32, "vocabulary": 301}
ASKED_TRAINING, ASKED_READING = 1.0, 0.85


def arguments():
    parser = command_line.Parser(description=__doc__, formatter_class=command_line.argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["train", "generate"])
    parser.add_argument("--bin", type=command_line.folder, default="build/bin", help="of programs (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--batch", type=command_line.whole, default=16, help="sequences of a step (default: %(default)s)")
    parser.add_argument("--steps", type=command_line.whole, default=30, help="timed steps (default: %(default)s)")
    parser.add_argument("--rounds", type=command_line.whole, default=2, help="default: %(default)s")
    parser.add_argument("--tokens", type=command_line.whole, default=256, help="to generate (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes a minute")
    parser.add_argument("--small", action="store_true", help="a tiny model and few steps, which measure nothing")
    return parser.parse_args()


def last_row(command, device, optional=False):
    return command_line.last_row(command, dict(os.environ, TSHARD_DEVICE=device), optional)


def train(options, model):
    here = os.path.dirname(os.path.abspath(__file__))
    sizes = [word for name, value in {**model, "batch": options.batch}.items() for word in ("--" + name, str(value))]
    ours = [os.path.join(options.bin, "train_gpt"), *sizes, "--dtype", "bfloat16", "--master-weights", "--steps",
            str(options.steps + 5), "--eval-every", "1000000", "--eval-batches", "1", "--sample", "0", "--json"]
    theirs = [sys.executable, os.path.join(here, "peers", "torch_gpt2.py"), *sizes, "--steps", str(options.steps),
              "--device", options.device]
    commands = {"tshard": ours}
    if importlib.util.find_spec("torch") is None:
        print("python3 has no torch: train_gpt alone")
    else:
        commands["torch, eager"] = theirs
        if not options.no_compile:
            commands["torch, compiled"] = [*theirs, "--compile"]
    rates = {}
    for _ in range(options.rounds):
        for name, command in commands.items():
            row = last_row(command, options.device, name != "tshard")
            if row is None:
                continue
            rates.setdefault(name, []).append(row["tokens_per_s"])
            print(f"{name:16} {row['tokens_per_s']:12.0f} tokens/s {row['step_ms']:10.2f} ms a step "
                  f"{row['parameters']:12} parameters", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    peer = max((rate for name, rate in medians.items() if name != "tshard"), default=None)
    if peer is None:
        return 0
    ratio = medians["tshard"] / peer
    print(f"tshard's tokens/s over the better peer's: {ratio:.3f}, asked {ASKED_TRAINING}")
    return 0 if ratio >= ASKED_TRAINING or options.small else 1


def generate(options, model):
    config = {"model_type": "gpt2", "n_layer": model["layers"], "n_head": model["heads"], "n_embd": model["embed"],
              "n_positions": model["block"], "vocab_size": model["vocabulary"],
              "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        row = last_row([os.path.join(options.bin, "generate"), "--model", folder, "--random-weights", "--prompt-tokens",
                        "8" if options.small else "64", "--tokens", str(options.tokens), "--dtype", "bfloat16",
                        "--repeat", str(options.rounds + 1), "--json"], options.device)
    share = row["weight_bytes_per_s"] / row["stream_bytes_per_s"]
    print(f"{row['tokens_per_s']:.1f} tokens/s, {1e-6 * row['weight_bytes']:.1f} MB of weights a token, "
          f"{1e-9 * row['weight_bytes_per_s']:.1f} of {1e-9 * row['stream_bytes_per_s']:.1f} GB/s, "
          f"{row['allocations']} allocations")
    print(f"share of the bandwidth: {share:.3f}, asked {ASKED_READING}")
    return 0 if share >= ASKED_READING or options.small else 1


def main():
    options = arguments()
    if options.small:
        options.batch, options.steps, options.rounds, options.tokens = 2, 3, 1, 4
    model = SMALL if options.small else MODEL
    return train(options, model) if options.what == "train" else generate(options, model)


if __name__ == "__main__":
    sys.exit(command_line.run(main))
