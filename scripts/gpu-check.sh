#!/usr/bin/env bash
# What a GPU has to show, in parts of less than nine minutes on 16 cores, the most telling first. Nothing is fetched.
#   scripts/gpu-check.sh --part a|b|c [--packages FOLDER] [--out FOLDER] [--build FOLDER] [--bin FOLDER]
#                        [--budget SECONDS] [--quick] [--list] [SECTION...]
#   a  what CUDA does, build, some golden vectors, kernels and layers beside their bounds and PyTorch
#   b  suites, two ranks on the GPU, compute-sanitizer, all golden vectors
#   c  what NCCL does with one rank and with two, lost ranks, GPT-2 of 124 million parameters: training and generation
# --packages: a folder of .deb files that the build needs (OpenBLAS, Jansson, Criterion) and this machine lacks.
# --out:      part-X.md, a report: figures, asked and measured, how the steps ended, their words; and part-X.log, all that
#             was printed. Both grow with every step (default: BUILD/check).
# --build:    where it builds (default: build-gpu). --bin: the folder of programs that are built already.
# --budget:   of the part (default: 530); a step that no longer fits is skipped. --quick: small sizes and ten times the
#             limit of a step, for a test.
# --list:     the part's steps. SECTION: these alone: machine probe build vectors kernels layers torch suites ranks
#             sanitizer nccl lost gpt
# A line a step; the last counts. The exit code is 1 when a step failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
here=scripts/gpu-check

part="" packages="" out="" budget=530 list=no
export build=build-gpu bin="" quick="" each=0.5
sections=()
all_sections=" machine probe build vectors kernels layers torch suites ranks sanitizer nccl lost gpt "
usage() { sed -n '2,18s/^# \{0,1\}//p' scripts/gpu-check.sh; exit "$1"; }
fail() { echo "gpu-check: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --part | --packages | --out | --build | --bin | --budget) [ -n "${2:-}" ] || fail "$1 wants a value" ;;
    esac
    case $1 in
        --part) part=$2; shift ;;
        --packages) packages=$2; shift ;;
        --out) out=$2; shift ;;
        --build) build=$2; shift ;;
        --bin) bin=$2; shift ;;
        --budget) budget=$2; shift ;;
        --quick) quick=yes each=0.001 ;;
        --list) list=yes ;;
        -h | --help) usage 0 ;;
        -*) fail "unknown option '$1' (--help names them)" ;;
        *) [[ $all_sections == *" $1 "* ]] || fail "no section '$1'; there are:$all_sections"; sections+=("$1") ;;
    esac
    shift
done
[[ $part =~ ^[abc]$ ]] || fail "--part wants a, b or c, not '$part'"
[[ $budget =~ ^[0-9]+$ ]] || fail "--budget wants seconds, not '$budget'"
[ -z "$packages" ] || [ -d "$packages" ] || fail "--packages wants a folder, not '$packages'"
[ -z "$bin" ] || [ -d "$bin" ] || fail "--bin wants a folder, not '$bin'"
export ready=${bin:+yes}
[ -n "$bin" ] || bin=$build/bin
out=${out:-$build/check}
report=$out/part-$part.md
log=$out/part-$part.log

# --- the report ---------------------------------------------------------------------------------------------------

# It is written anew with every step: what was asked and measured, how the steps have ended, and then their words.
heading="" ends="" details="" total=""
figures=() # their keys
declare -A asked measured of_figure

# figure KEY ASKED WORDS: a line of the table; ASKED begins with >= or <=. Steps print "figure: KEY NUMBER".
figure() {
    figures+=("$1")
    asked[$1]=$2 of_figure[$1]=$3 measured[$1]=""
}

# Whether a figure is as it was asked.
verdict() {
    [ -n "${measured[$1]}" ] || { echo "not measured"; return; }
    awk -v value="${measured[$1]}" -v asked="${asked[$1]}" 'BEGIN { split(asked, a, " ")
        print (a[1] == ">=" ? value + 0 >= a[2] + 0 : value + 0 <= a[2] + 0) ? "yes" : "NO" }'
}

