/* The stream between the ranks of a machine and tshard-pmix, which describes the processes to MPI where no MPI launcher
 * has started them. The ranks share one end; the other is the tool's descriptor TSHI_WIREUP_FD.
 *
 *   to the tool      tshi_wireup_order and its lists; then, as int32_t, each rank whose MPI has started (-1: no rank)
 *   to the ranks,    "@" and the PID of the tool's server
 *   in lines         NAME=VALUE: variables for MPI
 *                    an empty line: the tools of all machines are connected
 *                    "!" and a failure message
 *
 * The ranks read the lines with MSG_PEEK, so each rank sees all of them. The tool ends when every rank's end is closed.
 * Any arrival on the stream, and its end, sends SIGCONT to all processes of the tool, so a stopped one continues. */
#ifndef TSHI_WIREUP_H
#define TSHI_WIREUP_H

#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

#define TSHI_WIREUP_FD    3
#define TSHI_WIREUP_MAGIC UINT64_C(0x7473686172640003)
#define TSHI_WIREUP_TEXT  16384 /* bytes for all lines */
#define TSHI_WIREUP_TOOL  "tshard-pmix"

typedef struct tshi_wireup_order {
    uint64_t magic;
    int32_t version[3];
    uint32_t bytes; /* sizeof(tshi_wireup_order) */
    /* The ranks' rendezvous. The tools, one for each machine, hold another one under the world's key. */
    tshi_settings settings;
    double seconds;  /* from the order until MPI must have started */
    double deadline; /* when they end, by tshi_clock, which is the same in all processes of a machine */
    /* Followed by int32_t node[ranks], char host[nodes][TSHI_HOST_SIZE], and the PIDs of the ranks of this machine in
     * order, int32_t process[here]. */
    int32_t node, nodes, ranks, here;
} tshi_wireup_order;

#endif
