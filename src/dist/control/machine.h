/* The memory that the ranks of one machine share: the control page, an area for the transport, the rows of the wait
 * graph, the queues of packets, then the heaps. Processes share an anonymous memory file and threads plain memory, so a
 * crash leaves no named object behind.
 *
 * Invariant: a rank that is a process holds a lock on byte `rank` of the file as long as it lives. It takes the lock
 * before it joins, and the kernel releases it when the process ends; so a peer that finds the byte unlocked knows that
 * the rank is dead or has left. */
#ifndef TSHI_MACHINE_H
#define TSHI_MACHINE_H

#include "dist/control/packets.h"
#include "dist/control/wait_graph.h"

#include <sys/types.h>

struct tshi_settings;
struct tshi_roster;

/* What the threads of one process share; it outlives their worlds. */
struct tsh_thread_rendezvous {
    int size;
    char *memory; /* everything except the heaps */
    size_t memory_bytes, area_bytes;
    char **heap; /* [size], unmapped when all ranks have left */
    size_t *heap_bytes;
    atomic_flag *taken;
};

/* The poll for deaths on this machine. */
typedef struct tshi_deaths {
    tshi_page *page;
    int file; /* the shared memory's descriptor; -1: no death can be seen */
    int own;  /* this rank, which is not polled */
    const int *ranks;
    int count, next; /* how many ranks; the index at which the next poll begins */
} tshi_deaths;

/* Marks ranks DEAD whose process has ended without leaving the world. Each call polls a few ranks, in turn. */
void tshi_deaths_poll(tshi_deaths *deaths);
/* The process of another rank of this machine has ended. */
bool tshi_deaths_has_ended(const tshi_deaths *deaths, int rank);

/* The messages of this rank to others, and from them. */
typedef struct tshi_channel {
    tshi_packet_queue *queue;        /* [size + 1], see tshi_packet_queues_bytes */
    struct tshi_early_packet *first; /* taken from this rank's queue before they were waited for */
    tshi_pool spare;                 /* of tshi_early_packet */
    uint64_t waits;                  /* numbers them */
    uint64_t sent, sent_bytes;       /* messages so far */
} tshi_channel;

/* What a rank knows of its machine. All zeros in a world of one rank. */
typedef struct tshi_machine {
    tshi_page *page;   /* NULL: there are no peers */
    tsh_status broken; /* the world can only be continued or destroyed */
    char broken_words[TSHI_MESSAGE_SIZE];
    tsh_thread_rendezvous *threads; /* NULL: ranks are processes */
    char *area;                     /* for the transport; zeroed */
    char **heap;                    /* [size]; NULL for ranks on other machines */
    int nodes, *node;               /* [size] the machine of each rank, from 0 */
    int *ranks, count;              /* the ranks of this machine, ascending, and how many */
    char *memory;                   /* the mapping of the whole file; NULL for threads */
    size_t memory_bytes;
    dev_t file_device; /* identify the file, to check that deaths.file still names it */
    ino_t file_number;
    void *life; /* a mapping that keeps this rank's lock alive; NULL: deaths.file holds it */
    tshi_deaths deaths;
    tshi_waits waits; /* rows is NULL in a world of several machines */
    uint32_t steps;   /* of all recoveries, made by this rank */
    tshi_channel channel;
    struct tshi_relay *relay;       /* of the first rank of a machine, in a world of several; else NULL */
    struct tshi_heap_block *blocks; /* of this rank's heap that it has released before its peers */
    int liveness_socket;            /* see liveness.h; -1: none */
    struct tshi_liveness_address
        *liveness_addresses; /* [size] of all ranks, in a world of several machines whose ranks may go on; NULL */
} tshi_machine;

/* Shares memory in a world whose rank, size, log and allocator are set. With a roster the ranks are processes: those of
 * this machine exchange a descriptor of the memory, until the deadline. NULL: threads; a peer's heap is known once the
 * peer has joined. */
tsh_status tshi_machine_open(tsh_world *world, const struct tshi_settings *settings, const struct tshi_roster *roster,
                             tsh_thread_rendezvous *threads, size_t area_bytes, double deadline);
/* Ends the relay after this rank has left. Waits up to 2.5 seconds until the relay has passed everything on. */
void tshi_machine_disconnect(tsh_world *world);
/* Disconnects as well. */
void tshi_machine_close(tsh_world *world);
size_t tshi_machine_bytes(int size, size_t area_bytes);
/* The machine has more ranks than the union of their affinity masks has cores. The same on all ranks of the machine,
 * once all have joined. */
bool tshi_machine_oversubscribed(const tsh_world *world);
/* Polls of a peer before the first yield, where each rank has a core: a peer on another core answers sooner. */
#define TSHI_SPINS 4000
/* Polls for deaths. Warns once if the program has closed the descriptor that the poll needs. */
void tshi_machine_poll(tsh_world *world);

#endif
