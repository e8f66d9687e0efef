#!/usr/bin/env bash
# Everything that needs a GPU, in one go: build, suites, golden vectors, compute-sanitizer, benchmarks; one report.
#   scripts/gpu-check.sh [--packages FOLDER] [--build FOLDER] [--seconds N] [SECTION...]
# FOLDER of --packages holds .deb files (libcriterion-dev, libopenblas-dev, ... and what they need): they are unpacked
# into a folder of their own (below TMPDIR), and nothing is fetched from a network. Without it what is installed is
# taken. Sections, in order:
#   machine build vectors suites sanitizer kernels layers torch
# The report is BUILD/report.md: what ran, what it printed, how it ended. The last line counts; the exit code is 1 when
# anything failed. A section that cannot run here is skipped in words.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

packages="" build=build-gpu seconds=1
sections=()
all_sections=(machine build vectors suites sanitizer kernels layers torch)
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit "$1"; }
while [ $# -gt 0 ]; do
    case $1 in
        --packages) packages=${2:-}; [ -d "$packages" ] || { echo "--packages wants a folder, not '$packages'" >&2; exit 2; }; shift 2 ;;
        --build) build=${2:-}; [ -n "$build" ] || usage 2 >&2; shift 2 ;;
        --seconds) seconds=${2:-}; [ -n "$seconds" ] || usage 2 >&2; shift 2 ;;
        -h | --help) usage 0 ;;
        -*) usage 2 >&2 ;;
        *) sections+=("$1"); shift ;;
    esac
