#!/usr/bin/env bash
# The tests. `scripts/test.sh` runs those that say whether tshard works here, in minutes; `--all` runs every stage, with
# the long suites, too, which have labels for that (tests/CMakeLists.txt); NAME... runs these stages; `--list`
# names them. Quiet where it passes: a line a stage, with its seconds. The output of each stage is in
# build-logs/NAME.log, that of its build in build-logs/NAME.build.log: builds are those of CMakePresets.json, and run
# beside the suites of the stages before. The last line counts: each ctest once a build, and each stage that is no ctest
# run as one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

# What shares nothing with the build of `newcomer` is built beside it; the others find in the cache what it has compiled.
all_stages=(newcomer asan clang tsan fuzz gcc install package valgrind mpich cuda gpu docs format)
quick_stages=(gcc format)
more_stages=(arm64) # only by name
# TSHARD_TEST_DEVICE=cuda scripts/test.sh: the suites on a GPU alone.
[ "${TSHARD_TEST_DEVICE:-cpu}" = cpu ] || all_stages=(gpu) quick_stages=(gpu)
extended=no
jobs=$((2 * $(nproc))) # suites at once: they wait more than they compute
logs=build-logs
passed=0 failed=0 skipped=0
failures=() skips=()

# --- the stages: each writes to its log and returns 0, 77 to be skipped with its last line as the reason, or a failure.
# build_NAME, where a stage has one, makes what it runs.

# preset NAME [TARGET...]
preset() {
    local targets=("${@:2}")
    cmake --preset "$1" && cmake --build "build-$1" ${targets:+--target "${targets[@]}"}
}

# suites FOLDER LABELS [LEFT_OUT [NAMES]]: those with one of the labels, `a|b`, and none of those that are left out, nor
# one of these names. Long ones are left out but with --all.
suites() {
    local folder=$1 left_out=${3:-}
    [ $extended = yes ] || left_out+=${left_out:+|}'extended|sanitized|long'
    # OpenBLAS would start a thread a core in each of the tests' processes.
    OPENBLAS_NUM_THREADS=1 ctest --test-dir "$folder" -j "$jobs" --output-on-failure --no-tests=error \
        --label-regex "^($2)$" --label-exclude "^(${left_out:-none})$" --exclude-regex "^(${4:-none})$"
}

# The README's two commands as somebody runs them who has a new Debian and a clone: in a root folder of the fewest
# packages, besides which scripts/setup.sh installs what it misses. ccache is there, so that nothing is compiled again
# in the stage gcc.
stage_newcomer() {
    [ "$(id -u)" = 0 ] && grep -q '^ID=debian' /etc/os-release && have_command mmdebstrap ||
        { echo "a minimal system is made as root, on Debian, by mmdebstrap"; return 77; }
    local root status
    root=$(mktemp -d) || return
    # shellcheck disable=SC1091
    (. /etc/os-release && mmdebstrap --quiet --variant=minbase --include=ca-certificates,ccache "$VERSION_CODENAME" "$root") || return
    mkdir -p "$root/tshard" "$root/root/.cache/ccache" "$CCACHE_DIR"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$root/tshard"
    # shellcheck disable=SC2016  # for the inner shell
    unshare --mount --pid --fork --kill-child bash -euc '
        mount --bind "$1" "$1"
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount --bind "$2" "$1/root/.cache/ccache"
        [ -e "$1/etc/resolv.conf" ] || cp /etc/resolv.conf "$1/etc"
        [ -e "$1/etc/hosts" ] || echo "127.0.0.1 localhost" > "$1/etc/hosts"
        cd "$1/tshard"
        exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" sh -ec "
            cd /tshard && scripts/quickstart.sh && scripts/test.sh"' bash "$root" "$CCACHE_DIR"
    status=$?
    cp "$root/tshard/$logs/gcc.log" "$logs/newcomer.gcc.log"
    rm -rf --one-file-system "$root"
    return $status
}

build_gcc() { preset gcc; }
# What the stage newcomer has passed, in the same build, is not run again.
stage_gcc() {
    local done
    done=$(sed -n 's/^.* Test *#[0-9]*: \([^ ]*\) .* Passed .*/\1/p' "$logs/newcomer.gcc.log" 2> /dev/null | paste -sd '|')
    suites build-gcc '.*' 'install|docs|sanitized' "$done"
}

