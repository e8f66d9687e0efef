#!/usr/bin/env python3
"""The redistributions of `tshard-bench redistribute` by PyTorch's DTensor over gloo, one JSON line each.

Starts its ranks itself, as processes of this machine. Of each repetition the slowest rank's time counts, from one
barrier to another; of these the median.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import command_line  # pylint: disable=wrong-import-position

COLS = 4096
CHANGES = [("S0 -> S1", 1, [Shard(0)], [Shard(1)]),
           ("S0 -> R", 1, [Shard(0)], [Replicate()]),
           ("(S0,S1) -> (S1,S0)", 2, [Shard(0), Shard(1)], [Shard(1), Shard(0)])]


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=command_line.whole, default=2)
    parser.add_argument("--bytes", type=command_line.size, default=64 << 20, help="of the whole matrix")
    parser.add_argument("--seconds", type=command_line.seconds, default=0.25)
    return parser.parse_args()


def slowest(took):
    times = torch.tensor([took])
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.item()


def time_of(x, mesh, to):
    start = time.perf_counter()
    y = x.redistribute(mesh, to).to_local()
    dist.barrier()
    return slowest(time.perf_counter() - start), y


def measure(options, change):
    name, axes, source, to = change
    mesh = dist.init_device_mesh("cpu", (2, options.ranks // 2) if axes == 2 else (options.ranks,))
    rows = max(options.bytes // (4 * COLS), 1)
    whole = torch.arange(rows * COLS, dtype=torch.float32).remainder_(1000003).view(rows, COLS)
    x = distribute_tensor(whole, mesh, source)
    _, y = time_of(x, mesh, to)
    wrong = not torch.equal(y, distribute_tensor(whole, mesh, to).to_local())
    times, spent = [], 0.0
    while len(times) < 5 or spent < options.seconds:
        dist.barrier()
        took, y = time_of(x, mesh, to)
        times.append(took)
        spent = sum(times)
    if dist.get_rank() == 0:
        print(json.dumps({"bench": "redistribute", "peer": "torch " + torch.__version__, "change": name,
                          "ranks": options.ranks, "bytes": rows * COLS * 4, "time_ms": 1e3 * statistics.median(times),
                          "repetitions": len(times), "wrong": int(wrong)}), flush=True)


def rank_main(rank, options, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(options.ranks))
    dist.init_process_group("gloo")
    for change in CHANGES:
        if options.ranks % change[1] == 0:
            measure(options, change)
    dist.destroy_process_group()


def main():
    options = arguments()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # finds a free port
    port = store.port
    del store
    torch.multiprocessing.spawn(rank_main, (options, port), options.ranks)


if __name__ == "__main__":
    sys.exit(command_line.run(main))
