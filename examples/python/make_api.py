#!/usr/bin/env python3
"""Writes a Python module of ctypes declarations from tshard's public headers: every constant, structure and function.

    python3 make_api.py /usr/include > tshard_api.py

A handle (tsh_world, tsh_tensor, ...) is a class of its own, so that a call with another kind of handle is an
ArgumentError. The module's `load()` opens the library."""
import pathlib
import re
import sys

C_TYPES = {"void": "None", "bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned": "c_uint",
           "unsigned char": "c_ubyte", "int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8",
           "uint16_t": "c_uint16", "uint32_t": "c_uint32", "uint64_t": "c_uint64", "size_t": "c_size_t",
           "float": "c_float", "double": "c_double", "long": "c_long", "long long": "c_longlong"}
HEAD = '''"""The public functions of tshard for ctypes, made from its headers by make_api.py."""
import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_long, c_longlong, c_size_t, c_ubyte, c_uint, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

'''
TAIL = '''

def load(path=f"libtshard.so.{TSH_VERSION_MAJOR}.{TSH_VERSION_MINOR}"):
    """The library of the headers' version, with the types of all its functions; a build without some of them lacks
    these."""
    library = ctypes.CDLL(path)
    for name, (result, arguments) in FUNCTIONS.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library
'''


class Headers:
    """What the headers declare. `types` maps a C name to a Python expression."""

    def __init__(self, folder):
        self.types, self.handles, self.out = dict(C_TYPES), set(), []
        self.constants, self.functions = {}, {}
        names = re.findall(r'#include "tshard/(\w+\.h)"', (folder / "tshard" / "tshard.h").read_text())
        text = "\n".join((folder / "tshard" / name).read_text() for name in in_order(folder, names))
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = text.replace("\\\n", " ")
        for name, value in re.findall(r"^#define (TSH_\w+) +\(?(-?\d+)\)?$", text, flags=re.M):
            self.constants[name] = int(value)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M).replace('extern "C" {', "")
        text = re.sub(r"TSH_PRINTF\([^)]*\)", "", text)
        self.read(" ".join(text.split()))

    def read(self, text):
        pattern = re.compile(r"(?:typedef )?enum (\w*) ?\{([^}]*)\} ?(\w*);"
                             r"|typedef struct (\w+) \{(.*?)\} \4;"
                             r"|typedef struct (\w+) (\w+);"
                             r"|struct (\w+) ?\{(.*?)\};"
                             r"|(?<!typedef )struct (\w+);"
                             r"|typedef ([^;{]*?)(\w+)\(([^;]*)\);"
                             r"|TSH_API ([^;]*?)(\w+)\(([^;]*)\) ?;")
        complete = set(re.findall(r"struct (\w+) \{", text))
        for found in pattern.finditer(text):
            if found[2] is not None:
                self.enum(found[2], found[3])
            elif found[4] or found[8]:
                self.structure(found[4] or found[8], found[5] or found[9])
            elif found[6] or found[10]:
                name = found[7] or found[10]
                self.types[name] = name
                if name not in complete:
                    self.handles.add(name)
                self.out.append(f"class {name}({'Structure' if name in complete else 'c_void_p'}):\n    pass\n\n")
            elif found[12]:
                self.types[found[12]] = found[12]
                self.out.append(f"{found[12]} = {self.signature(found[11], found[13])}\n\n")
            else:
                self.functions[found[15]] = (self.type_of(found[14]), self.parameters(found[16]))

    def enum(self, body, name):
        value = -1
        for item in filter(None, (part.strip() for part in body.split(","))):
            label, _, given = item.partition("=")
            value = self.number(given.strip()) if given else value + 1
            self.constants[label.strip()] = value
        if name:
            self.types[name] = "c_int"

    def number(self, text):
        return self.constants[text] if text in self.constants else eval(text, {}, dict(self.constants))

    def structure(self, name, body):
        declared = self.types.get(name) == name
        self.types[name] = name
        fields = []
        for member in filter(None, (part.strip() for part in body.split(";"))):
            function = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", member)
            if function:
                fields.append((function[2], self.signature(function[1], function[3])))
                continue
            kind, names = re.fullmatch(r"(.*?[\s*])((?:\*?\w+(?:\[\w+\])*(?:, )?)+)", member).groups()
            for one in names.split(", "):
                stars, label, sizes = re.fullmatch(r"(\**)(\w+)((?:\[\w+\])*)", one).groups()
                python = self.type_of(kind + stars)
                for size in re.findall(r"\w+", sizes):
                    python += f" * {self.number(size)}"
                fields.append((label, python))
        lines = ",\n".join(f'    ("{label}", {python})' for label, python in fields)
        if not declared:
            self.out.append(f"class {name}(Structure):\n    pass\n\n")
        self.out.append(f"{name}._fields_ = [\n{lines}]\n\n")

    def signature(self, result, parameters):
        return f"CFUNCTYPE({', '.join([self.type_of(result)] + self.parameters(parameters))})"

    def parameters(self, text):
        if text.strip() == "void":
            return []
        found, depth, at = [], 0, 0
        for i, c in enumerate(text + ","):
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                found.append(text[at:i].strip())
                at = i + 1
        return [self.parameter(one) for one in found if one != "..."]

    def parameter(self, text):
        function = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", text)
        if function:
            return self.signature(function[1], function[3])
        array = re.fullmatch(r"(.*?)(\w+)\[\w*\]", text)
        if array:
            return self.type_of(array[1] + "*")
        return self.type_of(re.fullmatch(r"(.*?[\s*])\w+", text)[1])

    def type_of(self, text):
        """The Python type of a C type without a name, such as `const char *`."""
        words = re.sub(r"\b(const|struct|enum)\b", " ", text).replace("*", " * ").split()
        stars = words.count("*")
        base = " ".join(word for word in words if word != "*")
        if base == "FILE":
            base = "void"
        python = self.types[base]
        if stars and base in ("void", "char"):
            python, stars = ("c_void_p" if base == "void" else "c_char_p"), stars - 1
        elif stars and base in self.handles or stars and "CFUNCTYPE" in self.definition(base):
            stars -= 1
        return "POINTER(" * stars + python + ")" * stars

    def definition(self, name):
        return next((text for text in self.out if text.startswith(f"{name} = ")), "")

    def write(self, to):
        to.write(HEAD)
        for name, value in self.constants.items():
            to.write(f"{name} = {value}\n")
        to.write("\n\n")
        to.writelines(self.out)
        to.write("FUNCTIONS = {\n")
        for name, (result, arguments) in self.functions.items():
            to.write(f'    "{name}": ({result}, [{", ".join(arguments)}]),\n')
        to.write("}\n")
        to.write(TAIL)


def in_order(folder, names):
    """The headers, each after those that it includes."""
    done = []

    def add(name):
        for other in re.findall(r'#include "tshard/(\w+\.h)"', (folder / "tshard" / name).read_text()):
            if other not in done:
                add(other)
        if name not in done:
            done.append(name)

    for name in names:
        add(name)
    return done


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    Headers(pathlib.Path(sys.argv[1])).write(sys.stdout)
