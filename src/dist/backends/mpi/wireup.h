/* What a machine's first rank and tshard-pmix say to each other.
 *
 * MPI leaves it to a process manager to tell its processes of each other. Where no launcher of MPI has started them,
 * tshard-pmix is one for the ranks of a machine. They share one end of a stream; its other end is the tool's descriptor
 * TSHI_WIREUP_FD. A tshi_wireup_order goes to the tool, with what is listed in it. The tool answers with lines: "@" and
 * the number of its server's process; NAME=VALUE, variables for MPI; an empty one, when all machines' tools have met;
 * "!" and words, when something goes wrong before or after that. The ranks only look at them (MSG_PEEK), so each sees
 * all. A rank whose MPI has started sends its number, an int32_t; -1 says nothing. The tool ends when every rank's end
 * of the stream is closed.
 *
 * What comes through the stream, its end too, is a SIGCONT for all processes of the tool: so a tool that has been
 * stopped goes on when a rank wants it to. */
#ifndef TSHI_WIREUP_H
#define TSHI_WIREUP_H

#include "dist/bootstrap/rendezvous.h"
#include "dist/bootstrap/sockets.h"

#define TSHI_WIREUP_FD    3
#define TSHI_WIREUP_MAGIC UINT64_C(0x7473686172640003)
#define TSHI_WIREUP_TEXT  16384 /* room for all lines */
#define TSHI_WIREUP_TOOL  "tshard-pmix"

typedef struct tshi_wireup_order {
    uint64_t magic;
    int32_t version[3];
    uint32_t bytes; /* of this */
    /* How the ranks have met: the tools do it alike, one for each machine, with the world's own key. */
    tshi_settings settings;
    double seconds; /* until MPI is to have started */
    /* Then come: int32_t node[ranks], char host[nodes][TSHI_HOST_SIZE], and int32_t process[here] of the ranks here, in
     * order. */
    int32_t node, nodes, ranks, here;
} tshi_wireup_order;

#endif
