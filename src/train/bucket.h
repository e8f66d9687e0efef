/* Data parallelism from the inside: gradients in buckets, which are summed over ranks while backward goes on. With a
 * level a rank has its slices of the sums and of the parameters, whose values are gathered while functions use them.
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
    TSHI_REDUCE_COPIES,  /* of the model: along the schedule's axis only */
    TSHI_REDUCE_MODEL,   /* along the model's axis, too, where tokens are split and the parameter is REPLICATED */
    TSHI_REDUCE_SHARERS, /* along the schedule's axis, and those along the model's that share a head */
    TSHI_REDUCE_SCOPES
} tshi_reduce_scope;

/* What backwards have added to gradients so far. */
typedef enum tshi_additions {
    TSHI_ADDED_NOTHING,
    TSHI_ADDED_THE_SAME, /* the same on all ranks of the schedule's axis */
    TSHI_ADDED_TERMS /* also terms of sums over the axis; set as well with one rank, and once the warning is logged */
} tshi_additions;

/* Where the gradient of one parameter lies. */
typedef struct tshi_bucket_slot {
    tshi_gradient_target target; /* first: of the parameter, and of what functions take in its place */
    tsh_data_parallel *dp;
    tsh_tensor *parameter;      /* in a sharded bucket: this rank's slice */
    const char *name;           /* of the parameter in the list, while buckets are assigned */
    tsh_tensor *whole;          /* view of the bucket, laid out as the parameter was in the list: its gradient */
    tsh_tensor *term;           /* the same memory, laid out as this rank's term of the gradient */
    tsh_tensor *gradient_slice; /* of a sharded bucket: this rank's slice of the gradient */
    tsh_tensor *value_slice;    /* of a sharded bucket: what the parameter becomes, until the schedule is complete */
    tsh_tensor *discarded; /* on ranks but the first, gradients that are the same on all ranks are added here: the sum
                              * has the first rank's */
    int64_t start;         /* elements into the bucket */
    int bucket;
    tshi_reduce_scope scope;
    bool unsummed;                 /* the gradient is this rank's term of a sum that has not been made yet */
    tshi_additions added;          /* of a sharded bucket, since that; the same: this rank's slice of it is the sum's */
    struct tshi_bucket_slot *next; /* in the bucket */
} tshi_bucket_slot;

typedef struct tshi_bucket tshi_bucket;

/* What dense buckets, which are summed by an all-reduce, and sharded ones, by a reduce-scatter, do in their own
 * ways. */
typedef struct tshi_bucket_kind {
    /* Makes the bucket's memory, and what else it needs before its slots have their views of that. */
    tsh_status (*create)(tsh_data_parallel *dp, tshi_bucket *bucket);
    /* The slot's gradient, if there is one, becomes this rank's term of a sum: what it holds is the same on all ranks,
     * and one of them keeps each element. */
    tsh_status (*open)(tsh_data_parallel *dp, tshi_bucket_slot *slot);
    /* Starts the sum of all slots, which are not stale from then on. A slot without a gradient counts as zeros, and in
     * bucket->absent. */
    tsh_status (*start)(tsh_data_parallel *dp, tshi_bucket *bucket);
    /* The sum is done, or given up: memory that only the sum needs goes. NULL: none does. */
    void (*close)(tshi_bucket *bucket);
} tshi_bucket_kind;

extern const tshi_bucket_kind tshi_dense_bucket, tshi_sharded_bucket;

/* Gradients one after another, then a flag for each: nonzero in the sum where any rank has a gradient. In a sharded
 * bucket they are packed for the sum into a block for each rank, of its slices and all flags. */
