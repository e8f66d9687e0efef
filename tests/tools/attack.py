#!/usr/bin/env python3
"""Hostile command lines for every program, and hostile hours for tshard-run.

    attack.py BUILD [--seconds S] [--seed N] [--only I]

Each attempt is a random command line, with its output in a file, in a pipe without a reader, on a full disk or nowhere;
of tshard-run also a job whose processes get random signals. Each must end soon and by an exit code (unless it was
killed here), say why when the code is not 0, and leave no process behind. What fails is printed so that a shell can
repeat it; --only I makes attempt I of a seed alone.
"""
import argparse
import ctypes
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE = 60  # seconds for an attempt: busy machines are slow, and what hangs does so for good
NUMBERS = ["0", "1", "2", "3", "-1", "+1", " 1", "1 ", "01", "1x", "x", "", " ", "4294967297", "4294967298",
           "9223372036854775808", "18446744073709551617", "99999999999999999999999", "0x1", "1e0", "1e-3", "0.5", ".5",
           ".", "nan", "inf", "-inf", "1e999", "1,1", "1K", "1KK", "K", "1 K", "4X", "\u0663", "1\n", "--", "1;2"]
PATHS = ["", "/", "/tmp", ".", "/nowhere/at/all", "/dev/null", "/dev/full", "/dev/zero", "/dev/stdin", "text",
         "p" * 300, "p/" * 2500, "%s%n", "a b", "-", "file://x", "unreadable"]
WORDS = ["", "-", "--", "---", "-x", "--what", "--=", "-n", "-n=2", "-1", "=", ",", "a,b", "data=2", "data=1,model=1",
         "model=-1", "data=1,data=1", "data=", "=1", "data=0", "data=4294967297", "\xff\xfe", "w" * 5000, "%s%s%n",
         "$(exit)", "'", "\"", "\n", "all", "help", "--help", "-h", "--version", "--he", "1", "cpu", "float32", "none"]

N, P, W = "number", "path", "word"  # kinds of an option's value; None: it has none

# Of each program: options with the kind of their values, words that stand alone, and what comes last, so that a line
# which is taken is quick.
BENCH = {"json": None, "seconds": N, "plot": P, "help": None}
PROGRAMS = {
    "train_gpt": ({"text": P, "layers": N, "heads": N, "kv-heads": N, "embed": N, "block": N, "batch": N, "steps": N,
                   "warmup": N, "eval-every": N, "eval-batches": N, "sample": N, "lr": N, "min-lr": N,
                   "weight-decay": N, "clip": N, "seed": N, "dtype": W, "model-parallel": N, "data-parallel": N, "sequence-parallel": None, "save": P,
                   "resume": P, "json": None, "help": None}, [],
                  "--steps 1 --layers 1 --heads 1 --embed 2 --block 2 --batch 1 --sample 1"),
    "train_text": ({"text": P, "steps": N, "batch": N, "context": N, "embed": N, "hidden": N, "lr": N, "seed": N,
                    "model-parallel": N, "sample": N, "json": None, "help": None}, [],
                   "--steps 1 --batch 2 --context 2 --embed 2 --hidden 2 --sample 1 --text text"),
    "tshard-bench collectives": ({**BENCH, "op": W, "min-bytes": N, "max-bytes": N, "factor": N, "dtype": W}, [],
                                 "--min-bytes 4 --max-bytes 16 --seconds 0.0001"),
    "tshard-bench linear": ({**BENCH, "batch": N, "in": N, "out": N, "shard": W, "dtype": W, "graph": None}, [],
                            "--batch 2 --in 2 --out 2 --seconds 0.0001"),
    "tshard-bench mlp": ({**BENCH, "batch": N, "hidden": N, "ffn": N, "dtype": W, "graph": None}, [],
                         "--batch 2 --hidden 2 --ffn 2 --seconds 0.0001"),
    "tshard-bench kernels": ({**BENCH, "rows": N, "cols": N, "tokens": N, "classes": N, "vocabulary": N, "dtype": W}, [],
                             "--rows 2 --cols 2 --tokens 2 --classes 2 --vocabulary 2 --seconds 0.0001"),
    "tshard-bench data_parallel": ({**BENCH, "batch": N, "width": N, "layers": N, "bucket": N}, [],
                                   "--batch 2 --width 2 --layers 1 --seconds 0.0001"),
    "tshard-bench attention": ({**BENCH, "batch": N, "heads": N, "kv-heads": N, "queries": N, "keys": N, "dim": N,
                                "full": None, "dtype": W}, [],
                               "--batch 2 --heads 2 --queries 2 --dim 2 --seconds 0.0001"),
    "tshard-bench dispatch": ({**BENCH, "nodes": N, "elements": N}, [], "--nodes 2 --elements 2 --seconds 0.0001"),
    "tshard-bench gpt": ({**BENCH, "layers": N, "heads": N, "embed": N, "block": N, "batch": N, "vocabulary": N}, [],
                         "--layers 1 --heads 1 --embed 2 --block 2 --batch 1 --vocabulary 2 --seconds 0.0001"),
    "tshard-bench redistribute": ({**BENCH, "bytes": N}, [], "--bytes 4 --seconds 0.0001"),
    "tshard-bench support": (BENCH, [], ""),
    "tshard-bench": ({"help": None, "version": None}, ["collect", "support"], ""),
    "tshard-rendezvous": ({"most": N, "help": None}, ["env", "tcp", "file"], "env --most 2"),
    "check_vectors": ({"ranks": N, "device": W, "help": None}, ["vectors", "/nowhere", "unreadable"], ""),
    "mlp": ({"help": None}, ["data=1,model=1"], ""),
    "data_parallel": ({"help": None}, [], ""),
    "mpi_collectives": ({}, ["all_reduce", "barrier", "send_recv", "4", "8"], ""),
    "mpi_pairs": ({}, ["all_reduce", "send_recv", "4", "8"], ""),
}
RUN_OPTIONS = {"ranks": N, "n": N, "nproc-per-node": N, "bind": W, "grace": N, "no-prefix": None, "log-dir": P,
               "redirects": N, "r": N, "max-restarts": N, "monitor-interval": N, "nnodes": N, "node-rank": N, "nodes": W,
               "hostfile": P, "master-addr": W, "master-port": N, "rdzv-endpoint": W, "rdzv-id": W, "standalone": None,
               "help": None, "version": None}
