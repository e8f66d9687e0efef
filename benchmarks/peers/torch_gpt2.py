#!/usr/bin/env python3
"""A training step of a GPT-2 in PyTorch, the peer of train_gpt on a GPU: bfloat16 with float32 weights, one JSON line.

Forward, backward, clipping and AdamW as PyTorch has them fused, attention by scaled_dot_product_attention; --compile
compiles the model. The tokens are drawn at random: only times are compared.
"""
import json
import math
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import command_line  # pylint: disable=wrong-import-position

WARM_UP = 5


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    sizes = {"layers": 12, "heads": 12, "embed": 768, "block": 1024, "batch": 16, "vocabulary": 50304, "steps": 30}
    for name, value in sizes.items():
        parser.add_argument("--" + name, type=command_line.whole, default=value, help="default: %(default)s")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(embed, 3 * embed, bias=False)
        self.outward = nn.Linear(embed, embed, bias=False)

    def forward(self, x):
        batch, tokens, embed = x.shape
        parts = self.inward(x).view(batch, tokens, 3, self.heads, embed // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.outward(y.transpose(1, 2).reshape(batch, tokens, embed))


class Block(nn.Module):
    def __init__(self, embed, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(embed, bias=False) for _ in range(2)])
        self.attention = Attention(embed, heads)
        self.mlp = nn.Sequential(nn.Linear(embed, 4 * embed, bias=False), nn.GELU(),
                                 nn.Linear(4 * embed, embed, bias=False))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """Of token ids to the mean loss; the table of tokens is the output layer too."""

    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocabulary, o.embed)
        self.positions = nn.Embedding(o.block, o.embed)
        self.blocks = nn.ModuleList([Block(o.embed, o.heads) for _ in range(o.layers)])
        self.norm = nn.LayerNorm(o.embed, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * o.layers))

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    o = arguments()
    torch.manual_seed(1)
    model = Model(o).to(o.device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}],
                                  lr=6e-4, betas=(0.9, 0.99), fused=True)
    loss_of = torch.compile(model) if o.compile else model
    times = []
    for _ in range(WARM_UP + o.steps):
        ids = torch.randint(o.vocabulary, (o.batch, o.block + 1), device=o.device)
        begin = time.perf_counter()
        with torch.autocast(o.device, torch.bfloat16):
            loss = loss_of(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        if o.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    step = statistics.median(times[WARM_UP:])
    print(json.dumps({"peer": "torch " + torch.__version__, "compile": o.compile, "step_ms": 1e3 * step,
                      "tokens_per_s": o.batch * o.block / step,
                      "parameters": sum(p.numel() for p in model.parameters())}))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main))
