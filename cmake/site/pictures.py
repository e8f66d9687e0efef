#!/usr/bin/env python3
"""pictures.py FOLDER: draws the pictures of README.md, docs/layouts.md and docs/elastic.md. They have no background and follow the
reader's choice of light or dark; a rank has one colour in all of them. benchmarks/timeline.py draws timeline.svg from a trace."""
import os
import sys

STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #1c1e21; } .soft { fill: #5a6270; } .mono { font-family: ui-monospace, monospace; }
.line { stroke: #5a6270; stroke-width: 1.5; fill: none; } .tip { fill: #5a6270; } .cell { stroke: #fff; stroke-width: 1; }
.none { fill: none; stroke: #a9b0bb; stroke-dasharray: 3 3; } .box { fill: none; stroke: #5a6270; stroke-width: 1.5; }
.r0 { fill: #5b8def; } .r1 { fill: #e0913a; } .r2 { fill: #4fa96b; } .r3 { fill: #a277d4; } .all { fill: #a9b0bb; } .on { fill: #101214; }
@media (prefers-color-scheme: dark) {
text { fill: #e2e4e8; } .soft, .tip { fill: #a2a9b5; } .on { fill: #101214; } .line, .box { stroke: #a2a9b5; } .cell { stroke: #16181c; } .none { stroke: #5a6270; }
}
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 10 5 0 10z" class="tip"/></marker></defs>"""
CELL = 18


class Picture:
    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
                      f"<title>{title}</title>", STYLE]

    def text(self, x, y, words, kind="", anchor="middle"):
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{words}</text>')

    def cells(self, x, y, rows, columns, kind_of, cell=CELL):
        """A matrix whose cell (row, column) has the class kind_of(row, column)."""
        for row in range(rows):
            for column in range(columns):
                kind = kind_of(row, column)
                self.parts.append(f'<rect x="{x + column * cell}" y="{y + row * cell}" width="{cell}" height="{cell}" class="{kind}"/>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" class="line" marker-end="url(#tip)"/>')

    def curve(self, path):
        self.parts.append(f'<path d="{path}" class="line" marker-end="url(#tip)"/>')

    def frame(self, x, y, width, height):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="box"/>')

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts) + "\n</svg>\n")


def held(rank):
    return lambda row, column: f"cell r{rank}"


def layouts():
    """What two ranks hold of a 4 x 4 matrix."""
    picture = Picture(760, 250, "The four layouts of a matrix on two ranks")
    kinds = [("REPLICATED", lambda rank: lambda r, c: "cell all"),
             ("SHARD(0)", lambda rank: lambda r, c: f"cell r{rank}" if r // 2 == rank else "none"),
             ("SHARD(1)", lambda rank: lambda r, c: f"cell r{rank}" if c // 2 == rank else "none"),
             ("PARTIAL", lambda rank: held(rank)), ("LOCAL", lambda rank: held(rank))]
    notes = ["the same value", "two rows each", "two columns each", "terms of a sum", "a value each"]
    for at, ((name, kind), note) in enumerate(zip(kinds, notes)):
        x = 80 + at * 138
        picture.text(x + 2 * CELL, 20, name, "mono")
        picture.cells(x, 35, 4, 4, kind(0))
        picture.text(x + 2 * CELL, 131, {"PARTIAL": "+", "REPLICATED": "="}.get(name, ""))
        picture.cells(x, 140, 4, 4, kind(1))
        picture.text(x + 2 * CELL, 238, note, "soft")
    picture.text(35, 76, "rank 0")
    picture.text(35, 181, "rank 1")
    return picture


def mesh():
    """The ranks of data=2,model=2, and what each holds of a batch and of a weight."""
    picture = Picture(760, 240, "A mesh of two axes")
    picture.text(130, 20, "mesh data=2,model=2")
    for rank in range(4):
        x, y = 75 + rank % 2 * 75, 70 + rank // 2 * 65
        picture.parts.append(f'<rect x="{x}" y="{y}" width="55" height="45" rx="6" class="r{rank}"/>')
        picture.text(x + 27, y + 28, rank, "on")
    picture.arrow(75, 55, 205, 55)
    picture.text(140, 47, "model", "soft mono")
    picture.arrow(58, 70, 58, 180)
    picture.text(30, 130, "data", "soft mono")
    picture.text(388, 20, "batch")
    picture.text(375, 229, "data=SHARD(0) model=REPLICATED", "mono soft")
    for rank in range(4):
        x, y = 310 + rank % 2 * 85, 45 + rank // 2 * 90
        picture.cells(x, y, 4, 3, lambda r, c, rank=rank: f"cell r{rank}" if r // 2 == rank // 2 else "none")
        picture.text(x - 16, y + 40, rank, "soft")
    picture.text(644, 20, "weight")
    picture.text(634, 229, "data=REPLICATED model=SHARD(0)", "mono soft")
    for rank in range(4):
        x, y = 566 + rank % 2 * 85, 45 + rank // 2 * 90
        picture.cells(x, y, 4, 3, lambda r, c, rank=rank: f"cell r{rank}" if r // 2 == rank % 2 else "none")
        picture.text(x - 16, y + 40, rank, "soft")
    return picture


def pair():
    """A column layer and a row layer on two ranks."""
    picture = Picture(760, 235, "A column layer, then a row layer")
    halves = lambda r, c: f"cell r{c // 2}"
    stages = [(20, "x", "REPLICATED", 4, 3, lambda r, c: "cell all"), (135, "W1 transposed", "SHARD(0)", 3, 4, halves),
              (285, "h", "SHARD(1)", 4, 4, halves), (430, "W2 transposed", "SHARD(1)", 4, 3, lambda r, c: f"cell r{r // 2}"),
              (555, "terms", "PARTIAL", 4, 3, lambda r, c: "cell r0"), (690, "y", "REPLICATED", 4, 3, lambda r, c: "cell all")]
    for x, name, layout, rows, columns, kind in stages:
        middle = x + columns * CELL // 2
        picture.text(middle, 40, name)
        if name == "terms":
            picture.cells(x + 12, 62, rows, columns, lambda r, c: "cell r1")
        picture.cells(x, 50, rows, columns, kind)
        picture.text(middle, 158, layout, "mono soft")
    picture.text(104, 90, "x")
    picture.arrow(215, 86, 278, 86)
    picture.text(246, 78, "GELU", "soft")
    picture.text(390, 90, "x")
    picture.arrow(492, 86, 548, 86)
    picture.arrow(628, 86, 684, 86)
    picture.text(656, 78, "sum", "soft")
    picture.text(380, 200, "forward: column and row need no communication between them, and one all-reduce behind the row layer", "soft")
    picture.text(380, 222, "backward: one all-reduce, of the gradient of x", "soft")
    return picture


def transitions():
    """The four layouts, and the collectives between them."""
    picture = Picture(760, 330, "Transitions between layouts")
    places = {"REPLICATED": (110, 60), "SHARD(d)": (530, 60), "PARTIAL": (530, 230), "LOCAL": (110, 230)}
    for name, (x, y) in places.items():
        picture.frame(x, y, 130, 44)
        picture.text(x + 65, y + 27, name, "mono")
    picture.arrow(240, 72, 526, 72)
    picture.text(385, 64, "slice")
    picture.arrow(530, 92, 244, 92)
    picture.text(385, 110, "all-gather")
    picture.arrow(585, 104, 585, 226)
    picture.text(577, 160, "zero-pad", "", "end")
    picture.arrow(615, 230, 615, 108)
    picture.text(624, 180, "reduce-scatter", "", "start")
    picture.arrow(530, 240, 232, 108)
    picture.text(478, 207, "all-reduce", "", "start")
    picture.arrow(145, 104, 145, 226)
    picture.text(137, 170, "nothing", "", "end")
    picture.arrow(185, 230, 185, 108)
    picture.text(193, 215, "all-reduce", "", "start")
    picture.arrow(530, 262, 244, 262)
    picture.text(385, 280, "all-reduce")
    picture.arrow(536, 104, 236, 226)
    picture.text(430, 172, "all-gather", "", "start")
    picture.curve("M570 60 C570 15 620 15 620 56")
    picture.text(640, 32, "all-to-all", "", "start")
    picture.text(380, 316, "The gradient goes back by the conjugate transition.", "soft")
    return picture


def boxes():
    """SHARD(0) over three ranks becomes SHARD(1): each rank sends the boxes where its rows cross others' columns."""
    picture = Picture(760, 200, "An exchange of boxes")
    columns = [0, 0, 0, 1, 1, 2, 2]
    rows = [0, 0, 1, 1, 2]
    picture.text(110, 22, "SHARD(0): held", "mono")
    picture.cells(47, 45, 5, 7, lambda r, c: f"cell r{rows[r]}")
    picture.arrow(205, 90, 285, 90)
    picture.text(245, 80, "cross", "soft")
    picture.text(380, 22, "boxes")
    for row, at in ((0, 0), (2, 1), (4, 2)):
        for column, to in ((0, 0), (3, 1), (5, 2)):
            height, width = rows.count(at), columns.count(to)
            x, y = 305 + column * CELL + to * 8, 40 + row * CELL + at * 8
            picture.parts.append(f'<rect x="{x}" y="{y}" width="{width * CELL}" height="{height * CELL}" class="r{at}"/>')
            picture.text(x + width * CELL / 2, y + height * CELL / 2 + 5, f"to {to}" if at != to else "", "on")
    picture.arrow(475, 90, 555, 90)
    picture.text(515, 80, "exchange", "soft")
    picture.text(640, 22, "SHARD(1): wanted", "mono")
    picture.cells(577, 45, 5, 7, lambda r, c: f"cell r{columns[c]}")
    picture.text(380, 185, "Each rank knows all boxes from shapes and layouts alone, and sends just what another one wants.", "soft")
    return picture


def read_losses(name):
    """{run: {step: loss}} and [(run, step, ranks)] of a file of lines "RUN STEP LOSS" and "RUN STEP RANKS WORD"."""
    losses, events = {}, []
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), encoding="utf-8") as file:
        for fields in map(str.split, file):
            run, step = int(fields[0]), int(fields[1])
            if len(fields) == 3:
                losses.setdefault(run, {})[step] = float(fields[2])
            else:
                events.append((run, step, int(fields[2])))
    return losses, events


def one_rank(picture, losses, marks):
    """The axes, and the losses of one rank as a line. Returns where (step, loss) is."""
    low, high = min(losses.values()) - 0.1, max(losses.values()) + 0.1
    last = max(losses)
    place = lambda step, loss: (60 + 680 * step / last, 280 - 230 * (loss - low) / (high - low))
    for loss in range(int(low) + 1, int(high) + 1):
        x, y = place(0, loss)
        picture.text(x - 12, round(y + 5, 1), loss, "soft", "end")
        picture.parts.append(f'<path d="M{x} {y:.1f} h680" class="none"/>')
    picture.text(30, 40, "loss", "soft")
    for step in range(0, last + 1, marks):
        picture.text(round(place(step, 0)[0]), 302, step, "soft")
    picture.text(735, 322, "step", "soft", "end")
    line = " ".join("{:.1f} {:.1f}".format(*place(step, loss)) for step, loss in sorted(losses.items()))
    picture.parts.append(f'<path d="M{line}" class="line"/>')
    return place


def elastic():
    """The losses of runs whose ranks die and join lie on those of one rank (benchmarks/elastic_losses.sh)."""
    picture = Picture(760, 330, "Losses while ranks die and join")
    losses, events = read_losses("losses.txt")
    last = max(losses[1])
    place = one_rank(picture, losses[1], 20)
    for at, run in enumerate((2, 3, 5)):
        for step in range(2 * at, last + 1, 6):
            x, y = place(step, losses[run][step])
            picture.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="r{at}"/>')
        changes = [(step, now) for r, step, now in events if r == run]
        words = f"{run} ranks" + "".join(f", {now} from step {step}" for step, now in changes)
        picture.parts.append(f'<circle cx="335" cy="{35 + 22 * at}" r="4" class="r{at}"/>')
        picture.text(348, 40 + 22 * at, words, "", "start")
        for step, _ in changes:
            x, y = place(step, losses[run][step])
            picture.parts.append(f'<path d="M{x:.1f} 284 V{y:.1f}" class="none"/>')
            picture.parts.append(f'<rect x="{x - 4:.1f}" y="280" width="8" height="8" class="r{at}"/>')
    picture.parts.append('<path d="M326 101 h18" class="line"/>')
    picture.text(348, 106, "one rank", "", "start")
    return picture


def ranks():
    """The losses of two and three ranks lie on those of one (benchmarks/rank_losses.sh)."""
    picture = Picture(760, 330, "Losses on one, two and three ranks")
    losses, _ = read_losses("rank_losses.txt")
    place = one_rank(picture, losses[1], 50)
    for at, run in enumerate((2, 3)):
        for step in range(5 + 5 * at, max(losses[1]) + 1, 10):
            x, y = place(step, losses[run][step])
            picture.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="r{at}"/>')
        picture.parts.append(f'<circle cx="535" cy="{35 + 22 * at}" r="4" class="r{at}"/>')
        picture.text(548, 40 + 22 * at, f"{run} ranks", "", "start")
    picture.parts.append('<path d="M526 79 h18" class="line"/>')
    picture.text(548, 84, "one rank", "", "start")
    return picture


for draw in (layouts, mesh, pair, transitions, boxes, elastic, ranks):
    draw().save(os.path.join(sys.argv[1], draw.__name__ + ".svg"))
