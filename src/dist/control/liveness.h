/* How a rank learns whether a rank of another machine is alive when no relay is left to say so, and before the ranks
 * connect, whether packets between two machines arrive at all. In a world of several machines each rank listens on a
 * port of its own, and never accepts. A peer that doubts whether it is alive probes it: it connects, and keeps the
 * connection. The kernel of the other machine answers for the process, whatever the process is doing.
 *
 *   the connection                            the rank
 *   is made, and stays                        is ALIVE: it computes, or is stopped
 *   is refused, reset or ended                has ENDED
 *   has had no answer for the silence         is SILENT: its machine has no power, or is cut off
 *   (a rank that could not open a port)       UNKNOWN
 *
 * A child of the rank's process that has not called exec keeps the port open. A firewall that refuses connections to
 * the port makes a rank look as if it had ended: it is then left behind, and gets TSH_ERR_STATE. */
#ifndef TSHI_LIVENESS_H
#define TSHI_LIVENESS_H

#include "dist/rendezvous/wire.h"
#include "dist/world.h"

typedef enum tshi_probe_state {
    TSHI_PROBE_UNKNOWN = 0,
    TSHI_PROBE_ALIVE,
    TSHI_PROBE_ENDED,
    TSHI_PROBE_SILENT
} tshi_probe_state;

/* Opens this rank's port, and gathers the addresses of all ranks. Collective; waits. A rank that cannot listen has
 * none, which is no failure. */
tsh_status tshi_liveness_open(tsh_world *world);
/* TSH_ERR_SYSTEM, naming both machines, where one does not answer another: a transport that connects to it could wait
 * for minutes inside the kernel. Collective; waits for up to 10 s or TSHARD_SILENCE. */
tsh_status tshi_liveness_reach(tsh_world *world);
void tshi_liveness_close(tsh_world *world);
/* The number of that machine among those of the world (tshi_process.machine); -1: it has no rank of a world of several
 * machines. */
int tshi_liveness_node(const tsh_world *world, const unsigned char machine[TSHI_GROUP_SIZE]);

/* A probe of one rank. Zeros: it has not begun. */
typedef struct tshi_probe {
    double since;   /* when it began; 0: it has not */
    int connection; /* -1: it has ended */
    tshi_probe_state state;
} tshi_probe;

/* Begins the probe, or looks at its answer. Does not wait. `silence`: seconds, the same in each call. */
tshi_probe_state tshi_probe_poll(const tsh_world *world, int rank, double silence, tshi_probe *probe);
void tshi_probe_end(tshi_probe *probe);

#endif
