/* Data parallelism: gradients in buckets, which are summed over ranks while backward continues. With a level, a rank
 * holds slices of the sums and of the parameters, whose values are gathered while functions use them.
 *
 * The files, each using those after it: data_parallel.c, schedule.c, values.c, buckets.c, sharded.c and dense.c,
 * assign.c, reduce_scope.c, slices.c. */
#ifndef TSHI_BUCKET_H
#define TSHI_BUCKET_H

#include "layers/layers.h"
#include "tshard/train.h"

/* The ranks over which a gradient is summed: those that hold the same part of the parameter and use it with different
 * data. */
typedef enum tshi_reduce_scope {
    TSHI_REDUCE_COPIES,  /* the copies of the model, along the schedule's axis only */
    TSHI_REDUCE_MODEL,   /* also along the model's axis, where ranks use a REPLICATED parameter with different data */
    TSHI_REDUCE_SHARERS, /* also the ranks along the model's axis that share a head */
    TSHI_REDUCE_SCOPES
} tshi_reduce_scope;

/* What backwards have added to gradients. */
typedef enum tshi_additions {
    TSHI_ADDED_NOTHING,
    TSHI_ADDED_THE_SAME, /* only values that are the same on all ranks of the schedule's axis */
    TSHI_ADDED_TERMS     /* also terms of sums over the axis; also set with one rank, and after the warning */
} tshi_additions;

/* The place of a parameter's gradient. */
typedef struct tshi_bucket_slot {
    tshi_gradient_target target; /* first: of the parameter, and of what functions take in its place */
    tsh_data_parallel *dp;
    tsh_tensor *parameter;      /* in a sharded bucket: this rank's slice */
    const char *name;           /* the parameter's name in the list, while buckets are assigned */
    tsh_tensor *whole;          /* view of the bucket, laid out as the parameter was in the list: its gradient */
    tsh_tensor *term;           /* the same memory, laid out as this rank's term of the gradient */
    tsh_tensor *gradient_slice; /* of a sharded bucket: this rank's slice of the gradient */
    tsh_tensor *value_slice;    /* of a sharded bucket: what the parameter becomes, until the schedule is complete */
    /* on all ranks but the first, takes gradients that are the same on all ranks: the sum has the first rank's */
    tsh_tensor *discarded;
    int64_t start; /* elements into the bucket */
    int bucket;
    tshi_reduce_scope scope;
    bool unsummed;                 /* the gradient is this rank's term of a sum that has not started */
    tshi_additions added;          /* of a sharded bucket, since that; the same: this rank's slice of it is the sum's */
    struct tshi_bucket_slot *next; /* in the bucket */
} tshi_bucket_slot;

typedef struct tshi_bucket tshi_bucket;

/* The operations of a bucket: dense buckets are summed by an all-reduce, sharded ones by a reduce-scatter. */
typedef struct tshi_bucket_kind {
    /* Allocates the bucket's memory, before its slots get their views. */
    tsh_status (*create)(tsh_data_parallel *dp, tshi_bucket *bucket);
    /* Makes the slot's gradient, if it has one, this rank's term of a sum: it was the same on all ranks, and one rank
     * keeps each element. */
    tsh_status (*open)(tsh_data_parallel *dp, tshi_bucket_slot *slot);
    /* Starts the sum of all slots, which are then not stale. A slot without a gradient contributes zeros, and counts in
     * bucket->absent. */
    tsh_status (*start)(tsh_data_parallel *dp, tshi_bucket *bucket);
    /* Frees memory that only the sum needs, when it is done or given up. NULL: there is none. */
    void (*close)(tshi_bucket *bucket);
} tshi_bucket_kind;

extern const tshi_bucket_kind tshi_dense_bucket, tshi_sharded_bucket;

/* Contiguous gradients, then a flag for each, whose sum is nonzero if any rank has a gradient. For its sum, a sharded
 * bucket is packed into a block for each rank, with the rank's slices and all flags. */
struct tshi_bucket {
    tshi_value_source source; /* first; gathers the values of a sharded bucket */
    const tshi_bucket_kind *kind;
    tsh_dtype dtype;
    tshi_reduce_scope scope;
    int64_t gradients; /* elements, with padding */
    int count;         /* of slots */
    int incomplete;    /* slots that this backward may still add to */
    int absent;        /* slots for which this rank has no gradient in the sum */
    tshi_bucket_slot *first, *last;
    tsh_tensor *memory; /* in a sharded bucket only from the first addition to the sum */
    tsh_tensor *flags;  /* a view of the end of memory, or in a sharded bucket of gradient_slices */
    tsh_work *work;

    /* Only in a sharded bucket: */
    tsh_data_parallel *dp;
    int64_t *counts, *value_counts; /* elements of each rank's block, with and without flags */
    tsh_tensor *gradient_slices;    /* this rank's block of the sum, with flags */
    tsh_tensor *packed;             /* all blocks, while the sum is in flight */
    tsh_tensor *value_slices;       /* this rank's slices of the parameters, one after another */
    tsh_tensor *values;             /* all values, while they are used */
    tsh_tensor *gathered;           /* all ranks' blocks of values, while they are gathered */
    tsh_tensor *converted;          /* this rank's block of `gathered`, if its dtype is not that of the slices */
    tsh_work *gather;               /* into `gathered` */
    uint64_t used_in;               /* the call that has used the values last */
    uint16_t version;               /* of the slices, when they were gathered */
};