RUN_PROGRAMS = [["true"], ["false"], ["sh", "-c", "exit $RANK"], ["/nowhere/program"], ["/etc/passwd"], ["/"], [""],
                ["sh", "-c", "kill -9 $$"], ["sh", "-c", "echo out; echo err >&2; printf half"],
                ["sh", "-c", "sleep 1000 & setsid sleep 1000 & exit 3"], ["fifo"], ["w" * 5000], ["--", "true"], []]
SCRIPTS = ["report.py", "compare_collectives.py", "compare_torch.py", "compare_redistribute.py", "compare_gpt.py",
           "compare_llama.py"]
ENVIRONMENT = [{}] * 6 + [{"RANK": "x"}, {"RANK": "0", "WORLD_SIZE": "0"}, {"WORLD_SIZE": ""},
                          {"SLURM_NODEID": " 1"}, {"TSHARD_TIMEOUT": "nan"}, {"PATH": ""}]


class Attempt:
    """A command line, what is around it, and what is done to it."""

    def __init__(self, words, out="file", err="file", environment=None, signals=None):
        self.words, self.out, self.err = words, out, err
        self.environment = environment or {}
        self.signals = signals  # a list of (seconds, whom, number), or None

    def describe(self):
        around = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        where = {"file": "", "full": " > /dev/full", "closed": " >&-", "stuck": " > (a pipe without a reader)"}
        signals = "; ".join(f"after {after:.2f} s {signal.Signals(number).name} to {whom}"
                         for after, whom, number in self.signals or [])
        return (f"{around} {shlex.join(self.words)}{where[self.out]}{where[self.err].replace('>', '2>')} < /dev/null"
                f"{'  # ' + signals if signals else ''}").strip()


# --- making attempts --------------------------------------------------------------------------------------------------


def value_of(draw, kind):
    if draw.random() < 0.1:
        kind = draw.choice([N, P, W])
    return draw.choice({N: NUMBERS, P: PATHS, W: WORDS}[kind])


def some_options(draw, options):
    words = []
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        if draw.random() < 0.15 or not options:
            words.append(draw.choice(WORDS))
            continue
        name, kind = draw.choice(list(options.items()))
        dashes = "-" if len(name) == 1 else "--"
        if kind is None and draw.random() < 0.9:
            words.append(dashes + name)
        elif draw.random() < 0.1:
            words.append(dashes + name)  # without its value, unless the next word is taken for it
        elif dashes == "--" and draw.random() < 0.3:
            words.append(f"--{name}={value_of(draw, kind or W)}")
        else:
            words += [dashes + name, value_of(draw, kind or W)]
    return words


