#!/usr/bin/env bash
# For the preset `arm64`, on Debian as root; nothing of arm64 is installed on this machine.
#
#   scripts/arm64.sh libraries       unpacks Debian's arm64 libraries in build-arm64/sysroot, where the preset finds them
#   scripts/arm64.sh run COMMAND...  runs COMMAND where Linux runs programs of arm64 by QEMU, with every instruction set
#                                    that QEMU knows
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=$PWD/build-arm64/sysroot

unpack_libraries() {
    [ ! -e "$sysroot/complete" ] || return 0
    rm -rf "$sysroot"
    mkdir -p "$sysroot"
    # shellcheck disable=SC1091
    . /etc/os-release
    mmdebstrap --quiet --variant=extract --architectures=arm64 \
        --include=libc6-dev,libopenblas-dev,libcriterion-dev,libjansson-dev "$VERSION_CODENAME" "$sysroot"
    local libraries=$sysroot/usr/lib/aarch64-linux-gnu link
    # The packages' scripts, which would choose OpenBLAS among several BLAS libraries, have not run.
    ln -s openblas-pthread/libopenblas.so openblas-pthread/libopenblas.so.0 "$libraries"
    ln -s ../openblas-pthread/pkgconfig/openblas.pc "$libraries/pkgconfig"
    # Absolute links would leave the folder.
    find "$sysroot" -type l -lname '/*' -print | while read -r link; do
        ln -sfn "$sysroot$(readlink "$link")" "$link"
    done
    touch "$sysroot/complete"
}

# Since Linux 6.7 each user namespace has interpreters of its own. The mask leaves out the ABI and tells programs from
# object files.
run_with_qemu() {
    export QEMU_CPU=max QEMU_LD_PREFIX=$sysroot
    # shellcheck disable=SC2016  # for the inner shell
    exec unshare --user --map-root-user --mount bash -euc '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
        mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
        printf ":tshard-arm64:M::%s:%s:%s:F" "$magic" "$mask" "$1" > /proc/sys/fs/binfmt_misc/register
        shift
        exec "$@"' bash "$(command -v qemu-aarch64-static)" "$@"
}

case ${1:-} in
    libraries) unpack_libraries ;;
    run) shift; run_with_qemu "$@" ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
