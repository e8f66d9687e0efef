#!/usr/bin/env python3
"""crosslink.py SITE: public names in the site's pages become links to the reference, which Doxygen has made beside them,
and the search finds these names, too."""
import glob
import html
import json
import os
import re
import sys

MEMBER = re.compile(r'memtitle"><span class="permalink"><a href="#(\w+)">.*?</span>((?:tsh|TSH)_\w+)')
BRIEF = re.compile(r'class="memdesc:(\w+)">.*?mdescRight">(.*?)<a href="[^"]*">More', re.S)
CODE = re.compile(r"<code>((?:tsh|TSH)_\w+)((?:\([^<]*\))?)</code>")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def plain(text):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", text))).strip()


def names_of(site):
    """Each public name with its address in the site and its brief."""
    names = {}
    for path in sorted(glob.glob(os.path.join(site, "reference", "*_8h.html"))):
        text, page = read(path), "reference/" + os.path.basename(path)
        briefs = dict(BRIEF.findall(text))
        for anchor, name in MEMBER.findall(text):
            names.setdefault(name, (f"{page}#{anchor}", plain(briefs.get(anchor, ""))))
    for path in sorted(glob.glob(os.path.join(site, "reference", "structtsh__*.html"))):
        text = read(path)
        title, brief = re.search(r'<div class="title">(\w+) Struct', text), re.search(r'<p>(.*?)\s*<a href="#details">', text, re.S)
        if title:
            names[title[1]] = ("reference/" + os.path.basename(path), plain(brief[1]) if brief else "")
    return names


def link(site, path, names):
    to_root = os.path.relpath(site, os.path.dirname(path))

    def linked(match):
        address = names.get(match[1])
        return f'<a class="name" href="{to_root}/{address[0]}">{match[0]}</a>' if address else match[0]
    parts = re.split(r"(<a\b.*?</a>|<h1.*?</h1>|<h2.*?</h2>|<h3.*?</h3>)", read(path), flags=re.S)
    parts[::2] = [CODE.sub(linked, part) for part in parts[::2]]
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(parts))


def main():
    site = sys.argv[1]
    names = names_of(site)
    if not names:
        sys.exit("crosslink.py: the reference has no names that this reads")
    for path in glob.glob(os.path.join(site, "*.html")) + [os.path.join(site, "source", "README.md.html")]:
        link(site, path, names)
    entries = [{"title": name, "url": url, "text": brief, "name": True} for name, (url, brief) in sorted(names.items())]
    with open(os.path.join(site, "texts.js"), "a", encoding="utf-8") as file:
        file.write("texts = texts.concat(" + json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + ");\n")


if __name__ == "__main__":
    main()