def output_of(draw):
    return draw.choice(["file"] * 7 + ["full", "full", "closed"])


def program_line(draw, binaries):
    names = [name for name in PROGRAMS if os.path.exists(os.path.join(binaries, name.split()[0]))]
    name = draw.choice([name for name in names if not name.startswith("mpi_") or draw.random() < 0.1])
    options, alone, last = PROGRAMS[name]
    words = some_options(draw, options)
    for word in alone:
        if draw.random() < 0.5:
            words.insert(draw.randrange(len(words) + 1), word)
    command = name.split()
    return Attempt([os.path.join(binaries, command[0]), *command[1:], *words, *last.split()], output_of(draw),
                   environment=draw.choice(ENVIRONMENT))


def script_line(draw, source):
    options = {"build": P, "rounds": N, "seconds": N, "peer": W, "device": W, "threads": N, "ranks": N, "what": W,
               "help": None}
    script = os.path.join(source, "benchmarks", draw.choice(SCRIPTS))
    return Attempt([sys.executable, script, *some_options(draw, options), "--build", "/tmp/none"], output_of(draw))


def run_line(draw, binaries):
    words = some_options(draw, RUN_OPTIONS)
    if draw.random() < 0.8:
        words += ["-n", draw.choice(["1", "2", "3"])]
    if draw.random() < 0.9:
        words += ["--grace", "0.1", "--max-restarts", draw.choice(["0", "0", "1"])]
    return Attempt([os.path.join(binaries, "tshard-run"), *words, *draw.choice(RUN_PROGRAMS)], output_of(draw),
                   output_of(draw) if draw.random() < 0.1 else "file", draw.choice(ENVIRONMENT))


def run_hour(draw, binaries):
    """A job that goes on until it is ended, with output that may have no reader."""
    behaviour = draw.choice(["sleep 1000", "yes", "yes >&2", "trap '' TERM INT HUP; while :; do sleep 0.05; done",
                             "setsid sleep 1000 & sleep 1000", "kill -STOP $$; sleep 1000",
                             "test $RANK = 1 && sleep 0.1 && exit 3; sleep 1000"])
    signals, after = [], 0.0
    for _ in range(draw.randrange(5)):
        after += draw.choice([0.0, 0.01, 0.1])
        number = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
                              signal.SIGTSTP, signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL, signal.SIGCHLD])
        signals.append((after, draw.choice(["guard", "supervisor", "rank"]), number))
    signals += [(after + 0.2, "guard", signal.SIGCONT), (after + 0.2, "guard", signal.SIGTERM)]
    if draw.random() < 0.7:
        signals.append((after + 0.25, "guard", signal.SIGTERM))
    words = [os.path.join(binaries, "tshard-run"), "-n", draw.choice(["1", "2", "3"]), "--grace", "0.2", "sh", "-c",
             behaviour]
    return Attempt(words, draw.choice(["file", "stuck", "full"]), draw.choice(["file", "stuck"]), signals=signals)


def make(seed, index, binaries, source):
    draw = random.Random(f"{seed} {index}")
    kind = draw.random()
    if kind < 0.05:
        return run_hour(draw, binaries)
    if kind < 0.06:
        return script_line(draw, source)
    return run_line(draw, binaries) if kind < 0.4 else program_line(draw, binaries)


# --- doing them -------------------------------------------------------------------------------------------------------


def children_of(process):
    try:
        with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def send(guard, whom, number):
    supervisors = children_of(guard)
    target = {"guard": [guard], "supervisor": supervisors,
              "rank": [rank for one in supervisors[:1] for rank in children_of(one)]}[whom]
    for process in target[-1:]:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def wait_for_supervisor(process):
    """Until then a signal ends the launcher as any program."""
    while not children_of(process.pid) and process.poll() is None:
        time.sleep(0.002)