# The second compiler's warnings over the library, and its code where compilers differ: the kernels.
build_clang() {
    preset clang tshard_shared test_base test_device test_layout test_tensor test_functional
}
stage_clang() { suites build-clang 'base|device|layout|tensor|functional'; }

# 64-bit ARM under emulation, which takes some twenty times as long: the kernels, and ranks that wait for each other in
# shared memory. The other suites run on x86 only: attention, cross_entropy, async and redistribute take minutes, and
# QEMU knows no memory nodes (base.cpu). These compute: one at a time on each core.
runs_arm64() { [ "$(id -u)" = 0 ] && grep -q '^ID=debian' /etc/os-release && scripts/arm64.sh run true; }
build_arm64() {
    ! runs_arm64 || {
        scripts/arm64.sh libraries && preset arm64 test_{base,device,layout,tensor,dist,autograd,train}
    }
}
stage_arm64() {
    runs_arm64 || { echo "programs of ARM64 run as root, on Debian with Linux 6.7 or newer"; return 77; }
    local kernels="convert|elementwise|embedding|functions|loss|norm|optimizer|random|reduce|softmax|top"
    local rooms="base[.](base|number|settings)|device[.](cpu|permute|philox|few_rows[.].*|gemm[.]bf16)"
    rooms+="|device[.]($kernels)[.]base|device[.]quantized[.](base|bf16)|layout[.].*|tensor[.].*|dist[.]collectives[.](known_answers|messages|own_reduction|parts)"
    rooms+="|autograd[.](mark|micro_batches|tape|transition)|train[.](clip|optimizer)"
    OPENBLAS_NUM_THREADS=1 scripts/arm64.sh run ctest --test-dir build-arm64 -j "$(nproc)" --output-on-failure \
        --no-tests=error --tests-regex "^($rooms)$"
}

build_asan() { preset asan; }
stage_asan() { suites build-asan '.*' 'install|layering|docs|extended|plain'; }

# ThreadSanitizer needs an address space without much randomness; not every machine lets us ask for that.
build_tsan() { preset tsan; }
stage_tsan() {
    local plain=""
    setarch "$(uname -m)" -R true 2> /dev/null && plain="setarch $(uname -m) -R"
    OPENBLAS_NUM_THREADS=1 $plain ctest --test-dir build-tsan -j 1 --output-on-failure --no-tests=error -L threads
}

