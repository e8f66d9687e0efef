/* The stream between the ranks of a machine and tshard-pmix, which tells MPI of its processes where no launcher of MPI
 * has started them.
 *
 * The ranks share one end; the other is the tool's descriptor TSHI_WIREUP_FD. A tshi_wireup_order goes to the tool,
 * with what it lists; then the number of each rank whose MPI has started, an int32_t (-1 is no rank). Lines come
 * from it: "@" and the number of its server's process; NAME=VALUE, variables for MPI; an empty one once the tools of
 * all machines are connected; "!" and the message of a failure. The ranks read them with MSG_PEEK, so each sees all.
 * The tool ends when every rank's end is closed. Whatever comes through the stream, its end too, sends SIGCONT to
 * all processes of the tool: a stopped one continues. */
#ifndef TSHI_WIREUP_H
#define TSHI_WIREUP_H

#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

#define TSHI_WIREUP_FD    3
#define TSHI_WIREUP_MAGIC UINT64_C(0x7473686172640003)
#define TSHI_WIREUP_TEXT  16384 /* room for all lines */
#define TSHI_WIREUP_TOOL  "tshard-pmix"

typedef struct tshi_wireup_order {
    uint64_t magic;
    int32_t version[3];
    uint32_t bytes; /* of this */
    /* The rendezvous of the ranks, which the tools repeat, one for each machine, under the key of the world. */
    tshi_settings settings;
    double seconds; /* from the order until MPI is to have started */
    double
        deadline; /* the end of them by tshi_clock, which the processes of a machine share: the tool may start late */
    /* Then come: int32_t node[ranks], char host[nodes][TSHI_HOST_SIZE], and int32_t process[here] of the ranks here, in
     * order. */
    int32_t node, nodes, ranks, here;
} tshi_wireup_order;

#endif
