#!/usr/bin/env bash
# check_comments.sh HEADER...: does every public function have its comment? One comment may stand over several
# functions, up to an empty line. Prints each function that has none and exits 1 when there is one.
set -uo pipefail
exec awk '
    FNR == 1 { documented = inside = 0 }
    /^[ \t]*\/\*/ { documented = FNR > 1; inside = 1 }
    inside { if (/\*\//) inside = 0; next }
    /^[ \t]*$/ { documented = 0 }
    /^TSH_API/ {
        functions++
        if (!documented) { printf "%s:%d: no comment: %s\n", FILENAME, FNR, $0; bad++ }
    }
    END {
        if (!functions) print "no public function found"
        exit bad > 0 || !functions
    }' "$@"
