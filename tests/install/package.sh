#!/usr/bin/env bash
# package.sh BUILD: make Debian packages of a build that is configured for /usr, let lintian read them, and install them
# by dpkg in a copy of this system (an overlay in memory, in namespaces of its own), where a user compiles and runs
# programs; then remove them. The copy needs root; without, the packages are made and read.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)

# --- in the copy -----------------------------------------------------------------------------------------------------

fail() { echo "FAILED: $*"; exit 1; }

# expect WANTED SAID
expect() { [ "$1" = "$2" ] || fail "wanted '$1', got '$2'"; }

use_packages() {
    local ranks version=$1
    ranks="[0] tshard $version: 2 ranks, a layer: yes
[1] tshard $version: 2 ranks, a layer: yes"
    export DEBIAN_FRONTEND=noninteractive OPENBLAS_NUM_THREADS=1 LC_ALL=C
    unset RANK WORLD_SIZE LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH
    cd /packages || exit 1
    dpkg -i libtshard-dev_*.deb > log 2>&1 && fail "libtshard-dev is installed without its library"
    grep -q 'depends on libtshard[0-9]' log || fail "dpkg does not miss the library: $(cat log)"
    dpkg -i ./*.deb > log 2>&1 || { cat log; fail "dpkg -i"; }
    expect "" "$(dpkg --audit)"
    ldconfig -p | grep 'libtshard\.so\.' > /dev/null || fail "ld.so does not know the library"
    # A user's programs.
    cc program.c -ltshard -o plain && expect "tshard $version: 1 ranks, a layer: yes" "$(./plain)"
    # shellcheck disable=SC2046
    cc program.c $(pkg-config --cflags --libs tshard) -o shared && expect "$ranks" "$(tshard-run -np 2 ./shared | sort)"
    # shellcheck disable=SC2046
    cc program.c $(pkg-config --cflags --libs --static tshard) -o static && expect "$ranks" "$(tshard-run -n 2 ./static | sort)"
    cmake -S /usr/share/doc/tshard/examples -B examples > log 2>&1 && cmake --build examples --target mlp >> log 2>&1 ||
        { cat log; fail "the examples"; }
    tshard-run -n 2 examples/mlp > log || fail "mlp"
    tshard-bench support > log || fail "tshard-bench"
    [ -s /usr/share/man/man1/tshard-run.1.gz ] || fail "no man page"
    # What is removed leaves nothing.
    dpkg -P tshard-tools libtshard-dev "libtshard${version%.*}" > log 2>&1 || { cat log; fail "dpkg -P"; }
    expect "" "$(find /usr /etc -iname '*tshard*' -newer program.c 2> /dev/null)"
    expect "" "$(dpkg -l | grep tshard)"
}
if [ "${2:-}" = in-the-copy ]; then use_packages "$3"; exit; fi

# --- outside ---------------------------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/#define TSH_VERSION_[A-Z]* //p' "$here/../../include/tshard/base.h" | paste -sd.)
(cd "$build" && cpack -G DEB -B "$work/packages" > "$work/log" 2>&1) || { cat "$work/log"; fail "cpack"; }
rm -rf "$work/packages/_CPack_Packages"
expect 3 "$(find "$work/packages" -name '*.deb' | wc -l)"
lintian --allow-root --fail-on error "$work"/packages/*.deb || fail "lintian"
[ "$(id -u)" = 0 ] || { echo "not root, so the packages are not installed anywhere"; exit 0; }
cp "$here/program.c" "$0" "$work/packages"
mkdir "$work/memory"
# shellcheck disable=SC2016  # for the inner shell
unshare --mount --pid --fork --kill-child bash -euc '
    mount -t tmpfs tmpfs "$1/memory"
    mkdir "$1"/memory/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$1/memory/upper,workdir=$1/memory/work" "$1/memory/root"
    root=$1/memory/root
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mkdir -p "$root/packages"
    cp -r "$1"/packages/. "$root/packages"
    exec chroot "$root" bash /packages/package.sh /packages in-the-copy "$2"' bash "$work" "$version"
