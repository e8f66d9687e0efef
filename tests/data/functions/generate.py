"""Writes values and gradients of functions, computed with PyTorch (2.15) in float64, as tests/support/vectors.h reads
them: python3 generate.py math > math.txt
"""
import sys
import torch

INF, NAN = float("inf"), float("nan")


def put(name, t):
    t = t.detach()
    print("tensor", name, "i64" if t.dtype == torch.int64 else "f64", t.dim(), *t.shape)
    print(*(repr(v) for v in t.flatten().tolist()))


def of(*values):
    return torch.tensor(values, dtype=torch.float64)


def math():
    """x and dy; for each function its parameters, y and dx."""
    x = of(0, -0.0, INF, -INF, NAN, -1, 2, 1e-310, 0.3, -0.7, 1.5, 8.25, -20, 40, 1e-5, -1e-5, 710, -746, 0.5, 1, 2.5)
    dy = torch.arange(1, len(x) + 1, dtype=torch.float64) / 4
    cases = [(name, (), getattr(torch, name)) for name in ("exp", "log", "tanh", "sqrt", "sigmoid")]
    for e in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -0.5, 1.5, -2.0, -0.25, 7.0):
        cases.append((f"pow({e})", (e, 0), lambda x, e=e: x.pow(e)))
    for low, high in ((-1, 1), (-INF, 0.5), (0, INF), (1, -1)):
        cases.append((f"clamp({low},{high})", (low, high), lambda x, a=low, b=high: x.clamp(a, b)))
    put("x", x)
    put("dy", dy)
    for name, parameters, f in cases:
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        y.backward(dy)
        if parameters:
            put(name + ".p", of(*parameters))
        put(name + ".y", y)
        put(name + ".dx", leaf.grad)


print("#", sys.argv[1], "of tests/data/functions/generate.py")
globals()[sys.argv[1]]()
