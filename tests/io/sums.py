"""python3 sums.py PATH [--gpt2]: the tensors of a safetensors file, or of all in a folder, as Python's own library reads
them, a line each:
name, dtype, number of dims, dims, the sum, and the sum of element i times 1 + i % 1009 (in float64, exactly rounded).
--gpt2: as parameters, which are [out, in] and have q, k and v apart."""
import math
import pathlib
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


path = pathlib.Path(sys.argv[1])
tensors = {}
for file in path.glob("*.safetensors") if path.is_dir() else [path]:
    tensors.update(safetensors.numpy.load_file(file))
for name, x in parameters(tensors, "--gpt2" in sys.argv):
    flat = x.astype(numpy.float64).ravel()
    weights = 1 + numpy.arange(flat.size) % 1009
    print(name, x.dtype, x.ndim, *x.shape, repr(math.fsum(flat)), repr(math.fsum(flat * weights)))
