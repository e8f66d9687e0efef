/* The record of a rank: its memory, and the calls of its last whole step, equal calls added up. Kernels are recorded
 * only in a dry run; collectives and memory also in real runs where TSHARD_RECORD is set. It is written as text when
 * the world is destroyed; tshard-plan reads it, for its tables and for the model of a step's time.
 *
 * A step begins with the first call of a tape after an optimizer's step and ends with the last optimizer's step
 * before the next such call. What is reset without a backward (an evaluation) belongs to no step. In a program
 * without optimizers a step is what lies between two resets of a tape. */
#ifndef TSHI_RECORD_H
#define TSHI_RECORD_H

#include "base/base.h"
#include "tshard/device.h"

#include <stdio.h>

typedef enum tshi_record_kind {
    TSHI_RECORD_PRODUCT,    /* size: m, n, k, whether A and B are stored transposed */
    TSHI_RECORD_ATTENTION,  /* size: batch, heads, KV heads, queries, keys, dim; name: attention or attention_causal */
    TSHI_RECORD_KERNEL,     /* name: its family; size: bytes read and written */
    TSHI_RECORD_COLLECTIVE, /* name: the collective; size: ranks, bytes of the whole, or 0 without data */
    TSHI_RECORD_KIND_COUNT
} tshi_record_kind;

#define TSHI_RECORD_SIZES   6
#define TSHI_RECORD_NAME    24
#define TSHI_RECORD_AXES    4
#define TSHI_RECORD_WEIGHTS 64

/* Two calls are equal when all their bytes are. */
typedef struct tshi_record_call {
    tshi_record_kind kind;
    tsh_dtype dtype;
    bool backward; /* part of a backward */
    bool early;    /* a collective that was started to overlap other work: its wait comes later */
    char name[TSHI_RECORD_NAME];
    char axis[TSHI_RECORD_NAME]; /* of a collective: its group's axis */
    char unused[6];              /* zeros, so that bytes can be compared: the struct has no padding */
    int64_t size[TSHI_RECORD_SIZES];
} tshi_record_call;

typedef struct tshi_record_entry {
    tshi_record_call call;
    double flops;       /* of one call: additions and multiplications of products and attention */
    uint64_t bytes;     /* of one call: that a kernel reads and writes, or that this rank sends in a collective */
    uint64_t calls;     /* in the step */
    uint64_t run_calls; /* in the whole run */
    uint64_t segment, trained, pending, whole; /* while recording: calls since several points (record.c) */
    uint64_t hash;
} tshi_record_entry;

typedef struct tshi_record_axis {
    char name[TSHI_RECORD_NAME];
    int size;
    char weights[TSHI_RECORD_WEIGHTS]; /* "3:1", cut where there are many; "": none */
} tshi_record_axis;

typedef struct tshi_record {
    int rank, size;
    tshi_record_axis axis[TSHI_RECORD_AXES]; /* of the mesh over all ranks that has the most axes */
    int axes;
    uint64_t steps; /* whole steps of an optimizer */
    size_t peak;    /* bytes of tensors */
    tsh_memory_use memory;
    bool planned;     /* a dry run: kernels are counted and do not run */
    bool reads;       /* the program has read values, which a dry run does not compute */
    char read_in[48]; /* the function that ran at the first read, or "" */
    tshi_record_entry *entries;
    int count, capacity;
    /* Only while recording. */
    tsh_allocator allocator;
    int *table; /* [table_size] indices of entries by hash, -1: free slot */
    int table_size;
    bool stepped, backward, lost; /* lost: an entry was dropped for lack of memory */
    const char *heap;             /* the address range of tensors */
    size_t heap_bytes;
} tshi_record;

/* NULL without memory. */
TSHI_TOOLS tshi_record *tshi_record_create(const tsh_allocator *allocator);
TSHI_TOOLS void tshi_record_destroy(tshi_record *record);

/* --- while a run is planned; a NULL record is ignored ------------------------------------------------------------- */

/* Counts one call, whose name and sizes are those of its kind. */
void tshi_record_add(tshi_record *record, const tshi_record_call *call, double flops, uint64_t bytes);
/* Called when a tape runs a call, when a backward begins, when a tape is reset, and when an optimizer has made a
 * step. */
void tshi_record_forward(tshi_record *record);
void tshi_record_backward(tshi_record *record);
void tshi_record_reset(tshi_record *record);
void tshi_record_step(tshi_record *record);
/* Ends the recording: sets entry->calls. */
void tshi_record_end(tshi_record *record);

/* --- text --------------------------------------------------------------------------------------------------------- */

tsh_status tshi_record_write(const tshi_record *record, FILE *to);
/* TSH_ERR_IO where the text is no record. */
TSHI_TOOLS tsh_status tshi_record_read(const tsh_allocator *allocator, FILE *from, tshi_record **out);

#endif
