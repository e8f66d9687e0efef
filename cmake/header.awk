# header.awk -v name=tensor -v version=0.2.0 HEADER: the man page tshard-NAME(3) of a public header on stdout: its first
# comment, then every declaration with the comment above it.

function text(line) {
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    return line ~ /^[.']/ ? "\\&" line : line
}

# A comment's lines: indented ones, which are aligned by hand, stay as they are.
function print_comment(lines, n,    i, filled) {
    filled = 1
    for (i = 1; i <= n; i++) {
        if (lines[i] == "") { print filled ? ".PP" : ".fi\n.PP"; filled = 1; continue }
        if (filled && lines[i] ~ /^  /) { print ".nf"; filled = 0 }
        if (!filled && lines[i] !~ /^  /) { print ".fi"; filled = 1 }
        print text(lines[i])
    }
    if (!filled) print ".fi"
}

function flush_group(    i) {
    if (declared) {
        print ".PP\n.nf"
        for (i = 1; i <= declared; i++) print text(declaration[i])
        print ".fi"
        if (commented) print ".RS"
    }
    if (commented) print_comment(comment, commented)
    if (declared && commented) print ".RE"
    declared = commented = 0
}

function begin_page(    i, summary, rest) {
    summary = comment[1]
    sub(/^[a-z]+: /, "", summary)
    rest = summary
    sub(/\. .*/, "", summary)
    sub(/\.$/, "", summary)
    print ".TH TSHARD\\-" toupper(name) " 3 \"\" \"tshard " version "\" \"tshard\"\n.SH NAME"
    print "tshard\\-" name " \\- " text(summary)
    print ".SH SYNOPSIS\n.nf\n.B #include <tshard/" name ".h>\n.fi\n.SH DESCRIPTION"
    comment[1] = rest
    print_comment(comment, commented)
    print ".SH FUNCTIONS AND TYPES"
    commented = 0
    begun = 1
}


/^#define TSH_[A-Z]/ && !/TSH_API|TSH_PRINTF|_\(/ { sub(/ *\\$/, ""); declaration[++declared] = $0; next }
/^#/ || /^extern "C"/ || /^}$/ { next }

/^\/\* --- / {
    flush_group()
    gsub(/^\/\* -* | -* \*\/$/, "")
    print ".SS " text($0)
    next
}
/^\/\*/ {
    if (begun) flush_group()
    inside = 1
}
inside {
    line = $0
    inside = line !~ /\*\/$/
    sub(/^\/\* ?| \* ?| \*$/, "", line)
    sub(/ *\*\/$/, "", line)
    if (inside || line != "") comment[++commented] = line
    if (!inside && !begun) begin_page()
    next
}
/^$/ { if (!braces) flush_group(); next }
{
    sub(/^TSH_API /, "")
    sub(/^ {15,}/, "        ") # an aligned second line of a prototype
    declaration[++declared] = $0
    braces += gsub(/{/, "{") - gsub(/}/, "}")
}
END {
    flush_group()
    print ".SH SEE ALSO\n.BR tshard (7)"
}