done
[ ${#sections[@]} -gt 0 ] || sections=("${all_sections[@]}")
for name in "${sections[@]}"; do
    [[ " ${all_sections[*]} " == *" $name "* ]] || { echo "No section '$name'; there are: ${all_sections[*]}" >&2; exit 2; }
done

mkdir -p "$build"
report=$build/report.md
passed=0 failed=0 skipped=0

# --- what is carried along ----------------------------------------------------------------------------------------

if [ -n "$packages" ]; then
    # Outside the tree: what is installed may not name folders of it.
    prefix=${TMPDIR:-/tmp}/tshard-packages-$(id -u)
    mkdir -p "$prefix"
    for file in "$packages"/*.deb; do dpkg -x "$file" "$prefix" || exit 1; done
    triplet=$(gcc -print-multiarch)
    library=$prefix/usr/lib/$triplet
    export PKG_CONFIG_SYSROOT_DIR=$prefix PKG_CONFIG_PATH=$library/pkgconfig:$prefix/usr/lib/pkgconfig:$prefix/usr/share/pkgconfig
    # OpenBLAS has folders of its own, which a package's installation would link.
    export CPATH=$prefix/usr/include:$prefix/usr/include/$triplet:$library/openblas-pthread
    export LIBRARY_PATH=$library:$library/openblas-pthread
    export LD_LIBRARY_PATH=$library:$library/openblas-pthread${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export CMAKE_PREFIX_PATH=$prefix/usr PATH=$prefix/usr/bin:$PATH
    export PKG_CONFIG_PATH=$PKG_CONFIG_PATH:$library/openblas-pthread/pkgconfig
fi

# --- running and telling ------------------------------------------------------------------------------------------

# run TITLE SECONDS COMMAND...: its output in the report, its end counted.
run() {
    local title=$1 limit=$2 started=$SECONDS code end
    shift 2
    printf '%-44s ... ' "$title"
    { printf '\n## %s\n\n```\n$ %s\n' "$title" "$*"; timeout --kill-after=10 "$limit" "$@" 2>&1 < /dev/null; } >> "$report"
    code=$?
    case $code in
        0) end=ok; passed=$((passed + 1)) ;;
        77) end=skipped; skipped=$((skipped + 1)) ;;
        124 | 137) end="FAILED (over $limit s)"; failed=$((failed + 1)) ;;
        *) end="FAILED ($code)"; failed=$((failed + 1)) ;;
    esac
    printf '```\n%s, %d s\n' "$end" $((SECONDS - started)) >> "$report"
    printf '%s, %d s\n' "$end" $((SECONDS - started))
    [ $code = 0 ]
}

skip() {
    printf '%-44s ... skipped: %s\n' "$1" "$2"
    printf '\n## %s\n\nskipped: %s\n' "$1" "$2" >> "$report"
    skipped=$((skipped + 1))
}

have() { command -v "$1" > /dev/null 2>&1; }

# --- the sections -------------------------------------------------------------------------------------------------

section_machine() {
    if have nvidia-smi; then run "the GPU" 60 nvidia-smi; else skip "the GPU" "no nvidia-smi, so no driver"; fi
}

section_build() {
    have nvcc || [ -x /usr/local/cuda/bin/nvcc ] || { skip "build" "no CUDA toolkit"; return; }
    local generator="Unix Makefiles"
    have ninja && generator=Ninja
    run "configure" 300 cmake -S . -B "$build" -G "$generator" -DTSHARD_CUDA=ON \
        -DTSHARD_CUDA_ARCHITECTURES="${TSHARD_CUDA_ARCHITECTURES:-native}" || return
    run "build" 900 cmake --build "$build" -j "$(nproc)"
}

section_vectors() {
    TSHARD_TEST_DEVICE=cuda run "golden vectors" 600 "$build/bin/check_vectors" tests/data/vectors --device cuda
}

section_suites() {
    TSHARD_TEST_DEVICE=cuda OPENBLAS_NUM_THREADS=1 run "suites on the GPU" 1500 ctest --test-dir "$build" -j 4 \
        --output-on-failure --no-tests=error -L '^(tensor|dist|autograd|functional|layers|train|examples)$'
}

section_sanitizer() {
    local tool vectors=$build/sanitized
    have compute-sanitizer || PATH=$PATH:/usr/local/cuda/bin
    have compute-sanitizer || { skip "compute-sanitizer" "it is not installed"; return; }
    mkdir -p "$vectors"
    for name in linear_uneven embedding layer_norm cross_entropy_mean_ls10_w adamw; do
        cp "tests/data/vectors/$name.txt" "$vectors"
    done
    local kernels="tshard-bench kernels --rows 33 --cols 70 --tokens 29 --classes 1001 --vocabulary 50 --seconds 0.001"
    for tool in memcheck racecheck initcheck; do
        for dtype in float32 bfloat16; do
            # shellcheck disable=SC2086
            TSHARD_DEVICE=cuda run "$tool: kernels, $dtype" 300 compute-sanitizer --tool $tool --error-exitcode 9 \
                "$build/bin/"$kernels --dtype $dtype
        done
        TSHARD_TEST_DEVICE=cuda run "$tool: golden vectors" 600 compute-sanitizer --tool $tool --error-exitcode 9 \
            --target-processes all "$build/bin/check_vectors" "$vectors" --ranks 2 --device cuda
    done
}

section_kernels() {
    local sizes="--rows 16384 --cols 8192 --tokens 4096 --classes 32768 --vocabulary 32768"
    for dtype in bfloat16 float32; do
        # shellcheck disable=SC2086
        TSHARD_DEVICE=cuda run "kernels, $dtype" 300 "$build/bin/tshard-bench" kernels $sizes --dtype $dtype \
            --seconds "$seconds"
    done
}

section_layers() {
    local bench="$build/bin/tshard-bench"
    export TSHARD_DEVICE=cuda
    run "linear 8192, bfloat16" 300 "$bench" linear --batch 8192 --in 8192 --out 8192 --shard dense --dtype bfloat16 --seconds "$seconds"
    run "linear 4096, float32" 300 "$bench" linear --batch 4096 --in 4096 --out 4096 --shard dense --seconds "$seconds"
    TSHARD_TF32=1 run "linear 4096, TF32" 300 "$bench" linear --batch 4096 --in 4096 --out 4096 --shard dense --seconds "$seconds"
    run "mlp 4096/4096/16384, bfloat16" 300 "$bench" mlp --batch 4096 --hidden 4096 --ffn 16384 --dtype bfloat16 --seconds "$seconds"
    run "mlp 64/1024/4096, bfloat16" 300 "$bench" mlp --batch 64 --hidden 1024 --ffn 4096 --dtype bfloat16 --seconds "$seconds"
    run "mlp 64/1024/4096, bfloat16, captured" 300 "$bench" mlp --batch 64 --hidden 1024 --ffn 4096 --dtype bfloat16 --graph --seconds "$seconds"
    run "mlp, two ranks on one GPU" 300 "$build/bin/tshard-run" -n 2 "$bench" mlp --seconds "$seconds"
    run "a text, two ranks" 300 "$build/bin/tshard-run" -n 2 "$build/bin/train_text" --steps 300 --sample 200
    unset TSHARD_DEVICE
}

section_torch() {
    python3 -c 'import torch' 2> /dev/null || { skip "beside PyTorch" "python3 has no torch"; return; }
    run "beside PyTorch" 600 python3 benchmarks/compare_torch.py --build "$build" --device cuda --seconds "$seconds"
}

printf '# tshard on a GPU\n\n%s, %s\n' "$(git describe --always --dirty 2> /dev/null)" "$(date -u '+%Y-%m-%d %H:%M UTC')" > "$report"
for name in "${sections[@]}"; do "section_$name"; done
printf '\n%d passed, %d failed, %d skipped; %d s\n' $passed $failed $skipped $SECONDS | tee -a "$report"
echo "The report is $report."
[ $failed = 0 ]
