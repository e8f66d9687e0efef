#!/usr/bin/env bash
# The includes of this tree go downward; and the check that says so notices when one does not.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
check=$here/check_includes.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect good|bad FILE INCLUDE: a small tree with this one include.
expect() {
    local want=$1 file=$2 got=good
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/src/base" "$tree/$(dirname "$file")"
    echo '#include "tshard/base.h"' > "$tree/src/base/base.c"
    echo "$3" > "$tree/$file"
    bash "$check" "$tree" > /dev/null || got=bad
    [ "$got" = "$want" ] || { echo "'$3' in $file was judged $got, not $want"; failures=$((failures + 1)); }
}

expect good src/tensor/a.c '#include "device/device.h"'
expect good src/functional/a.c '#include "autograd/tape.h"'
expect good src/device/cuda/kernels/a.cu '#include "device/cuda/kernels/common.cuh"'
expect good src/train/a.c '#include <tshard/dist.h>'
expect good src/device/cpu/kernels/a.c '#include "device/cpu/isa/loops.h"'
expect good src/device/cpu/a.c '#include <cblas.h>'
expect good src/device/cpu/kernels/a.c '#define KERNELS "device/cpu/kernels/norm.inc"'
expect bad src/device/cpu/kernels/a.c '#define KERNELS "tensor/norm.inc"'
expect good include/tshard/tshard.h '#include "tshard/train.h"'
expect good include/tshard/layers.h '#include "tshard/tensor.h"'
expect good examples/a.c '#include <tshard/tshard.h>'
expect bad src/base/a.c '#include "device/device.h"'
expect bad src/tensor/a.c '#  include  "autograd/tape.h"'
expect bad src/autograd/a.c '#include "functional/functional.h"'
expect bad src/device/cuda/kernels/a.cu '#include "tensor/tensor.h"'
expect bad src/dist/a.c '#include "tshard/autograd.h"'
expect bad src/dist/a.h '#include <autograd/tape.h>'
expect bad src/autograd/a.c '#include "tshard/tshard.h"'
expect bad src/layers/a.c '#include "../base/base.h"'
expect bad src/layers/a.c '#include "base.h"'
expect bad src/layers/a.c '#include <cblas.h>'
expect bad src/layers/a.c '#include HEADER'
expect good src/io/a.c '#include "train/optimizer.h"'
expect bad src/train/a.c '#include "io/safetensors.h"'
expect good src/dist/transport/mpi/a.c '#include "dist/rendezvous/rendezvous.h"'
expect good src/dist/transport/mpi/a.c '#include "dist/transport/mpi/mpi.h"'
expect good src/dist/transport/mpi/a.c '#include "dist/registry.h"'
expect good src/dist/collectives/a.c '#include "dist/backend.h"'
expect good src/dist/transport/ucx/a.c '#include "dist/tagged/tagged.h"'
expect bad src/dist/tagged/a.c '#include "dist/transport/ucx/ucx.h"'
expect bad src/dist/control/a.c '#include "dist/tagged/tagged.h"'
expect good src/dist/registry.c '#include "dist/rendezvous/rendezvous.h"'
expect good src/autograd/a.c '#include "dist/collectives/work.h"'
expect bad src/dist/transport/mpi/a.c '#include "dist/transport/shm/shm.h"'
expect bad src/dist/collectives/a.c '#include "dist/transport/shm/shm.h"'
expect bad src/dist/collectives/a.c '#include "dist/rendezvous/wire.h"'
expect bad src/dist/world.c '#include "dist/transport/shm/shm.h"'
expect bad src/dist/rendezvous/a.c '#include "dist/world.h"'
expect bad src/dist/rendezvous/a.c '#include "dist/collectives/call.h"'
expect bad src/autograd/a.c '#include "dist/rendezvous/environment.h"'
expect bad src/train/a.c '#include "dist/transport/nccl/nccl.h"'
expect good src/dist/registry.c '    {"local", &tshi_shm_ops},'
expect good src/dist/transport/shm/a.c 'const tshi_group_ops tshi_shm_ops = {.name = "local"};'
expect good src/dist/transport/mpi/a.c 'bool local = tshi_backend_is("local");'
expect bad src/dist/transport/plan/a.c 'size_t bytes = tshi_shm_ops.open_bytes(n);'
expect bad src/dist/group.c 'group->ops = &tshi_self_ops;'
expect bad src/dist/collectives/a.c 'if (!strcmp(name, "nccl")) return;'
expect bad src/base/settings.c '.choices = {"local", "mpi"},'
expect good src/base/settings.c 'const char *value = getenv(name);'
expect bad src/dist/a.c 'const char *value = getenv("TSHARD_X");'
expect bad src/train/a.c '    tsh_tensor_release(x);'
expect good src/train/a.c '    tshi_tensor_release(x);'
expect bad src/attic/a.c '#include "base/base.h"'
expect bad include/tshard/tensor.h '#include "tshard/layers.h"'
expect bad include/tshard/tensor.h '#include "base/base.h"'
expect bad examples/a.c '#include "base/base.h"'
rm -rf "${tree:?}"/*
bash "$check" "$tree" > /dev/null && { echo "an empty tree passed"; failures=$((failures + 1)); }

bash "$check" "$here/../.." || failures=$((failures + 1))
[ $failures = 0 ]
