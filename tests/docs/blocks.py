#!/usr/bin/env python3
"""blocks.py SOURCES BUILD [--all]: every code block of README.md and docs/ is what its language says. With --all CMake
blocks and those that are marked to be run are, against the library installed from BUILD.

    c        compiled, by mpicc where it includes mpi.h; a block without a header stands after prelude.h, in a function unless
             it defines static ones
    cpp      likewise
    fortran  compiled
    cmake    configures and builds a program
    json     parsed
    python   parsed
    sh       parsed; each command exists, and each option of tshard's own programs is in their --help
    console  likewise for the lines that begin with `$ `; the others are what was printed
    text     no code: what a program prints, a picture

A comment before a block adds to it. `<!-- needs: CODE -->` stands before C. `<!-- run -->` runs a block of commands, in
a folder that looks like the sources with the build in build/; what it prints has the lines of a console block, apart
from those with digits or three dots. `<!-- run: 2 -->` runs a C program on two ranks. `<!-- file: NAME -->` leaves
the block in that folder, for commands that follow. exempt.txt names the blocks that are left out, and
says why."""
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"((?:<!-- (?:needs|run|file)\b(?:(?!-->).)*-->\n)*)^```([^\n]*)\n(.*?)^```$", re.M | re.S)
MARK = re.compile(r"<!-- (needs|run|file):? *(.*?) *-->", re.S)
TOOLS = {"tshard-run", "tshard-bench", "tshard-checkpoint", "tshard-plan", "tshard-quantize", "tshard-trace", "check_vectors", "train_text", "train_gpt",
         "many_classes", "generate", "embed", "mlp", "data_parallel", "pipeline",
         "any_machines"}
STARTERS = {"tshard-run", "tshard-plan"} # a command line of another program follows their options
# Commands of other projects, which blocks may use: nothing is known of their options.
FOREIGN = {"cmake", "ctest", "make", "cc", "gcc", "mpicc", "pkg-config", "apt-get", "mpirun", "mpiexec", "srun", "sbatch", "salloc",
           "torchrun", "export", "cd", "git", "sudo", "kill", "python3", "ldd", "cat", "dot", "gdb", "sh", "bash", "echo", "ls", "nohup",
           "less", "man", "source", "cpack", "dpkg", "apt", "mkdir", "cp", "mpif90", "gfortran", "head", "tail", "rm", "sleep"}
WARNINGS = "-Wall -Wextra -Werror -Wno-unused -Wno-missing-field-initializers -Wno-shadow".split()
faults, helps = [], {}


class Block:
    def __init__(self, page, match, line):
        marks = dict(MARK.findall(match[1]))
        self.page, self.place, self.language, self.code = page, f"{page}:{line}", match[2].strip(), match[3]
        self.needs, self.run, self.file = marks.get("needs", ""), marks.get("run"), marks.get("file")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def blocks_of(sources):
    """All blocks, and whether a page has others than fenced ones."""
    pages = ["README.md"] + sorted(os.path.relpath(os.path.join(top, name), sources)
                                   for top, _, names in os.walk(os.path.join(sources, "docs")) for name in names if name.endswith(".md"))
    found = []
    for page in pages:
        text = read(os.path.join(sources, page))
        matches = list(BLOCK.finditer(text))
        found += [Block(page, match, text.count("\n", 0, match.start(2)) + 1) for match in matches]
        if len(re.findall(r"^```", text, re.M)) != 2 * len(matches):
            faults.append(f"{page}: a fence without its other one")
        if re.search(r"\n\n(    |\t)\S", BLOCK.sub("", text)):
            faults.append(f"{page}: an indented block has no language: fence it")
    return found


def command(arguments, **more):
    """The output of a command that must succeed, or None and what it said."""
    run = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         errors="replace", timeout=600, check=False, **more)
    return (run.stdout, None) if run.returncode == 0 else (None, run.stdout[-2000:])


