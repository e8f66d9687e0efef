#!/usr/bin/env python3
"""The layers of `tshard-bench linear`, `mlp` and `attention` in PyTorch: the same sizes, the same step, one JSON line.

A step zeroes the gradients (to None, as PyTorch does by default), goes forward, and back from a given gradient to x and
all parameters. On a GPU its events are the clock; --graph captures the step in a CUDA graph and replays it.
"""
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import command_line  # pylint: disable=wrong-import-position

STEPS_IN_FLIGHT = 8  # a GPU that pauses between steps runs at a higher clock than one that is always busy
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bench", choices=["linear", "mlp", "attention"])
    parser.add_argument("--batch", type=command_line.whole, default=1024)
    parser.add_argument("--in", dest="inputs", type=command_line.whole, default=1024, help="linear: features in")
    parser.add_argument("--out", type=command_line.whole, default=1024, help="linear: features out")
    parser.add_argument("--hidden", type=command_line.whole, default=1024, help="mlp: features in and out")
    parser.add_argument("--ffn", type=command_line.whole, default=4096, help="mlp: features between the layers")
    parser.add_argument("--heads", type=command_line.whole, default=6, help="attention: of queries, keys and values")
    parser.add_argument("--queries", type=command_line.whole, default=1024, help="attention: tokens of a sequence")
    parser.add_argument("--dim", type=command_line.whole, default=64, help="attention: of a head")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=command_line.whole, default=1, help="of a CPU")
    parser.add_argument("--tf32", action="store_true", help="float32 products on the tensor cores")
    parser.add_argument("--graph", action="store_true", help="capture the step and replay it")
    parser.add_argument("--seconds", type=command_line.seconds, default=0.25)
    return parser.parse_args()


class Heads(torch.nn.Module):
    """Causal attention of three parameters, so that a step takes their gradients as it does those of a layer."""

    def __init__(self, shape, kind):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.randn(shape, **kind) for _ in range(3)])

    def forward(self, _):
        return torch.nn.functional.scaled_dot_product_attention(*self.parts, is_causal=True)


def model_of(options):
    """The model, and the shapes of its input and output."""
    kind = {"device": options.device, "dtype": DTYPES[options.dtype]}
    if options.bench == "attention":
        shape = (options.batch, options.heads, options.queries, options.dim)
        return Heads(shape, kind), (1,), shape
    if options.bench == "linear":
        model = torch.nn.Linear(options.inputs, options.out, **kind)
        return model, (options.batch, options.inputs), (options.batch, options.out)
    layers = [torch.nn.Linear(options.hidden, options.ffn, **kind), torch.nn.GELU(approximate="none"),
              torch.nn.Linear(options.ffn, options.hidden, **kind)]
    return torch.nn.Sequential(*layers), (options.batch, options.hidden), (options.batch, options.hidden)


class Clock:
    """Points of time: of the GPU's stream, or of the host."""

    def __init__(self, device):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if device == "cuda" else None
        self.times = [0.0] * 3

    def mark(self, i):
        if self.events:
            self.events[i].record()
        else:
            self.times[i] = time.perf_counter()

    def milliseconds(self, first, last):
        if not self.events:
            return 1e3 * (self.times[last] - self.times[first])
        self.events[last].synchronize()
        return self.events[first].elapsed_time(self.events[last])


def step(model, x, dy, clock=None):
    model.zero_grad(set_to_none=True)
    x.grad = None
    if clock:
        clock.mark(0)
    y = model(x)
    if clock:
        clock.mark(1)
    y.backward(dy)
    if clock:
        clock.mark(2)


def capture(model, x, dy):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(model, x, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    x.grad = None
    with torch.cuda.graph(graph):
        model(x).backward(dy)
    return graph


def run_steps(model, x, dy, graph, clocks):
    """A step for each clock, before the host waits for any: on a GPU they follow each other without a pause."""
    for clock in clocks:
        if graph:
            clock.mark(0)
            clock.mark(1)
            graph.replay()
            clock.mark(2)
        else:
            step(model, x, dy, clock)
    return [(clock.milliseconds(0, 1), clock.milliseconds(1, 2)) for clock in clocks]


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    model, inputs, outputs = model_of(options)
    kind = {"device": options.device, "dtype": DTYPES[options.dtype]}
    x = torch.randn(inputs, **kind, requires_grad=True)
    dy = torch.randn(outputs, **kind)
    clocks = [Clock(options.device) for _ in range(STEPS_IN_FLIGHT if options.device == "cuda" else 1)]
    graph = capture(model, x, dy) if options.graph else None
    for _ in range(3):  # warm-up
        run_steps(model, x, dy, graph, clocks)
    samples, end = [], time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(samples) < 7:
        samples += run_steps(model, x, dy, graph, clocks)
    forward, backward = zip(*samples)
    steps = [a + b for a, b in zip(forward, backward)]
    print(json.dumps({"bench": options.bench, "peer": "torch " + torch.__version__, "graph": options.graph,
                      "forward_ms": statistics.median(forward), "backward_ms": statistics.median(backward),
                      "step_ms": statistics.median(steps), "steps": len(steps), "dtype": options.dtype}))


if __name__ == "__main__":
    sys.exit(command_line.run(main))
