#!/usr/bin/env bash
# check_includes.sh ROOT: do includes go strictly downward?
#   base -> device -> layout -> tensor -> dist -> autograd -> functional -> layers -> train -> io
# Prints a line for each include that does not and exits 1 when there is one.
#
# Inside the library: src/ROOM sees its own headers, those of rooms below and their public headers, never the umbrella
# tshard/tshard.h. Public headers see public headers of their own room and below. Examples see public headers alone.
# Inside dist, rendezvous sees itself alone, control and tagged no transport, collectives no rendezvous, control and transport,
# a transport no other; the registry names transports without their headers, and no other file outside a transport's folder
# names one: neither by a symbol (tshi_shm_ops) nor as a string ("local"). cblas.h belongs to src/device/cpu, getenv to
# src/base/settings.c; tsh_tensor_retain and tsh_tensor_release are the program's, and src calls the private ones.
# Tests, tools and benchmarks may look inside, so only the library is layered.
set -uo pipefail
cd "$1" || exit 2

files=$(find src include examples \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) 2> /dev/null | sort)
[ -n "$files" ] || { echo "no files to check"; exit 1; }
# shellcheck disable=SC2016  # awk's dollars, not the shell's
xargs awk '
    BEGIN {
        split("base 0 device 1 layout 2 tensor 3 dist 4 autograd 5 functional 6 layers 7 train 8 io 9", pairs, " ")
        for (i = 1; i in pairs; i += 2) level[pairs[i]] = pairs[i + 1]
        # The parts of dist: what its own files, those of its folders and those of the rooms above see of it.
        sees["rendezvous"] = "rendezvous"
        sees["collectives"] = "dist collectives"
        sees["control"] = "dist collectives rendezvous control"
        sees["dist"] = "dist collectives rendezvous control"
        sees["tagged"] = "dist collectives rendezvous control tagged"
        sees["transport"] = "dist collectives rendezvous control tagged transport"
        sees["above"] = "dist collectives"
    }
    # The room of a public header: its name; a captured graph belongs to a device, MPI and a trace to dist, own functions
    # to autograd, generation to layers, a checkpoint and a
    # tokenizer to io.
    function room_of(name) {
        sub(/\.h$/, "", name)
        if (name == "custom") return "autograd"
        return name == "graph" ? "device" : name == "mpi" || name == "trace" ? "dist" : name == "generate" ? "layers" : name == "checkpoint" || name == "tokenizer" ? "io" : name
    }
    function wrong(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, why, header
        bad++
    }
    # May a file of `room` see a header of `other`?
    function downward(room, other) {
        if (!(other in level)) wrong("no such room as " other)
        else if (room != other && level[other] >= level[room]) wrong(room " must not see " other)
    }
    # May this file see that header of dist?
    function within_dist(   own, other) {
        own = path[1] != "src" || room != "dist" ? "above" : parts > 3 ? path[3] : "dist"
        other = count > 2 ? name[2] : "dist"
        if (index(sees[own], other) == 0) wrong((own == "above" ? room : own) " must not see " other)
        else if (other == "transport" && path[4] != name[3]) wrong("a transport must not see another one")
    }
    # "tshi_shm_ops" is of shm.
    function transport_of(symbol) {
        sub(/.*tshi_/, "", symbol)
        sub(/_.*/, "", symbol)
        return symbol
    }
    FNR == 1 {
        parts = split(FILENAME, path, "/")
        public = path[1] == "include"
        room = public ? room_of(path[parts]) : path[2]
        umbrella = FILENAME == "include/tshard/tshard.h"
        example = path[1] == "examples"
        if (!example && !umbrella && !(room in level)) { header = FILENAME; wrong("no such room as " room) }
    }
    # Variables are read by base/settings.c alone, which knows what a malformed one is.
    /(^|[^a-zA-Z0-9_])getenv[ \t]*\(/ && path[1] == "src" && FILENAME != "src/base/settings.c" {
        header = $0
        wrong("a variable is read past base/settings.h")
    }
    # A transport has its name in its own folder and in the registry.
    path[1] == "src" && FILENAME !~ /^src\/dist\/registry\.[ch]$/ {
        text = $0
        while (match(text, /(^|[^a-zA-Z0-9_])(tshi_(shm|mpi|ucx|nccl|self)_[a-z]|tshi_plan_ops)|"(local|mpi|ucx|nccl|self|plan)"/)) {
            found = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            if (found ~ /^"/ ? FILENAME ~ /^src\/dist\/transport\// : FILENAME ~ "^src/dist/transport/" transport_of(found) "/") continue
            header = $0
            wrong("a transport is named outside its folder")
        }
    }
    # References that the library takes for itself are none that a program may give back.
    /(^|[^a-zA-Z0-9_])tsh_tensor_(retain|release)[ \t]*\(/ && path[1] == "src" && FILENAME !~ /^src\/tensor\/tensor\.[ch]$/ {
        header = $0
        wrong("the library retains and releases by tshi_tensor_retain and tshi_tensor_release")
    }
    /^#include KERNELS$/ { next } # a file of kernels, compiled for each dtype: the line that defines it is read
    /^[ \t]*#[ \t]*define[ \t]+KERNELS|^[ \t]*#[ \t]*include/ {
        if (!match($0, /["<][^">]*[">]/)) { header = $0; wrong("an include that this check cannot read"); next }
        quoted = substr($0, RSTART, 1) == "\""
        header = substr($0, RSTART + 1, RLENGTH - 2)
        count = split(header, name, "/")
        if (header ~ /(^|\/)\.\.?\//) { wrong("includes are relative to src/ and include/"); next }
        if (name[1] == "tshard") {
            other = room_of(name[2])
            if (other == "tshard") { if (!example) wrong("the umbrella header is for users") }
            else if (!example && !umbrella && (room in level)) downward(room, other)
        } else if (public && quoted) wrong("a public header must not need a private one")
        else if (example && (quoted && count > 1 || name[1] in level)) wrong("an example must not need a private header")
        else if (header == "cblas.h" && FILENAME !~ /^src\/device\/cpu\//) wrong("only src/device/cpu may call the BLAS")
        else if ((quoted && count > 1 || name[1] in level) && !example && (room in level)) downward(room, name[1])
        else if (quoted && count == 1 && !example) wrong("name the room of the header")
        if (quoted && name[1] == "dist" && count > 1 && (room in level) && level[room] >= level["dist"]) within_dist()
    }
    END { exit bad > 0 }' <<< "$files"
