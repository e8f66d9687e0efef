#!/usr/bin/env python3
"""recipes.py SOURCES: the recipes of packaging/ have the sources' version, and pass CMake options that exist. Spack and
vcpkg are replaced by functions that note what they are called with."""
import json
import os
import re
import subprocess
import sys
import tempfile
import types

faults = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_options(what, arguments, known):
    named = dict(re.fullmatch(r"-D(TSHARD_\w+)=(ON|OFF)", a).groups() for a in arguments if a.startswith("-DTSHARD_"))
    if not named:
        faults.append(f"{what}: no option of tshard is set")
    faults.extend(f"{what}: CMakeLists.txt has no option {name}" for name in named if name not in known)
    return named


def spack_package(sources, variants):
    """The recipe's class, as Spack with these variants makes one, and what its directives were called with."""
    calls = {}

    class Package:
        spec = types.SimpleNamespace(satisfies=lambda text: text.lstrip("+") in variants)

        @staticmethod
        def define(name, value):
            return f"-D{name}=" + ({True: "ON", False: "OFF"}.get(value, value))

    def directive(name):
        return lambda *arguments, **options: calls.setdefault(name, []).append((arguments, options))
    module = types.ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on", "generator"):
        setattr(module, name, directive(name))
    module.CMakePackage, module.CudaPackage = Package, type("CudaPackage", (), {})
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), module
    scope = {}
    exec(compile(read(os.path.join(sources, "packaging/spack/packages/tshard/package.py")), "package.py", "exec"), scope)
    return scope["Tshard"](), calls


def check_spack(sources, version, known):
    variants = {"mpi", "ucx", "onednn", "hwloc", "tokenizers", "cuda", "nccl"}
    package, calls = spack_package(sources, variants)
    if [arguments[0] for arguments, _ in calls["version"]] != [version]:
        faults.append(f"package.py: the version is not {version}")
    declared = {arguments[0] for arguments, _ in calls["variant"]} | {"cuda"}
    if declared != variants:
        faults.append(f"package.py: the variants are {sorted(declared)}")
    for on in (variants, set()):
        package.spec.satisfies = lambda text, on=on: text.lstrip("+") in on
        options = check_options("package.py", package.cmake_args(), known)
        faults.extend(f"package.py: TSHARD_{v.upper()} does not follow the variant" for v in variants
                      if options.get("TSHARD_" + v.upper()) != ("ON" if v in on else "OFF"))


def check_vcpkg(sources, version, known, cmake):
    port = os.path.join(sources, "packaging/vcpkg/ports/tshard")
    manifest = json.loads(read(os.path.join(port, "vcpkg.json")))
    if manifest["version"] != version:
        faults.append(f"vcpkg.json: the version is not {version}")
    for on in (sorted(manifest["features"]), []):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "run.cmake")
            with open(script, "w", encoding="utf-8") as file:
                file.write("cmake_policy(SET CMP0057 NEW)\n"
                           f"set(FEATURES {';'.join(on)})\nset(CURRENT_PACKAGES_DIR {folder}/packages)\n")
                for name in ("cmake_configure", "cmake_install", "cmake_config_fixup", "fixup_pkgconfig", "copy_tools", "install_copyright"):
                    file.write(f'function(vcpkg_{name})\n    message(NOTICE "{name};${{ARGN}}")\nendfunction()\n')
                file.write(f"include({port}/portfile.cmake)\n")
            run = subprocess.run([cmake, "-P", script], stderr=subprocess.PIPE, text=True, check=False)
        calls = {line.split(";")[0]: line.split(";")[1:] for line in run.stderr.splitlines()}
        if run.returncode or "cmake_configure" not in calls:
            faults.append(f"portfile.cmake: {run.stderr}")
            continue
        options = check_options("portfile.cmake", calls["cmake_configure"], known)
        faults.extend(f"portfile.cmake: TSHARD_{f.upper()} does not follow the feature" for f in manifest["features"]
                      if options.get("TSHARD_" + f.upper()) != ("ON" if f in on else "OFF"))
        files = [calls["cmake_configure"][1] + "/CMakeLists.txt", calls["install_copyright"][1]]
        faults.extend(f"portfile.cmake: there is no {path}" for path in files if not os.path.isfile(path))
        faults.extend(f"portfile.cmake: there is no program {tool}" for tool in calls["copy_tools"][1:-1]
                      if tool != "tshard-bench" and not os.path.exists(os.path.join(sources, "tools", tool)))


def main():
    sources = os.path.abspath(sys.argv[1])
    version = ".".join(re.findall(r"#define TSH_VERSION_[A-Z]+ (\d+)", read(os.path.join(sources, "include/tshard/base.h"))))
    lists = read(os.path.join(sources, "CMakeLists.txt"))
    parts = re.search(r"foreach\(part IN ITEMS ([A-Z_ ]+)\)", lists)[1].split()
    known = set(re.findall(r"option\((TSHARD_\w+)", lists)) | {"TSHARD_" + part for part in parts}
    check_spack(sources, version, known)
    check_vcpkg(sources, version, known, os.environ.get("CMAKE", "cmake"))
    print("\n".join(faults) or "both recipes fit the sources")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
