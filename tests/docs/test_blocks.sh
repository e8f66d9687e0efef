#!/usr/bin/env bash
# test_blocks.sh BUILD: every code block of README.md and docs/ compiles, runs or parses, and one that does not is found.
set -uo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
for program in python3 gcc g++; do
    command -v "$program" > /dev/null || { echo "$program is not installed"; exit 77; }
done
export OPENBLAS_NUM_THREADS=1
python3 "$here/blocks.py" "$sources" "$build" --all || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for name in include examples scripts tests cmake; do ln -s "$sources/$name" "$work/$name"; done
mkdir "$work/docs"
touch "$work/README.md"
# expect WORDS LANGUAGE LINE [COMMENT]: a page with this block alone has this fault; with WORDS `nothing`, none
expect() {
    # shellcheck disable=SC2016  # Markdown's backquotes
    printf '%s\n```%s\n%s\n```\n' "${4:-}" "$2" "$3" > "$work/docs/page.md"
    if python3 "$here/blocks.py" "$work" "$build" --all > "$work/log" 2>&1; then
        [ "$1" = nothing ] || { echo "not noticed: $1"; exit 1; }
    else
        grep -qF -- "$1" "$work/log" || { echo "not named: $1"; cat "$work/log"; exit 1; }
    fi
}
expect nothing c 'tsh_tape_reset(tape);'
expect "undeclared" c 'tsh_tape_reset(tap);'
expect nothing c 'tsh_tape_reset(tap);' '<!-- needs: tsh_tape *tap; -->'
expect "too few arguments" c 'tsh_backward(tape);'
expect "expected" cpp '#include <tshard/tshard.h>
int a() { return 1 }'
expect nothing cpp '#include <tshard/tshard.h>
int a() { return TSH_VERSION_MINOR; }'
expect "Expecting" json '{"a": }'
expect "invalid syntax" python 'a b'
expect "has no option --no-such" sh 'build/bin/tshard-run -n 2 --no-such build/bin/mlp'
expect "has no option --no-such" console '$ mpirun -np 2 build/bin/train_gpt --no-such'
expect "has no option --no-such" sh 'tshard-bench linear --in 4 --no-such 3'
expect "is no command that is known" sh 'tshard-walk -n 2'
expect "there is no scripts/absent.sh" sh 'scripts/absent.sh'
expect "unexpected EOF" sh "echo 'a"
expect "it has commands" text '$ tshard-run'
expect "needs a language" '' 'int a;'
expect "needs a language" cobol 'STOP RUN'
expect "does not print: two" console '$ echo one
two' '<!-- run -->'
expect nothing console '$ echo one
one' '<!-- run -->'
expect nothing sh 'cc examples/mlp.c $(pkg-config --cflags --libs tshard) -lm -o /dev/null' '<!-- run -->'
expect "the target was not found" cmake 'target_link_libraries(program PRIVATE tshard::absent)'
printf 'Words.\n\n    int indented;\n' > "$work/docs/page.md"
python3 "$here/blocks.py" "$work" "$build" > "$work/log" && { echo "an indented block was not noticed"; exit 1; }
expect "exited with code 3" c '#include <tshard/tshard.h>
int main(void) { return 3; }' '<!-- run: 2 -->'
