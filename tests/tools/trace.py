#!/usr/bin/env python3
"""trace.py TOOL FOLDER RANKS SLOW: the JSON, the table and the page that tshard-trace makes of a trace are whole, and name
the slow rank. With --browser a headless browser shows the page, and nothing else is looked at; without one: exit code 77."""
import collections
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile

tool, folder, ranks, slow = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def check(condition, what):
    if not condition:
        sys.exit(f"trace.py: {what}")


def check_events(events):
    kinds = collections.Counter(e["ph"] for e in events)
    check(set(kinds) == {"M", "X", "C", "s", "f"}, f"phases {kinds}")
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    check(processes == {r: f"rank {r}" for r in range(ranks)}, f"processes {processes}")
    for e in events:
        if e["ph"] == "X":
            check(e["dur"] >= 0 and e["ts"] >= 0 and (e["pid"], e["tid"]) in named, f"event {e}")
    for r in range(ranks):
        names = {e["name"] for e in events if e["ph"] == "X" and e["pid"] == r}
        wanted = {"linear_forward", "linear_forward backward", "backward", "optimizer step", "all_reduce", "product",
                  "wait for all_reduce", 'own "work" <1>\n', "tape reset"}
        check(wanted <= names, f"rank {r} lacks {wanted - names}: {sorted(names)}")
        check(any(e["ph"] == "C" and e["pid"] == r and e["args"]["bytes in use"] > 0 for e in events), f"memory of rank {r}")
    return named


def check_nesting(events):
    """Events of a thread lie inside of each other, or apart."""
    for thread in {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}:
        inside = sorted(((e["ts"], -e["dur"]) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == thread))
        open_until = []
        for begin, minus in inside:
            while open_until and open_until[-1] <= begin + 0.002:
                open_until.pop()
            check(not open_until or begin - minus <= open_until[-1] + 0.002, f"thread {thread}: events cross at {begin}")
            open_until.append(begin - minus)


def check_arrows(events):
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    check(begins.keys() == ends.keys() and len(begins) == sum(e["ph"] == "s" for e in events), "arrows do not pair up")
    for number, e in begins.items():
        check(e["pid"] != ends[number]["pid"] and e["ts"] <= ends[number]["ts"], f"arrow {number}")
    sends = [e for e in events if e["ph"] == "X" and e["name"] == "send"]
    receives = [e for e in events if e["ph"] == "X" and e["name"] == "recv"]
    check(len(sends) == len(receives) > 0, "messages")
    arrows = {(e["pid"], e["ts"]) for e in begins.values()}
    check(all((e["pid"], e["ts"]) in arrows for e in sends), "a send without an arrow")


def check_table():
    table = json.loads(subprocess.run([tool, folder, "--json"], check=True, capture_output=True).stdout)
    check(table["worst"]["rank"] == slow, f"the worst rank is {table['worst']}")
    check(table["worst"]["takes_longer_for"] == "its own work between the calls", f"{table['worst']}")
    check(len(table["ms"]) == ranks, "rows of ranks")
    for row in table["ms"]:
        parts = sum(row[p] for p in ("products", "attention", "kernels", "moving", "waiting", "rest"))
        check(abs(parts - row["step"]) < 0.01 * row["step"], f"parts of {row}")
        check(abs(sum(row["waits_for"]) - row["waiting"]) < 0.01 * row["step"], f"waits of {row}")
        most = max(range(ranks), key=lambda r: row["waits_for"][r])
        check(row["rank"] == slow or most == slow, f"rank {row['rank']} waits for {most}")


def check_page(path):
    page = open(path, encoding="utf-8").read()
    check("http://" not in page and "https://" not in page, "the page needs other files")


def check_shown_page(path):
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as profile:
        dom = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom",
                              "file://" + path], capture_output=True, timeout=100, check=True).stdout.decode()
    dom = html.unescape(dom.split("<script>")[0])
    for wanted in [f"Rank {slow} is the one that the others wait for", "linear_forward backward", "redistribute",
                   "all_reduce (model)"] + [f"<td class=\"left\">rank {r}</td>" for r in range(ranks)]:
        check(wanted in dom, f"the page lacks {wanted}")


with tempfile.TemporaryDirectory() as made:
    out, page = os.path.join(made, "trace.json"), os.path.join(made, "trace.html")
    subprocess.run([tool, folder, "--out", out, "--html", page], check=True)
    if sys.argv[5:] == ["--browser"]:
        check_shown_page(page)
        sys.exit(0)
    found = json.load(open(out, encoding="utf-8"))["traceEvents"]
    check_events(found)
    check_nesting(found)
    check_arrows(found)
    check_table()
    check_page(page)