class Checker:
    def __init__(self, sources, build, work, everything):
        self.sources, self.build, self.work, self.everything = sources, build, work, everything
        self.here = os.path.dirname(os.path.abspath(__file__))
        self.tree = os.path.join(work, "tree")
        os.mkdir(self.tree)
        for name in os.listdir(sources):
            if not name.startswith((".", "build")):
                os.symlink(os.path.join(sources, name), os.path.join(self.tree, name))
        os.symlink(build, os.path.join(self.tree, "build"))
        self.prefix = os.path.join(work, "prefix")

    def fault(self, block, what):
        faults.append(f"{block.place} ({block.language}): {what}")

    def check(self, block):
        kind = getattr(self, "check_" + block.language, None) if block.language else None
        if block.file:
            with open(os.path.join(self.tree, block.file), "w", encoding="utf-8") as file:
                file.write(block.code)
        if kind:
            kind(block)
        else:
            self.fault(block, "a block needs a language that is known here")

    # --- languages ---

    def compile(self, block, compiler, suffix, standard):
        program = os.path.join(self.work, "block" + suffix)
        whole = "#include" in block.code or re.search(r"^static [^=]*\(", block.code, re.M)
        with open(program, "w", encoding="utf-8") as file:
            prelude = "" if "#include" in block.code else '#include "prelude.h"\n'
            if whole:
                file.write(f'{prelude}#line 1 "needs"\n{block.needs}\n#line 1 "block"\n{block.code}')
            else:
                file.write(f'{prelude}int a_block(void)\n{{\n#line 1 "needs"\n{block.needs}\n{{\n#line 1 "block"\n{block.code}}}\nreturn 0;\n}}\n')
        output, said = command([compiler, standard, *WARNINGS, "-fsyntax-only", "-I", os.path.join(self.sources, "include"), "-I",
                                self.here, program])
        if output is None:
            self.fault(block, said)
        elif block.run is not None and self.everything:
            self.run_program(block, compiler, standard, program)

    def run_program(self, block, compiler, standard, program):
        binary = os.path.join(self.work, "program")
        output, said = command([compiler, standard, "-I", os.path.join(self.sources, "include"), program, "-o", binary,
                                "-L" + os.path.join(self.build, "lib"), "-ltshard", "-Wl,-rpath," + os.path.join(self.build, "lib"), "-lm"])
        if output is not None:
            output, said = command([os.path.join(self.build, "bin/tshard-run"), "-n", block.run or "1", binary], cwd=self.work)
        if output is None:
            self.fault(block, said)

    def check_c(self, block):
        compiler = "mpicc" if re.search(r"#include <(tshard/)?mpi.h>", block.code) else "gcc"
        if shutil.which(compiler):
            self.compile(block, compiler, ".c", "-std=gnu11")

    def check_cpp(self, block):
        self.compile(block, "g++", ".cpp", "-std=c++17")

    def check_fortran(self, block):
        compiler = "mpif90" if re.search(r"use mpi", block.code) else "gfortran"
        if not shutil.which(compiler):
            return
        program = os.path.join(self.work, "block.f90")
        with open(program, "w", encoding="utf-8") as file:
            file.write(block.code)
        _, said = command([compiler, "-fsyntax-only", program])
        if said:
            self.fault(block, said)

    def check_json(self, block):
        try:
            json.loads(block.code)
        except ValueError as error:
            self.fault(block, error)

    def check_python(self, block):
        try:
            ast.parse(block.code)
        except SyntaxError as error:
            self.fault(block, error)

    def check_text(self, block):
        if re.search(r"^\$ ", block.code, re.M):
            self.fault(block, "it has commands, and so is a console block")

    def check_cmake(self, block):
        if not self.everything:
            return
        folder = os.path.join(self.work, "cmake")
        os.makedirs(folder, exist_ok=True)
        shutil.copy(os.path.join(self.sources, "examples/mlp.c"), os.path.join(folder, "program.c"))
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write("cmake_minimum_required(VERSION 3.25)\nproject(block LANGUAGES C)\nadd_executable(program program.c)\n" + block.code)
        self.install()
        for arguments in ([f"-DCMAKE_PREFIX_PATH={self.prefix}", "-S", folder, "-B", folder + "/build"], ["--build", folder + "/build"]):
            _, said = command(["cmake", *arguments])
            if said:
                return self.fault(block, said)

    def install(self):
        if not os.path.isdir(self.prefix):
            _, said = command(["cmake", "--install", self.build, "--prefix", self.prefix])
            if said:
                faults.append("install: " + said)

    # --- commands ---

    def check_sh(self, block):
        self.commands(block, block.code, [])

    def check_console(self, block):
        lines = block.code.replace("\\\n", "\\\0").split("\n")
        typed = [line[2:].replace("\\\0", "\\\n") for line in lines if line.startswith("$ ")]
        printed = [line.rstrip() for line in lines if not line.startswith("$ ")]
        if not typed:
            self.fault(block, "it has no command: its language is sh or text")
        self.commands(block, "\n".join(typed), [line for line in printed if line and not re.search(r"[\d]|\.\.\.", line)])

    def commands(self, block, script, printed):
        run = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        if run.returncode:
            return self.fault(block, run.stderr)
        for line in script.replace("\\\n", " ").split("\n"):
            for part in self.parts(line):
                self.one(block, part)
        if block.run is not None and self.everything:
            self.run_commands(block, script, printed)

    @staticmethod
    def parts(line):
        """The words of each command in a line."""
        line = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        part = []
        for word in lexer:
            if re.fullmatch(r"[;&|]+", word):
                yield part
                part = []
            else:
                part.append(word)
        yield part

    def one(self, block, words):
        """One command: what it starts exists, and so do its options."""
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if not words:
            return
        name = os.path.basename(words[0])
        if name == "env":
            return self.one(block, words[1:])
        if words[0].startswith(("scripts/", "benchmarks/", "tests/")):
            if not os.path.exists(os.path.join(self.sources, words[0])):
                self.fault(block, f"there is no {words[0]}")
        elif name in TOOLS:
            self.options(block, name, words[1:])
        elif words[0] not in FOREIGN and words[0] != "PROGRAM" and not words[0].startswith("./") and not self.built(name):
            self.fault(block, f"{words[0]} is no command that is known here")
        else:  # a launcher starts one of ours
            at = next((at for at, word in enumerate(words) if at and os.path.basename(word) in TOOLS), None)
            if at:
                self.one(block, words[at:])

    def built(self, name):
        return os.path.exists(os.path.join(self.build, "bin", name))

    def options(self, block, name, words):
        inner = next((at for at, word in enumerate(words) if os.path.basename(word) in TOOLS), None) if name in STARTERS else None
        if inner is not None:
            self.one(block, words[inner:])
            words = words[:inner]
        arguments = words[:1] if name == "tshard-bench" and words and words[0][0] != "-" else []
        known = self.help(block, name, arguments)
        for word in words:
            option = word.partition("=")[0]
            if re.match(r"--?[a-zA-Z]", option) and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known):
                self.fault(block, f"{' '.join([name] + arguments)} has no option {option}")

    def help(self, block, name, arguments):
        key = (name, *arguments)
        if key not in helps:
            output, said = None, "it is not built"
            if self.built(name):
                output, said = command([os.path.join(self.build, "bin", name), *arguments, "--help"])
            if output is None:
                self.fault(block, f"{' '.join(key)} --help: {said}")
            helps[key] = output or ""
        return helps[key]

    def run_commands(self, block, script, printed):
        self.install()
        paths = {"PATH": f"{self.prefix}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{self.prefix}/lib",
                 "PKG_CONFIG_PATH": f"{self.prefix}/lib/pkgconfig", "PREFIX": self.prefix}
        output, said = command(["bash", "-e", "-o", "pipefail", "-c", script], cwd=self.tree, env=os.environ | paths)
        if output is None:
            return self.fault(block, said)
        for line in printed:
            if line not in output:
                self.fault(block, f"it does not print: {line}\n{output[-2000:]}")


def main():
    sources, build = (os.path.abspath(path) for path in sys.argv[1:3])
    found = blocks_of(sources)
    exempt = os.path.join(sources, "tests/docs/exempt.txt")
    left_out = [line.split(" | ") for line in read(exempt).splitlines() if line and line[0] != "#"] if os.path.exists(exempt) else []
    checked = 0
    with tempfile.TemporaryDirectory() as work:
        checker = Checker(sources, build, work, "--all" in sys.argv)
        for block in found:
            if any(block.place.startswith(page + ":") and words in block.code for page, words, _ in left_out):
                continue
            checker.check(block)
            checked += 1
    for page, words, _ in left_out:
        if not any(block.place.startswith(page + ":") and words in block.code for block in found):
            faults.append(f"exempt.txt: {page} has no block with {words}")
    print("\n".join(str(fault) for fault in faults) or f"{checked} blocks are what they say, {len(found) - checked} are exempt")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
