#!/usr/bin/env bash
# What the GPU's kernels take: registers of a thread, stack, spilled bytes and shared memory of a block, and, where
# there is cuobjdump, how many instructions access the GPU's memory by 1, 2 and 16 bytes; a line for each kernel, dtype
# and architecture. `scripts/gpu-registers.sh [ARCHITECTURE...]`, 80 90 100 by default; needs nvcc, no GPU. Fails where a
# kernel spills that is not named in `cold`, does not compile, reads or writes by bytes though it has no elements of one,
# or is named in `packed` and does not access memory by 16 bytes, or does by two. Exits with 77 without nvcc.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

cold='^(fill)$' # kernels of set-up, no part of a step
bytes='^fill_masked$|unsignedchar|bits<1>' # masks and elements of one byte
packed='^((normalise|backward|column_sums|add_stretch|add_across)<[248](,.*)?>|(whole_rows|whole_rows_backward)<.*>)$'
architectures=("$@")
[ $# -gt 0 ] || architectures=(80 90 100)

nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || { echo "no nvcc; set CUDA_HOME to where the CUDA toolkit is" >&2; exit 77; }
cuobjdump=$(command -v cuobjdump || echo "$(dirname "$nvcc")/cuobjdump")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# CUBIN ARCHITECTURE: a line of counts for each kernel.
accesses() {
    "$cuobjdump" --dump-sass "$1" | awk -v architecture="$2" '
        function end() { if (name) print "Accesses of entry function \047" name "\047 for \047sm_" architecture "\047:", one, two, many }
        /Function : / { end(); name = $3; one = two = many = 0 }
        /[ \t](LDG|STG)\./ {
            if ($0 ~ /(LDG|STG)[.A-Z0-9]*\.[US]8[. ]/) one++
            if ($0 ~ /(LDG|STG)[.A-Z0-9]*\.[US]16[. ]/) two++
            if ($0 ~ /(LDG|STG)[.A-Z0-9]*\.128[. ]/) many++
        }
        END { end() }'
}

# FILE ARCHITECTURE: ptxas's words, and those lines, into a file of their own.
compile() {
    local log
    log=$work/$(basename "$1" .cu).$2
    "$nvcc" -std=c++17 -O3 --expt-relaxed-constexpr -arch="sm_$2" -Isrc -Iinclude -Xptxas -v -cubin -o "$log.cubin" "$1" \
        > "$log.log" 2>&1 || { echo "$1 does not compile for sm_$2:"; cat "$log.log"; touch "$work/failed"; } >&2
    [ ! -x "$cuobjdump" ] || accesses "$log.cubin" "$2" >> "$log.log"
    rm -f "$log.cubin"
}
export -f compile accesses
export nvcc cuobjdump work
for architecture in "${architectures[@]}"; do
    for file in src/device/cuda/kernels/*.cu; do printf '%s\0%s\0' "$file" "$architecture"; done
done | xargs -0 -n 2 -P "$(nproc)" bash -c 'compile "$@"' compile

# Lines of: kernel dtype architecture registers stack stores loads shared, and accesses by 1, 2 and 16 bytes, or "-".
cat "$work"/*.log 2> /dev/null | c++filt | sed -E 's/\(anonymous namespace\):://g; s/tshi:://g' | awk '
    function dtype_of(text) {
        if (match(text, /__nv_bfloat16|__half|double|float/) == 0) return "-"
        text = substr(text, RSTART, RLENGTH)
        return text == "__half" ? "float16" : text == "__nv_bfloat16" ? "bfloat16" : text == "double" ? "float64" : "float32"
    }
    # What precedes the parameters: the first "(" outside of <>.
    function before_parameters(text, i, depth, c) {
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            if (c == "<") depth++
            if (c == ">") depth--
            if (c == "(" && depth == 0) return substr(text, 1, i - 1)
        }
        return text
    }
    / entry function / {
        kernel = $0
        sub(/.*entry function ./, "", kernel)
        architecture = kernel
        sub(/.*sm_/, "", architecture)
        sub(/[^0-9].*/, "", architecture)
        sub(/^void /, "", kernel)
        sub(/. for .sm_[0-9a-z]*.*/, "", kernel)
        kernel = before_parameters(kernel)
        dtype = dtype_of(kernel)
        sub(/<(__nv_bfloat16|__half|double|float)(, )?/, "<", kernel)
        gsub(/ /, "", kernel)
        sub(/<>$/, "", kernel)
        key = kernel " " dtype " " architecture
    }
    /Accesses of entry function/ { accessed[key] = $(NF - 2) " " $(NF - 1) " " $NF }
    /bytes spill stores/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
        shared = 0
        for (i = 1; i <= NF; i++) {
            if ($i == "registers,") registers = $(i - 1)
            if ($i ~ /^smem/) shared = $(i - 2)
        }
        taken[key] = registers " " stack " " stores " " loads " " shared
    }
    END { for (key in taken) print key, taken[key], key in accessed ? accessed[key] : "- - -" }' | sort -k1,1 -k2,2 -k3,3n > "$work/table"

[ -s "$work/table" ] || { echo "nothing was compiled" >&2; exit 1; }
awk 'BEGIN { format = "%-46s %-9s %5s %10s %6s %7s %7s %7s %6s %6s %6s\n"
        printf format, "kernel", "dtype", "arch", "registers", "stack", "stores", "loads", "shared", "by 1", "by 2", "by 16" }
    { printf format, substr($1, 1, 46), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 }' "$work/table"
spilling=$(awk -v cold="$cold" '$6 + $7 > 0 { name = $1; sub(/<.*/, "", name); if (name !~ cold) print "  " $1, $2, "sm_" $3 }' "$work/table")
narrow=$(awk -v bytes="$bytes" -v packed="$packed" '$9 == "-" { next }
    $9 > 0 && $1 !~ bytes { print "  " $1, $2, "sm_" $3 ": " $9 " by one byte" }
    $1 ~ packed && $11 == 0 { print "  " $1, $2, "sm_" $3 ": none by 16 bytes" }
    $1 ~ packed && $10 > 0 { print "  " $1, $2, "sm_" $3 ": " $10 " by two bytes" }' "$work/table")
echo
echo "$(wc -l < "$work/table") kernels, $(awk '$6 + $7 > 0' "$work/table" | wc -l) of them spill"
[ -x "$cuobjdump" ] || echo "no cuobjdump: the widths of accesses have not been looked at"
[ -z "$spilling" ] || printf 'hot kernels that spill:\n%s\n' "$spilling"
[ -z "$narrow" ] || printf 'narrow accesses:\n%s\n' "$narrow"
[ -z "$spilling$narrow" ] && [ ! -e "$work/failed" ]
