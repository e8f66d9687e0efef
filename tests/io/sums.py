"""python3 sums.py FILE [--gpt2]: the tensors of a safetensors file as Python's own library reads them, a line each:
name, dtype, number of dims, dims, the sum, and the sum of element i times 1 + i % 1009 (in float64, exactly rounded).
--gpt2: as parameters, which are [out, in] and have q, k and v apart."""
import math
import sys

import numpy
import safetensors.numpy


def parameters(tensors, gpt2):
    for name, x in sorted(tensors.items()):
        if not gpt2:
            yield name, x
            continue
        name = name.removeprefix("transformer.")
        fused = ".c_" in name
        x = x.T if fused and x.ndim == 2 else x
        if "c_attn" in name:
            for letter, part in zip("qkv", numpy.split(x, 3)):
                yield name.replace("c_attn", letter), part
        else:
            yield name, x


for name, x in parameters(safetensors.numpy.load_file(sys.argv[1]), "--gpt2" in sys.argv):
    flat = x.astype(numpy.float64).ravel()
    weights = 1 + numpy.arange(flat.size) % 1009
    print(name, x.dtype, x.ndim, *x.shape, repr(math.fsum(flat)), repr(math.fsum(flat * weights)))
