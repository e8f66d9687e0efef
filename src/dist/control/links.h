/* The connections between machines: the first rank of each is connected to that of one machine, the hub, which is the
 * machine that listens in the rendezvous. */
#ifndef TSHI_LINKS_H
#define TSHI_LINKS_H

#include "dist/rendezvous/rendezvous.h"

typedef struct tshi_machine_links {
    int node, nodes; /* this machine, of so many */
    int hub;         /* the machine that is the hub */
    int *
        connection; /* [nodes] of TCP, or -1: the hub has each other machine's, the others have the hub's at their own */
} tshi_machine_links;

/* Connects the machines by a second rendezvous, as the settings say and under a key made of the world's, until
 * `deadline`. Called by the first rank of each machine, where there are several. */
tsh_status tshi_links_open(const tshi_settings *settings, const tshi_roster *roster, const tsh_allocator *allocator,
                           double deadline, tshi_machine_links *out);
void tshi_links_close(tshi_machine_links *links, const tsh_allocator *allocator);

/* "machine b (ranks 2, 3)" */
const char *tshi_machine_name(const tshi_roster *roster, int node, char *text, size_t size);

#endif
