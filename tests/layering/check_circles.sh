#!/usr/bin/env bash
# check_circles.sh: is there a circle of files inside a folder of src, or one of rooms? From stdin, lines
# "FILE SYMBOL TYPE ..." as `nm -P` has them behind the file's name below src: a file uses another when it uses a symbol that
# the other defines. A room is the first part of a file's name.
# Prints each circle, and exits 1 when there is one.
set -uo pipefail

uses=$(awk '
    $3 ~ /^[TDBRVWC]$/ { owner[$2] = $1 }
    $3 == "U" { used[$1 " " $2] }
    function folder(file) { sub(/\/[^\/]*$/, "", file); return file }
    function room(file) { sub(/\/.*/, "", file); return file }
    END {
        for (use in used) {
            split(use, part, " ")
            user = part[1]
            file = owner[part[2]]
            if (file == "" || file == user) continue
            if (folder(file) == folder(user)) print folder(file), user, file
            else if (room(file) != room(user)) print "rooms", room(user), room(file)
        }
    }' | sort -u)
[ -n "$uses" ] || { echo "no file uses another one"; exit 1; }
bad=0
# shellcheck disable=SC2013,SC2046  # names without spaces
for folder in $(cut -d ' ' -f 1 <<< "$uses" | sort -u); do
    circle=$(awk -v folder="$folder" '$1 == folder { print $2, $3 }' <<< "$uses" | tsort 2>&1 > /dev/null) && continue
    echo "$folder:" $(sed 's/^tsort: -: .*/ a circle:/; s/^tsort: //' <<< "$circle")
    bad=1
done
exit $bad
