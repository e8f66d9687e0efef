#!/usr/bin/env python3
"""What a node costs in PyTorch, the peer of `tshard-bench dispatch`: a chain of small sums, forward and backward, as JSON."""
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import command_line  # pylint: disable=wrong-import-position

STEPS, REPETITIONS = 5, 9


def arguments():
    parser = command_line.Parser(description=__doc__)
    parser.add_argument("--nodes", type=command_line.whole, default=1000, help="sums in the chain (default: %(default)s)")
    parser.add_argument("--elements", type=command_line.whole, default=8, help="of each (default: %(default)s)")
    return parser.parse_args()


def step(x, y, nodes):
    z = x
    for _ in range(nodes):
        z = z + y
    z.sum().backward()
    x.grad = None


def main():
    options = arguments()
    torch.set_num_threads(1)
    x, y = torch.ones(options.elements, requires_grad=True), torch.ones(options.elements)
    step(x, y, options.nodes)
    times = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step(x, y, options.nodes)
        times.append((time.perf_counter() - begin) / (STEPS * options.nodes))
    print(json.dumps({"peer": "torch " + torch.__version__, "node_us": 1e6 * statistics.median(times)}))


if __name__ == "__main__":
    command_line.run(main)