struct tshi_bucket {
    tshi_value_source source; /* first: what brings the values of a sharded bucket */
    const tshi_bucket_kind *kind;
    tsh_dtype dtype;
    tshi_reduce_scope scope;
    int64_t gradients; /* elements, with padding */
    int count;         /* of slots */
    int incomplete;    /* slots that this backward may still add to */
    int absent;        /* slots for which this rank has no gradient in the sum */
    tshi_bucket_slot *first, *last;
    tsh_tensor *memory; /* of a sharded bucket only from the first addition to the sum */
    tsh_tensor *flags;  /* a view of the end of memory, in a sharded bucket of the end of gradient_slices */
    tsh_work *work;

    /* Only in a sharded bucket: */
    tsh_data_parallel *dp;
    int64_t *counts, *value_counts; /* elements of each rank's block, with and without flags */
    tsh_tensor *gradient_slices;    /* this rank's block of the sum, with flags */
    tsh_tensor *packed;             /* of a sum under way: all blocks */
    tsh_tensor *value_slices;       /* this rank's slices of the parameters, one after another */
    tsh_tensor *values;             /* all values, while they are used */
    tsh_tensor *gathered;           /* all ranks' blocks of values, while they are on their way */
    tsh_tensor *converted;          /* this rank's block of `gathered` where that has another dtype than the slices */
    tsh_work *gather;               /* into `gathered` */
    uint64_t used_in;               /* the call that has used the values last */
    uint16_t version;               /* of the slices, when they were gathered */
};

typedef enum tshi_sums_state {
    TSHI_SUMS_IDLE,
    TSHI_SUMS_IN_BACKWARD,
    TSHI_SUMS_STARTED, /* all sums are started and not waited for */
    TSHI_SUMS_FAILED   /* there are no gradients until the next backward */
} tshi_sums_state;

struct tsh_data_parallel {
    tshi_gradient_schedule schedule; /* first: what autograd knows */
    tsh_tape *tape;                  /* NULL once that is destroyed */
    const tsh_mesh *mesh;
    tsh_group *parent, *group;             /* the axis', and one of the same ranks for the sums */
    tsh_group *scopes[TSHI_REDUCE_SCOPES]; /* `group` first; NULL where no parameter has such sums */
    int model;                             /* the model's axis, whose sums run in buckets too; -1: none */
    bool splits_tokens;                    /* along that axis */
    tsh_layout shared;                     /* along that axis, of the parameters with shared heads */
    tsh_group *gathers;                    /* with a level, one for the values; else NULL */
    bool average, sync;
    tshi_additions added;
    tsh_zero_level level;
    tshi_sums_state state;
    size_t bucket_bytes, first_bucket_bytes; /* 0, until buckets are assigned: what is usual */
    tshi_bucket_slot *slots;
    tshi_bucket *buckets;
    int count, bucket_count;
    int started, tested, finished; /* buckets of this backward whose sum is started; is known to be done; is taken */
    void *flags;                   /* host memory for any bucket's */

    /* The order in which buckets' values are used: their numbers, of which `position` are passed. */
    uint64_t step, recoveries; /* of the world when values were last used */
    bool backward;
    int position, order_room, order_length[2], *order[2];
};

static inline const tsh_allocator *tshi_data_parallel_allocator(const tsh_data_parallel *dp) {
    return &dp->mesh->device->allocator;
}

/* --- slices.c: the slices of a sharded bucket, as metadata -------------------------------------------------------- */

/* The elements [*start, *start + *length) of this rank's part of the slot's whole are the slice of rank r. */
void tshi_slice_range(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                      int64_t *length);
/* The elements that a slice of n takes in a block. */
int64_t tshi_slice_padded(const tshi_bucket *bucket, int64_t n);
/* The elements of the blocks before that of rank r. */
int64_t tshi_slice_block_start(const int64_t *counts, int r);
/* The elements of each rank's block. */
void tshi_slice_count(const tsh_data_parallel *dp, tshi_bucket *bucket);
/* One past the last of the ranks from r on whose slices of every slot are as long as those of r; this rank stands
 * apart. */