def full_pipe():
    """Its writing end takes nothing; the reading end has to stay open."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    try:
        while True:
            os.write(ends[1], bytes(4096))
    except BlockingIOError:
        os.set_blocking(ends[1], True)
    return ends


def end_what_is_left():
    """Numbers of processes that were left behind. This process is their parent now."""
    left, end = [], time.monotonic() + 10
    while True:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return left
        if process == 0:
            for child in children_of(os.getpid()):
                left.append(child)
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
            if time.monotonic() > end:
                return left


def wait_until_quiet(killed):
    """Whether all descendants have gone: at once, or, after the launcher was killed, soon."""
    end = time.monotonic() + (PATIENCE if killed else 0)
    while time.monotonic() < end:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        time.sleep(0.01)
    return end_what_is_left()


def open_output(kind, path):
    """A descriptor, and those to close afterwards."""
    if kind == "stuck":
        ends = full_pipe()
        return ends[1], list(ends)
    fd = os.open("/dev/full" if kind == "full" else path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    return fd, [fd]


def close_in_child(attempt):
    for fd, kind in ((1, attempt.out), (2, attempt.err)):
        if kind == "closed":
            os.close(fd)


def run(attempt, environment):
    """Exit code (negative: a signal, None: it did not end), whether it was killed here."""
    out, out_ends = open_output(attempt.out, "out")
    err, err_ends = open_output(attempt.err, "err")
    closes = "closed" in (attempt.out, attempt.err)
    with open(os.devnull, "rb") as null, subprocess.Popen(
            attempt.words, stdin=null, stdout=out, stderr=err, env={**environment, **attempt.environment},
            preexec_fn=(lambda: close_in_child(attempt)) if closes else None) as process:
        if attempt.signals:
            wait_for_supervisor(process)
        begin, killed = time.monotonic(), False
        for after, whom, number in attempt.signals or []:
            time.sleep(max(0.0, begin + after - time.monotonic()))
            send(process.pid, whom, number)
            killed = killed or number == signal.SIGKILL
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
    for fd in {*out_ends, *err_ends}:
        os.close(fd)
    return code, killed


def contents(path):
    with open(path, "rb") as file:
        return file.read(1 << 20)


def wrong_with(attempt, environment):
    """What is wrong, or None."""
    try:
        code, killed = run(attempt, environment)
    except (OSError, ValueError) as error:
        return None if isinstance(error, ValueError) or error.errno == 7 else f"cannot be started: {error}"
    # MPI leaves a daemon of its own to end by itself.
    left = wait_until_quiet(killed or "/mpi_" in attempt.words[0])
    said = contents("err") if attempt.err == "file" else b"?"
    if code is None:
        return f"it has not ended within {PATIENCE} s"
    if code < 0 and not killed:
        return f"it was ended by signal {-code}: {said[-300:]!r}"
    if left:
        return f"exit code {code}, and it left {len(left)} processes"
    if b"Sanitizer" in said or b"Traceback" in said:
        return f"exit code {code}: {said[-2000:]!r}"
    if code > 0 and not said:
        return f"exit code {code} without a word"
    if code == 0 and attempt.out == "full" and not attempt.signals:
        attempt.out = "file"
        run(attempt, environment)
        wait_until_quiet("/mpi_" in attempt.words[0])
        attempt.out = "full"
        if contents("out"):
            return "exit code 0 although nothing of its output could be written"
    return None


# --- all of them ------------------------------------------------------------------------------------------------------


def prepare():
    """What the paths above name, in this folder."""
    os.mkdir("vectors")
    for path, text in (("text", "some text to learn from, and some more of it\n" * 9),
                       ("vectors/unknown.txt", "tensor x f64 0\n1\n"), ("unreadable", "")):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    os.chmod("unreadable", 0)
    os.mkfifo("fifo")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("build")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    return parser.parse_args()


def main():
    options = arguments()
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    binaries = os.path.abspath(os.path.join(options.build, "bin"))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what is left behind comes to this process
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("TSHARD_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "MASTER_"))}
    environment.update(TSHARD_TIMEOUT="5", TSHARD_HEAP="64M", OPENBLAS_NUM_THREADS="1",
                       ASAN_OPTIONS="abort_on_error=1:detect_leaks=0")  # a program that fails does not tidy up
    folder = tempfile.mkdtemp(prefix="tshard-attack-")
    os.chdir(folder)
    prepare()
    end, index, failed = time.monotonic() + options.seconds, options.only or 0, 0
    while time.monotonic() < end or options.only is not None:
        attempt = make(options.seed, index, binaries, source)
        wrong = wrong_with(attempt, environment)
        if wrong:
            failed += 1
            print(f"FAILED: seed {options.seed}, attempt {index}: {wrong}\n    {attempt.describe()[:1500]}", flush=True)
        index += 1
        if options.only is not None or failed == 10:
            break
    os.chdir("/")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{index} attempts of seed {options.seed}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
