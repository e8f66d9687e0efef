#!/bin/sh
# overview.sh TSHARD_RUN VERSION: the man page tshard(7) on stdout. Its ENVIRONMENT is `tshard-run --settings`.
set -eu
cat <<PAGE
.TH TSHARD 7 "" "tshard $2" "tshard"
.SH NAME
tshard \- tensor-parallel model sharding with automatic gradients
.SH SYNOPSIS
.nf
.B #include <tshard/tshard.h>
.B cc program.c \$(pkg-config \-\-cflags \-\-libs tshard)
.B tshard-run \-n 4 ./a.out
.fi
.SH DESCRIPTION
tshard is a C library that splits the weights of linear and embedding layers by row or column across a group of ranks,
runs forward and backward, and adds all required communication, so that N ranks compute what one
rank would. Ranks are processes on one machine or, over UCX or MPI, on several; each may have a GPU.
.PP
A program calls tsh_world_init(), which finds the other ranks by the variables that
.BR tshard-run (1),
torchrun, mpirun and srun set; alone it is a world of one rank.
.SH FILES
Below the folder that tshard is installed in:
.TP
.I share/doc/tshard/docs
the manual, a page for each subject; docs/README.md lists them
.TP
.I share/doc/tshard/examples
programs, and a CMake project that builds them
.SH ENVIRONMENT
PAGE
${TSHARD_EMULATOR:-} "$1" --settings | awk -F ' [|] ' '
    NR > 2 {
        sub(/^[|] /, "")
        sub(/ [|]$/, "")
        gsub(/`/, "")
        gsub(/\\/, "\\e")
        gsub(/-/, "\\-")
        gsub(/\[[a-z]+\.md\]\([a-z]+\.md\)/, "the manual")
        print ".TP\n.B " $1 "\n" $2 ", default: " $3 ".\n.br\n" $4
    }'
cat <<'PAGE'
.SH SEE ALSO
.BR tshard-run (1),
.BR tshard-bench (1),
.BR tshard-checkpoint (1),
.BR tshard-plan (1),
.BR tshard-quantize (1),
.BR tshard-trace (1)
PAGE
