/* Which ranks each rank of a machine waits for, so that a deadline names the rank at the end of a chain of waits.
 *
 * Every rank has a row of bits in memory that all ranks map, one bit for each rank that it waits for; an empty row: it
 * does not wait. A rank alone writes its row. */
#ifndef TSHI_WAITS_H
#define TSHI_WAITS_H

#include "tshard/dist.h"

#include <stdatomic.h>

typedef struct tshi_waits {
    int rank, size;
    size_t words;           /* of a row */
    _Atomic uint64_t *rows; /* [size * words], zeroed before the first rank has them; NULL: no memory is shared */
    uint64_t *mine;         /* [words] what this rank is about to publish */
    uint64_t *seen;         /* [words] scratch */
    int *process;           /* [size] process numbers, 0: not to be looked at */
    uint64_t *before;       /* [size] the stamps of the rows at an earlier look of this wait */
    int *next;              /* [size] scratch */
    uint64_t awaited;       /* by the row that is published */
    bool published;         /* this rank's row is not empty */
    bool said;              /* the row has the words of the call */
    bool stands;            /* this rank makes no call before its wait ends, and one absent rank is enough to hold it */
} tshi_waits;

size_t tshi_waits_bytes(int size);
/* TSH_ERR_MEMORY. The caller fills waits->process. */
tsh_status tshi_waits_open(tsh_world *world, tshi_waits *waits, void *rows);
void tshi_waits_close(tsh_world *world, tshi_waits *waits);

/* This rank waits for the ranks that are added after `begin`, from `publish` until `end`. awaited: a number for what
 * they are to do; with another number than the one published before, this is another wait, before which peers have got
 * something. */
void tshi_waits_begin(tshi_waits *waits, uint64_t awaited);
void tshi_waits_add(tshi_waits *waits, int rank);
/* Before `publish`: the call that waits, in words. */
void tshi_waits_say(tshi_waits *waits, const char *call, bool stands);
void tshi_waits_publish(tshi_waits *waits);
void tshi_waits_end(tshi_waits *waits);
/* The wait has ended in vain, for good: its row stays, for the ranks whose deadlines come later. */
void tshi_waits_leave(tshi_waits *waits);

/* The ranks that keep this one, whose row is published: those at the ends of the chains that do not wait themselves,
 * and of these, or of those on the way, the stopped ones alone if there are any. "rank 1, 3", and "; rank 3 is stopped"
 * for the second text, else "". False, and the ranks that this one waits for, where every chain leads back: a deadlock,
 * or a row that is about to change. */
bool tshi_waits_name(const tshi_waits *waits, char *ranks, size_t size, char *stopped, size_t stopped_size);

/* The call in which a rank waits; false, and "", where it does not. */
bool tshi_waits_call(const tshi_waits *waits, int rank, char *text, size_t size);
/* True where this rank waits for one that waits for another one, ..., that waits for this rank: for ever. Their
 * calls are in `text`, from the lowest rank on, each waiting for the next. After each `publish`; a wait's first
 * finds none. */
bool tshi_waits_cycle(tshi_waits *waits, char *text, size_t size);

/* A signal has stopped that process; false for 0, and where there is no /proc. */
bool tshi_process_stopped(int process);

#endif
