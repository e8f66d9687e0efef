"""What the scripts here share: numbers of a command line, programs that print JSON, and an end that says what went wrong."""
import argparse
import json
import math
import os
import re
import subprocess
import sys


def whole(text):
    """A whole number from 1 to a million."""
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= 1000000:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 1000000 is wanted, not '{text}'")
    return int(text)


def seconds(text):
    """More than 0."""
    if not re.fullmatch(r"[0-9.]+([eE][-+]?[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"seconds are wanted, not '{text}'")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"more than 0 and at most 1000000 seconds are wanted, not '{text}'")
    return value


def size(text):
    """Bytes, like 4, 16K, 64M, 1G."""
    match = re.fullmatch("([0-9]{1,12})([KMG]?)", text.upper())
    value = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
    if not 1 <= value <= 1 << 50:
        raise argparse.ArgumentTypeError(f"bytes, like 4, 16K or 64M, are wanted, not '{text}'")
    return value


def folder(text):
    """Of a build."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no folder")
    return text


class Parser(argparse.ArgumentParser):
    """One that does not hide that its help cannot be written."""

    def _print_message(self, message, file=None):
        if message:
            (file or sys.stderr).write(message)


def last_row(command, environment, optional=False):
    """The last JSON line that the command prints. Without one the script ends with words, or prints them, for None."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode == 0 and rows:
        return rows[-1]
    words = f"{' '.join(command)}: exit code {done.returncode}, {len(rows)} results"
    if not optional:
        sys.exit(words)
    print(words, flush=True)
    return None


def outcome(main):
    """The exit code of main(), also where it ends by sys.exit."""
    try:
        return main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code


def run(main):
    """The exit code of main(); 1, with words, when its output cannot be written or a program cannot be run."""
    if sys.stdout is None or sys.stderr is None:
        print(f"{os.path.basename(sys.argv[0])}: stdout or stderr is closed", file=sys.stderr)
        return 1
    try:
        code = outcome(main)
        sys.stdout.flush()
    except OSError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter would try once more, and say more
        code = 1
    return code