table() {
    local key
    [ ${#figures[@]} != 0 ] || return 0
    printf '\n## Asked and measured\n\n'
    [ -z "$quick" ] || printf 'Small sizes: these say nothing.\n\n'
    printf '| figure | asked | measured | reached |\n|---|---|---|---|\n'
    for key in "${figures[@]}"; do
        printf '| %s | %s | %s | %s |\n' "${of_figure[$key]}" "${asked[$key]}" "${measured[$key]}" "$(verdict "$key")"
    done
}

write_report() {
    {
        printf '%s\n' "$heading"
        [ -z "$total" ] || printf '\n%s\n' "$total"
        table
        printf '\n## Steps\n\n| step | end |\n|---|---|\n%s' "$ends"
        [ -z "$running" ] || printf '| %s | begun, and not ended |\n' "$running"
        printf '%s\n' "$details"
    } > "$report.new" && mv "$report.new" "$report"
}

# --- the steps ----------------------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0 running="" pid="" from=0 absent="" starting=no stop=no

# What was printed since `from`.
words() { tail -c "+$((from + 1))" "$log" | tr -d '\000' | grep -v '^figure: '; }

# The first of its lines that speak of a failure: the end of a build's words, say, has those of other files.
errors() {
    local lines
    lines=$(words | grep -niE '\b(error|fatal|fails?|failed|cannot|killed|undefined reference|no such file|not found|out of memory|illegal|misaligned|timed out|deadline)\b' |
        head -n 20 | sed 's/^/    line /')
    [ -z "$lines" ] || printf 'Lines of it that speak of a failure:\n\n%s\n\nIts end:\n\n.' "$lines"
}

# tell TITLE END [COMMAND]: a line on stdout and in the report, where the end of what was printed since `from` follows.
tell() {
    local key value found
    printf '%-46s %s\n' "$1" "$2"
    case $2 in
        ok*) passed=$((passed + 1)) ;;
        skipped*) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)) ;;
    esac
    running=""
    ends+="| $1 | $2 |"$'\n'
    if [ -n "${3:-}" ]; then
        while read -r _ key value; do measured[$key]=$value; done < <(tail -c "+$((from + 1))" "$log" | grep '^figure: ')
        details+=$'\n'"## $1"$'\n\n'"$2: \`$3\`"$'\n\n'
        if [[ $2 = FAILED* ]]; then
            found=$(errors)
            details+=${found%.} # the dot kept the empty line before it
        fi
        details+=$(words | tail -n 80 | sed 's/^/    /')$'\n'
    fi
    write_report
}

# A step is a group of processes, which timeout made. What has not ended with it, or upon SIGTERM, would keep the GPU.
end_group() {
    kill -KILL -- "-$pid" 2> /dev/null
    pid=""
}

# run LIMIT TITLE COMMAND...: the command's end is told. 77: it cannot run.
run() {
    local limit=$1 title=$2 started=$SECONDS code end
    shift 2
    printf '\n=== %s: %s\n' "$title" "$*" >> "$log"
    from=$(stat -c %s "$log")
    running=$title
    write_report
    starting=yes
    timeout --kill-after=10 "$limit" "${buffered[@]}" bash $here/steps.sh "$@" >> "$log" 2>&1 < /dev/null 9>&- &
    pid=$!
    starting=no
    [ $stop = no ] || stopped
    wait $pid
    code=$?
    end_group
    case $code in
        0) end=ok ;;
        77) end="skipped: $(tail -n 1 "$log" | sed 's/^ *//')" ;;
        124 | 137) end="FAILED: over $limit s, or killed" ;;
        129 | 13? | 14? | 15?) end="FAILED: ended by SIG$(kill -l $code)" ;;
        *) end="FAILED: exit code $code" ;;
    esac
    tell "$title" "$end, $((SECONDS - started)) s" "$*"
}

