#!/usr/bin/env python3
"""exact.py IN OUT: expected.safetensors of a Llama or Qwen2 folder once more, with all of it in float64; of a folder that
has config.json alone (llama3), model.safetensors too, with random weights.

Whatever a model's dtype, transformers computes the angles of rotary positions and its RMS norms in float32, which leaves
1e-6 in results that are float64 otherwise. The files of llama, llama-tied and qwen2 here have been made by this script
(transformers 5.23, PyTorch 2.15) from files that transformers alone had made; their metadata says so. --check changes
nothing of transformers and prints how far the results are from IN's.
"""
import math
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

folder, out = sys.argv[1:3]
check = "--check" in sys.argv
fresh = not os.path.exists(folder + "/model.safetensors")
if fresh:
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    tiny = AutoModelForCausalLM.from_config(config)
    save_file({name: p.detach().contiguous() for name, p in tiny.named_parameters()}, folder + "/model.safetensors",
              metadata={"format": "pt"})
    ids = torch.randint(1, config.vocab_size, (2, config.max_position_embeddings - 3))
    target = ids.roll(-1, 1)
    target[:, ::5] = -100
    old = {"ids": ids, "target": target, "prompt": ids[:1, :20].clone(), "generated": torch.zeros(6)}
else:
    old = load_file(folder + "/expected.safetensors")
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def exact_frequencies():
    """Those of the published formulas, which transformers computes in float32."""
    rope, pairs = model.config.rope_parameters, model.model.rotary_emb.inv_freq.numel()
    plain = rope["rope_theta"] ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    frequencies = plain
    if rope["rope_type"] == "linear":
        frequencies = plain / rope["factor"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        lengths = 2 * math.pi / plain
        smooth = (rope["original_max_position_embeddings"] / lengths - low) / (high - low)
        between = (1 - smooth) * plain / rope["factor"] + smooth * plain
        frequencies = torch.where(smooth < 0, plain / rope["factor"], torch.where(smooth > 1, plain, between))
    assert torch.allclose(frequencies.float(), model.model.rotary_emb.inv_freq, rtol=1e-6)
    return frequencies


def exact_angles(x, position_ids=None, **_):
    frequencies = exact_frequencies()
    angles = position_ids[:, :, None].double() * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def exact_norm(norm):
    return lambda x: norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


if not check:
    model.model.rotary_emb.forward = exact_angles
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = exact_norm(module)
new = {name: old[name] for name in ("ids", "target", "prompt")}
with torch.no_grad():
    ids = old["prompt"]
    for _ in range(old["generated"].numel()):
        ids = torch.cat((ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)), -1)
new["generated"] = ids[0, old["prompt"].shape[1]:].contiguous()
new["logits"] = model(old["ids"]).logits
new["loss"] = torch.nn.functional.cross_entropy(new["logits"].flatten(0, 1), old["target"].flatten())
new["loss"].backward()
parameters = dict(model.named_parameters())
for name, p in parameters.items():
    new["grad." + name] = p.grad.clone()
torch.optim.AdamW(parameters.values(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
for name, p in parameters.items():
    new["after." + name] = p.detach().clone()
assert fresh or new.keys() == old.keys()
worst = 0
for name, t in new.items():
    new[name] = t.detach().contiguous()
    if fresh or name.startswith("after."):
        continue
    worst = max(worst, ((t - old[name]).abs().max() / old[name].abs().max()).item())
print(f"{folder}: at most {worst:.1e} from the old one, relative to a tensor's largest value")
if not check:
    save_file(new, out, metadata={"format": "pt", "computed": "float64"})
