#!/usr/bin/env bash
# test_bind.sh BUILD: the cores that tshard-run gives to ranks, on this machine as the kernel has them, and on machines
# that hwloc makes up. The library itself binds nothing, so that the binding of other launchers stays.
set -uo pipefail
build=$1
run=$build/bin/tshard-run
code=0
fail() { code=1; echo "FAILED: $*"; }
unset RANK WORLD_SIZE HWLOC_SYNTHETIC HWLOC_XMLFILE
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

# masks WANTED OPTIONS...: "cores of rank 0|cores of rank 1|..."
masks() {
    local wanted=$1 got
    shift
    got=$("$run" "$@" sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status | sort | sed 's/^\[[0-9]*\] //' | paste -sd'|')
    [ "$got" = "$wanted" ] || fail "tshard-run $*: ranks run on '$got', not '$wanted'"
}
all=$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)
first=${all%%[-,]*} last=${all##*[-,]}
masks "$all|$all" -n 2 --bind none
masks "$all" -n 1
masks "$last|$first" -n 2 --bind "$last:$first"
masks "$first|$first|$first" -n 3 --bind "$first"
[ "$all" != 0-1 ] || masks "0|1" -n 2
if [ "$all" != "$first" ]; then
    said=$("$run" -n 2 --no-prefix --bind "$first-$last:$first" printenv OMP_NUM_THREADS | sort -n | paste -sd' ')
    [ "${said%% *}" = 1 ] && [ "${said##* }" -gt 1 ] || fail "threads of the ranks: $said"
    # What is granted is shared out, and no more.
    for wanted in "$first" "$last"; do
        said=$(taskset -c "$wanted" "$run" -n 2 --no-prefix sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status | sort -u)
        [ "$said" = "$wanted" ] || fail "of core $wanted, ranks got $said"
    done
fi
# hwloc says nothing where /sys is not mounted.
if unshare --mount mount -t tmpfs none /sys 2> /dev/null; then
    said=$(unshare --mount sh -c 'mount -t tmpfs none /sys && exec "$0" -n 2 true' "$run" 2>&1)
    [ -z "$said" ] || fail "without /sys: $said"
fi
if nm -u "$build/lib/libtshard.so" | grep 'setaffinity' > /dev/null; then fail "the library binds its process"; fi

# chosen MACHINE WANTED OPTIONS...: "cores@node|..." of the ranks, as they are reported
chosen() {
    local machine=$1 wanted=$2 got
    shift 2
    got=$(HWLOC_SYNTHETIC=$machine "$run" --report-bindings "$@" true 2>&1 |
        sed -n 's/^tshard-run: rank [0-9]*: cores \(.*\) of memory node \(.*\)/\1@\2/p' | paste -sd'|')
    [ "$got" = "$wanted" ] || fail "$machine, $*: '$got', not '$wanted'"
}
if ldd "$run" | grep -q libhwloc; then
    two="pack:2 [numa] l3:2 core:4 pu:1"
    chosen "$two" "0,1@0|2,3@0|4,5@0|6,7@0|8,9@1|10,11@1|12,13@1|14,15@1" -n 8
    chosen "$two" "0,1,2,3@0|4,5,6,7@0|8,9,10,11@1|12,13,14,15@1" -n 4 --bind core
    chosen "$two" "0,1,2,3,4,5,6,7@0|8,9,10,11,12,13,14,15@1" -n 2 --bind numa
    chosen "$two" "0,1,2,3,4,5,6,7@0|0,1,2,3,4,5,6,7@0|8,9,10,11,12,13,14,15@1" -n 3 --bind numa
    chosen "$two" "1,2@0|9,10@1" -n 2 --bind 1-2,9-10
    chosen "$two" "7,8@0,1|3@0" -n 2 --bind 7-8:3
    chosen "pack:2 [numa] core:2 pu:2" "0,1@0|2,3@0|4,5@1|6,7@1" -n 4
    # The kernel numbers a core's second thread far behind its first.
    chosen "pack:2 [numa] core:2 pu:2(indexes=0,4,1,5,2,6,3,7)" "0,4@0|1,5@0|2,6@1|3,7@1" -n 4
    chosen "pack:1 [numa] core:2 pu:1" "" -n 3
    chosen "pack:1 [numa] core:2 pu:1" "0@0|1@0|0@0" -n 3 --bind cores
else
    echo "without hwloc: no machine is made up"
fi
exit $code
