#!/usr/bin/env bash
# Finds what is missing to build and test tshard on Debian or Ubuntu, and installs it. Sourced by quickstart.sh and
# test.sh; alone: scripts/setup.sh [build|test|all]. Says what it will install and why. Touches no network when nothing
# is missing, and changes nothing when it is not root: then it prints the command to run.

# have_KIND NAME: is it here, wherever it came from?
have_command() { command -v "$1" > /dev/null 2>&1; }
have_module() { have_command pkg-config && pkg-config --exists "$1"; }
have_header() { printf '#include <%s>\n' "$1" | cc -E - > /dev/null 2>&1; }
have_cmake() {
    have_command cmake || return 1
    [ "$(printf '%s\n3.25\n' "$(cmake --version | sed -n '1s/[^0-9.]*//p')" | sort -V | head -n 1)" = 3.25 ]
}
# The reference BLAS multiplies ten times as slowly.
have_cblas() { have_module openblas || have_module blis || have_module mkl-dynamic-lp64-seq; }
# Debian's package; elsewhere any of these browsers will do, and the test is skipped without one.
have_browser() {
    have_command chromium-headless-shell || have_command chromium || have_command google-chrome || ! grep -q '^ID=debian' /etc/os-release
}
have_libc_symbols() { ls /usr/lib/debug/.build-id > /dev/null 2>&1; }

# Lines of: package | check | why.
setup_table_build="
build-essential  |have_command g++ && have_command make && have_header stdio.h |the C compiler, linker and libc headers
cmake            |have_cmake                                 |the build, 3.25 or newer
ninja-build      |have_command ninja                         |the build, in parallel
pkg-config       |have_command pkg-config                    |finds the libraries below
libopenblas-dev  |have_cblas                                 |matrix products
libdnnl-dev      |have_header dnnl.h                         |matrix products of float32, by the CPU's newest instructions
libjansson-dev   |have_header jansson.h                      |the JSON of model files
libpcre2-dev     |have_module libpcre2-8                     |tokenizers: regular expressions
libutf8proc-dev  |have_header utf8proc.h                     |tokenizers: normal forms of Unicode"
setup_table_test="
libcriterion-dev |have_module criterion                      |the test suites
python3          |have_command python3                       |checks of the pages that tools write
clang-format     |have_command clang-format                  |the format check"
setup_table_all="
ccache           |have_command ccache                        |what one stage has compiled, for the next
mmdebstrap       |have_command mmdebstrap                    |a minimal system, for the README's commands
clang            |have_command clang                         |a second compiler's warnings and code
valgrind         |have_command valgrind                      |memory errors in a training step
libc6-dbg        |have_libc_symbols                          |symbols that valgrind reads
mkdocs python3-pygments |have_command mkdocs                |the site of docs/
doxygen          |have_command doxygen                       |the reference in it
chromium-headless-shell |have_browser                        |a browser that looks at the site
libopenmpi-dev openmpi-bin |have_command mpicc.openmpi       |the mpi backend on Open MPI
libmpich-dev mpich |have_command mpicc.mpich                 |the mpi backend on MPICH
libucx-dev       |have_header ucp/api/ucp.h                  |the ucx backend: CPUs of several machines without MPI
dpkg-dev fakeroot lintian |have_command dpkg-shlibdeps && have_command lintian |Debian packages
python3-numpy    |/usr/bin/python3 -c 'import numpy' 2> /dev/null |the example in Python
libhwloc-dev     |have_module hwloc                          |cores by caches and memory nodes
bash-completion  |[ -r /usr/share/bash-completion/bash_completion ] |completion of the programs' options
iproute2         |have_command ip                            |several machines, as network namespaces"
setup_table_optional="
libopenmpi-dev openmpi-bin |have_command mpicc               |the mpi backend, and what tshard-bench is compared with
libucx-dev       |have_header ucp/api/ucp.h                  |the ucx backend: CPUs of several machines without MPI
libhwloc-dev     |have_module hwloc                          |cores by caches and memory nodes
gcc-aarch64-linux-gnu |have_command aarch64-linux-gnu-gcc    |the build for 64-bit ARM
qemu-user-static |have_command qemu-aarch64-static           |its suites
gnuplot-nox      |have_command gnuplot                       |tshard-bench --plot"

# Print "package|why" for each line of the table $1 whose check fails.
setup_missing() {
    local package check why
    while IFS='|' read -r package check why; do
        [ -n "$package" ] || continue
        # shellcheck disable=SC2086,SC2116  # drops the padding
        eval "$check" || printf '%s|%s\n' "$(echo $package)" "$why"
    done <<< "$1"
}

setup_install() {
    local command="apt-get update && apt-get install -y --no-install-recommends $1"
    if ! have_command apt-get; then
        echo "There is no apt-get here: install the equivalents of these Debian packages, then start again." >&2
        return 1
    elif [ "$(id -u)" != 0 ]; then
        local why="Not root, so nothing was installed. Run this" prefix="sudo "
        have_command sudo || { why="Not root, and there is no sudo here, so nothing was installed. Run this as root" prefix=""; }
        printf '%s, then start again:\n\n    %ssh -c "%s"\n\n' "$why" "$prefix" "$command" >&2
        return 1
    fi
    echo "Installing them: $command"
    local log
    log=$(mktemp)
    if ! DEBIAN_FRONTEND=noninteractive sh -c "$command" > "$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "The installation failed; the lines above say why." >&2
        return 1
    fi
    rm -f "$log"
}

# tshard_setup build|test|all: each wants what those before it want.
tshard_setup() {
    local missing optional table=$setup_table_build
    [ "${1:-build}" = build ] || table+=$setup_table_test
    [ "${1:-build}" != all ] || table+=$setup_table_all
    missing=$(setup_missing "$table")
    optional=$(setup_missing "$setup_table_optional")
    if [ -n "$missing" ]; then
        echo "Missing Debian packages:"
        awk -F'|' '{ printf "    %-28s %s\n", $1, $2 }' <<< "$missing"
        setup_install "$(cut -d'|' -f1 <<< "$missing" | paste -sd " ")" || return 1
        missing=$(setup_missing "$table")
        if [ -n "$missing" ]; then
            echo "Installed, but still not found: $(cut -d'|' -f1 <<< "$missing" | paste -sd " ")" >&2
            return 1
        fi
    fi
    if [ -n "$optional" ]; then
        awk -F'|' '{ printf "Optional, not here: %s (%s)\n", $1, $2 }' <<< "$optional"
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    tshard_setup "${1:-build}" && echo "Everything that is needed is here."
fi
