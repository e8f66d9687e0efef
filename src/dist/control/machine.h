/* The memory that the ranks of one machine share: the control page, an area for the transport, the rows of waits, then
 * the heaps of the ranks. Anonymous memory files for processes, plain memory for threads, so that nothing with a name
 * is ever left behind.
 *
 * Each rank of a process holds a lock of one byte of the file as long as it lives, by which its peers see its death. */
#ifndef TSHI_MACHINE_H
#define TSHI_MACHINE_H

#include "dist/control/page.h"
#include "dist/control/wait_graph.h"

#include <sys/types.h>

struct tshi_settings;
struct tshi_roster;

/* Shared by threads of one process before and after their worlds. */
struct tsh_thread_rendezvous {
    int size;
    char *memory; /* all but the heaps */
    size_t memory_bytes, area_bytes;
    char **heap; /* [size], unmapped when all ranks have left */
    size_t *heap_bytes;
    atomic_flag *taken;
};

/* What looks for deaths of the ranks of a machine. */
typedef struct tshi_deaths {
    tshi_page *page;
    int file; /* the memory's; -1: nothing can be seen */
    int own;  /* this rank, which is not looked at */
    const int *ranks;
    int count, next; /* of them; the next look begins there */
} tshi_deaths;

/* Marks ranks as dead whose process has ended without leaving the world: a few in each look, in turn. */
void tshi_deaths_poll(tshi_deaths *deaths);

/* This rank's side. All zeros in a world of one rank. */
typedef struct tshi_machine {
    tshi_page *page;   /* NULL: there are no peers */
    tsh_status broken; /* the world can only be destroyed */
    char broken_words[TSHI_MESSAGE_SIZE];
    tsh_thread_rendezvous *threads; /* NULL: ranks are processes */
    char *area;                     /* the transport's; zeros at first */
    char **heap;                    /* [size]; NULL of ranks on other machines */
    size_t *heap_bytes;             /* [size] */
    int nodes, *node;               /* [size] the machine of each rank, from 0 */
    int *ranks, count;              /* those of this machine, in order */
    char *memory;                   /* of processes: all of it in one piece */
    size_t memory_bytes;
    dev_t file_device; /* what deaths.file must still be */
    ino_t file_number;
    void *life; /* a mapping that keeps this rank's lock, or NULL: deaths.file has it */
    tshi_deaths deaths;
    tshi_waits waits;               /* its rows are NULL where the ranks are on several machines */
    uint32_t steps;                 /* of recovering that this rank has made */
    struct tshi_relay *relay;       /* of the first rank of a machine, where there are several; else NULL */
    struct tshi_heap_block *blocks; /* of this rank's heap, which it has released, and maybe not all others */
} tshi_machine;

/* Shares memory in a world whose rank, size, log and allocator are set. roster: the ranks are processes, among which
 * the memory of this machine is exchanged until the deadline; NULL: threads. Heaps of peers that are threads are known
 * once these have joined. */
tsh_status tshi_machine_open(tsh_world *world, const struct tshi_settings *settings, const struct tshi_roster *roster,
                             tsh_thread_rendezvous *threads, size_t area_bytes, double deadline);
/* Ends the relay: this rank has left. Waits for what it has still to pass on, two seconds at most. */
void tshi_machine_disconnect(tsh_world *world);
/* Does that too. */
void tshi_machine_close(tsh_world *world);
size_t tshi_machine_bytes(int size, size_t area_bytes);
/* More ranks than cores that they may run on together: a launcher may have bound each to its own. The same on all ranks
 * of the machine, once all have joined. */
bool tshi_machine_oversubscribed(const tsh_world *world);
/* Looks for deaths. Warns once where the program has closed the descriptor that this takes. */
void tshi_machine_poll(tsh_world *world);

#endif
