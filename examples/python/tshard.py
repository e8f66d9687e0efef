#!/usr/bin/env python3
"""tshard from Python, by ctypes and nothing else: layers that are split over ranks run forward on NumPy arrays, and
failures are exceptions with the library's words.

    tshard-run -n 2 python3 tshard.py

runs a network of two layers and compares it with NumPy. Where libtshard.so is in no folder that ld.so knows,
LD_LIBRARY_PATH names it. The structures are those of the headers of tshard 0.1."""
import ctypes
import sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p

import numpy as np

lib = ctypes.CDLL("libtshard.so.0.1")

DENSE, ROW, COLUMN = range(3)
ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4}
DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.int32): 4, np.dtype(np.int64): 5,
          np.dtype(np.uint8): 6}


class Layout(ctypes.Structure):
    """tsh_layout; zeros are REPLICATED."""
    _fields_ = [("kind", c_int), ("dim", c_int), ("order", c_int), ("sharing", c_int), ("units", c_int64),
                ("blocks", c_int64), ("cuts", c_uint64)]


class TensorConfig(ctypes.Structure):
    """tsh_tensor_config"""
    _fields_ = [("dtype", c_int), ("ndim", c_int), ("shape", c_int64 * 8), ("layout", Layout * 8)]


class Init(ctypes.Structure):
    """tsh_init"""
    _fields_ = [("kind", c_int), ("gain", c_double), ("a", c_double), ("b", c_double)]


class LinearConfig(ctypes.Structure):
    """tsh_linear_config"""
    _fields_ = [("in_features", c_int64), ("out_features", c_int64), ("shard", c_int), ("bias", c_bool),
                ("units", c_int64), ("blocks", c_int64), ("shared", c_bool), ("gather_output", c_bool),
                ("sequence_parallel", c_bool), ("activation", c_int), ("dtype", c_int), ("weight_init", Init),
                ("bias_init", Init)]


# What each function returns and takes; a tsh_status is checked by `call`.
SIGNATURES = {
    "tsh_error_message": (c_char_p, []),
    "tsh_status_name": (c_char_p, [c_int]),
    "tsh_world_init": (c_int, [c_void_p, POINTER(c_void_p)]),
    "tsh_world_destroy": (None, [c_void_p]),
    "tsh_world_group": (c_void_p, [c_void_p]),
    "tsh_world_rank": (c_int, [c_void_p]),
    "tsh_world_size": (c_int, [c_void_p]),
    "tsh_group_mesh": (c_void_p, [c_void_p]),
    "tsh_tape_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "tsh_tape_destroy": (None, [c_void_p]),
    "tsh_tape_set_recording": (c_bool, [c_void_p, c_bool]),
    "tsh_tape_status": (c_int, [c_void_p]),
    "tsh_tape_message": (c_char_p, [c_void_p]),
    "tsh_tape_reset": (c_int, [c_void_p]),
    "tsh_tensor_create": (c_int, [c_void_p, POINTER(TensorConfig), POINTER(c_void_p)]),
    "tsh_tensor_release": (None, [c_void_p]),
    "tsh_tensor_ndim": (c_int, [c_void_p]),
    "tsh_tensor_shape": (POINTER(c_int64), [c_void_p]),
    "tsh_tensor_dtype": (c_int, [c_void_p]),
    "tsh_tensor_write_whole": (c_int, [c_void_p, c_void_p]),
    "tsh_tensor_read_whole": (c_int, [c_void_p, c_void_p]),
    "tsh_linear_create": (c_int, [c_void_p, POINTER(LinearConfig), POINTER(c_void_p)]),
    "tsh_linear_destroy": (None, [c_void_p]),
    "tsh_linear_load": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tsh_linear_forward": (c_void_p, [c_void_p, c_void_p, c_void_p]),
}
for _name, (_result, _arguments) in SIGNATURES.items():
    getattr(lib, _name).restype, getattr(lib, _name).argtypes = _result, _arguments


