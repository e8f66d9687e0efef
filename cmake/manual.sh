#!/bin/sh
# manual.sh PROGRAM VERSION: the man page of a program on stdout, made from its --help, and from that of its commands
# where the text says "COMMAND --help". TSHARD_EMULATOR runs a program of another architecture. The texts have one form:
# "usage:" lines, paragraphs, headings that end with a colon, and rows of a term, two spaces or a new line, and what it
# means.
set -eu
program=$1 version=$2
name=$(basename "$program")

# A form feed goes before each text, and the name of its command after that.
texts() {
    text=$(${TSHARD_EMULATOR:-} "$program" --help)
    printf '\f\n%s\n' "$text"
    case $text in *"COMMAND --help"*) ;; *) return ;; esac
    for command in $(printf '%s\n' "$text" | sed -n '/^Commands/,/^$/s/^  \([a-z_]*\)  .*/\1/p'); do
        printf '\f%s\n' "$command"
        ${TSHARD_EMULATOR:-} "$program" "$command" --help
    done
}

texts | awk -v name="$name" -v version="$version" '
    function plain(text) {
        gsub(/\\/, "\\e", text)
        gsub(/-/, "\\-", text)
        sub(/^[.'"'"']/, "\\\\\\&&", text)
        return text
    }
    function heading(text) {
        print (command == "" ? ".SH " : ".SS ") "\"" plain(text) "\""
    }
    # NAME wants a sentence: the first of the first paragraph.
    function begin(    sentence) {
        sentence = first
        sub(/[.:] .*|[.:]$/, "", sentence)
        print ".TH " toupper(name) " 1 \"\" \"tshard " version "\" \"User Commands\""
        print ".SH NAME"
        print plain(name) " \\- " plain(tolower(substr(sentence, 1, 1)) substr(sentence, 2))
        print ".SH SYNOPSIS\n" synopsis ".SH DESCRIPTION"
        begun = 1
    }
    /^\f/ {
        command = substr($0, 2)
        if (command != "") { print ".SH \"" toupper(name) " " toupper(command) "\""; fresh = 0 }
        next
    }
    /^usage: / || usage && /^ / {
        usage = 1
        line = $0
        sub(/^(usage:)? +/, "", line)
        if (command == "") synopsis = synopsis ".nf\n.B " plain(line) "\n.fi\n"
        else print ".nf\n.B " plain(line) "\n.fi"
        next
    }
    { usage = 0 }
    # The first paragraph is read whole before anything is printed.
    !begun && /^$/ && first == "" { next }
    !begun && !/^$/ && !/^ / && !/:$/ { first = first (first == "" ? "" : " ") $0; next }
    !begun { begin(); print plain(first) }
    /^$/ { fresh = 1; next }
    /^ / {
        indent = match($0, /[^ ]/)
        line = substr($0, indent)
        gap = match(line, /   *[^ ]/)
        if (indent > 9 && !/^ +-/) { print plain(line); next } # goes on
        print ".TP\n.B " plain(gap ? substr(line, 1, gap - 1) : line)
        if (gap) { sub(/^ +/, "", line); line = substr(line, gap); sub(/^ +/, "", line); print plain(line) }
        fresh = rows = 1
        next
    }
    /:$/ || /^Commands .*:$/ { sub(/:$/, ""); heading($0); fresh = rows = 0; next }
    {
        if (fresh || rows) print ".PP"
        fresh = rows = 0
        print plain($0)
    }
    END { if (!begun) { begin(); print plain(first) } }'