# step SECTION WANTS LIMIT TITLE COMMAND...: COMMAND is a function of steps.sh with its arguments, and takes WANTS seconds
# on the machine that the parts are for.
step() {
    local section=$1 wants=$2 limit=$3 title=$4 left=$((budget - SECONDS))
    shift 4
    [ -z "$quick" ] || limit=$((10 * limit))
    [ ${#sections[@]} = 0 ] || [[ " ${sections[*]} " == *" $section "* ]] || return 0
    if [ $list = yes ]; then
        printf '%-10s %4d s of at most %4d  %s\n' "$section" "$wants" "$limit" "$title"
    elif [ -n "$absent" ] && [[ " machine probe build " != *" $section "* ]]; then
        tell "$title" "skipped: $absent"
    elif [ $left -lt "$wants" ]; then
        tell "$title" "skipped: it wants $wants s, and $((left > 0 ? left : 0)) of $budget are left"
    else
        run $((limit < left ? limit : left)) "$title" "$@"
    fi
}

# A step that is being started is stopped when it has a number.
stopped() {
    stop=yes
    [ $starting = no ] || return
    if [ -n "$pid" ]; then
        kill "$pid" 2> /dev/null
        sleep 0.5
        end_group
    fi
    [ -z "$running" ] || tell "$running" "FAILED: stopped after $SECONDS s of the part" "stopped"
    finish
    exit 143
}

finish() {
    total="$passed passed, $failed failed, $skipped skipped; $SECONDS s"
    write_report
    table
    printf '\n%s\nThe report is %s, all that was printed %s.\n' "$total" "$report" "$log"
}

# A process that keeps a context open: no step waits for the driver to wake up. It ends with this script. Where there is
# no GPU nothing but the build is tried.
stay() {
    [ $list = no ] || return 0
    if [ ! -x "$bin/gpu_probe" ]; then
        nvidia-smi -L > /dev/null 2>&1 || absent="no GPU here: nvidia-smi finds none"
        return 0
    fi
    timeout 30 "$bin/gpu_probe" device >> "$log" 2>&1 9>&-
    if [ $? = 77 ]; then
        absent="no GPU here: $(tail -n 1 "$log" | sed 's/^ *\(no GPU here: \)*//')"
    else
        exec 9> >("$bin/gpu_probe" --stay > /dev/null 2>&1)
    fi
}

# --- what is carried along ----------------------------------------------------------------------------------------

# Outside the tree: what is installed may not name folders of it.
unpack() {
    local prefix library file
    prefix=${TMPDIR:-/tmp}/tshard-packages-$(id -u)
    mkdir -p "$prefix"
    for file in "$packages"/*.deb; do dpkg -x "$file" "$prefix" || fail "$file cannot be unpacked"; done
    library=$prefix/usr/lib/$(gcc -print-multiarch)
    # OpenBLAS has folders of its own, which a package's installation would link.
    export PKG_CONFIG_SYSROOT_DIR=$prefix
    export PKG_CONFIG_PATH=$library/pkgconfig:$prefix/usr/lib/pkgconfig:$prefix/usr/share/pkgconfig:$library/openblas-pthread/pkgconfig
    export CPATH=$prefix/usr/include:$prefix/usr/include/${library##*/}:$library/openblas-pthread
    export LIBRARY_PATH=$library:$library/openblas-pthread
    export LD_LIBRARY_PATH=$library:$library/openblas-pthread${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export CMAKE_PREFIX_PATH=$prefix/usr PATH=$prefix/usr/bin:$PATH
}

# pip's packages of CUDA: NCCL's header and library, and cuBLASLt where the toolkit has none.
find_wheels() {
    local folder library
    folder=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2> /dev/null) || return 0
    [ -n "${NCCL_ROOT:-}" ] || [ ! -e "$folder/nccl/include/nccl.h" ] || export NCCL_ROOT=$folder/nccl
    for library in "$folder"/*/lib; do export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$library; done
    [ -e /usr/local/cuda/include/cublasLt.h ] || export CPATH=${CPATH:+$CPATH:}$folder/cu13/include
}

# --- the part -----------------------------------------------------------------------------------------------------

# shellcheck source=scripts/gpu-check/parts.sh
. $here/parts.sh
[ $list = no ] || { "part_$part"; exit; }
mkdir -p "$out" || exit 1
export PATH=$PATH:/usr/local/cuda/bin PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
buffered=(env)
! command -v stdbuf > /dev/null || buffered=(stdbuf -oL)
version=$(git describe --always --dirty 2> /dev/null) || version="unknown version"
heading="# tshard on a GPU, part $part"$'\n\n'"$version, $(date -u '+%Y-%m-%d %H:%M UTC')"
printf '%s\n' "$heading" > "$log" || exit 1
write_report || exit 1
trap stopped TERM INT HUP
[ -z "$packages" ] || unpack
find_wheels
"part_$part"
finish
[ $failed = 0 ]
