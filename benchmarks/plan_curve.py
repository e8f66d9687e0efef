#!/usr/bin/env python3
"""Plans a program for several numbers of ranks, and draws the time of its step over them by gnuplot.

Example: benchmarks/plan_curve.py --machine machine.json --ranks 1,2,4,8,16 --plot step.svg -- build/bin/train_gpt --layers 24
"""
import argparse
import json
import os
import subprocess
import sys

from command_line import Parser, folder, run, whole

# As JSON and as the tables of tshard-plan name them.
PARTS = {"products": "matrix products", "attention": "attention", "kernels": "other kernels", "calls": "calls",
         "exposed": "communication"}


def ranks_list(text):
    return [whole(part) for part in text.split(",")]


def plan(tool, machine, ranks, program):
    """The plan's JSON object, or an end with the tool's own words."""
    command = [tool, "-n", str(ranks), "--json", "--machine", machine, *program]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"plan_curve.py: the plan for {ranks} ranks failed")
    return json.loads(done.stdout)


def script(path, rows):
    """Commands for gnuplot: a curve for the step and one for each part that takes any time."""
    series = {"step": [(n, p["step_seconds"]) for n, p in rows]}
    for part, title in PARTS.items():
        points = [(n, p["step_parts"][part]) for n, p in rows]
        if any(seconds > 0 for _, seconds in points):
            series[title] = points
    quoted = path.replace("\\", "\\\\").replace('"', '\\"')
    lines = ["set terminal svg size 900,540 dynamic background rgb 'white' font 'sans-serif,14'",
             "set border 3\nset tics nomirror out\nset grid linetype 1 linecolor rgb '#dddddd'",
             f'set output "{quoted}"', "set xlabel 'ranks'\nset ylabel 'ms a step'",
             "set logscale x 2\nset logscale y 10\nset format y '%g'\nset key outside noenhanced"]
    for i, points in enumerate(series.values()):
        lines += [f"$series{i} << end_of_series", *(f"{n} {1e3 * s:.9g}" for n, s in points if s > 0), "end_of_series"]
    curves = [f"$series{i} using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.5 title '{name}'"
              for i, name in enumerate(series)]
    return "\n".join([*lines, "plot " + ", ".join(curves), ""])


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=folder, default="build/bin", help="folder of tshard-plan (default: build/bin)")
    parser.add_argument("--machine", required=True, help="the machine file")
    parser.add_argument("--ranks", type=ranks_list, required=True, help="numbers of ranks, like 1,2,4,8")
    parser.add_argument("--plot", help="the SVG file to draw; without it only a table is printed")
    parser.add_argument("program", nargs="+", help="what to plan, with its arguments")
    options = parser.parse_args()
    rows = []
    for n in options.ranks:
        rows.append((n, plan(os.path.join(options.bin, "tshard-plan"), options.machine, n, options.program)))
        print(f"{n:8d} ranks  {1e3 * rows[-1][1]['step_seconds']:12.3f} ms", flush=True)
    if not options.plot:
        return 0
    try:
        return subprocess.run(["gnuplot"], input=script(options.plot, rows), text=True, check=False).returncode
    except FileNotFoundError:
        sys.exit("plan_curve.py: --plot needs gnuplot, which is not installed (Debian: apt-get install gnuplot-nox)")


if __name__ == "__main__":
    sys.exit(run(main))
