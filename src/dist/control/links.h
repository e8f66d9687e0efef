/* The connections between machines, a tree: the first rank of each machine is connected to those of its parent and of
 * its children. The root is the hub, the machine that listens in the rendezvous. With the machines numbered from the
 * hub on, 0 to n - 1, the parent of machine v > 0 is (v - 1) / fan-out. With at most fan-out + 1 machines it is a
 * star.
 *
 *   1  every machine connects to the hub, by a second rendezvous with a key of its own
 *   2  a machine that has children, but not the hub, listens, and tells the hub its port
 *   3  the hub tells each machine whose parent is another one where that parent listens, and ends their connection
 *   4  that machine joins its parent by a rendezvous of the parent and its children, also with a key of its own
 *
 * Invariant: no machine waits in a circle. It holds because a machine does its part of each step before it waits for
 * the next, and in step 4 joins its parent before it waits for its children. */
#ifndef TSHI_LINKS_H
#define TSHI_LINKS_H

#include "dist/rendezvous/rendezvous.h"

/* Children of a machine at most. */
#define TSHI_FAN_OUT 32

typedef struct tshi_machine_links {
    int node, nodes; /* this machine's number, and how many there are */
    int hub;         /* the machine that is the root */
    int fan_out;     /* 1 to TSHI_FAN_OUT, the same on all machines */
    int *connection; /* [nodes] TCP sockets to the neighbours in the tree, or -1 */
} tshi_machine_links;

/* Connects the machines. Called by the first rank of each machine in a world of several; waits until `deadline`. */
tsh_status tshi_links_open(const tshi_settings *settings, const tshi_roster *roster, const tsh_allocator *allocator,
                           int fan_out, double deadline, tshi_machine_links *out);
void tshi_links_close(tshi_machine_links *links, const tsh_allocator *allocator);
/* The neighbour over which a machine is reached; this machine itself for its own number. */
int tshi_links_toward(const tshi_machine_links *links, int node);

/* "machine b (ranks 2, 3)" */
const char *tshi_machine_name(const tshi_roster *roster, int node, char *text, size_t size);

#endif
