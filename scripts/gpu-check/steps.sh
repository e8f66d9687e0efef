#!/usr/bin/env bash
# steps.sh FUNCTION ARGUMENTS...: one step of scripts/gpu-check.sh. The exit code 77 says that it cannot run here, and the
# last line that was printed why. From the environment: build, bin (of programs), ready (they are not built here),
# quick (small sizes), each (seconds of a measurement). A line "figure: KEY NUMBER" fills the report's table.
# shellcheck disable=SC2154
set -uo pipefail

omit() { echo "$1"; exit 77; }
have() { command -v "$1" > /dev/null 2>&1; }
built() { [ -x "$bin/$1" ] || omit "there is no $bin/$1"; }
tiny_text="--batch 2 --context 4 --embed 8 --hidden 12"
# pick A B: B where sizes are small.
pick() { [ -n "$quick" ] && echo "$2" || echo "$1"; }
bench() { built tshard-bench; TSHARD_DEVICE=cuda "$bin/tshard-bench" "$@" --seconds "$each"; }

gpu() {
    have nvidia-smi || omit "no nvidia-smi, so no driver"
    nvidia-smi && nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm --format=csv
}

# Without CMake and without a library that tshard needs.
probe_build() {
    local library="" include=/usr/local/cuda/include
    [ -z "$ready" ] || omit "--bin names programs that are built"
    have nvcc || omit "there is no nvcc"
    if [ "$1" = nccl_probe ]; then
        [ -e "$include/nccl.h" ] || include=/usr/include
        [ -z "${NCCL_ROOT:-}" ] || include=$NCCL_ROOT/include
        [ -e "$include/nccl.h" ] || omit "there is no nccl.h"
        for library in "$include"/../lib/libnccl.so.2 /usr/lib/*/libnccl.so.2; do [ ! -e "$library" ] || break; done
        [ -e "$library" ] || omit "there is no libnccl.so.2"
        library="-Xlinker $library -Xlinker -rpath=$(dirname "$(realpath "$library")")"
    fi
    mkdir -p "$bin"
    # shellcheck disable=SC2086
    nvcc -O1 -arch=native -I"$include" -o "$bin/$1" "benchmarks/gpu/$1.c" benchmarks/gpu/probe.c benchmarks/gpu/hold.cu $library
}

# Copies of gigabytes say nothing where memory is the host's.
cuda() {
    local names=()
    built gpu_probe
    [ -z "$quick" ] || names=(device events copies waits capture ipc queues launches)
    "$bin/gpu_probe" "${names[@]}"
}

queues() { built gpu_probe; CUDA_DEVICE_MAX_CONNECTIONS=$1 "$bin/gpu_probe" queues; }

# [tests]: with the suites, where there is Criterion.
build() {
    local generator="Unix Makefiles" architecture=native suites=OFF targets=(tshard-bench tshard-run check_vectors train_text train_gpt generate)
    [ -z "$ready" ] || omit "--bin names programs that are built"
    have nvcc && have cmake || omit "there is no CUDA toolkit, or no CMake"
    ! have ninja || generator=Ninja
    if [ "${1:-}" = tests ]; then
        if pkg-config --exists criterion; then suites=ON targets=(all gpu_kernels); else echo "no Criterion: no suites"; fi
    fi
    nvidia-smi -L > /dev/null 2>&1 || architecture=90
    cmake -S . -B "$build" -G "$generator" -DTSHARD_CUDA=ON -DTSHARD_CUDA_ARCHITECTURES=$architecture \
        -DTSHARD_BUILD_TESTS=$suites && cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
}

# A folder of these vectors, and what to do with it.
with_vectors() {
    local folder name
    folder=$(mktemp -d)
    for name in $1; do cp "tests/data/vectors/$name.txt" "$folder"; done
    shift
    "$@" "$folder"
    local code=$?
    rm -r "$folder"
    return $code
}

check() { TSHARD_CUDA_MANAGED=0 "$bin/check_vectors" "$1" --device cuda --ranks 1,2; }

check_one() { with_vectors "$1" check; }

# NAME...: 4 files at once, as each row starts ranks of its own, which take a third of a second to open the GPU.
check_each() { printf '%s\n' "$@" | xargs -P 4 -I '{}' bash "$0" check_one '{}'; }

vectors_chosen() {
    built check_vectors
    # shellcheck disable=SC2046
    check_each $(pick "linear_uneven embedding layer_norm causal_attention gelu_erf cross_entropy_mean_ls10_w adamw mlp_lm tiny_gpt" linear_uneven)
}

vectors() {
    built check_vectors
    # shellcheck disable=SC2046
    check_each $(pick "$(basename -s .txt tests/data/vectors/*.txt)" adamw)
}

# figures PROGRAM: the lines that are read, and behind some of them figures, by the program of awk; each at once, so that
# none is lost where what prints them hangs.
figures() {
    local line
    while IFS= read -r line; do
        printf '%s\n' "$line"
        awk "$1" <<< "$line"
    done
}

kernels() {
    # shellcheck disable=SC2046
    bench kernels $(pick "--rows 16384 --cols 8192 --tokens 4096 --classes 32768 --vocabulary 32768" \
        "--rows 33 --cols 70 --tokens 29 --classes 1001 --vocabulary 50") --dtype "$1" |
        figures '/^(layer_norm|layer_norm_bwd|cross_entropy|cross_ent_bwd|adamw|embedding_grad) / {
            print "figure: " $1 "_" $2, $6 }'
}

# Of GPT-2 124M, causal; and grouped queries. cuDNN's is compared with the library's own kernels.
attention() {
    bench attention --batch "$(pick 16 2)" --heads "$(pick 12 2)" --queries "$(pick 1024 6)" --dim "$(pick 64 8)" --dtype bfloat16 --compare &&
        bench attention --batch 2 --heads "$(pick 16 4)" --kv-heads "$(pick 4 2)" --queries "$(pick 1000 6)" --dim "$(pick 128 8)" --dtype bfloat16 --compare
}

own_attention() {
    TSHARD_CUDNN=0 bench attention --batch "$(pick 16 2)" --heads "$(pick 12 2)" --queries "$(pick 1024 6)" --dim "$(pick 64 8)" --dtype bfloat16
}

# SIZE DTYPE [--graph]
linear() {
    local n name=$1_$2${3:+_captured}
    n=$(pick "$1" 32)
    bench linear --batch "$n" --in "$n" --out "$n" --shard dense --dtype "$2" "${@:3}" |
        figures '/^dense / { print "figure: linear_'"$name"'", $6 }'
}

tf32() { TSHARD_TF32=1 "$@"; }

# BATCH HIDDEN FFN [--graph]
mlp() {
    local name=$1${4:+_captured}
    bench mlp --batch "$(pick "$1" 4)" --hidden "$(pick "$2" 8)" --ffn "$(pick "$3" 16)" --dtype bfloat16 "${@:4}" |
        figures '/^column, row / { print "figure: mlp_'"$name"'_allocations", $NF }
            /the host queues/ { print "figure: mlp_'"$name"'_host", $9 }
            match($0, /epilogues: [0-9]+ fused, [0-9]+ refused/) { split(substr($0, RSTART, RLENGTH), e, " ")
                print "figure: mlp_'"$name"'_fused", e[2]; print "figure: mlp_'"$name"'_refused", e[4] }'
}

torch_layers() {
    python3 -c 'import torch; exit(not torch.cuda.is_available())' 2> /dev/null || omit "python3 has no torch that sees a GPU"
    built tshard-bench
    python3 benchmarks/compare_torch.py --build "$(dirname "$bin")" --device cuda --seconds "$each" --rounds 2 |
        figures '/^mlp / && $2 ~ /^(4096|64)\// { print "figure: mlp_" int($2) "_" $3, $6 }'
}

# The suites of kernels (tests/device) on the GPU's table.
kernel_suites() {
    local program=$build/tests/cuda/gpu_kernels words code
    [ -x "$program" ] || omit "no suites are built"
    words=$("$program" --jobs 16 2>&1)
    code=$?
    printf '%s\n' "$words"
    [[ $words != *"Tested: 0 "* ]] || omit "no kernel could be tested"
    return $code
}

# In managed memory, as many suites read tensors through their pointers. Few at once: with dozens of ranks on a GPU,
# CUDA refuses some of them.
suites() {
    have ctest && [ -e "$build/tests/CTestTestfile.cmake" ] || omit "no suites are built, or there is no ctest"
    TSHARD_TEST_DEVICE=cuda ctest --test-dir "$build" -j 4 --output-on-failure --no-tests=error \
        -L '^(tensor|dist|autograd|functional|layers|train)$' -LE '^(extended|sanitized|long)$'
}

# Two ranks go to NCCL, which takes several on a GPU from 2.30 on: asked alone first. The stand-in, which small sizes are
# for, joins threads, not processes.
over_nccl() {
    local code
    built nccl_probe
    [ -z "$quick" ] || omit "small sizes: the stand-in of NCCL joins no processes"
    export NCCL_MULTI_RANK_GPU_ENABLE=1 TSHARD_BACKEND=nccl
    "$bin/nccl_probe" --ranks 2 init
    code=$?
    [ $code = 0 ] || exit $code
}

# mlp or text [nccl]: two ranks on one GPU read each other's memory, or go over NCCL.
two_ranks() {
    built tshard-run
    [ -z "${2:-}" ] || over_nccl
    local program
    # shellcheck disable=SC2207
    program=("$bin/train_text" $(pick "--steps 300 --sample 200" "$tiny_text --steps 3 --sample 5"))
    [ "$1" = text ] || program=("$bin/tshard-bench" mlp --batch "$(pick 1024 4)" --hidden "$(pick 1024 8)" --ffn "$(pick 4096 16)" --seconds "$each")
    built "$(basename "${program[0]}")"
    TSHARD_DEVICE=cuda TSHARD_LOG=info "$bin/tshard-run" -n 2 "${program[@]}"
}

sanitizer() {
    have compute-sanitizer || omit "there is no compute-sanitizer"
    local cache=0
    [ "$1" != racecheck ] || cache=1
    TSHARD_CUDA_CACHE=$cache compute-sanitizer --tool "$1" --error-exitcode 9 --target-processes all "${@:2}"
}

sanitize_kernels() {
    built tshard-bench
    TSHARD_DEVICE=cuda sanitizer "$1" "$bin/tshard-bench" kernels --rows 33 --cols 70 --tokens 29 --classes 1001 \
        --vocabulary 50 --seconds 0.001 --dtype "$2"
}

sanitize_one() { TSHARD_CUDA_MANAGED=0 sanitizer "$tool" "$bin/check_vectors" "$1" --device cuda --ranks 2; }

sanitize_vectors() {
    built check_vectors
    have compute-sanitizer || omit "there is no compute-sanitizer"
    tool=$1
    with_vectors "linear_uneven layer_norm cross_entropy_mean_ls10_w" sanitize_one
}

# RANKS on one GPU. NCCL's stand-in, which small sizes are for, has no communicators that block.
nccl() {
    local names=()
    built nccl_probe
    [ -z "$quick" ] || names=(init split graph abort-stuck)
    NCCL_MULTI_RANK_GPU_ENABLE=1 "$bin/nccl_probe" --ranks "$1" "${names[@]}"
}

# train or generate
gpt() {
    have python3 || omit "there is no python3"
    built train_gpt
    [ "$1" = train ] || built generate
    # shellcheck disable=SC2046
    python3 benchmarks/compare_gpt2.py --bin "$bin" --device cuda "$1" $(pick "" --small) |
        figures '/^(tshard.s tokens.s over|share of the bandwidth)/ { sub(/.*: /, ""); sub(/,.*/, "")
            print "figure: gpt_'"$1"'", $0 }'
}