struct tsh_data_parallel {
    tshi_gradient_schedule schedule; /* first; autograd's view */
    tsh_tape *tape;                  /* NULL once it is destroyed */
    const tsh_mesh *mesh;
    tsh_group *parent, *group;             /* the axis' group, and another of the same ranks for the sums */
    tsh_group *scopes[TSHI_REDUCE_SCOPES]; /* `group` first; NULL where no parameter has such sums */
    int model;                             /* the model's axis, whose sums run in buckets too; -1: none */
    bool splits_tokens;                    /* along that axis */
    tsh_layout shared;                     /* along that axis, of the parameters with shared heads */
    tsh_group *gathers;                    /* with a level, a group for gathering values; else NULL */
    bool average, sync;
    tshi_additions added;
    tsh_zero_level level;
    bool failed; /* the last backward has, and its sums: there are no gradients until the next one */
    size_t bucket_bytes, first_bucket_bytes; /* 0 until buckets are assigned: the default */
    tshi_bucket_slot *slots;
    tshi_bucket *buckets;
    int count, bucket_count;
    /* numbers of buckets whose sum has started, is known to be done, is finished, in this backward */
    int started, tested, finished;
    void *flags; /* host memory for any bucket's */

    /* The order in which buckets' values are used, by bucket number; `position` of them have been passed. */
    uint64_t step, recoveries; /* of the world at the last use of values */
    bool backward;
    int position, order_room, order_length[2], *order[2];
};

static inline const tsh_allocator *tshi_data_parallel_allocator(const tsh_data_parallel *dp) {
    return &dp->mesh->device->allocator;
}

/* --- slices.c: the slices of a sharded bucket, as metadata -------------------------------------------------------- */

/* The slice of rank r: elements [*start, *start + *length) of this rank's part of the whole parameter. */
void tshi_slice_range(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                      int64_t *length);
/* The elements that a slice of n takes in a block. */
int64_t tshi_slice_padded(const tshi_bucket *bucket, int64_t n);
/* The elements of the blocks before that of rank r. */
int64_t tshi_slice_block_start(const int64_t *counts, int r);
/* The elements of each rank's block. */
void tshi_slice_count(const tsh_data_parallel *dp, tshi_bucket *bucket);
/* The end of the ranks from r on whose slices have the lengths of r's in every slot; this rank is a range of its
 * own. */
int tshi_slice_alike(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r);
/* The shape of the slices of a parameter or gradient: `layout` becomes theirs, with the first dim split along the axis
 * after all axes that already split it. */
tsh_status tshi_slice_shape(const tsh_tensor *p, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);

/* --- reduce_scope.c ----------------------------------------------------------------------------------------------- */

tshi_reduce_scope tshi_reduce_scope_of(const tsh_data_parallel *dp, const tsh_tensor *parameter);
/* Opens the groups of sums that reach along the model's axis. Collective over the mesh. */
tsh_status tshi_reduce_scopes_open(tsh_data_parallel *dp);

/* --- assign.c: the assignment of gradients to buckets ------------------------------------------------------------- */

/* True when the slot's gradient and parameter are sharded at the schedule's level. */
static inline bool tshi_bucket_slot_shards(const tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    return dp->level && slot->parameter->shape.ndim > 0 && slot->scope == TSHI_REDUCE_COPIES;
}
/* Assigns the slots to buckets, in order; slots whose sums include the model's axis come last, for they are small and
 * the first layer's complete only at the end. */
void tshi_buckets_assign(tsh_data_parallel *dp);

/* --- buckets.c ---------------------------------------------------------------------------------------------------- */

tsh_status tshi_buckets_create(tsh_data_parallel *dp);
void tshi_buckets_destroy(tsh_data_parallel *dp);
/* bucket->kind->open, where the slot is not open yet. */
tsh_status tshi_bucket_slot_open(tsh_data_parallel *dp, tshi_bucket_slot *slot);
/* bucket->kind->start. */
tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket);
/* Waits for the sums of the buckets before number `end`; if they succeed, the parameters have their gradients. */
tsh_status tshi_buckets_finish(tsh_data_parallel *dp, int end);
/* Makes all gradients stale; waits for sums in flight. */
void tshi_buckets_drop(tsh_data_parallel *dp);

/* --- sharded.c ---------------------------------------------------------------------------------------------------- */

/* Creates the slices of the slots' gradients, after the slots' views. */
tsh_status tshi_sharded_create_slices(tsh_data_parallel *dp, tshi_bucket *bucket);
void tshi_sharded_destroy(const tsh_data_parallel *dp, tshi_bucket *bucket);
/* Zeros the slot's gradient except this rank's slice. */
void tshi_sharded_keep_own(const tsh_data_parallel *dp, const tshi_bucket_slot *slot);

/* --- values.c: the values of sharded parameters ------------------------------------------------------------------- */

tsh_status tshi_values_create(tsh_data_parallel *dp);
/* Turns the parameters into slices. */
void tshi_values_take_over(tsh_data_parallel *dp);
/* On a rank outside the mesh, where parameters are empty: gives them the layouts that they have on the mesh's ranks,
 * because all ranks must plan exchanges between meshes alike. */
tsh_status tshi_values_outside(tsh_data_parallel *dp);
void tshi_values_destroy(tsh_data_parallel *dp);
/* Called when backward begins: starts to gather the values that the last backward used first. */
tsh_status tshi_values_begin_backward(tsh_data_parallel *dp);
void tshi_values_end_backward(tsh_data_parallel *dp);
/* Frees all values, and those being gathered. */
void tshi_values_drop(tsh_data_parallel *dp);

/* --- schedule.c --------------------------------------------------------------------------------------------------- */

extern const tshi_schedule_ops tshi_data_parallel_schedule;
/* The target of a slot: its bucket. */
extern const tshi_target_ops tshi_bucket_target;

#endif
