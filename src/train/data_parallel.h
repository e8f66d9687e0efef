/* Data parallelism from the inside: a gradient sink whose sums run in buckets. */
#ifndef TSHI_DATA_PARALLEL_H
#define TSHI_DATA_PARALLEL_H

#include "layers/layers.h"
#include "tshard/train.h"

/* The ranks over which a gradient is summed: those that hold the same part of the parameter and use it with different
 * data. */
typedef enum tshi_summands {
    TSHI_SUMMANDS_COPIES,  /* of the model: along the schedule's axis alone */
    TSHI_SUMMANDS_ALL,     /* along the model's axis, too, where tokens are split and the parameter is REPLICATED */
    TSHI_SUMMANDS_SHARERS, /* along the schedule's axis, and those along the model's that share a unit */
    TSHI_SUMMANDS
} tshi_summands;

/* What backwards have added to gradients so far. */
typedef enum tshi_additions {
    TSHI_ADDED_NOTHING,
    TSHI_ADDED_THE_SAME, /* the same on all ranks of the schedule's axis */
    TSHI_ADDED_TERMS /* also terms of sums over the axis; set as well with one rank, and once the warning is logged */
} tshi_additions;

/* Where the gradient of one parameter lies. */
typedef struct tshi_bucket_slot {
    tsh_tensor *parameter;
    tsh_tensor *whole;           /* view of the bucket, laid out as the parameter: its gradient */
    tsh_tensor *term;            /* the same memory, laid out as this rank's term of the gradient */
    tsh_tensor *slice;           /* of a sharded bucket: this rank's slice of the gradient */
    tsh_tensor *values;          /* of a sharded bucket: the same slice of the parameter */
    tsh_tensor *held, *stand_in; /* of a unit: the slice in the unit's memory; the whole that functions take */
    tsh_tensor *part;    /* of a unit: the slice's part of `whole`, where calls that take the slice itself add */
    const char *name;    /* of the parameter in the list, while buckets are assigned */
    tsh_tensor *surplus; /* on ranks but the first, gradients that are the same on all ranks are added here and dropped:
                          * the sum has the first rank's */
    int64_t start;       /* elements into the bucket */
    int bucket;
    tshi_summands over;
    bool unsummed;                 /* the gradient is this rank's term of a sum that has not been made yet */
    tshi_additions added;          /* of a sharded bucket, since that; the same: this rank's slice of it is the sum's */
    struct tshi_bucket_slot *next; /* in the bucket */
} tshi_bucket_slot;

/* Gradients one after another, then a flag for each: nonzero in the sum where any rank has a gradient.
 *
 * A sharded bucket is summed by a reduce-scatter: packed into a block for each rank, of its slices and all flags. */
typedef struct tshi_bucket {
    tshi_lender lender; /* first: what lends a unit's values */
    tsh_dtype dtype;
    tsh_sharding_level level;
    tshi_summands over;
    int64_t gradients; /* elements */
    int count;         /* of slots */
    int incomplete;    /* slots that this backward may still add to */
    int absent;        /* slots for which this rank has no gradient in the sum */
    tshi_bucket_slot *first, *last;
    tsh_tensor *memory, *flags; /* flags: a view of the end of memory, in a sharded bucket of the end of result */
    tsh_work *work;

    int64_t *counts, *value_counts; /* of a sharded bucket: elements of each rank's block, with and without flags */
    tsh_tensor *slices;             /* from TSH_SHARD_GRADIENTS on: this rank's summed block */
    tsh_tensor *packed, *result;    /* of a sum under way: all blocks, and this rank's sum */
    tsh_tensor *room;               /* one of dp->room */
    tsh_tensor *gathered, *own;     /* views of it: all ranks' values, and this rank's block of them */
    tsh_work *gather;               /* under way, into `gathered` */
    bool changed;                   /* this step changes the values of some slot */
    tsh_data_parallel *schedule;    /* of a unit (units.c), as what follows: */
    tsh_tensor *held, *unit;        /* this rank's slices of the values; all values, while they are used */
    uint64_t used_in;               /* the call that has used the values last */
    uint16_t version;               /* of the slices, when they were gathered */
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
    tsh_group *parent, *group;      /* the axis', and one of the same ranks for the sums */
    tsh_group *sums[TSHI_SUMMANDS]; /* `group` first; NULL where no parameter has such sums */
    int model;                      /* the model's axis, whose sums run in buckets too; -1: none */
    bool splits_tokens;             /* along that axis */
    tsh_layout shared;              /* along that axis, of the parameters with shared units */
    tsh_group *gathers;             /* with a level, one for the values; else NULL */
    bool average, sync;
    tshi_additions added;
    tsh_sharding_level level;
    tshi_sums_state state;
    size_t bucket_bytes, first_bucket_bytes; /* 0, until buckets are assigned: what is usual */
    tshi_bucket_slot *slots;
    tshi_bucket *buckets;
    int count, bucket_count;
    int started, tested, finished; /* buckets of this backward whose sum is started; is known to be done; is taken */
    void *flags;                   /* host memory for any bucket's */
    tsh_tensor *room[2];           /* for the values of two buckets in sequence, during a step */
    size_t room_bytes[2];

    /* Units (units.c) have an order of use: numbers of buckets, of which `position` are passed. */
    uint64_t step, recoveries; /* of the world when a unit was last used */
    bool backward;
    int position, order_room, order_length[2], *order[2];
};

static inline const tsh_allocator *tshi_data_parallel_allocator(const tsh_data_parallel *dp) {
    return &dp->mesh->device->allocator;
}

