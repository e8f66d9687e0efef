#!/usr/bin/env bash
# check_words.sh ROOT: are comments and messages of src, include and tools free of persons and of comments that lean on the
# comment before? Prints a line for each that is not and exits 1 when there is one.
#
# Refused are somebody, nobody, anybody, everybody, whoever, "is told" and "are told" anywhere, and comments that begin with
# "The same", "Of" or "Whether". Write the rank, the caller, a peer; is reported; a full sentence.
set -uo pipefail
cd "$1" || exit 2

files=$(find src include tools \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) 2> /dev/null | sort)
[ -n "$files" ] || { echo "no files to check"; exit 1; }
words='(^|[^A-Za-z_])([Ss]omebody|[Nn]obody|[Aa]nybody|[Ee]verybody|[Ww]hoever|(is|are) told)([^A-Za-z_]|$)'
if xargs grep -nE "$words|(/\*|//)\** (The same|Of|Whether)( |$)" <<< "$files"; then exit 1; fi