int tshi_slice_alike(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r);
/* The shape of the parameter's slices, or of its gradient's: `layout`, theirs, gets the first dim split along the axis,
 * after all axes that split it already. */
tsh_status tshi_slice_shape(const tsh_tensor *p, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);

/* --- reduce_scope.c ----------------------------------------------------------------------------------------------- */

tshi_reduce_scope tshi_reduce_scope_of(const tsh_data_parallel *dp, const tsh_tensor *parameter);
/* Opens the groups of sums that reach along the model's axis. Collective over the mesh. */
tsh_status tshi_reduce_scopes_open(tsh_data_parallel *dp);

/* --- assign.c: which gradients lie in which bucket ---------------------------------------------------------------- */

/* The slot's gradient and its parameter are shared out at the schedule's level. */
static inline bool tshi_bucket_slot_shards(const tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    return dp->level && slot->parameter->shape.ndim > 0 && slot->scope == TSHI_REDUCE_COPIES;
}
/* Assigns the slots to buckets, in order; those last whose sums reach along the model's axis, for they are small and
 * the first layer's are complete only at the end. */
void tshi_buckets_assign(tsh_data_parallel *dp);

/* --- buckets.c ---------------------------------------------------------------------------------------------------- */

/* Puts the dense buckets that fit into symmetric memory, where the group's sums gain from it and all ranks have the
 * same buckets at the same offsets there; otherwise none. Collective over dp->parent there. */
tsh_status tshi_buckets_make_symmetric(tsh_data_parallel *dp);
tsh_status tshi_buckets_create(tsh_data_parallel *dp);
void tshi_buckets_destroy(tsh_data_parallel *dp);
/* bucket->kind->open, where the slot is not open yet. */
tsh_status tshi_bucket_slot_open(tsh_data_parallel *dp, tshi_bucket_slot *slot);
/* bucket->kind->start. */
tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket);
/* Waits for the sums of the buckets before number `end`; where they have gone well, the parameters have their
 * gradients. */
tsh_status tshi_buckets_finish(tsh_data_parallel *dp, int end);
/* Makes all gradients stale; waits for sums that are under way. */
void tshi_buckets_drop(tsh_data_parallel *dp);

/* --- sharded.c ---------------------------------------------------------------------------------------------------- */

/* The slices of the slots' gradients, of the bucket whose slots have their views. */
tsh_status tshi_sharded_create_slices(tsh_data_parallel *dp, tshi_bucket *bucket);
void tshi_sharded_destroy(const tsh_data_parallel *dp, tshi_bucket *bucket);
/* This rank's slice of the slot's whole stays, and the rest becomes zeros. */
void tshi_sharded_keep_own(const tsh_data_parallel *dp, const tshi_bucket_slot *slot);

/* --- values.c: the values of sharded parameters ------------------------------------------------------------------- */

tsh_status tshi_values_create(tsh_data_parallel *dp);
/* The parameters become slices. */
void tshi_values_take_over(tsh_data_parallel *dp);
/* On a rank outside the mesh, where a slice is as empty as the whole: parameters have the layouts that the mesh's ranks
 * know them by, for every rank plans exchanges between meshes alike. */
tsh_status tshi_values_outside(tsh_data_parallel *dp);
void tshi_values_destroy(tsh_data_parallel *dp);
/* A backward begins: the values that the last one has gathered first are on their way. */
tsh_status tshi_values_begin_backward(tsh_data_parallel *dp);
void tshi_values_end_backward(tsh_data_parallel *dp);
/* No values are there, nor on their way. */
void tshi_values_drop(tsh_data_parallel *dp);

/* --- schedule.c --------------------------------------------------------------------------------------------------- */

/* Waits for the sums, or says why there are none. */
tsh_status tshi_data_parallel_wait(tsh_data_parallel *dp);
extern const tshi_schedule_ops tshi_data_parallel_schedule;
/* The target of a slot: its bucket. */
extern const tshi_target_ops tshi_bucket_target;

#endif
