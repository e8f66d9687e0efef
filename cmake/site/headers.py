#!/usr/bin/env python3
"""headers.py HEADER: prints a public header for Doxygen, with its plain comments as Doxygen's, on the same lines. A
comment that begins a line is that of what follows, up to the next empty line; one that ends a line is that of all
which the line declares. The first sentence is the brief. <pre> keeps formulas, tables and indentation. A member of a
struct without a comment of its own has the sentence that names it of the comment above or of the struct's."""
import re
import sys

FIELD = re.compile(r"^(\s+(?:const )?\w+ (?:\*?const \*)?)(\*?\w+(?:\[[^]]*\])*(?:, \*?\w+(?:\[[^]]*\])*)*);$")
DECLARED = re.compile(r"^(TSH_API|typedef)")
RELEASE = re.compile(r"^TSH_API .*_(destroy|release)\(")


def escaped(text):
    """A line without what Doxygen reads as commands, tags, lists or addresses; pages of the site are links."""
    text = re.sub(r"([\\@#&<>%])", r"\\\1", text).replace("://", ":<span></span>//")
    text = re.sub(r"\bdocs/([\w-]+)\.md", r'<a href="../\1.html">docs/\1.md</a>', text)
    return re.sub(r"^(\s*)([-+])", r"\1\\\2", text)


def sentences(lines):
    """Sentences of a comment; an indented line, such as a row of a table, is one."""
    paragraphs, text = [], ""
    for line in lines:
        if re.match(r"\s", line) or not line:
            paragraphs += [text, line.strip()]
            text = ""
        else:
            text += " " + line
    return [part.strip() for paragraph in paragraphs + [text] for part in re.split(r"(?<=[.:;])\s+(?!\(?\d)", paragraph) if part.strip()]


def brief_of(lines):
    """The first sentence, with what follows a colon or a semicolon where it would be no sentence alone."""
    found = sentences(lines)
    if not found:
        return ""
    brief = found[0]
    for more in found[1:]:
        if not brief.endswith((":", ";")) or len(brief) > 120:
            break
        brief += " " + more
    return escaped(brief.rstrip(":; "))


def comment(lines, opening, closing=""):
    """The lines of a comment as Doxygen reads them."""
    body = [escaped(line) for line in lines]
    body[0] = f"{opening} @brief {brief_of(lines)} @details <pre>{body[0]}"
    body[-1] += f"</pre>{closing} */"
    return body


def stripped(lines):
    return [re.sub(r"^[ \t]*\*? ?", "", line) for line in lines]


class Header:
    def __init__(self, text):
        self.lines, self.out = text.split("\n"), []
        self.leading = None  # the comment that the next declarations have, if any
        self.fresh = False   # it stands directly above
        self.members = None  # within a struct: its comment's sentences

    def read_comment(self, at, start):
        """The comment that begins in line `at`, without its marks, and the number of its lines."""
        lines = [self.lines[at][start + 2:]]
        while "*/" not in lines[-1]:
            lines.append(self.lines[at + len(lines)])
        lines[-1] = lines[-1].partition("*/")[0].rstrip()
        return stripped(lines), len(lines)

    def put(self, text, lines, opening, closing=""):
        """The line `text` and the comment that ends it, as many lines as the comment has."""
        made = comment(lines, opening, closing)
        self.out += [text + made[0]] + made[1:]

    def split(self, code, lines):
        """A comment behind fields, once for each of them."""
        match = FIELD.match(code.rstrip())
        names = match[2].split(", ") if match else []
        if len(names) < 2:
            return self.put(code, lines, "/**<")
        one = " ".join(comment([" ".join(lines).strip()], "/**<"))
        self.out.append(" ".join(f"{match[1]}{name}; {one}" for name in names))
        self.out += [""] * (len(lines) - 1)

    def sentence(self, name, kind):
        """What is said of a member without a comment of its own."""
        said = next((text for text in sentences(self.leading or []) + self.members if re.search(rf"\b{name}\b", text)), None)
        return said or (f"See {kind}." if kind.startswith("tsh_") else None)

    def member(self, line):
        """A line of a struct without a comment, with what other places say of its members, or None."""
        function = re.match(r"\s+[\w* ]+\(\*(\w+)\)\(.*;$", line)
        match = FIELD.match(line)
        if not match:
            said = self.sentence(function[1], "") if function else None
            return f"{line} /**< @brief {escaped(said)} */" if said else None
        names = match[2].split(", ")
        said = [self.sentence(re.match(r"\*?(\w+)", name)[1], match[1].split()[0]) for name in names]
        if self.fresh:
            said = [None] + [" ".join(self.leading)] * (len(names) - 1)
        return " ".join(f"{match[1]}{name};" + (f" /**< @brief {escaped(text)} */" if text else "") for name, text in zip(names, said))

    def plain(self, line):
        """A line without a comment."""
        if not line.strip():
            self.leading, self.fresh = None, False
        if self.members is not None:
            line = self.member(line) or line
        elif line.startswith("#define TSH_") and not line.endswith("\\") and self.leading and not self.fresh:
            line += " " + " ".join(comment([" ".join(self.leading)], "/**<"))
        elif DECLARED.match(line) and not self.fresh:
            if RELEASE.match(line):
                line = "/** @brief Releases what was created; NULL is accepted. */ " + line
            elif self.leading:
                line = " ".join(comment([" ".join(self.leading)], "/**")) + " " + line
        self.fresh = False
        self.out.append(line)

    def convert(self):
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            start = line.find("/*")
            if start < 0 or re.match(r"\s*/\*\s*---", line):
                if line.startswith("}"):
                    self.members = None
                self.plain(line)
                if re.match(r"typedef struct \w+ \{$", line):
                    self.members = sentences(self.leading or [])
                at += 1
                continue
            lines, count = self.read_comment(at, start)
            if line[:start].strip():
                self.fresh = False
                self.split(line[:start], lines)
            else:
                self.put(line[:start], lines, "/**", " @file" if at == 0 else "")
                self.leading, self.fresh = lines, True
            at += count
        return "\n".join(self.out)


with open(sys.argv[1], encoding="utf-8") as header:
    print(Header(header.read()).convert(), end="")
