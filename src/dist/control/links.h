/* The connections between machines, a star: the first rank of each machine is connected to the first rank of the hub,
 * the machine that listens in the rendezvous. */
#ifndef TSHI_LINKS_H
#define TSHI_LINKS_H

#include "dist/rendezvous/rendezvous.h"

typedef struct tshi_machine_links {
    int node, nodes; /* this machine's number, and how many there are */
    int hub;         /* the machine that is the hub */
    /* [nodes] TCP sockets, or -1. The hub has one for each other machine; another machine has the hub's at [node]. */
    int *connection;
} tshi_machine_links;

/* Connects the machines by a second rendezvous with the settings of the first and a key derived from the world's.
 * Called by the first rank of each machine in a world of several; waits until `deadline`. */
tsh_status tshi_links_open(const tshi_settings *settings, const tshi_roster *roster, const tsh_allocator *allocator,
                           double deadline, tshi_machine_links *out);
void tshi_links_close(tshi_machine_links *links, const tsh_allocator *allocator);

/* "machine b (ranks 2, 3)" */
const char *tshi_machine_name(const tshi_roster *roster, int node, char *text, size_t size);

#endif
