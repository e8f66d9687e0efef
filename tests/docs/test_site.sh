#!/usr/bin/env bash
# test_site.sh BUILD: the site builds without a warning, each of its links leads somewhere, and a browser shows it.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
for program in mkdocs doxygen python3; do
    command -v "$program" > /dev/null || { echo "$program is not installed"; exit 77; }
done
browser=$(command -v chromium-headless-shell chromium google-chrome | head -n 1)
site=$1/docs/html

"${CMAKE:-cmake}" --build "$1" --target docs || exit 1
# shellcheck disable=SC2086  # nothing where there is no browser
python3 "$here/site.py" "$sources" "$site" $browser || exit 1

# The pictures are those that the script draws; timeline.svg is of a trace, which is not kept.
pictures=$(mktemp -d) || exit 1
python3 "$sources/cmake/site/pictures.py" "$pictures" && diff -r -x timeline.svg "$pictures" "$sources/docs/pictures" || exit 1
rm -rf "$pictures"

# What is wrong is found: each fault alone, in a copy.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# expect WORDS: the copy in $work has this fault
expect() {
    python3 "$here/site.py" "$work" "$work/site" > "$work/log" && { echo "not noticed: $1"; exit 1; }
    grep -qF "$1" "$work/log" || { echo "not named: $1"; cat "$work/log"; exit 1; }
}
fresh() {
    rm -rf "${work:?}"/*
    mkdir "$work/docs" "$work/site"
    printf '# Start\n\n[a](docs/a.md#one-thing)\n' > "$work/README.md"
    printf '# Pages\n\n[a](a.md)\n' > "$work/docs/README.md"
    printf '# A\n\n## One thing\n' > "$work/docs/a.md"
    printf 'site_name: a\nnav:\n  - README.md\n  - a.md\n' > "$work/mkdocs.yml"
    printf '<html><body><a href="b.html#x">b</a></body></html>' > "$work/site/a.html"
    printf '<html><body><p id="x">b</p></body></html>' > "$work/site/b.html"
}
fresh
python3 "$here/site.py" "$work" "$work/site" > /dev/null || { echo "a site without a fault was refused"; exit 1; }
fresh; rm "$work/docs/a.md"; expect "there is no docs/a.md"
fresh; printf '# A\n' > "$work/docs/a.md"; expect "has no such heading"
fresh; echo '[x](http://nowhere)' >> "$work/docs/a.md"; expect "http://nowhere is no address"
fresh; sed -i /a.md/d "$work/mkdocs.yml"; expect "a.md is 0 times in the navigation"
fresh; echo > "$work/docs/README.md"; expect "a.md is not in the list of pages"
fresh; echo '`tsh_absent`' >> "$work/docs/a.md"; expect "tsh_absent is in no header"
fresh; rm "$work/site/b.html"; expect "there is no b.html"
fresh; echo > "$work/site/b.html"; expect "no such anchor"
fresh; echo '<script src="https://cdn.example.com/a.js"></script>' >> "$work/site/b.html"; expect "is loaded from a network"
fresh; printf '```c\nint other;\n```\n' >> "$work/README.md"; expect "has no line 'int other;'"
# A function and a member without a word said of them are warnings, which are errors.
printf '/* a */\n\n/* b */\nint tsh_said(void);\n\nint tsh_unsaid(void);\n\n/* c */\ntypedef struct tsh_c {\n    int unsaid;\n} tsh_c;\n' > "$work/a.h"
(cd "$sources" && cat Doxyfile && printf 'INPUT=%s\nOUTPUT_DIRECTORY=%s\n' "$work/a.h" "$work") |
    (cd "$sources" && doxygen -) > "$work/log" 2>&1 && { echo "doxygen passed"; exit 1; }
[ "$(grep -c 'not documented' "$work/log")" = 2 ] || { echo "doxygen should name two:"; cat "$work/log"; exit 1; }
[ -n "$browser" ] || { echo "there is no headless browser: links are right, but no browser has shown the site"; exit 77; }
