#!/usr/bin/env bash
# check_names.sh ROOT: is every private name declared once? Private are tshi_* and TSHI_*: functions, variables, types,
# macros and enumerators of C and CUDA sources and headers, tests and tools included.
# Prints a line for each declaration past the first and exits 1 when there is one.
#
# A function or variable may have one prototype (`tshi_x_fn tshi_y;` is one) and one definition, a type one typedef and
# one body. Definitions in a folder named stub, or in tests/fuzz, replace others. One file may define a name several
# times (#if and #else).
set -uo pipefail
cd "$1" || exit 2

files=$(find src include tools tests benchmarks examples -name corpus -prune -o \
    \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print 2> /dev/null | sort)
[ -n "$files" ] || { echo "no files to check"; exit 1; }
# shellcheck disable=SC2016  # awk's dollars, not the shell's
xargs awk '
    # kind: macro, enumerator, typedef, body, prototype, definition. A name has one kind, or two that belong together.
    function declare(name, kind,    key, other) {
        if (name !~ /^(tshi_|TSHI_)/ || kind == "definition" && FILENAME ~ /\/stub\/|^tests\/fuzz\//) return
        key = name SUBSEP kind
        if (key in where && !(kind ~ /macro|definition/ && where[key] ~ "^" FILENAME ":")) report(name, kind, where[key])
        else if (!(key in where)) {
            other = first[name]
            if (other && other != kind && !((other, kind) in together)) report(name, kind, where[name, other])
            if (!other) first[name] = kind
            where[key] = FILENAME ":" line
        }
    }
    function report(name, kind, before) {
        printf "%s:%d: a second %s of %s, see %s\n", FILENAME, line, kind, name, before
        bad++
    }
    # What a statement of the file declares: its tokens, and whether braces follow.
    function statement(text, braces,    name) {
        if (text ~ /^ *typedef /) {
            name = text
            if (!match(name, /\( *\*? *[A-Za-z_0-9]+ *\) *\(/)) match(name, /[A-Za-z_0-9]+ *(\([^()]*\)|(\[[^]]*\] *)*) *$/)
            name = substr(name, RSTART, RLENGTH)
            gsub(/^[( *]+/, "", name)
            sub(/[^A-Za-z_0-9].*/, "", name)
            declare(name, "typedef")
        } else if (match(text, /(tshi_|TSHI_)[A-Za-z_0-9]* *\(/)) {
            name = substr(text, RSTART, RLENGTH)
            sub(/ *\($/, "", name)
            declare(name, braces ? "definition" : "prototype")
        } else if (text !~ /^ *(struct|union|enum) +[A-Za-z_0-9]* *$/) {
            sub(/ *=.*/, "", text)
            sub(/ *\[.*/, "", text)
            if (match(text, /[A-Za-z_0-9]+ *$/) && text ~ /[ *]/) {
                name = substr(text, RSTART, RLENGTH)
                sub(/ *$/, "", name)
                declare(name, text ~ /(^| )extern |^ *tshi_[a-z_0-9]+_fn +[A-Za-z_0-9]+ *$/ ? "prototype" : "definition")
            }
        }
    }
    function body_of(text,    name) {
        if (match(text, /(struct|union|enum) +[A-Za-z_0-9]+ *$/)) {
            name = substr(text, RSTART, RLENGTH)
            sub(/^[a-z]+ +/, "", name)
            sub(/ *$/, "", name)
            declare(name, "body")
        }
    }
    # One line without comments and strings, a character at a time.
    function scan(text,    i, c) {
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            if (c == "{") {
                if (depth == 0 && pending ~ /^ *extern *$/) { pending = ""; continue }
                if (depth == 0) {
                    body_of(pending)
                    aggregate = pending ~ /(struct|union|enum)( +[A-Za-z_0-9]+)? *$/ && pending !~ /\(/
                    listed = aggregate && pending ~ /enum/
                    initial = !aggregate && pending ~ /=/
                    if (!aggregate && !initial) { statement(pending, 1); pending = "" }
                }
                depth++
                word = ""
                expecting = listed
            } else if (c == "}") {
                if (depth == 0) continue
                if (listed && expecting && word) declare(word, "enumerator")
                word = ""
                depth--
                if (depth == 0) {
                    if (!aggregate && !initial) pending = ""
                    else if (aggregate) pending = (pending ~ /typedef/ ? "typedef " : "struct ") "tag "
                    listed = 0
                }
            } else if (depth == 0) {
                if (c == ";") { statement(pending, 0); pending = "" }
                else pending = pending c
            } else if (listed && depth == 1) {
                if (c ~ /[A-Za-z_0-9]/) { if (expecting) word = word c }
                else {
                    if (word) { declare(word, "enumerator"); word = ""; expecting = 0 }
                    if (c == ",") expecting = 1
                }
            }
        }
        if (depth == 0) pending = pending ~ /^ *[A-Z_0-9]+ *\(.*\) *$/ ? "" : pending " " # a macro that stands alone
        else if (listed && word) { declare(word, "enumerator"); word = ""; expecting = 0 }
    }
    BEGIN {
        together["prototype", "definition"] = together["definition", "prototype"] = 1
        together["typedef", "body"] = together["body", "typedef"] = 1
    }
    FNR == 1 { depth = comment = continued = 0; pending = word = ""; listed = expecting = 0 }
    {
        line = FNR
        text = $0
        gsub(/\\./, "", text)
        gsub(/"[^"]*"/, "", text)
        gsub(/\x27[^\x27]\x27/, "0", text)
        if (comment) { if (!sub(/^.*\*\//, "", text)) next; comment = 0 }
        while (match(text, /\/\*/)) {
            rest = substr(text, RSTART + 2)
            text = substr(text, 1, RSTART - 1)
            if (match(rest, /\*\//)) text = text " " substr(rest, RSTART + 2)
            else comment = 1
        }
        sub(/\/\/.*/, "", text)
        directive = continued || text ~ /^[ \t]*#/
        if (directive) {
            if (!continued && match(text, /^[ \t]*#[ \t]*define[ \t]+TSHI_[A-Za-z_0-9]+/)) {
                name = substr(text, RSTART, RLENGTH)
                sub(/.*[ \t]/, "", name)
                declare(name, "macro")
            }
            continued = $0 ~ /\\$/
            next
        }
        gsub(/[ \t]+/, " ", text)
        while (match(text, /TSHI_(ISA|TABLE)\([A-Za-z_0-9]+\)/)) { # the name of each instruction set
            start = RSTART + index(substr(text, RSTART), "(")
            end = RSTART + RLENGTH
            text = substr(text, 1, RSTART - 1) substr(text, start, end - 1 - start) substr(text, end)
        }
        scan(text)
    }
    END { exit bad > 0 }' <<< "$files"