# The processes of train_text that are children of tshard-run's process $1, or theirs. Of stat's fields the second is the
# program's name and the fourth its parent.
ranks_of() {
    cat /proc/[0-9]*/stat 2> /dev/null | awk -v run="$1" '{ parent[$1] = $4 }
        $2 == "(train_text)" { rank[$1] }
        END { for (r in rank) if (parent[r] == run || parent[parent[r]] == run) print r }'
}

# KILL or STOP [nccl]: one of two ranks that train; the other one has to end in time, with words, and nothing is left.
lost() {
    local run ranks code started printed took most
    most=$(pick 20 200)
    [ "$1" = KILL ] || most=$((2 * most))
    built tshard-run
    built train_text
    [ -z "${2:-}" ] || over_nccl
    printed=$(mktemp)
    # shellcheck disable=SC2046
    TSHARD_DEVICE=cuda TSHARD_TIMEOUT=10 TSHARD_LOG=info "$bin/tshard-run" -n 2 --no-prefix "$bin/train_text" \
        --steps 1000000 --json $(pick "" "$tiny_text") > "$printed" &
    run=$!
    until grep -q step "$printed" || ! kill -0 $run 2> /dev/null; do sleep 0.2; done
    mapfile -t ranks < <(ranks_of $run)
    if [ ${#ranks[@]} != 2 ]; then
        tail -n 20 "$printed"
        rm "$printed"
        echo "${#ranks[@]} ranks were found, not 2: they have not come to a step"
        kill $run 2> /dev/null
        return 1
    fi
    rm "$printed"
    started=$SECONDS
    echo "kill -$1 ${ranks[-1]}"
    kill "-$1" "${ranks[-1]}"
    wait $run
    code=$?
    took=$((SECONDS - started))
    echo "the run ended with $code, $took s later, of at most $most"
    for run in "${ranks[@]}"; do ! kill -0 "$run" 2> /dev/null || { echo "process $run is left"; return 1; }; done
    [ $code != 0 ] && [ $took -le "$most" ]
}

"$@"
