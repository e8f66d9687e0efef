#!/usr/bin/env bash
# test_misuse.sh BUILD: install what BUILD holds, build the programs of misuse/ against it and run each row of their table
# at the numbers of ranks that it names: no rank is killed or hangs, and the output has the row's words.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
cc=${CC:-cc}
cmake=${CMAKE:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0 rows=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

"$cmake" --install "$build" --prefix "$work/prefix" > "$work/install.log" || { cat "$work/install.log"; exit 1; }
libdir=$(dirname "$(find "$work/prefix" -name libtshard.so)")
"$cc" -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror -I"$work/prefix/include" "$here"/misuse/*.c -L"$libdir" -ltshard \
    -Wl,-rpath,"$libdir" -pthread -o "$work/misuse" || exit 1

# run_row NAME RANKS ENVIRONMENT WORDS
run_row() {
    local name=$1 n=$2 settings=() code
    [ "$3" = - ] || read -ra settings <<< "$3"
    mkdir -p "$work/$name-$n"
    cd "$work/$name-$n" || exit 1
    env OPENBLAS_NUM_THREADS=1 TSHARD_TIMEOUT=20 TSHARD_HEAP=256M "${settings[@]}" timeout -k 5 60 \
        "$work/prefix/bin/tshard-run" -n "$n" "$work/misuse" "$name" > out 2>&1 < /dev/null
    code=$?
    rows=$((rows + 1))
    [ $code = 0 ] || { fail "$name, $n ranks: exit status $code"; cat out; }
    grep -qF -- "$4" out || { fail "$name, $n ranks: no '$4' in:"; cat out; }
}

"$work/misuse" --list > "$work/table" || fail "the table"
while IFS=$'\t' read -r name ranks settings words; do
    for n in $ranks; do run_row "$name" "$n" "$settings" "$words"; done
done < "$work/table"

# Rank 1 runs another build: two bytes that nothing reads differ.
cp "$work/misuse" "$work/other"
printf 'xy' | dd of="$work/other" bs=1 seek=9 conv=notrunc 2> /dev/null
cat > "$work/either" << 'EOF'
#!/bin/sh
[ "$RANK" = 0 ] && exec "$1/misuse" no_tape
exec "$1/other" no_tape
EOF
chmod +x "$work/either"
env OPENBLAS_NUM_THREADS=1 TSHARD_HEAP=256M timeout -k 5 60 "$work/prefix/bin/tshard-run" -n 2 "$work/either" "$work" \
    > "$work/out" 2>&1 < /dev/null
grep -q 'rank 1 runs another program than the listening rank, or another build of it' "$work/out" ||
    { fail "another build on rank 1"; cat "$work/out"; }

kinds=$(wc -l < "$work/table")
echo "$kinds kinds of misuse, $rows runs"
[ "$kinds" -ge 40 ] || fail "there are $kinds kinds of misuse"
[ $failures = 0 ]
