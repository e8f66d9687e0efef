/* A backend: a const struct of functions for the groups of a world. */
#ifndef TSHI_BACKEND_H
#define TSHI_BACKEND_H

#include "dist/core/work.h"

/* A step of a tape, both numbered from 1; zeros: none in particular. */
typedef struct tshi_tape_step {
    uint64_t tape, number;
} tshi_tape_step;

static inline bool tshi_step_is_later(tshi_tape_step step, tshi_tape_step than) {
    return step.tape && step.tape == than.tape && step.number > than.number;
}

typedef struct tshi_group_ops {
    const char *name;
    bool on_host;  /* takes memory of world->host: tensors of a GPU are staged, but where tsh_world.direct */
    bool in_order; /* calls are queued on a GPU, which runs them in their order: all works of a group are started at
                    * once, and none has to be done before another call */
    /* Whether `op` on `dtype` is to be had, of those that make sense. NULL: all are. */
    bool (*reduces)(tsh_dtype dtype, tsh_reduce_op op);

    /* Run the call; returns when this rank's buffers are free again. Collective over the group. A call marked
     * `failed` returns that status and its words. */
    tsh_status (*run)(tsh_group *group, const tshi_call *call);
    /* The same in steps that never wait. start: post the call; only the first of a group's queue is started, so a
     * backend sees one collective a group at a time (messages: any number). progress: advance it; tshi_work_end when it is done.
     * NULL on backends whose calls are done when run returns (self). */
    tsh_status (*start)(tsh_work *work);
    void (*progress)(tsh_work *work);
    /* A work that has ended without progress having said so (a deadline, a recovery): give back work->state. May be
     * NULL. */
    void (*drop)(tsh_work *work);
    /* Of a work under way, if the host has nothing more to do for it: have the GPU wait, so that what this rank queues
     * from here on finds its result; then tshi_work_end. NULL: the host waits. */
    void (*join)(tsh_work *work);
    /* A blocking message while nothing else is under way: done, if that takes no long wait, without a place in the
     * group's list. False: nothing has happened. NULL: never. */
    bool (*quick)(tsh_work *work);
    /* Called while this rank waits and nothing has progressed for a while: sleep a little, look around for failures,
     * deaths and the deadline (started at `since`, seconds of tshi_clock). work: what is waited for, NULL: the group's
     * queue. Other works may have moved on, or ended, when it returns; so may this one. */
    tsh_status (*nap)(tsh_group *group, const tsh_work *work, double since);
    /* That wait is over, however it ended. NULL: nothing is to be done then. */
    void (*awake)(tsh_group *group);
    /* Free group->state. Not collective. */
    void (*close)(tsh_group *group);

    /* --- worlds; self leaves these to a world of one rank --------------------------------------------------------- */
    /* Every rank of `parent` passes the same `text`, or `failed`. TSH_ERR_MISMATCH with both texts printed, or
     * TSH_ERR_PEER with the words of the rank that failed. Collective over parent. */
    tsh_status (*agree)(tsh_group *parent, const char *text, tsh_status failed);
    /* The ranks compare the call, as `run` does before it moves data, and nothing moves. Collective over the group. */
    tsh_status (*compare)(tsh_group *group, const tshi_call *call);
    /* Set up group->state for the n world ranks in `ranks`, which all of parent agree on. group is NULL on ranks
     * outside. Collective over parent. */
    tsh_status (*open)(tsh_group *parent, const int *ranks, int n, tsh_group *group);
    /* tsh_world_fail, in that step; tsh_world_recover, tsh_world_destroy (which frees world->state). */
    void (*fail)(tsh_world *world, const char *reason, tshi_tape_step step);
    tsh_status (*recover)(tsh_world *world);
    void (*leave)(tsh_world *world);

    /* --- for the backend above, where there is one (tsh_world.upper) ---------------------------------------------- */
    /* The error that calls of this group have to return, as far as is known, or TSH_OK; never waits. look: around
     * first, for deaths. waits: for its members, of whom one that has left will not come. */
    tsh_status (*trouble)(tsh_group *group, bool look, bool waits);
    /* In trouble: whether all of it is known to come from later steps of that tape than this one. NULL: never. */
    bool (*fails_later)(const tsh_world *world, tshi_tape_step step);

    /* --- of that backend alone ------------------------------------------------------------------------------------ */
    /* See tshi_world_mark. */
    void (*mark)(tsh_world *world, const void *data);
    /* The group's collectives gain from memory of the device's alloc_symmetric that lies at the same place on all
     * ranks; they all say the same. NULL: no. */
    bool (*symmetric)(const tsh_group *group);
} tshi_group_ops;

extern const tshi_group_ops tshi_self_ops;
extern const tshi_group_ops tshi_local_ops;
#ifdef TSHARD_HAVE_MPI
extern const tshi_group_ops tshi_mpi_ops;
#endif
#ifdef TSHARD_HAVE_NCCL
extern const tshi_group_ops tshi_nccl_ops;
#endif

#endif
