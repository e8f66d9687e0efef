/* The wait graph of a machine: which ranks each rank waits for. A deadline names the rank at the end of a chain of
 * waits, and a cycle of waits is a deadlock.
 *
 * Every rank has a row in memory that all ranks map, with one bit for each rank that it waits for; a row without bits:
 * it does not wait. Invariant: only the rank itself writes its row, and a stamp changes with every publication and with
 * every new wait. A reader that finds the same stamp before and after has read one publication. */
#ifndef TSHI_WAITS_H
#define TSHI_WAITS_H

#include "tshard/dist.h"

#include <stdatomic.h>

typedef struct tshi_waits {
    int rank, size;
    size_t words;           /* of a row */
    _Atomic uint64_t *rows; /* [size] rows, zeroed before any rank joins; NULL: the ranks share no memory */
    uint64_t *mine;         /* [words] the bits that this rank publishes next */
    uint64_t *seen;         /* [words] scratch */
    int *process;           /* [size] PIDs; 0: unknown */
    uint64_t *before;       /* [size] the stamps at an earlier publication of this wait */
    int *next;              /* [size] scratch */
    uint64_t awaited;       /* the number of what the published row waits for */
    bool published;         /* this rank's row is not empty */
    bool said;              /* the row has the call's text */
    bool stands; /* this rank makes no other call before its wait ends, and the wait needs every rank of the row */
} tshi_waits;

size_t tshi_waits_bytes(int size);
/* The caller fills waits->process. TSH_ERR_MEMORY. */
tsh_status tshi_waits_open(tsh_world *world, tshi_waits *waits, void *rows);
void tshi_waits_close(tsh_world *world, tshi_waits *waits);

/* From `publish` until `end` this rank waits for the ranks added after `begin`. awaited: the number of what they are to
 * do (a sync, a message); another number than that of the published row begins a new wait, because this rank has made
 * progress since. */
void tshi_waits_begin(tshi_waits *waits, uint64_t awaited);
void tshi_waits_add(tshi_waits *waits, int rank);
/* Before `publish`: describes the call that waits. stands: see tshi_waits. */
void tshi_waits_say(tshi_waits *waits, const char *call, bool stands);
void tshi_waits_publish(tshi_waits *waits);
void tshi_waits_end(tshi_waits *waits);
/* The wait has failed for good: its row stays published, for ranks whose deadlines pass later. */
void tshi_waits_leave(tshi_waits *waits);

/* Names the ranks that block this one, whose row is published, as "rank 1, 3".
 *
 *   on this rank's chains of waits      `ranks`                            `stopped`                    returns
 *   stopped processes                   only these                         "; rank 3 is stopped; ..."   true
 *   ranks that do not wait              those, the ends of the chains      ""                           true
 *   only ranks that wait (a deadlock,   those that this rank waits for     ""                           false
 *   or a row that is about to change) */
bool tshi_waits_name(const tshi_waits *waits, char *ranks, size_t size, char *stopped, size_t stopped_size);

/* Describes the call in which a rank waits; false and "" if it does not wait. */
bool tshi_waits_call(const tshi_waits *waits, int rank, char *text, size_t size);
/* True if this rank is part of a cycle of waits, which can never end. `text` lists the calls from the lowest rank on,
 * each waiting for the next. Called after each `publish`; it takes several publications to find a cycle. */
bool tshi_waits_cycle(tshi_waits *waits, char *text, size_t size);

/* A signal has stopped that process. False for 0, and without /proc. */
bool tshi_process_stopped(int process);

#endif