# Fuzzers of what arrives over a network and of model files, for FUZZ_SECONDS in all; new inputs that they find are not kept.
corpora=(tests/fuzz/corpus/*)
build_fuzz() {
    local names=("${corpora[@]##*/}")
    preset fuzz "${names[@]/#/fuzz_}"
}
stage_fuzz() {
    local name found seconds=$((${FUZZ_SECONDS:-50} / ${#corpora[@]}))
    for name in "${corpora[@]##*/}"; do
        found=build-fuzz/found/$name
        mkdir -p "$found"
        (cd build-fuzz && exec "./tests/fuzz/fuzz_$name" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 \
            "found/$name" "../tests/fuzz/corpus/$name") || return
    done
}

# A training step alone, on two ranks, and on ranks that are threads, one of which fails: no invalid access and nothing
# left allocated.
stage_valgrind() {
    local check="valgrind --quiet --leak-check=full --show-leak-kinds=definite,indirect
        --errors-for-leak-kinds=definite,indirect --error-exitcode=9 --trace-children=yes"
    local model="--steps 1 --batch 2 --context 4 --embed 8 --hidden 12 --seed 1 --sample 8"
    export OPENBLAS_NUM_THREADS=1
    # shellcheck disable=SC2086
    $check build-gcc/bin/train_text $model && $check build-gcc/bin/tshard-run -n 2 build-gcc/bin/train_text $model &&
        $check build-gcc/tests/threads/training
}

stage_install() { suites build-gcc install; }

# Debian packages, as a packager builds them, installed by dpkg and used in a copy of this system that is then dropped.
build_package() { preset package; }
stage_package() {
    have_command dpkg-shlibdeps && have_command lintian || { echo "packages need dpkg-dev and lintian"; return 77; }
    CC=gcc bash tests/install/package.sh build-package
}

# The mpi backend on the other MPI: Debian has both side by side, and the build takes Open MPI where nothing else is
# said.
build_mpich() { ! have_command mpicc.mpich || preset mpich tagged_ranks mpi_host own_function; }
stage_mpich() {
    have_command mpicc.mpich || { echo "there is no MPICH (mpicc.mpich)"; return 77; }
    suites build-mpich mpi
}

# nccl_headers FOLDER: NCCL's header as it is published, of the oldest version that is supported and of the newest, in
# folders of it, which are printed. Where pip cannot fetch one, why.
nccl_headers() {
    local version
    for version in ==2.18.1 ""; do
        mkdir -p "$1/include$version"
        python3 -m pip download -q --no-deps --dest "$1/wheels" "nvidia-nccl-cu12$version" >&2 &&
            python3 - "$1/wheels" "$1/include$version/nccl.h" << 'END' && echo "$1/include$version"
import glob, os, sys, zipfile
wheel, = glob.glob(sys.argv[1] + "/*.whl")
with open(sys.argv[2], "wb") as header:
    header.write(zipfile.ZipFile(wheel).read("nvidia/nccl/include/nccl.h"))
os.remove(wheel)
END
    done
}

# The files that see NCCL's header, with the published ones.
check_nccl_headers() {
    local folder folders work
    work=$(mktemp -d) || return
    mapfile -t folders < <(nccl_headers "$work")
    echo "published headers of NCCL: ${#folders[@]} of 2; where pip cannot fetch one, its imitation alone is compiled"
    for folder in "${folders[@]}"; do grep -hE '^#define NCCL_(MAJOR|MINOR|PATCH) ' "$folder/nccl.h" | paste -s; done
    (IFS=: && TSHARD_NCCL_HEADERS="${folders[*]}" bash tests/cuda/test_nccl_headers.sh build-cuda)
    local status=$?
    rm -rf "$work"
    return $status
}

# The CUDA side without a GPU: its suites on the stand-ins; what an installed build carries; that no kernel spills; NCCL's
# headers.
have_nvcc() { have_command nvcc || [ -x "${CUDACXX:-/usr/local/cuda/bin/nvcc}" ]; }
build_cuda() { ! have_nvcc || preset cuda; }
stage_cuda() {
    have_nvcc || { echo "there is no nvcc"; return 77; }
    CC=gcc bash tests/install/test_install.sh build-cuda && { scripts/gpu-registers.sh 90 || [ $? = 77 ]; } &&
        check_nccl_headers && suites build-cuda cuda
}

# The rooms' suites and the golden vectors on the GPU that is here.
have_gpu() { nvidia-smi -L 2> /dev/null; }
build_gpu() { ! have_gpu || preset gpu; }
stage_gpu() {
    have_gpu || { echo "no GPU here, so nothing has run on one"; return 77; }
    TSHARD_TEST_DEVICE=cuda suites build-gpu 'tensor|dist|autograd|functional|layers|train|examples' &&
        build-gpu/bin/check_vectors tests/data/vectors --device cuda
}

# The site, its links in a headless browser, and the code blocks of its pages.
stage_docs() {
    have_command doxygen && have_command mkdocs || { echo "mkdocs or Doxygen is not installed"; return 77; }
    suites build-gcc docs
}

stage_format() {
    case $(clang-format --version) in
        *"version 14."*) ;;
        *) echo "the style is checked with clang-format 14 alone"; return 77 ;;
    esac
    find include src tests tools examples benchmarks -regextype egrep -regex '.*\.(c|h|inc|cc|cu|cuh)' -print0 |
        xargs -0 clang-format --dry-run --Werror
}

# --- running and counting ----------------------------------------------------------------------------------------

# ctest's own count, from its log: "87% tests passed, 2 tests failed out of 15".
count_suites() {
    local total bad
    read -r bad total < <(sed -n 's/.*tests passed, \([0-9]*\) tests failed out of \([0-9]*\).*/\1 \2/p' "$1" | tail -n 1)
    [ -n "${total:-}" ] || return 1
    local omitted
    omitted=$(grep -c 'Test *#[0-9]*:.*\*\*\*Skipped' "$1")
    passed=$((passed + total - bad - omitted)) failed=$((failed + bad)) skipped=$((skipped + omitted))
    detail=" ($total suites)"
}

# Of all that this script has run and waited for: says what a stage costs, however busy the machine is.
processor_seconds() {
    local fields
    read -ra fields < /proc/$$/stat
    echo $(((fields[15] + fields[16]) / $(getconf CLK_TCK)))
}

# The builds of the stages, one after the other; how each ended is in NAME.built.
build_all() {
    local name
    for name in "${stages[@]}"; do
        if [ "$(type -t "build_$name")" = function ]; then
            "build_$name" > "$logs/$name.build.log" 2>&1 < /dev/null
            echo $? > "$logs/$name.built"
        fi
    done
}

# Waits for the stage's build; fails, with its output in the stage's log, where that has failed.
await_build() {
    [ "$(type -t "build_$1")" = function ] || return 0
    until [ -e "$logs/$1.built" ]; do
        kill -0 "$builder" 2> /dev/null || [ -e "$logs/$1.built" ] || return
        sleep 0.2
    done
    [ "$(< "$logs/$1.built")" = 0 ] || { cat "$logs/$1.build.log"; return 1; }
}

run_stage() {
    local name=$1 log=$logs/$1.log started=$SECONDS used code detail=""
    used=$(processor_seconds)
    printf '%-10s ... ' "$name"
    { await_build "$name" && "stage_$name"; } > "$log" 2>&1 < /dev/null
    code=$?
    case $code in
        0) count_suites "$log" || passed=$((passed + 1)); printf 'ok' ;;
        77) skipped=$((skipped + 1)); skips+=("$name: $(tail -n 1 "$log")"); printf 'skipped' ;;
        *) count_suites "$log" && grep -q ' [1-9][0-9]* tests failed out of' "$log" || failed=$((failed + 1))
            failures+=("$name"); printf 'FAILED' ;;
    esac
    printf '%s, %d s, %d s of processor time\n' "$detail" $((SECONDS - started)) $(($(processor_seconds) - used))
    if [ $code != 0 ] && [ $code != 77 ]; then
        grep -E 'error:|warning:|\*\*\*(Failed|Timeout|Exception)|\[(FAIL|CRASH|ERR)|ERROR: |runtime error|Assertion' "$log" | head -n 30
        echo "--- the end of $log:"
        tail -n 40 "$log"
    fi
}

