#!/usr/bin/env python3
"""tshard from Python, by ctypes: layers that are split over ranks train on NumPy arrays, and failures are exceptions
with the library's words.

    python3 make_api.py /usr/include > tshard_api.py
    tshard-run -n 2 python3 tshard.py

The first line makes the declarations of all public functions and structures from the headers. The second one trains a
network of two layers and compares it with NumPy. Where libtshard.so is in no folder that ld.so knows, LD_LIBRARY_PATH
names it."""
import ctypes
import sys
from ctypes import byref, c_char_p, c_int64, c_void_p

import numpy as np
import tshard_api as api

lib = api.load()

ACTIVATIONS = {None: api.TSH_ACTIVATION_NONE, "gelu": api.TSH_ACTIVATION_GELU, "relu": api.TSH_ACTIVATION_RELU,
               "silu": api.TSH_ACTIVATION_SILU}
DTYPES = {np.dtype(np.float32): api.TSH_FLOAT32, np.dtype(np.float64): api.TSH_FLOAT64,
          np.dtype(np.int32): api.TSH_INT32, np.dtype(np.int64): api.TSH_INT64, np.dtype(np.uint8): api.TSH_UINT8}


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


def create(kind, name, *arguments):
    """Calls a function whose last argument is where a handle of that kind goes, and returns that."""
    handle = kind()
    call(name, *arguments, byref(handle))
    return handle


class DLPack:
    """This rank's part of a tensor for np.from_dlpack (or torch.from_dlpack), which shares its memory."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return 1, 0  # the CPU

    def __dlpack__(self, **ignored):
        managed = create(api.DLManagedTensor, "tsh_tensor_to_dlpack", self.tensor)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return new(managed, b"dltensor", None)


class World:
    """The ranks that were started together, and their tape: the `with` of a program."""

    def __enter__(self):
        self.handle = create(api.tsh_world, "tsh_world_init", None)
        self.rank, self.size = lib.tsh_world_rank(self.handle), lib.tsh_world_size(self.handle)
        self.group = lib.tsh_world_group(self.handle)
        self.tape = create(api.tsh_tape, "tsh_tape_create", self.handle)
        return self

    def __exit__(self, *ignored):
        lib.tsh_tape_destroy(self.tape)
        lib.tsh_world_destroy(self.handle)

    def tensor(self, x):
        """A replicated tensor with the values of an array that every rank has."""
        x = np.ascontiguousarray(x)
        if x.dtype not in DTYPES:
            raise TypeError(f"an array of {x.dtype}")
        config = api.tsh_tensor_config(dtype=DTYPES[x.dtype], ndim=x.ndim, shape=(c_int64 * 8)(*x.shape))
        tensor = create(api.tsh_tensor, "tsh_tensor_create", lib.tsh_group_mesh(self.group), byref(config))
        call("tsh_tensor_write_whole", tensor, x.ctypes.data)
        return tensor

    def array(self, tensor):
        """The whole tensor, on every rank."""
        dtype = next(numpy for numpy, ours in DTYPES.items() if ours == lib.tsh_tensor_dtype(tensor))
        whole = np.empty(lib.tsh_tensor_shape(tensor)[:lib.tsh_tensor_ndim(tensor)], dtype)
        call("tsh_tensor_read_whole", tensor, whole.ctypes.data)
        return whole

    def forward(self, layers, x):
        """The layers, one after another, on a tensor."""
        for layer in layers:
            x = lib.tsh_linear_forward(self.tape, layer.handle, x)
        status, message = lib.tsh_tape_status(self.tape), lib.tsh_tape_message(self.tape)
        if status:
            lib.tsh_tape_reset(self.tape)
            raise Error(status, message)
        return x


class Linear:
    """y = f(x W^T + b), with weight [out_features, in_features] split over the world's ranks: TSH_COLUMN or TSH_ROW."""

    def __init__(self, world, weight, bias=None, shard=api.TSH_DENSE, activation=None):
        weight = np.ascontiguousarray(weight)
        bias = None if bias is None else np.ascontiguousarray(bias, weight.dtype)
        config = api.tsh_linear_config(in_features=weight.shape[1], out_features=weight.shape[0], shard=shard,
                                       bias=bias is not None, activation=ACTIVATIONS[activation],
                                       dtype=DTYPES[weight.dtype])
        self.handle = create(api.tsh_linear, "tsh_linear_create", world.group, byref(config))
        call("tsh_linear_load", self.handle, weight.ctypes.data, None if bias is None else bias.ctypes.data)
        self.weight = lib.tsh_linear_weight(self.handle)

    def __del__(self):
        if hasattr(self, "handle"):
            lib.tsh_linear_destroy(self.handle)


