#!/usr/bin/env bash
# test_gpu_check.sh BUILD: scripts/gpu-check.sh with programs that run on the stand-ins: each part's report, what a part
# that is killed leaves, steps that do not fit, fail or cannot run, and wrong words.
set -uo pipefail
programs=$1/tests/cuda/bin
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
check=scripts/gpu-check.sh
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# said FILE WORDS...: each of them is in the file.
said() {
    local file=$1 word
    shift
    for word in "$@"; do grep -qF -- "$word" "$file" || { fail "'$word' is not in $(basename "$file")"; tail -n 40 "$file"; }; done
}

# part NAME CODE OPTIONS...: with what is printed in $work/printed. The budget suffices on a machine that is busy, but
# where OPTIONS set another one.
part() {
    local name=$1 wanted=$2 code
    shift 2
    bash $check --part "$name" --quick --budget 5000 --bin "$work/bin" --build "$work/none" --out "$work/out" "$@" > "$work/printed" 2>&1
    code=$?
    [ $code = "$wanted" ] || { fail "part $name $*: exit code $code, not $wanted"; cat "$work/printed" "$work/out/part-$name.log"; }
}

mkdir "$work/bin"
for program in "$(realpath "$programs")"/*; do ln -s "$program" "$work/bin"; done
ln -sf "$(realpath "$1/bin/tshard-run")" "$work/bin/tshard-run"

# --- the parts ----------------------------------------------------------------------------------------------------

part a 0
said "$work/printed" "what CUDA does                                 ok" "mlp 64/1024/4096, captured" \
    "linear 8192, bfloat16, captured" "mlp 4096/16384, captured" ", 0 failed, "
said "$work/out/part-a.md" "## golden vectors, a choice, 1 and 2 ranks" "linear_uneven" "layer_norm_bwd" ", 0 failed, " \
    "| linear 4096, float32 | ok, " "Small sizes: these say nothing."
# reached FILE PATTERN VERDICT: a row of the table of figures.
reached() { grep -qE "^\| $2.* \| [0-9][0-9.e-]* \| $3 \|\$" "$1" || { fail "no figure '$2' that is $3"; grep '^|' "$1"; }; }
reached "$work/out/part-a.md" "linear 8192, bfloat16, of its products alone \| >= 0.97" "(yes|NO)"
reached "$work/out/part-a.md" "allocations in steady steps of mlp 4096/16384 \| <= 0" yes
reached "$work/out/part-a.md" "host's time to queue a step" "(yes|NO)"
reached "$work/out/part-a.md" "products of mlp 4096/16384 into which cuBLASLt fuses the bias \| >= 2" yes
reached "$work/out/part-a.md" "products of mlp 4096/16384 whose epilogue cuBLASLt refuses \| <= 0" yes
for name in "layer norm" "layer norm's gradient" "cross entropy" "cross entropy's gradient" AdamW "embedding's gradient"; do
    for dtype in bfloat16 float32; do
        reached "$work/out/part-a.md" "$name, $dtype, of a copy's bandwidth \| >= 0.8" "(yes|NO)"
    done
done
said "$work/out/part-a.log" "=== what CUDA does: cuda" "another process reads what this one wrote"
part b 0
said "$work/out/part-b.md" "## a text, two ranks on the GPU" "skipped: no suites are built" ", 0 failed, "
part c 0
said "$work/out/part-c.md" "share of the bandwidth" "tokens/s" "kill -STOP" ", 0 failed, "
reached "$work/out/part-c.md" "GPT-2 124M, generation's share of the bandwidth that its weights need \| >= 0.85" "(yes|NO)"
[ ! -e "$work/bin/nccl_probe" ] || said "$work/out/part-c.log" "ranks: 2; communicator" "abort of a sum without its peer: done"

# --- steps that do not end well -----------------------------------------------------------------------------------

part a 0 --budget 1 kernels
said "$work/printed" "skipped: it wants 2 s, and " " of 1 are left"
rm "$work/bin/check_vectors"
part a 0 vectors
said "$work/printed" "skipped: there is no $work/bin/check_vectors"
ln -s "$(type -P false)" "$work/bin/check_vectors"
part a 1 vectors kernels
said "$work/printed" "FAILED: exit code 1" "2 passed, 1 failed, 0 skipped"
ln -sf "$(realpath "$programs/check_vectors")" "$work/bin/check_vectors"

# A program that prints words of a failure and fails, hangs and takes no SIGTERM, or crashes.
rm "$work/bin/tshard-bench"
cat > "$work/bin/tshard-bench" << 'end'
#!/usr/bin/env bash
trap '' TERM
case $1 in
    kernels) echo "a row before the end"; while :; do sleep 0.1; done ;;
    linear) echo "an illegal memory access"; seq 200; exit 3 ;;
    *) kill -SEGV $$ ;;
esac
end
chmod +x "$work/bin/tshard-bench"
part a 1 --budget 20 kernels # the first step takes all of it
said "$work/printed" "FAILED: over "
said "$work/out/part-a.md" "    a row before the end"
for _ in $(seq 300); do
    pgrep -f "$work/bin/tshard-bench" > "$work/left" || break
    sleep 0.1 # a process that is killed ends when it gets a core
done
[ ! -s "$work/left" ] || fail "a step that hangs is left: $(cat "$work/left")"
part a 1 layers
said "$work/printed" "linear 8192, bfloat16                          FAILED: exit code 3" "FAILED: ended by SIGSEGV"
said "$work/out/part-a.md" "    line 1:an illegal memory access" "of its products alone | >= 0.97 |  | not measured |"
ln -sf "$(realpath "$programs/tshard-bench")" "$work/bin/tshard-bench"

# The kernels' suites, which come before the rooms'.
mkdir -p "$work/built/tests/cuda"
printf '#!/bin/sh\necho "[====] Synthesis: Tested: $TESTED | Passing: 0"\nexit $((TESTED != 0))\n' > "$work/built/tests/cuda/gpu_kernels"
chmod +x "$work/built/tests/cuda/gpu_kernels"
TESTED=3 part b 1 --build "$work/built" suites
said "$work/printed" "the kernels' own suites                        FAILED: exit code 1"
[[ $(grep -n "suites" "$work/printed" | head -n 1) == 1:*own* ]] || fail "the kernels' suites are not the first"
TESTED=0 part b 0 --build "$work/built" suites
said "$work/printed" "the kernels' own suites                        skipped: no kernel could be tested"

# Without a GPU only the build is tried.
rm "$work/bin/gpu_probe"
printf '#!/bin/sh\necho "  no GPU here: none at all"\nexit 77\n' > "$work/bin/gpu_probe"
chmod +x "$work/bin/gpu_probe"
part a 0
said "$work/printed" "what CUDA does                                 skipped: no GPU here: none at all" \
    "linear 4096, float32                           skipped: no GPU here: none at all" "0 passed, 0 failed, "
ln -sf "$(realpath "$programs/gpu_probe")" "$work/bin/gpu_probe"

# --- packages that come along -------------------------------------------------------------------------------------

# A package of Debian's with a program, and pip's package of NCCL: the probe's place is taken by what looks for both.
mkdir -p "$work/carried/DEBIAN" "$work/carried/usr/bin" "$work/debs" "$work/pip/nvidia/nccl/include" "$work/pip/nvidia/nccl/lib"
printf '%s\n' "Package: carried" "Version: 1" "Architecture: all" "Maintainer: nobody <nobody@localhost>" \
    "Description: a program" > "$work/carried/DEBIAN/control"
printf '#!/bin/sh\necho "carried along"\n' > "$work/carried/usr/bin/carried"
chmod +x "$work/carried/usr/bin/carried"
touch "$work/pip/nvidia/nccl/include/nccl.h"
dpkg-deb --build "$work/carried" "$work/debs/carried.deb" > /dev/null || fail "no package is built"
rm "$work/bin/gpu_probe"
cat > "$work/bin/gpu_probe" << 'end'
#!/bin/sh
[ "$1" = --stay ] && exit
carried
echo "NCCL in $NCCL_ROOT, libraries in $LD_LIBRARY_PATH"
end
chmod +x "$work/bin/gpu_probe"
NCCL_ROOT="" PYTHONPATH=$work/pip TMPDIR=$work part a 0 --packages "$work/debs" probe
said "$work/out/part-a.log" "carried along" "NCCL in $work/pip/nvidia/nccl, libraries in $work/tshard-packages" \
    ":$work/pip/nvidia/nccl/lib"
echo "no archive" > "$work/debs/other.deb"
TMPDIR=$work part a 2 --packages "$work/debs" probe
said "$work/printed" "other.deb cannot be unpacked"
ln -sf "$(realpath "$programs/gpu_probe")" "$work/bin/gpu_probe"

# --- a part that is stopped ---------------------------------------------------------------------------------------

# begin SECTION...: part c in the background, up to the step that a rank is lost in.
begin() {
    rm -rf "$work/out"
    bash $check --part c --quick --budget 5000 --bin "$work/bin" --build "$work/none" --out "$work/out" "$@" > "$work/printed" 2>&1 &
    pid=$!
    while kill -0 $pid 2> /dev/null; do
        grep -qsF "| a rank is killed | begun" "$work/out/part-c.md" && return
        sleep 0.1
    done
    fail "no step was begun"
    cat "$work/printed"
}

begin gpt lost
kill -TERM $pid
wait $pid
code=$?
[ $code = 143 ] || fail "exit code $code after SIGTERM"
said "$work/out/part-c.md" "## GPT-2 124M, generation" "FAILED: stopped after" "2 passed, 1 failed, 0 skipped"
begin gpt lost
kill -KILL $pid
wait $pid 2> /dev/null
said "$work/out/part-c.md" "## GPT-2 124M, training" "## GPT-2 124M, generation" "share of the bandwidth" \
    "| GPT-2 124M, generation | ok, " "| a rank is killed | begun, and not ended |"
! grep -q "failed" "$work/out/part-c.md" || fail "a part that was killed has counted"

# --- wrong words --------------------------------------------------------------------------------------------------

# refuses WORDS OPTIONS...
refuses() {
    local words=$1 code
    shift
    bash $check "$@" > "$work/printed" 2>&1
    code=$?
    [ $code = 2 ] || fail "$*: exit code $code"
    said "$work/printed" "$words"
}

refuses "--part wants a, b or c, not 'd'" --part d
refuses "--part wants a, b or c, not ''"
refuses "--part wants a value" --part
refuses "--packages wants a folder, not '/nowhere'" --part a --packages /nowhere
refuses "--bin wants a folder, not '/nowhere'" --part a --bin /nowhere
refuses "--budget wants seconds, not 'much'" --part a --budget much
refuses "no section 'nothing'; there are: machine probe" --part a nothing
refuses "unknown option '--fast'" --part a --fast
for name in a b c; do
    bash $check --part $name --list > "$work/printed" || fail "--list of part $name"
    # What the steps want fits into the part.
    awk '{ sum += $2 } END { exit !(NR > 5 && sum < 530) }' "$work/printed" || { fail "part $name does not fit"; cat "$work/printed"; }
done

# --- what it builds itself ----------------------------------------------------------------------------------------

bash $check --part c --quick --build "$work/build" probe nccl > "$work/printed" 2>&1
said "$work/printed" "the probe of CUDA is built                     ok"
nvidia-smi > /dev/null 2>&1 || said "$work/printed" "what NCCL does, one rank                       skipped" ", 0 failed, "

[ $failures = 0 ] && echo "passed"
exit $((failures != 0))
