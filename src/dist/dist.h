/* World, group and backend from the inside. */
#ifndef TSHI_DIST_H
#define TSHI_DIST_H

#include "tensor/tensor.h"
#include "tshard/dist.h"

/* One call as the backends see it: memory and counts, already checked on this rank. */
typedef struct tshi_call {
    tsh_collective op;
    tsh_dtype dtype;
    tsh_reduce_op reduce;
    int root;
    const void *in;
    void *out;
    int64_t count; /* elements of the whole: all_reduce and broadcast the buffer; all_gather and all_to_all `out`;
                    * reduce_scatter `in` */
    const int64_t *counts;    /* all_gather, reduce_scatter: elements of each rank (never NULL) */
    const int64_t *in_counts; /* all_to_all, never NULL */
    const int64_t *out_counts;
    tsh_status failed; /* not TSH_OK: this rank's arguments are bad; take part only to tell the others */
} tshi_call;

/* A backend: what a group of ranks needs. One const table each: self.c, local.c. */
typedef struct tshi_group_ops {
    const char *name;
    /* Run the call; returns when this rank's buffers are free again. Collective. */
    tsh_status (*run)(tsh_group *group, const tshi_call *call);
    /* Set up group->state; collective over the world. member: this rank is in it. */
    tsh_status (*open)(tsh_group *group, bool member);
    void (*close)(tsh_group *group);
    /* tsh_world_fail, tsh_world_recover. */
    void (*fail)(tsh_world *world, const char *reason);
    tsh_status (*recover)(tsh_world *world);
} tshi_group_ops;

#define TSHI_RING 32

typedef struct tshi_ring_entry {
    uint64_t number;
    tsh_collective op;
    tsh_dtype dtype;
    int64_t count;
} tshi_ring_entry;

struct tsh_group {
    const tshi_group_ops *ops;
    tsh_world *world;
    const tsh_mesh *mesh; /* that this group is an axis of */
    tsh_mesh own_mesh;    /* used when no mesh made it */
    int rank, size;
    int *ranks;      /* world ranks */
    void *state;     /* the backend's */
    int64_t *counts; /* scratch for balanced splits, [2 * size] */
    tsh_group_stats stats;
    uint64_t calls;
    tshi_ring_entry ring[TSHI_RING];
    tsh_group *next; /* the world's list of live groups */
};

struct tsh_world {
    const tshi_group_ops *ops;
    int rank, size, local_rank;
    double timeout;
    uint64_t seed, next_stream;
    tsh_log log;
    tsh_allocator allocator;
    tsh_device *device;
    tsh_group *group;  /* of all */
    tsh_group *groups; /* live ones, this rank's */
    void *state;       /* the backend's */
};

/* The next stream of random numbers. */
uint64_t tshi_world_stream(tsh_world *world);

#endif
