#!/usr/bin/env python3
"""Draws a step of a trace as an SVG: a row for what each rank computes and one for its communication.

    TSHARD_TRACE=/tmp/trace tshard-run -n 2 train_gpt --steps 20
    tshard-trace /tmp/trace --steps 18-18 --out trace.json
    benchmarks/timeline.py trace.json > timeline.svg
"""
import json
import sys

WIDTH, LEFT, ROW, GAP = 960, 150, 26, 10
COLOURS = {"product": "#3b6fb6", "attention": "#6aa84f", "kernel": "#b9c7d9", "communication": "#d9822b"}
LABELS = {"product": "matrix products", "attention": "attention", "kernel": "other kernels",
          "communication": "communication"}


def kind_of(event):
    return "attention" if event["name"].startswith("attention") else event["cat"]


def rect(x, y, width, height, kind, title):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{COLOURS[kind]}">'
            f"<title>{title}</title></rect>")


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
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           f'font-size="13"><rect width="{WIDTH}" height="{height}" fill="white"/>']
    x = LEFT
    for kind, label in LABELS.items():
        out += [rect(x, 12, 12, 12, kind, label), text(x + 17, 23, label)]
        x += 40 + 8 * len(label)
    # Products lie within kernels of attention, and are drawn over them.
    for e in sorted(shown, key=lambda e: e["cat"] == "product"):
        row = 2 * ranks.index(e["pid"]) + (e["cat"] == "communication")
        y = 40 + row * ROW + ranks.index(e["pid"]) * GAP
        out.append(rect(LEFT + (e["ts"] - begin) * scale, y, e["dur"] * scale, ROW - 4, kind_of(e),
                        f"{e['name']}, {e['dur']:.0f} us"))
    for i, rank in enumerate(ranks):
        y = 40 + i * (2 * ROW + GAP)
        out += [text(LEFT - 10, y + 16, f"rank {rank} computes", "end"),
                text(LEFT - 10, y + ROW + 16, "communicates", "end")]
    y = 40 + len(ranks) * (2 * ROW + GAP)
    out.append(f'<path d="M{LEFT} {y} H{WIDTH - 20}" stroke="black"/>')
    step = 10 ** (len(str(int((end - begin) / 1000))) - 1) * 1000  # of the marks, in microseconds
    step = step if (end - begin) / step >= 4 else step / 5
    for i in range(int((end - begin) / step) + 1):
        at = LEFT + i * step * scale
        out += [f'<path d="M{at:.1f} {y} v5" stroke="black"/>', text(at, y + 20, f"{i * step / 1000:g}", "middle")]
    out.append(text(WIDTH - 20, y + 38, "ms", "end"))
    return "\n".join(out + ["</svg>\n"])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        trace = json.load(file)
    sys.stdout.write(draw(trace["traceEvents"] if isinstance(trace, dict) else trace))
