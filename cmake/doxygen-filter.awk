# Makes the plain comments of the headers Doxygen's, word for word: a comment that begins a line documents what follows,
# up to the next empty line (so a comment over several functions is each one's), and one that ends a line
# documents what that line declares. <pre> keeps formulas, tables and indentation.

# A line of a comment, without the star that leads it, with all that Doxygen reads as commands or tags escaped.
function body(text) {
    sub(/^[ \t]*\*? ?/, "", text)
    gsub(/[\\@#&<>%]/, "\\\\&", text)
    sub(/^ *[-+]/, "\\-", text) # else a list, which must not stand in <pre>
    return text
}

function emit(text) {
    printf "%s\n", text
    if (leading) comment = comment text "\n"
}

# The line `text` of a comment, `opening` what goes before it.
function line(text, opening) {
    inside = text !~ /\*\//
    sub(/[ \t]*\*\/.*/, "", text)
    emit(opening body(text) (inside ? "" : "</pre> */"))
    if (!inside) leading = 0
}

inside {
    line($0, "")
    next
}

/\/\*/ && !/\/\*[ \t]*-+/ {
    start = index($0, "/*")
    code = substr($0, 1, start - 1)
    if (code ~ /[^ \t]/) {
        line(substr($0, start + 2), code "/**< <pre>")
    } else {
        leading = 1
        comment = ""
        fresh = 1
        line(substr($0, start + 2), code (FNR == 1 ? "/** @file\n<pre>" : "/** <pre>"))
    }
    next
}

/^[ \t]*$/ { comment = "" }

/^TSH_API/ {
    if (!fresh && comment != "") printf "%s", comment
    fresh = 0
}

{ print }
