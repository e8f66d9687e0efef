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


def losses():
    """x, t (for bce, in [0, 1]), w; for each loss and reduction y, dx and dt of 1.5 y, or of the sum of y dy."""
    g = torch.Generator().manual_seed(5)
    x = torch.randn(5, 3, generator=g, dtype=torch.float64) * 3
    x[0] = of(80, -80, 0)
    x[1] = of(-800, 800, 30)
    t = torch.rand(5, 3, generator=g, dtype=torch.float64)
    t[:2] = of(1, 0, 1)
    w, dy = of(0.5, 3, 1.25), torch.rand(5, 3, generator=g, dtype=torch.float64)
    put("x", x), put("t", t), put("w", w), put("dy", dy)
    for name, f in (("mse", torch.nn.functional.mse_loss),
                    ("bce", torch.nn.functional.binary_cross_entropy_with_logits),
                    ("bce_w", lambda *a, **k: torch.nn.functional.binary_cross_entropy_with_logits(*a, pos_weight=w, **k))):
        for reduction in ("mean", "sum", "none"):
            a, b = x.clone().requires_grad_(), t.clone().requires_grad_()
            y = f(a, b, reduction=reduction)
            y.backward(dy if reduction == "none" else of(1.5)[0])
            put(f"{name}.{reduction}.y", y)
            put(f"{name}.{reduction}.dx", a.grad)
            put(f"{name}.{reduction}.dt", b.grad)


def frequency():
    """table, ids, dy; the gradient of the table by torch.nn.Embedding with scale_grad_by_freq and padding_idx 1."""
    g = torch.Generator().manual_seed(6)
    table = torch.randn(13, 5, generator=g, dtype=torch.float64)
    ids = torch.tensor([3, 1, 12, 3, 0, 12, 3, 1, 7])
    dy = torch.randn(9, 5, generator=g, dtype=torch.float64)
    layer = torch.nn.Embedding(13, 5, padding_idx=1, scale_grad_by_freq=True, _weight=table.clone())
    layer(ids).backward(dy)
    put("table", table), put("ids", ids), put("dy", dy), put("dtable", layer.weight.grad)


def max_norm():
    """For a table of many rows and one of few: table, ids, dy; by torch.nn.Embedding with max_norm 1.5 and norm_type 1,
    2, 3 and infinity the table after a forward, and its gradient for the sum of dy y^2."""
    g = torch.Generator().manual_seed(7)
    for name, rows, cols in (("many", 13, 5), ("few", 3, 2)):
        table = torch.randn(rows, cols, generator=g, dtype=torch.float64)
        table *= torch.linspace(0.1, 4, rows, dtype=torch.float64).unsqueeze(1)
        table[2] *= 1e4
        ids = torch.tensor([3, 1, 12, 3, 0, 12, 3, 2, 7] if rows == 13 else [2, 0, 2])
        dy = torch.randn(len(ids), cols, generator=g, dtype=torch.float64)
        put(f"{name}.table", table), put(f"{name}.ids", ids), put(f"{name}.dy", dy)
        for p in (1.0, 2.0, 3.0, INF):
            layer = torch.nn.Embedding(rows, cols, max_norm=1.5, norm_type=p, _weight=table.clone())
            y = layer(ids)
            (y * y * dy).sum().backward()
            put(f"{name}.bounded.{p:g}", layer.weight), put(f"{name}.dtable.{p:g}", layer.weight.grad)


print("#", sys.argv[1], "of tests/data/functions/generate.py")
globals()[sys.argv[1]]()
