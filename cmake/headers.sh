#!/bin/sh
# headers.sh INCLUDE_FOLDER VERSION OUT: the man pages of section 3 in the folder OUT: tshard-NAME(3) for each public
# header, and a link to it for each of its functions.
set -eu
here=$(dirname "$0")
rm -rf "$3"
mkdir -p "$3"
for header in "$1"/tshard/*.h; do
    name=$(basename "$header" .h)
    [ "$name" = tshard ] && continue
    awk -v name="$name" -v version="$2" -f "$here/header.awk" "$header" > "$3/tshard-$name.3"
    sed -n 's/^TSH_API [^(]*[ *]\(tsh_[a-z0-9_]*\)(.*/\1/p' "$header" | while read -r function; do
        echo ".so man3/tshard-$name.3" > "$3/$function.3"
    done
done
gzip -9nf "$3"/*.3