/* The ranks over which the parameter's gradient is summed. */
tshi_summands tshi_summands_of(const tsh_data_parallel *dp, const tsh_tensor *parameter);
/* Opens the groups of sums that reach along the model's axis. Collective over the mesh. */
tsh_status tshi_summands_open(tsh_data_parallel *dp);

/* Assigns the slots to buckets, in order; those last whose sums reach along the model's axis, for they are small and
 * the first layer's are complete at the end alone. */
void tshi_buckets_assign(tsh_data_parallel *dp);
/* Puts the buckets that fit into symmetric memory, where the group's sums gain from it and all ranks have the same
 * buckets at the same offsets there; otherwise none. Collective over dp->parent there. */
tsh_status tshi_buckets_make_symmetric(tsh_data_parallel *dp);
/* Gives memory to the buckets that have none. */
tsh_status tshi_buckets_create(tsh_data_parallel *dp);
void tshi_buckets_destroy(tsh_data_parallel *dp);

/* The slot's gradient becomes this rank's term of a sum: what it holds is the same on all ranks, and the first keeps
 * it; of a sharded bucket each rank keeps its slice. */
tsh_status tshi_slot_open(tsh_data_parallel *dp, tshi_bucket_slot *slot);
/* Starts the bucket's sum over the group. */
tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket);
/* Waits for the sums of the buckets before number `end`; where they have gone well, the parameters have their
 * gradients. */
tsh_status tshi_buckets_finish(tsh_data_parallel *dp, int end);
/* Makes all gradients stale; waits for sums that are under way. */
void tshi_buckets_drop(tsh_data_parallel *dp);

/* Waits for the sums, or says why there are none. */
tsh_status tshi_data_parallel_wait(tsh_data_parallel *dp);
/* The schedule that has the parameter, or NULL. */
tsh_data_parallel *tshi_data_parallel_of(const tsh_tensor *parameter);

/* --- sharded buckets ---------------------------------------------------------------------------------------------- */

/* The slices of the slots' gradients and values. */
tsh_status tshi_shards_create(tsh_data_parallel *dp);
void tshi_shards_destroy(tsh_data_parallel *dp);
/* tshi_slot_open, tshi_bucket_start of a sharded bucket; what its sum leaves when it is done, and when it is dropped. */
tsh_status tshi_shards_open(const tsh_data_parallel *dp, tshi_bucket_slot *slot);
/* This rank's slice of the slot's whole stays, and the rest becomes zeros. */
void tshi_shards_keep_own(const tsh_data_parallel *dp, const tshi_bucket_slot *slot);
/* The memory for what a call adds to the gradient of the slice itself: in this rank's term of its own part of the sum. */
tsh_tensor *tshi_shards_part(tsh_data_parallel *dp, tshi_bucket_slot *slot, double *beta);
tsh_status tshi_shards_start(const tsh_data_parallel *dp, tshi_bucket *bucket);
void tshi_shards_finish(const tsh_data_parallel *dp, tshi_bucket *bucket);
void tshi_shards_drop(tshi_bucket *bucket);

/* The elements before the slice in this rank's part of the parameter; 0 without a slice. */
size_t tshi_shards_before(const tsh_data_parallel *dp, const tshi_bucket_slot *slot);
/* The elements [*start, *start + *length) of this rank's part of the slot's whole are the slice of rank r. */
void tshi_shards_piece(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                       int64_t *length);
/* The elements that a slice of n takes in a block. */
int64_t tshi_shards_padded(const tshi_bucket *bucket, int64_t n);
/* The shape of the parameter's slices, or of its gradient's: `layout`, theirs, gets the first dim split along the axis,
 * after all axes that split it already. */
tsh_status tshi_shards_shape(const tsh_tensor *p, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);
/* What of the parameter an optimizer steps: its slice, or the parameter. */
tsh_tensor *tshi_shards_values(tsh_tensor *parameter);
/* Copies the pieces of all slots' values into, or out of, rank r's block of bucket->gathered, and those of the ranks
 * after it whose blocks are alike; returns the first rank after them. */
int tshi_shards_move_values(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r, bool out);
/* An optimizer is about to change the slice of the parameter's values. */
void tshi_shards_mark(const tsh_tensor *parameter);
/* Memory for gathering the values that are marked. On failure, on every rank, no mark is left. Collective. */
tsh_status tshi_shards_reserve(tsh_data_parallel *dp);
/* Every rank gets the values that are marked, and the memory goes. Collective. */
tsh_status tshi_shards_gather(tsh_data_parallel *dp);

/* --- sharded parameters ------------------------------------------------------------------------------------------- */

/* The characters of a parameter's name that name its layer. */
size_t tshi_unit_name(const char *name);
tsh_status tshi_units_create(tsh_data_parallel *dp);
/* The parameters become slices. */
void tshi_units_take_over(tsh_data_parallel *dp);
/* On a rank outside the mesh, where a slice is as empty as the whole: parameters have the layouts that the mesh's ranks
 * know them by, for exchanges between meshes are planned by every rank alike. */
tsh_status tshi_units_elsewhere(tsh_data_parallel *dp);
void tshi_units_destroy(tsh_data_parallel *dp);
tsh_tensor *tshi_units_stand_in(const tsh_data_parallel *dp, tsh_tensor *leaf);
/* A backward begins: the first unit that the last one has gathered is on its way. */
tsh_status tshi_units_begin_backward(tsh_data_parallel *dp);
/* A forward or a backward begins. */
void tshi_units_begin(tsh_data_parallel *dp, bool backward);
/* No unit's values are there, nor on their way. */
void tshi_units_drop(tsh_data_parallel *dp);

extern const tshi_gradient_sink_ops tshi_data_parallel_sink;

#endif