def train_in_numpy(x, target, w1, b1, w2, steps, lr):
    """The loss of each step, and the first weight after the last one."""
    losses = []
    for _ in range(steps):
        h = np.maximum(x @ w1.T + b1, 0)
        error = h @ w2.T - target
        losses.append((error ** 2).mean())
        dy = 2 * error / error.size
        dh = (dy @ w2) * (h > 0)
        w1, b1, w2 = w1 - lr * dh.T @ x, b1 - lr * dh.sum(0), w2 - lr * dy.T @ h
    return losses, w1


def train(world, layers, x, target, steps, lr):
    """The same with tshard."""
    parameters = create(api.tsh_parameters, "tsh_parameters_create", world.handle)
    for number, layer in enumerate(layers):
        call("tsh_linear_register", layer.handle, parameters, b"layer%d" % number)
    config = api.tsh_sgd_config(lr=lr)
    optimizer = create(api.tsh_optimizer, "tsh_sgd_create", parameters, byref(config))
    inputs, wanted, losses = world.tensor(x), world.tensor(target), []
    for _ in range(steps):
        y = world.forward(layers, inputs)
        loss = lib.tsh_mse_loss(world.tape, y, wanted, api.TSH_REDUCTION_MEAN)
        call("tsh_backward", world.tape, loss)
        losses.append(lib.tsh_tensor_item(loss))
        call("tsh_optimizer_step", optimizer)
        lib.tsh_optimizer_zero_grad(optimizer)
        call("tsh_tape_reset", world.tape)
    lib.tsh_tensor_release(inputs)
    lib.tsh_tensor_release(wanted)
    lib.tsh_optimizer_destroy(optimizer)
    lib.tsh_parameters_destroy(parameters)
    return losses


def main():
    random = np.random.default_rng(1)  # the same numbers on every rank
    x, target, steps, lr = random.standard_normal((5, 7)), random.standard_normal((5, 3)), 20, 0.1
    w1, b1, w2 = (random.standard_normal(shape) for shape in [(13, 7), (13,), (3, 13)])
    with World() as world:
        layers = [Linear(world, w1, b1, api.TSH_COLUMN, "relu"), Linear(world, w2, None, api.TSH_ROW)]
        losses = train(world, layers, x, target, steps, lr)
        expected, w1 = train_in_numpy(x, target, w1, b1, w2, steps, lr)
        own = np.from_dlpack(DLPack(layers[0].weight))
        box = lib.tsh_tensor_box(layers[0].weight)
        same = np.allclose(losses, expected, rtol=1e-9) and np.allclose(world.array(layers[0].weight), w1, rtol=1e-9)
        same = same and np.allclose(own, w1[box.start[0]:box.start[0] + box.length[0]], rtol=1e-9)
        print(f"rank {world.rank} of {world.size}: loss {losses[0]:.4f} to {losses[-1]:.4f}, as NumPy: {same}")
        narrow = world.tensor(x[:, 1:])
        try:
            world.forward(layers, narrow)
            sys.exit("an array of the wrong shape was taken")
        except Error as error:
            print(f"rank {world.rank}: {error.status}: {error}")
        lib.tsh_tensor_release(narrow)
        del layers, own


if __name__ == "__main__":
    main()
