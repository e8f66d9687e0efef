"""Writes arrays and the text that NumPy (2.4) prints of them: python3 generate.py > numpy.txt

A case is a line `array DTYPE PRECISION THRESHOLD EDGE WIDTH NDIM DIMS...`, a line of the bytes of the elements that are
printed, row-major, in hexadecimal, and the text, each line of it behind a `|`.
"""
import numpy as np

rng = np.random.default_rng(11)
FLOATS = [np.float64, np.float32, np.float16]
COMPLEX = [np.complex128, np.complex64]
INTEGERS = [np.int64, np.int32, np.uint8]


def shown(a, edge):
    for axis in range(a.ndim):
        n = a.shape[axis]
        if n > 2 * edge:
            a = np.take(a, list(range(edge)) + list(range(n - edge, n)), axis)
    return a


def case(a, precision=8, threshold=1000, edge=3, width=75):
    with np.printoptions(precision=precision, threshold=threshold, edgeitems=edge, linewidth=width):
        text = str(a)
    values = shown(a, edge) if a.size > threshold else a
    print("array", a.dtype, precision, threshold, edge, width, a.ndim, *a.shape)
    print(np.ascontiguousarray(values).tobytes().hex())
    for line in text.split("\n"):
        print("|" + line)


def numbers(dtype, shape):
    """Of one magnitude, of many, short, whole, negative: what changes the columns."""
    kind = rng.integers(6)
    x = rng.standard_normal(shape)
    if kind == 1:
        x = x * 10.0 ** rng.integers(-6, 7, shape)
    elif kind == 2:
        x = np.round(x, 2)
    elif kind == 3:
        x = np.round(x * 50)
    elif kind == 4:
        x = np.abs(x) * 10.0 ** rng.integers(-4, 4)
    elif kind == 5:
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x)
    with np.errstate(over="ignore", under="ignore"):
        if np.issubdtype(dtype, np.complexfloating):
            return (x + 1j * rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3)).astype(dtype)
        return x.astype(dtype)


for dtype in FLOATS + COMPLEX:
    for shape in [(), (1,), (4,), (7,), (25,), (3, 4), (2, 3, 5), (2, 2, 2, 3), (1100,), (40, 30), (3, 400), (12, 11, 10)]:
        for _ in range(4 if len(shape) < 3 else 2):
            case(numbers(dtype, shape))
for dtype in INTEGERS:
    limits = np.iinfo(dtype)
    for shape in [(), (1,), (25,), (5, 7), (2, 3, 2), (2000,), (50, 50), (4, 3, 100)]:
        case(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
        case(rng.integers(0, 100, shape).astype(dtype))
for shape in [(0,), (3, 0), (0, 4, 2)]:
    case(np.zeros(shape))
    case(np.zeros(shape, np.int64), threshold=0)
for values in [[0.0, -0.0], [np.nan], [np.inf, 1], [-np.inf, np.nan], [1e300, 1e-300], [1e-5], [1e-4], [1e8], [99999999.0], [1e100, 1],
               [5e-324], [0.1, 0.2, 0.3], [2.0 ** k for k in range(-30, 31)], [123456.789e3], [1 / 3], [9.9999999999e-5], [0.99999999999]]:
    for dtype in FLOATS:
        with np.errstate(over="ignore", under="ignore"):
            x = np.array(values).astype(dtype)
        case(x)
        for v in x[:3]:
            case(np.array(v))
for value in [1 + 2j, -0.0 + 1j, 1j, 0j, complex(np.nan, -np.inf), 1e17 + 1e-5j, 1234567.5, complex(0, -1)]:
    for dtype in COMPLEX:
        case(np.array(value, dtype))
for precision in [0, 1, 4, 12, 17]:
    for dtype in FLOATS:
        case(rng.standard_normal((3, 3)).astype(dtype), precision=precision)
        case((rng.standard_normal(9) * 10.0 ** rng.integers(-3, 3, 9)).astype(dtype), precision=precision)
for threshold, edge, width in [(0, 1, 75), (5, 2, 40), (10, 3, 20), (0, 3, 1), (100, 2, 200)]:
    for shape in [(3,), (9,), (30, 30), (7, 8, 9), (300,)]:
        case(rng.standard_normal(shape), threshold=threshold, edge=edge, width=width)
        case(rng.integers(-9, 1000, shape), threshold=threshold, edge=edge, width=width)
