#!/usr/bin/env python3
"""torch.distributed.checkpoint of a sharded model, one rank of it: run by compare_checkpoint.py under torchrun."""
import argparse
import json
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    width = int((options.bytes / (3 * 4 * 4)) ** 0.5)  # four layers, each with two state tensors, as tshard-bench has
    state = {}
    for layer in range(4):
        for name in ("weight", "exp_avg", "exp_avg_sq"):
            state[f"{layer}.{name}"] = distribute_tensor(torch.randn(width, width), mesh, [Shard(layer % 2)])
    folder = os.path.join(options.folder, "torch_checkpoint")
    save, load = [], []
    for _ in range(options.rounds):
        dist.barrier()
        begin = time.perf_counter()
        dcp.save(state, checkpoint_id=folder)
        save.append(time.perf_counter() - begin)
        dist.barrier()
        begin = time.perf_counter()
        dcp.load(state, checkpoint_id=folder)
        load.append(time.perf_counter() - begin)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
    if dist.get_rank() == 0:
        print(json.dumps({"save_ms": 1e3 * statistics.median(save), "load_ms": 1e3 * statistics.median(load)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
