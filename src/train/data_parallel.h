/* The schedule of gradient sums from the inside. */
#ifndef TSHI_DATA_PARALLEL_H
#define TSHI_DATA_PARALLEL_H

#include "layers/layers.h"
#include "tshard/train.h"

/* One parameter's place: where its gradient lies. */
typedef struct tshi_place {
    tsh_tensor *parameter;
    tsh_tensor *whole;   /* view of the bucket, laid out as the parameter: its gradient */
    tsh_tensor *term;    /* the same memory, LOCAL along the axis: this rank's term of it */
    tsh_tensor *surplus; /* where ranks but the first put gradients that are the same on all of them: the sum has the
                          * first one's */
    int64_t start;       /* elements into the bucket */
    int bucket;
    int uses;                /* nodes of this backward that may still add to it */
    struct tshi_place *next; /* in the bucket */
} tshi_place;

/* Gradients one after another, then a mark for each: not zero in the sum when any rank has had one. */
typedef struct tshi_bucket {
    tsh_dtype dtype;
    int64_t gradients; /* elements */
    int count;         /* of places */
    int left;          /* places that still have uses */
    int absent;        /* places for which this rank had no gradient in this sum */
    tshi_place *first, *last;
    tsh_tensor *memory, *marks; /* marks: a view of its end */
    tsh_work *work;
} tshi_bucket;

typedef enum tshi_stage {
    TSHI_NO_SUMS,
    TSHI_BACKWARD,
    TSHI_UNDER_WAY, /* sums are started, nobody has waited for them */
    TSHI_BROKEN     /* by a failure: gradients are not to be had until the next backward */
} tshi_stage;

struct tsh_data_parallel {
    tshi_schedule schedule; /* first: what autograd knows */
    tsh_world *world;
    tsh_tape *tape; /* NULL once that is destroyed */
    const tsh_mesh *mesh;
    tsh_group *parent, *group; /* the axis', and one of the same ranks for the sums */
    bool average, sync;
    tshi_stage stage;
    size_t bucket_bytes, first_bucket_bytes;
    tshi_place *places;
    tshi_bucket *buckets;
    int count, bucket_count;
    int started, tested; /* buckets of this backward whose sum has been started; seen done */
    void *marks;         /* host memory for any bucket's */
};

/* Share out the places over buckets, in order. */
void tshi_buckets_share_out(tsh_data_parallel *dp);
/* Have those that fit lie in symmetric memory, where the group's sums gain from it and all ranks have the same ones at
 * the same places there; else none. Collective over dp->parent there. */
tsh_status tshi_buckets_place(tsh_data_parallel *dp);
/* Give the buckets memory, where they have none. */
tsh_status tshi_buckets_create(tsh_data_parallel *dp);
void tshi_buckets_destroy(tsh_data_parallel *dp);

/* The gradient becomes this rank's term of a sum: what is there already is the same on all ranks, and the first keeps
 * it. */
void tshi_place_open(const tsh_data_parallel *dp, tshi_place *place);
/* Start the bucket's sum over the group. */
tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket);
/* Wait for all buckets, and where all are well, let the parameters have their gradients. */
tsh_status tshi_buckets_wait(tsh_data_parallel *dp);
/* No gradients. Waits for work that is under way. */
void tshi_buckets_forget(tsh_data_parallel *dp);

/* What the tape calls. */
extern const tshi_schedule_ops tshi_data_parallel_ops;

#endif
