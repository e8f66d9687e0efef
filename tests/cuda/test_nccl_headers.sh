#!/usr/bin/env bash
# The files that see NCCL's header compile with that of every version which changed what they use, the oldest supported
# first, as nccl_headers/nccl.h declares it; with the headers in the folders of TSHARD_NCCL_HEADERS (separated by ":")
# too. usage: test_nccl_headers.sh BUILD_FOLDER
set -uo pipefail
build=$1
cd "$(dirname "$0")/../.." || exit 1
toolkit=$(sed -n 's/^CUDAToolkit_NVCC_EXECUTABLE:[^=]*=\(.*\)\/bin\/nvcc$/\1/p' "$build/CMakeCache.txt")
[ -r "$toolkit/include/cuda_runtime.h" ] || { echo "there is no CUDA toolkit"; exit 77; }
failed=0 compiled=0

# compile WHAT ARGUMENT...
compile() {
    local what=$1 file
    shift
    for file in src/dist/transport/nccl/*.c tests/standin/nccl*.c; do
        compiled=$((compiled + 1))
        "${CC:-cc}" -std=c11 -D_GNU_SOURCE -DTSHARD_HAVE_CUDA -DTSHARD_HAVE_NCCL -Wall -Wextra -Werror -fsyntax-only "$@" \
            -Iinclude -Isrc -Itests -isystem "$toolkit/include" "$file" || { echo "$file does not compile with $what"; failed=1; }
    done
}

for minor in 18 24; do compile "NCCL 2.$minor" -DMINOR=$minor -Itests/cuda/nccl_headers; done
IFS=: read -ra folders <<< "${TSHARD_NCCL_HEADERS:-}"
for folder in "${folders[@]}"; do compile "$folder/nccl.h" -I"$folder"; done
echo "$compiled files compiled"
[ "$compiled" -ge 20 ] && exit $failed
