#!/usr/bin/env python3
"""A Llama with random weights in PyTorch, the peer of `generate`: tokens a second of a prompt and of generation, as JSON.

The shape is that of examples/transformer/llama-125m; keys and values are kept. Medians over the repetitions.
"""
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import command_line  # pylint: disable=wrong-import-position

WORDS, WIDTH, HEADS, KV_HEADS, INNER, LAYERS = 32000, 768, 12, 4, 2048, 12
DIM = WIDTH // HEADS


def arguments():
    parser = command_line.Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=command_line.whole, default=2)
    parser.add_argument("--prompt", type=command_line.whole, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--tokens", type=command_line.whole, default=48, help="default: %(default)s")
    parser.add_argument("--repeat", type=command_line.whole, default=5, help="default: %(default)s")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return parser.parse_args()


def turned(x, cosine, sine):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, KV_HEADS * DIM, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cache, start, turn):
        n, h = x.shape[0], self.norms[0](x)
        q, k, v = (f(h).view(n, -1, DIM).transpose(0, 1) for f in (self.query, self.key, self.value))
        cache[0][:, start:start + n], cache[1][:, start:start + n] = turned(k, *turn), v
        k, v = cache[0][:, :start + n], cache[1][:, :start + n]
        y = F.scaled_dot_product_attention(turned(q, *turn)[None], k[None], v[None], is_causal=n > 1, enable_gqa=True)
        x = x + self.out(y[0].transpose(0, 1).reshape(n, WIDTH))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH, eps=1e-5)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, caches, start):
        places = torch.arange(start, start + len(ids), dtype=torch.float32)
        angles = torch.outer(places, 10000.0 ** (-torch.arange(0, DIM, 2) / DIM))
        x = self.words(ids)
        turn = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, start, turn)
        return self.head(self.norm(x[-1:])).argmax(-1)


@torch.inference_mode()
def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    model = Llama().to(dtype)
    caches = [torch.zeros(2, KV_HEADS, options.prompt + options.tokens, DIM, dtype=dtype) for _ in range(LAYERS)]
    prompt, rates = torch.randint(WORDS, (options.prompt,)), ([], [])
    for _ in range(options.repeat):
        start = time.perf_counter()
        ids = model(prompt, caches, 0)
        middle = time.perf_counter()
        for i in range(options.tokens - 1):
            ids = model(ids, caches, options.prompt + i)
        rates[0].append(options.prompt / (middle - start))
        rates[1].append((options.tokens - 1) / (time.perf_counter() - middle))
    row = {"peer": "torch " + torch.__version__, "threads": options.threads, "dtype": options.dtype}
    print(json.dumps(row | {"prompt_tokens_per_s": statistics.median(rates[0]), "tokens_per_s": statistics.median(rates[1])}))


if __name__ == "__main__":
    command_line.run(main)
