/* Data parallelism from the inside: a gradient sink whose sums run in buckets. */
#ifndef TSHI_DATA_PARALLEL_H
#define TSHI_DATA_PARALLEL_H

#include "layers/layers.h"
#include "tshard/train.h"

/* Where the gradient of one parameter lies. */
typedef struct tshi_bucket_slot {
    tsh_tensor *parameter;
    tsh_tensor *whole;   /* view of the bucket, laid out as the parameter: its gradient */
    tsh_tensor *term;    /* the same memory, LOCAL along the axis: this rank's term of the gradient */
    tsh_tensor *surplus; /* on ranks but the first, gradients that are the same on all ranks are added here and dropped:
                          * the sum has the first rank's */
    int64_t start;       /* elements into the bucket */
    int bucket;
    bool unsummed;                 /* the gradient is this rank's term of a sum that has not been made yet */
    struct tshi_bucket_slot *next; /* in the bucket */
} tshi_bucket_slot;

/* Gradients one after another, then a flag for each: nonzero in the sum where any rank has a gradient. */
typedef struct tshi_bucket {
    tsh_dtype dtype;
    int64_t gradients; /* elements */
    int count;         /* of slots */
    int incomplete;    /* slots that this backward may still add to */
    int absent;        /* slots for which this rank has no gradient in the sum */
    tshi_bucket_slot *first, *last;
    tsh_tensor *memory, *flags; /* flags: a view of the end of memory */
    tsh_work *work;
} tshi_bucket;

typedef enum tshi_sums_state {
    TSHI_SUMS_IDLE,
    TSHI_SUMS_IN_BACKWARD,
    TSHI_SUMS_STARTED, /* all sums are started and not waited for */
    TSHI_SUMS_FAILED   /* there are no gradients until the next backward */
} tshi_sums_state;

struct tsh_data_parallel {
    tshi_gradient_sink sink; /* first: what autograd knows */
    tsh_tape *tape;          /* NULL once that is destroyed */
    const tsh_mesh *mesh;
    tsh_group *parent, *group; /* the axis', and one of the same ranks for the sums */
    bool average, sync;
    tshi_sums_state state;
    size_t bucket_bytes, first_bucket_bytes;
    tshi_bucket_slot *slots;
    tshi_bucket *buckets;
    int count, bucket_count;
    int started, tested; /* buckets of this backward whose sum is started; is known to be done */
    void *flags;         /* host memory for any bucket's */
};

static inline const tsh_allocator *tshi_data_parallel_allocator(const tsh_data_parallel *dp) {
    return &dp->mesh->device->allocator;
}

/* Assigns the slots to buckets, in order. */
void tshi_buckets_assign(tsh_data_parallel *dp);
/* Puts the buckets that fit into symmetric memory, where the group's sums gain from it and all ranks have the same
 * buckets at the same offsets there; otherwise none. Collective over dp->parent there. */
tsh_status tshi_buckets_make_symmetric(tsh_data_parallel *dp);
/* Gives memory to the buckets that have none. */
tsh_status tshi_buckets_create(tsh_data_parallel *dp);
void tshi_buckets_destroy(tsh_data_parallel *dp);

/* The slot's gradient becomes this rank's term of a sum: what it holds is the same on all ranks, and the first keeps
 * it. */
void tshi_slot_open(const tsh_data_parallel *dp, tshi_bucket_slot *slot);
/* Starts the bucket's sum over the group. */
tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket);
/* Waits for all sums; where all have gone well, the parameters have their gradients. */
tsh_status tshi_buckets_wait(tsh_data_parallel *dp);
/* Makes all gradients stale; waits for sums that are under way. */
void tshi_buckets_drop(tsh_data_parallel *dp);

/* Waits for the sums, or says why there are none. */
tsh_status tshi_data_parallel_wait(tsh_data_parallel *dp);

extern const tshi_gradient_sink_ops tshi_data_parallel_sink;

#endif