class Error(Exception):
    """A failure of the library: `status` is its name, as TSH_ERR_SHAPE."""

    def __init__(self, status, message):
        super().__init__(message.decode())
        self.status = lib.tsh_status_name(status).decode()


def call(name, *arguments):
    """Calls a function that returns a tsh_status."""
    status = getattr(lib, name)(*arguments)
    if status:
        raise Error(status, lib.tsh_error_message())


def create(name, *arguments):
    """Calls a function whose last argument is where a handle goes, and returns that."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


class World:
    """The ranks that were started together, and a tape without gradients: the `with` of a program."""

    def __enter__(self):
        self.handle = create("tsh_world_init", None)
        self.rank, self.size = lib.tsh_world_rank(self.handle), lib.tsh_world_size(self.handle)
        self.group = lib.tsh_world_group(self.handle)
        self.tape = create("tsh_tape_create", self.handle)
        lib.tsh_tape_set_recording(self.tape, False)
        return self

    def __exit__(self, *ignored):
        lib.tsh_tape_destroy(self.tape)
        lib.tsh_world_destroy(self.handle)

    def forward(self, layers, x):
        """The layers, one after another, on a whole array that every rank has; the whole result on every rank."""
        x = np.ascontiguousarray(x)
        if x.dtype not in DTYPES:
            raise TypeError(f"an array of {x.dtype}")
        config = TensorConfig(dtype=DTYPES[x.dtype], ndim=x.ndim, shape=(c_int64 * 8)(*x.shape))
        tensor = create("tsh_tensor_create", lib.tsh_group_mesh(self.group), byref(config))
        try:
            call("tsh_tensor_write_whole", tensor, x.ctypes.data)
            y = tensor
            for layer in layers:
                y = lib.tsh_linear_forward(self.tape, layer.handle, y)
            if lib.tsh_tape_status(self.tape):
                raise Error(lib.tsh_tape_status(self.tape), lib.tsh_tape_message(self.tape))
            result = np.empty(lib.tsh_tensor_shape(y)[:lib.tsh_tensor_ndim(y)], x.dtype)
            call("tsh_tensor_read_whole", y, result.ctypes.data)
            return result
        finally:
            lib.tsh_tape_reset(self.tape)
            lib.tsh_tensor_release(tensor)


class Linear:
    """y = f(x W^T + b), with weight [out_features, in_features] split over the world's ranks by COLUMN or ROW."""

    def __init__(self, world, weight, bias=None, shard=DENSE, activation=None):
        weight = np.ascontiguousarray(weight)
        bias = None if bias is None else np.ascontiguousarray(bias, weight.dtype)
        config = LinearConfig(in_features=weight.shape[1], out_features=weight.shape[0], shard=shard,
                              bias=bias is not None, activation=ACTIVATIONS[activation], dtype=DTYPES[weight.dtype])
        self.handle = create("tsh_linear_create", world.group, byref(config))
        call("tsh_linear_load", self.handle, weight.ctypes.data, None if bias is None else bias.ctypes.data)

    def __del__(self):
        if hasattr(self, "handle"):
            lib.tsh_linear_destroy(self.handle)


def main():
    random = np.random.default_rng(1)  # the same numbers on every rank
    x = random.standard_normal((5, 7))
    w1, b1, w2 = (random.standard_normal(shape) for shape in [(13, 7), (13,), (3, 13)])
    with World() as world:
        layers = [Linear(world, w1, b1, COLUMN, "relu"), Linear(world, w2, None, ROW)]
        y = world.forward(layers, x)
        wanted = np.maximum(x @ w1.T + b1, 0) @ w2.T
        print(f"rank {world.rank} of {world.size}: {y.shape[0]} rows, as NumPy: {np.allclose(y, wanted, rtol=1e-12)}")
        try:
            world.forward(layers, x[:, 1:])
            sys.exit("an array of the wrong shape was taken")
        except Error as error:
            print(f"rank {world.rank}: {error.status}: {error}")
        del layers


if __name__ == "__main__":
    main()
