#!/usr/bin/env bash
# test_install.sh BUILD: install what BUILD holds, then build and run a small program against it by find_package and by
# pkg-config, with the shared and with the static library, and the installed examples. The installed tree is moved
# first: nothing may remember where it was.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
cc=${CC:-cc}
cmake=${CMAKE:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# runs PROGRAM [LIBRARY_PATH]: it says the version that the headers have.
version=$(sed -n 's/#define TSH_VERSION_[A-Z]* //p' "$here/../../include/tshard/base.h" | paste -sd.)
runs() {
    local said
    said=$(env -u RANK -u WORLD_SIZE LD_LIBRARY_PATH="${2:-}" "$1") || fail "$1 exited with $?"
    [ "$said" = "tshard $version: 1 ranks, a layer: yes" ] || fail "$1 said '$said'"
}

needs_shared() { readelf -d "$1" | grep 'NEEDED.*libtshard\.so\.[0-9]' > /dev/null; }

"$cmake" --install "$build" --prefix "$work/first" > "$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix
libdir=$(dirname "$(find "$prefix" -name libtshard.so)")

# find_package
"$cmake" -S "$here/project" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" > "$work/cmake.log" 2>&1 &&
    "$cmake" --build "$work/build" >> "$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "find_package(tshard)"; }
for program in with_shared with_static with_cxx with_handles; do runs "$work/build/$program"; done
needs_shared "$work/build/with_shared" || fail "tshard::tshard is not the shared library"
needs_shared "$work/build/with_static" && fail "tshard::static is not the static library"

# pkg-config
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion tshard)" = "$version" ] || fail "pkg-config has version $(pkg-config --modversion tshard)"
# shellcheck disable=SC2046
"$cc" -std=c11 -Wall -Wextra -Werror "$here/program.c" $(pkg-config --cflags --libs tshard) -o "$work/pc_shared" ||
    fail "pkg-config, shared"
runs "$work/pc_shared" "$libdir"
said=$(env -u LD_LIBRARY_PATH "$work/pc_shared" 2>&1)
grep -q 'error while loading shared libraries: libtshard\.so\.' <<< "$said" || fail "without rpath: '$said'"
# shellcheck disable=SC2046
"$cc" "$here/program.c" $(pkg-config --cflags --libs tshard) "-Wl,-rpath,$(pkg-config --variable=libdir tshard)" \
    -o "$work/pc_rpath" || fail "pkg-config, rpath"
runs "$work/pc_rpath"
needs_shared "$work/pc_shared" || fail "pkg-config did not give the shared library"
# shellcheck disable=SC2046
"$cc" -std=c11 "$here/program.c" $(pkg-config --cflags --static --libs tshard) -o "$work/pc_static" ||
    fail "pkg-config, static"
runs "$work/pc_static"
needs_shared "$work/pc_static" && fail "pkg-config --static did not give the static library"

