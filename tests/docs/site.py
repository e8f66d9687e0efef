#!/usr/bin/env python3
"""site.py SOURCES SITE [BROWSER]: README.md and docs/ lead somewhere as plain files, and so does each page of the site
that is built of them; a browser shows its pages without a network. Prints what is wrong, and ends with 1 then."""
import html.parser
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
faults = []


def fault(where, what):
    faults.append(f"{where}: {what}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def slug(heading):
    """The anchor that GitHub and mkdocs give a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())


def check_external(where, link):
    parts = urllib.parse.urlsplit(link)
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[\w.-]+\.[a-z]{2,}", parts.netloc):
        fault(where, f"{link} is no address")


# --- plain files -------------------------------------------------------------------------------------------------------

def anchors(path):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", read(path)), re.M)}


def check_page(path):
    for link in LINK.findall(FENCED.sub("", read(path))):
        if re.match(r"[a-z]+:", link):
            check_external(path, link)
            continue
        target, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(target):
            fault(path, f"there is no {link}")
        elif anchor and anchor not in anchors(target):
            fault(path, f"{link}: {target} has no such heading")


def check_names(sources, page):
    """Public names are in a header, but for old ones in renamed.md."""
    folder = os.path.join(sources, "include/tshard")
    headers = "".join(read(os.path.join(folder, name)) for name in os.listdir(folder)) if os.path.isdir(folder) else ""
    known = set(re.findall(r"\b(?:tsh|TSH)_\w+", headers))
    for name in sorted(set(re.findall(r"\b(?:tsh_[a-z]|TSH_[A-Z])\w*[a-zA-Z0-9]\b", read(page))) - known):
        if os.path.basename(page) != "renamed.md":
            fault(page, f"{name} is in no header")


def pages_of(sources):
    docs = os.path.join(sources, "docs")
    return [os.path.join(top, name) for top, _, names in os.walk(docs) for name in names if name.endswith(".md")]


def check_navigation(sources):
    navigation = re.findall(r"([\w/-]+\.md)", read(os.path.join(sources, "mkdocs.yml")).partition("\nnav:")[2])
    index = read(os.path.join(sources, "docs/README.md"))
    for page in pages_of(sources):
        name = os.path.relpath(page, os.path.join(sources, "docs"))
        if navigation.count(name) != 1:
            fault("mkdocs.yml", f"{name} is {navigation.count(name)} times in the navigation")
        if name != "README.md" and f"]({name})" not in index:
            fault("docs/README.md", f"{name} is not in the list of pages")


def check_excerpt(sources):
    """The C code of README.md stands in examples/mlp.c."""
    program = os.path.join(sources, "examples/mlp.c")
    lines = [line.strip() for line in read(program).splitlines()] if os.path.isfile(program) else []
    for code in re.findall(r"^```c\n(.*?)^```$", read(os.path.join(sources, "README.md")), re.M | re.S):
        for line in code.splitlines():
            if line and line.strip() not in lines:
                fault("README.md", f"examples/mlp.c has no line '{line.strip()}'")


# --- the site ----------------------------------------------------------------------------------------------------------

class Page(html.parser.HTMLParser):
    """The anchors and links of a page, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads = {"", "top"}, [], []
        self.feed(read(path))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif tag in ("a", "area") and name == "href":
                self.links.append(value)
            elif (tag, name) in (("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("object", "data")):
                self.loads.append(value)


def check_site(site):
    pages = {os.path.join(top, name): None for top, _, names in os.walk(site) for name in names if name.endswith(".html")}
    for path in pages:
        pages[path] = Page(path)
    for path, page in pages.items():
        for link in page.loads + page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme == "javascript":
                continue
            if parts.scheme or parts.netloc:
                check_external(path, link)
                if link in page.loads:
                    fault(path, f"{link} is loaded from a network")
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path)))
            target = target if parts.path else path
            if not os.path.isfile(target):
                fault(path, f"there is no {link}")
            elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                fault(path, f"{link}: no such anchor")
    return pages


# --- a browser ---------------------------------------------------------------------------------------------------------

def browse(browser, address):
    """The page as the browser has it once its scripts have run. A message of theirs is a fault."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([browser, "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={folder}",
                              "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000", "--dump-dom", address],
                             capture_output=True, text=True, timeout=120, check=False)
    for line in run.stderr.splitlines():
        if ":CONSOLE" in line:
            fault(address, line)
    return run.stdout


def found(dom):
    """The pages that the search field has found."""
    return re.findall(r'<li><a href="([^"]*)"', dom.partition('<ul id="found"')[2].partition("</ul>")[0])


def check_browser(browser, sources, site):
    base = "file://" + os.path.abspath(site)
    names = [os.path.relpath(page, os.path.join(sources, "docs")) for page in pages_of(sources)]
    chosen = ["README.md", "layouts.md", "environment.md"]
    for name in chosen:
        dom = browse(browser, f"{base}/{name.replace('README', 'index')[:-3]}.html")
        title = re.search(r"^# (.*)$", read(os.path.join(sources, "docs", name)), re.M)[1]
        if f">{title}<" not in re.search(r"<h1.*?</h1>", dom, re.S)[0]:
            fault(name, "the page lacks its title")
        listed = dom.partition('<details id="pages"')[2].partition("</details>")[0].count("<li>")
        if listed < len(names):
            fault(name, f"the navigation has {listed} entries for {len(names)} pages")
    if not any(link.endswith("environment.html") for link in found(browse(browser, f"{base}/layouts.html?search=TSHARD_TIMEOUT"))):
        fault("search", "TSHARD_TIMEOUT does not lead to the page on the environment")
    if "layers_8h.html#" not in found(browse(browser, f"{base}/index.html?search=tsh_linear_create"))[0]:
        fault("search", "tsh_linear_create does not lead to its function")
    if 'class="name" href="./reference/layers_8h.html#' not in browse(browser, f"{base}/layers.html"):
        fault("layers.html", "no function is a link to the reference")
    if found(browse(browser, f"{base}/index.html?search=nothingofthekind")):
        fault("search", "a word that no page has is found")
    if "tsh_linear_forward" not in browse(browser, f"{base}/reference/layers_8h.html"):
        fault("reference", "tsh_linear_forward is not in the page of layers.h")


def main():
    sources, site = sys.argv[1:3]
    for page in pages_of(sources) + [os.path.join(sources, "README.md")]:
        check_page(page)
        check_names(sources, page)
    check_navigation(sources)
    if read(os.path.join(sources, "README.md")).count("\n") > 110:
        fault("README.md", "it is longer than 110 lines")
    check_excerpt(sources)
    pages = check_site(site)
    if len(sys.argv) > 3:
        check_browser(sys.argv[3], sources, site)
    print("\n".join(faults) or f"{len(pages)} pages, and every link leads somewhere")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