case ${1:-} in
    --list) printf '%s\n' "${all_stages[@]}" "${more_stages[@]}"; exit 0 ;;
    --all) extended=yes; shift ;;
esac
stages=("$@")
if [ $# = 0 ]; then
    stages=("${quick_stages[@]}")
    [ $extended = no ] || stages=("${all_stages[@]}")
fi
for name in "${stages[@]}"; do
    [[ " ${all_stages[*]} ${more_stages[*]} " == *" $name "* ]] || { echo "No stage '$name'; there are: ${all_stages[*]} ${more_stages[*]}" >&2; exit 2; }
done

if [ $extended = yes ]; then
    tshard_setup all || exit 1
else
    tshard_setup test || exit 1
fi
mkdir -p "$logs"
rm -f "$logs"/*.built "$logs/newcomer.gcc.log"
# What one build has compiled, the next ones take from the cache.
if have_command ccache; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_DIR=${CCACHE_DIR:-$HOME/.cache/ccache} CCACHE_COMPILERCHECK=content
fi
set -m # the builds are a process group, which ends with this script
build_all &
set +m
builder=$!
trap 'kill -- -$builder 2> /dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for name in "${stages[@]}"; do run_stage "$name"; done
wait

echo
for name in "${failures[@]}"; do echo "failed: $name, see $logs/$name.log"; done
for name in "${skips[@]}"; do echo "skipped: $name"; done
echo "$SECONDS s in all, $(processor_seconds) s of processor time"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