# The program with libtshard.a in it is a rank as any other.
said=$(env -u RANK -u WORLD_SIZE "$prefix/bin/tshard-run" -np 2 "$work/pc_static") || fail "two ranks, static: exit code $?"
[ "$(sort <<< "$said")" = "[0] tshard $version: 2 ranks, a layer: yes
[1] tshard $version: 2 ranks, a layer: yes" ] || fail "two ranks, static: '$said'"

# The examples, as they are installed; read-only, as a user has them.
cp -r "$prefix/share/doc/tshard/examples" "$work/examples" && chmod -R a-w "$work/examples"
"$cmake" -S "$work/examples" -B "$work/examples-build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_C_FLAGS="-O1 -Wall -Wextra -Werror" > "$work/cmake.log" 2>&1 &&
    "$cmake" --build "$work/examples-build" >> "$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "examples"; }
# example NAME [ARGS...]: runs on two ranks.
example() {
    local name=$1
    shift
    env -u RANK -u WORLD_SIZE OPENBLAS_NUM_THREADS=1 "$prefix/bin/tshard-run" -n 2 "$work/examples-build/$name" "$@" \
        > "$work/log" 2>&1 || { cat "$work/log"; fail "the example $name: exit code $?"; }
}
example mlp
example data_parallel
example train_text --steps 2 --batch 2 --context 4 --sample 4 # of the installed headers
example generate --model "$here/../data/models/llama" --prompt-ids 1 --tokens 2
for page in README.md docs/README.md docs/building.md LICENSE; do
    [ -s "$prefix/share/doc/tshard/$page" ] || fail "$page is not installed"
done

# Each program has a man page, which has each of its options, and words for bash to complete them with.
for program in "$prefix"/bin/*; do
    name=$(basename "$program")
    page=$(gunzip -c "$prefix/share/man/man1/$name.1.gz") || fail "no man page of $name"
    for option in $("$program" --help | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
        grep -qF -- "${option//-/\\-}" <<< "$page" || fail "$option is not in the man page of $name"
    done
    sed -n '/^.SH NAME/{n;p}' <<< "$page" | grep -qE '^tshard\\-[a-z]+ \\- .{20}' || fail "$name has no NAME in its man page"
    bash -n "$prefix/share/bash-completion/completions/$name" || fail "no completion of $name"
    if command -v groff > /dev/null; then
        said=$(groff -man -ww -z <<< "$page" 2>&1 | grep -v "can't break line\|cannot adjust line")
        [ -z "$said" ] || fail "the man page of $name: $said"
    fi
done
# Each function has a man page, which is its header's.
for page in "$prefix"/share/man/man3/tshard-*.3.gz; do
    name=$(basename "$page" .3.gz)
    gunzip -c "$page" > "$work/page"
    sed -n '/^.SH NAME/{n;p}' "$work/page" | grep -E '^tshard\\-[a-z]+ \\- .{20}' > /dev/null || fail "no NAME in $name(3)"
    for function in $(grep -oE '^TSH_API .*' "$prefix/include/tshard/${name#tshard-}.h" | grep -oE '\btsh_[a-z0-9_]+\(' | tr -d '('); do
        [ "$(gunzip -c "$prefix/share/man/man3/$function.3.gz")" = ".so man3/$name.3" ] || fail "no man page of $function"
        grep -qF "$function(" "$work/page" || fail "$function is not in $name(3)"
    done
    command -v groff > /dev/null || continue
    said=$(groff -man -ww -z "$work/page" 2>&1 | grep -v "can't break line\|cannot adjust line")
    [ -z "$said" ] || fail "$name(3): $said"
done
gunzip -c "$prefix/share/man/man7/tshard.7.gz" | grep '^.B TSHARD_TIMEOUT$' > /dev/null || fail "tshard(7) has no variables"

# A function and a layer of a program's own, by the public headers alone.
for program in own_function own_layer; do
    # shellcheck disable=SC2046
    "$cc" -std=c11 -Wall -Wextra -Werror "$here/../../examples/$program.c" $(pkg-config --cflags --libs tshard) -lm \
        -o "$work/$program" || fail "$program is not compiled"
    file=()
    [ "$program" = own_function ] || file=("$work/layer.safetensors")
    LD_LIBRARY_PATH=$libdir "$prefix/bin/tshard-run" -n 3 "$work/$program" "${file[@]}" > "$work/said" || fail "$program on 3 ranks"
done

# Every handle of the headers destroys itself in C++.
cat "$prefix"/include/tshard/*.h | grep -oE '^TSH_API void tsh_[a-z_]+_(destroy|release)\(tsh_[a-z_]+ \*[a-z]+\);' |
    sed -E 's/TSH_API void (tsh_[a-z_]+)\((tsh_[a-z_]+) .*/handle<\2, \1>;/' | while read -r handle; do
    grep -qF "$handle" "$prefix/include/tshard/tshard.hpp" || echo "$handle"
done > "$work/handles"
[ -s "$work/handles" ] && fail "not in tshard.hpp: $(cat "$work/handles")"

# Layouts in initialisers and expressions, in each language's strictest reading.
for standard in c11 c17; do
    "$cc" -std=$standard -Wall -Wextra -pedantic-errors -Werror -I"$prefix/include" -fsyntax-only "$here/layouts.c" ||
        fail "layouts in $standard"
done
for standard in c++11 c++17; do
    "${CXX:-c++}" -std=$standard -Wall -Wextra -pedantic-errors -Werror -I"$prefix/include" -fsyntax-only -x c++ \
        "$here/layouts.c" || fail "layouts in $standard"
done

# Each header stands alone, mpi.h beside that of the MPI in the build. Exported are the interface and what the tools call.
mpi=$(sed -n 's/^MPI_C_HEADER_DIR:PATH=\(\/.*\)/-isystem \1/p' "$build/CMakeCache.txt")
for header in "$prefix"/include/tshard/*.h; do
    # shellcheck disable=SC2086
    "$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" $mpi -fsyntax-only -x c "$header" ||
        fail "$(basename "$header") alone"
done
exported=$(nm -D --defined-only "$libdir/libtshard.so" | awk '{ print $NF }')
[ "$(grep -c '^tsh_' <<< "$exported")" -gt 20 ] || fail "hardly anything is exported: $exported"
tools=$(grep -rhE '^(extern )?TSHI_TOOLS ' "$here/../../src" | sed 's/.*[ *]\(tshi_[a-z0-9_]*\)[(;[].*/\1/' | sort)
foreign=$(grep -v '^tsh_' <<< "$exported" | sort | comm -23 - <(echo "$tools"))
[ -z "$foreign" ] || fail "exported, but no part of the interface: $foreign"
declared=$(cat "$prefix"/include/tshard/*.h | sed -n '/^TSH_API/s/.*[ *]\(tsh_[a-z0-9_]*\)(.*/\1/p' | sort)
undefined=$(comm -23 <(echo "$declared") <(sort <<< "$exported")) || fail "comm"
[ -z "$undefined" ] || fail "declared, but not exported: $undefined"

[ $failures = 0 ]
