#!/usr/bin/env bash
# test_packaging.sh BUILD: the recipes of packaging/ parse, and fit the sources; a fault in one is found.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
command -v python3 > /dev/null || { echo "python3 is not installed"; exit 77; }
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/recipes.py" "$sources" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# finds FILE PATTERN REPLACEMENT WORDS: the file, changed so, is refused with these words.
finds() {
    rm -rf "${work:?}"/*
    mkdir -p "$work/include/tshard"
    cp -r "$sources/packaging" "$sources/CMakeLists.txt" "$sources/LICENSE" "$sources/tools" "$work"
    cp "$sources/include/tshard/base.h" "$work/include/tshard"
    sed -i "s/$2/$3/" "$work/packaging/$1"
    python3 "$here/recipes.py" "$work" > "$work/log" && { echo "not noticed: $4"; exit 1; }
    grep -qF "$4" "$work/log" || { echo "not named: $4"; cat "$work/log"; exit 1; }
}
finds spack/packages/tshard/package.py 'version("0' 'version("9' "the version is not"
finds spack/packages/tshard/package.py TSHARD_BUILD_TESTS TSHARD_TESTS "no option TSHARD_TESTS"
finds vcpkg/ports/tshard/vcpkg.json '"version": "0' '"version": "9' "the version is not"
finds vcpkg/ports/tshard/portfile.cmake TSHARD_CUDA TSHARD_GPU "no option TSHARD_GPU"
finds vcpkg/ports/tshard/portfile.cmake tshard-plan tshard-absent "there is no program tshard-absent"
