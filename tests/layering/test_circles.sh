#!/usr/bin/env bash
# test_circles.sh BUILD: no files of a folder of src use each other in a circle, and no rooms; and the check that says so
# notices those that do. The symbols are those of the build's objects. A build that compiles the engine's files as one
# source has one object of them, so that they are compiled again here, each by itself.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
check=$here/check_circles.sh
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
failures=0

# expect good|bad LINES: the lines are those of `nm -P`, behind a file's name.
expect() {
    local want=$1 lines=$2 got=good
    printf '%b\n' "$lines" | bash "$check" > /dev/null || got=bad
    [ "$got" = "$want" ] || { echo "judged $got, not $want: $lines"; failures=$((failures + 1)); }
}

expect good 'io/a.c f T 0\nio/b.c f U\nio/b.c g T 0\nio/c.c g U\nio/c.c f U'
expect bad 'io/a.c f T 0\nio/b.c f U\nio/b.c g T 0\nio/a.c g U'
expect bad 'io/a.c f D 0\nio/b.c f U\nio/b.c g B 0\nio/c.c g U\nio/c.c h T\nio/a.c h U'
expect bad 'io/a.c f T 0\ntrain/b.c f U\ntrain/b.c g T 0\nio/c.c g U'
expect good 'dist/collectives/a.c f T 0\ndist/b.c f U\ndist/b.c g T 0\ndist/collectives/c.c g U\ndist/d.c g U'
expect bad 'io/a.c f T 0\nio/a.c f U'

# symbols OBJECT...: of objects of this tree, as the check wants them.
symbols() {
    nm -A -P "$@" 2> /dev/null | sed -n 's|^.*\.dir/src/\(.*\)\.o: |\1 |p'
}

mkdir -p "$objects/engine.dir"
find "$build" -path '*/tshard_engine.dir/Unity/*.c' -exec sed -n 's|^#include ".*/src/\([^"]*\)"|\1|p' {} + > "$objects/engine"
# shellcheck disable=SC2016  # the inner shell's arguments
xargs -r -P 4 -I FILE sh -c 'mkdir -p "$(dirname "$1/engine.dir/src/FILE")" &&
    ${CC:-cc} -D_GNU_SOURCE -I"$0/include" -I"$0/src" -O0 -w -c -o "$1/engine.dir/src/FILE.o" "$0/src/FILE"' \
    "$here/../.." "$objects" < "$objects/engine" || failures=$((failures + 1))
{
    find "$objects" -name '*.o'
    find "$build" \( -path '*/tshard_objects.dir/src/*.o' -o -path '*/tshard_engine.dir/src/*.o' -o -path '*/tshard_cuda.dir/src/*.o' \)
} | while read -r object; do
    source=${object#*.dir/src/} # a build keeps the objects of files that are gone
    [ ! -f "$here/../../src/${source%.o}" ] || echo "$object"
done | sort > "$objects/list"
[ -s "$objects/list" ] || { echo "the build has no objects"; exit 1; }
# shellcheck disable=SC2046  # names without spaces
symbols $(cat "$objects/list") | bash "$check" || failures=$((failures + 1))
[ $failures = 0 ]
