"""mkdocs calls these while it builds the site. Links from docs/ to what lies outside it become links within the site:
README.md and sources have pages there, headers have theirs in the reference. Links that are named as a file have its
title. The texts of all pages go into a script for search.js, because a page that is opened from a file may read no
other file."""
import html
import json
import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
NAMED = re.compile(r"\[([\w./-]+\.md)\]\(([\w./#-]+)\)")
FENCED = re.compile(r"^(```.*?^```$)", re.M | re.S)
LANGUAGES = {".c": "c", ".h": "c", ".py": "python", ".sh": "sh"}
texts = []


class Reference(File):
    """A page that Doxygen makes once mkdocs is done: links to it are right, and there is nothing to copy yet."""

    def copy_file(self, dirty=False):
        pass


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def path_of(page):
    """The path of a page's source in the repository."""
    return page[len("source/"):].removesuffix(".md") if page.startswith("source/") else "docs/" + page


def page_of(path):
    """Where the site has a file of the repository, from the site's root."""
    if path.startswith("docs/"):
        return path[len("docs/"):]
    if path.startswith("include/"):
        name = posixpath.basename(path)
        return f"reference/{name[:-2].replace('_', '__')}_8h.html" if name.endswith(".h") else "reference/files.html"
    return f"source/{path}.md"


def target(path, link):
    """The path in the repository that a link in the file `path` leads to."""
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return "docs/README.md" if resolved == "docs" else resolved


def sources(folder):
    """The source files below a folder, and the folder itself."""
    names = [posixpath.join(top, name) for top, _, found in os.walk(os.path.join(ROOT, folder)) for name in found]
    return [folder] + sorted(os.path.relpath(name, ROOT) for name in names if os.path.splitext(name)[1] in LANGUAGES)


def text_of(path):
    """The Markdown of the page that shows a file, or lists a folder."""
    if path == "README.md":
        return read(path)
    if os.path.isdir(os.path.join(ROOT, path)):
        depth = path.count("/")
        names = sources(path)[1:]
        return f"# {path}\n\n" + "".join(f"- [{name}]({posixpath.relpath(name, posixpath.dirname(path) or '.')})\n" for name in names)
    return f"# {path}\n\n````{LANGUAGES.get(os.path.splitext(path)[1], 'text')}\n{read(path)}\n````\n"


def on_files(files, config):
    linked = {"README.md"}
    for page in ["docs/" + file.src_path for file in files.documentation_pages()] + ["README.md"]:
        linked.update(target(page, link) for _, link, _ in LINK.findall(read(page)))
    for page in {page_of(path) for path in linked if path.startswith("include/")}:
        files.append(Reference(page, config["docs_dir"], config["site_dir"], config["use_directory_urls"]))
    outside = [path for path in linked if not path.startswith(("docs/", "include/"))]
    for path in sorted({name for path in outside for name in sources(path)}):
        files.append(File(page_of(path), config["docs_dir"], config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_read_source(page, config):
    path = page.file.src_path
    return text_of(path_of(path)) if path.startswith("source/") else None


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_path

    def titled(match):
        """[running.md](running.md) becomes [Running](running.md): the site's pages have titles where files have names."""
        path = target(path_of(here), match[2].partition("#")[0])
        title = re.search(r"^# (.*)$", read(path), re.M) if path.startswith("docs/") else None
        return f"[{title[1]}]({match[2]})" if title else match[0]

    def within(match):
        where = page_of(target(path_of(here), match[2]))
        return match[1] + posixpath.relpath(where, posixpath.dirname(here) or ".") + match[3]
    if here.startswith("source/") and here != page_of("README.md") and not os.path.isdir(os.path.join(ROOT, path_of(here))):
        return markdown
    parts = FENCED.split(markdown)
    parts[::2] = [LINK.sub(within, NAMED.sub(titled, part)) for part in parts[::2]]
    return "".join(parts)


def on_page_content(content, page, config, files):
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", content)))
    texts.append({"title": page.title, "url": page.file.url, "text": text})


def on_post_build(config):
    with open(os.path.join(config["site_dir"], "texts.js"), "w", encoding="utf-8") as file:
        file.write("var texts = " + json.dumps(texts, ensure_ascii=False, separators=(",", ":")) + ";\n")
