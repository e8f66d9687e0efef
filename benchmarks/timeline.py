#!/usr/bin/env python3
"""Draws a step of a trace as an SVG: a row for what each rank computes and one for its communication. The picture has no
background and follows the reader's choice of light or dark.

    TSHARD_TRACE=/tmp/trace tshard-run -n 2 train_gpt --steps 20
    tshard-trace /tmp/trace --steps 18-18 --out trace.json
    benchmarks/timeline.py trace.json > docs/pictures/timeline.svg
"""
import json
import sys

WIDTH, LEFT, ROW, GAP = 960, 150, 26, 10
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1c1e21; } path { stroke: #5a6270; }
.product { fill: #5b8def; } .attention { fill: #4fa96b; } .kernel { fill: #a9b0bb; } .communication { fill: #e0913a; }
@media (prefers-color-scheme: dark) { text { fill: #e2e4e8; } path { stroke: #a2a9b5; } .kernel { fill: #6b7482; } }
</style>"""
LABELS = {"product": "matrix products", "attention": "attention", "kernel": "other kernels",
          "communication": "communication"}


def kind_of(event):
    return "attention" if event["name"].startswith("attention") else event["cat"]


def rect(x, y, width, height, kind, title):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" class="{kind}">'
            f"<title>{title}</title></rect>")


def joined(events, gap):
    """Events of one rank and kind that lie closer than `gap` microseconds are one rectangle: a step has thousands."""
    last = {}
    for e in sorted(events, key=lambda e: e["ts"]):
        kind = kind_of(e)
        key, end = (e["pid"], kind), e["ts"] + e["dur"]
        before = last.get(key)
        if before and e["ts"] - before["end"] < gap:
            before["end"] = max(before["end"], end)
            before["names"].add(e["name"])
            continue
        if before:
            yield before
        last[key] = {"pid": e["pid"], "kind": kind, "begin": e["ts"], "end": end, "names": {e["name"]}}
    yield from last.values()


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def draw(events):
    shown = [e for e in events if e["ph"] == "X" and e["cat"] in ("product", "kernel", "communication")]
    if not shown:
        sys.exit("timeline.py: the trace has no kernels; a trace.json that tshard-trace --out has written is expected")
    begin = min(e["ts"] for e in shown)
    end = max(e["ts"] + e["dur"] for e in shown)
    scale = (WIDTH - LEFT - 20) / (end - begin)
    ranks = sorted({e["pid"] for e in shown})
    height = 40 + len(ranks) * (2 * ROW + GAP) + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           f'role="img">', "<title>A step, rank by rank</title>", STYLE]
    x = LEFT
    for kind, label in LABELS.items():
        out += [rect(x, 12, 12, 12, kind, label), text(x + 17, 23, label)]
        x += 40 + 8 * len(label)
    # Products lie within kernels of attention, and are drawn over them.
    for e in sorted(joined(shown, 0.3 / scale), key=lambda e: list(LABELS).index(e["kind"]), reverse=True):
        row = 2 * ranks.index(e["pid"]) + (e["kind"] == "communication")
        y = 40 + row * ROW + ranks.index(e["pid"]) * GAP
        out.append(rect(LEFT + (e["begin"] - begin) * scale, y, (e["end"] - e["begin"]) * scale, ROW - 4, e["kind"],
                        f"{', '.join(sorted(e['names'])[:3])}, {e['end'] - e['begin']:.0f} us"))
    for i, rank in enumerate(ranks):
        y = 40 + i * (2 * ROW + GAP)
        out += [text(LEFT - 10, y + 16, f"rank {rank} computes", "end"),
                text(LEFT - 10, y + ROW + 16, "communicates", "end")]
    y = 40 + len(ranks) * (2 * ROW + GAP)
    out.append(f'<path d="M{LEFT} {y} H{WIDTH - 20}"/>')
    step = 10 ** (len(str(int((end - begin) / 1000))) - 1) * 1000  # of the marks, in microseconds
    step = step if (end - begin) / step >= 4 else step / 5
    for i in range(int((end - begin) / step) + 1):
        at = LEFT + i * step * scale
        out += [f'<path d="M{at:.1f} {y} v5"/>', text(at, y + 20, f"{i * step / 1000:g}", "middle")]
    out.append(text(WIDTH - 20, y + 38, "ms", "end"))
    return "\n".join(out + ["</svg>\n"])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        trace = json.load(file)
    sys.stdout.write(draw(trace["traceEvents"] if isinstance(trace, dict) else trace))
