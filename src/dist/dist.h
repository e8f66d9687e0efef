/* World, group and backend from the inside. */
#ifndef TSHI_DIST_H
#define TSHI_DIST_H

#include "tensor/tensor.h"
#include "tshard/dist.h"

/* Large enough for a line that names a call or a list of ranks. */
#define TSHI_LINE 256

/* What travels of a message whose data goes another way. */
#define TSHI_TICKET 128

/* One call as the backends see it: memory and counts, already checked on this rank. */
typedef struct tshi_call {
    tsh_collective op;
    tsh_dtype dtype;
    tsh_reduce_op reduce; /* send and recv: TSH_SUM, or TSH_MAX for the description before a tensor's elements, which
                           * no plain receive takes */
    int root;             /* send and recv: the other rank, or TSH_ANY_RANK */
    const void *in;
    void *out;
    int64_t count; /* elements of the whole: all_reduce and broadcast the buffer; all_gather `out`; reduce_scatter
                    * `in`; 0 for all_to_all and barrier */
    const int64_t *counts;    /* all_gather, reduce_scatter: elements of each rank (never NULL) */
    const int64_t *in_counts; /* all_to_all, never NULL */
    const int64_t *out_counts;
    bool on_device; /* in and out are the world's device's memory, not the host's: calls on tensors of a GPU */
    bool meets;     /* send and recv: in place of the elements, whose number and dtype are compared as ever, travel the
                 * TSHI_TICKET bytes at `in` to `out`, and the send is done when its receive is */
    tsh_status failed; /* not TSH_OK: this rank's arguments are bad, the words are in tsh_error_message(); take part
                        * only to tell the others */
} tshi_call;

/* Where the buffers of a call are while it runs on the host (staging.c). */
typedef struct tshi_staging {
    void *in, *out; /* of world->host, owned; NULL where none is needed */
    void *to;       /* the tensor's memory, which gets the `bytes` of out */
    size_t bytes;
} tshi_staging;

/* A call under way, or waiting for its turn. */
struct tsh_work {
    tsh_group *group;
    tshi_call call;       /* its counts point to `counts` */
    int64_t *counts;      /* [2 * size], owned */
    tsh_tensor *in, *out; /* references */
    tsh_tensor **parts;   /* [group size] references: what comes to `out` goes on to them; NULL: it stays there */
    tshi_staging stage;
    bool started, done;
    tsh_status status;
    char words[TSHI_MESSAGE_SIZE]; /* of a failure */
    int sender;                    /* of a receive */
    void *state;                   /* the backend's, from start until done */
    bool linked;                   /* in the group's queue or list */
    bool orphan;                   /* nobody holds it: freed when it is done */
    struct tsh_work *next;         /* in the group's queue (collectives), or in its list of messages */
};

/* A step of a tape, both numbered from 1; zeros: none in particular. */
typedef struct tshi_tape_step {
    uint64_t tape, number;
} tshi_tape_step;

static inline bool tshi_step_is_later(tshi_tape_step step, tshi_tape_step than) {
    return step.tape && step.tape == than.tape && step.number > than.number;
}

/* A backend: what the groups of a world need. One const table each: self.c, local.c. */
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
     * backend sees one collective a group at a time (messages: any number). progress: advance it, set done and status.
     * NULL on backends whose calls are done when run returns (self). */
    tsh_status (*start)(tsh_work *work);
    void (*progress)(tsh_work *work);
    /* A work that has ended without progress having said so (a deadline, a recovery): give back work->state. May be
     * NULL. */
    void (*drop)(tsh_work *work);
    /* Of a work under way, if the host has nothing more to do for it: have the GPU wait, so that what this rank queues
     * from here on finds its result; set done and status. NULL: the host waits. */
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
    tsh_communication_stats stats;
    uint64_t ticks; /* spent inside calls; stats.seconds is made of it when asked for */
    uint64_t calls; /* collectives, and others that all ranks make alike */
    uint64_t posts; /* sends and receives */
    uint64_t notes; /* in the ring */
    tshi_ring_entry ring[TSHI_RING];
    tsh_work *queue, *queue_end; /* collectives started and not done, oldest first */
    tsh_work *messages;          /* sends and receives not done, oldest first */
    tshi_pool works;             /* with room for counts */
    tsh_group *next;             /* the world's list of live groups */
    /* A group of the upper backend has a control group of the same ranks beneath: it agrees and has messages meet. */
    tsh_group *control;
    tsh_group *owner; /* of a control group; its calls are on the host's memory */
};

/* How far a tape is, so that ranks that recover go on with the same step. */
typedef struct tshi_steps {
    uint64_t tape;   /* its number in its world, from 1 */
    uint64_t ended;  /* steps of it that this rank has ended */
    uint64_t behind; /* steps that other ranks had ended besides when the world recovered: this rank skips them */
    bool open;       /* a step is under way */
} tshi_steps;
/* The last so many tapes of a world are kept in step. */
#define TSHI_STEPPING 8

struct tsh_world {
    const tshi_group_ops *ops;
    const tshi_group_ops *upper; /* takes the collectives, with ops beneath it (nccl); NULL: ops takes them itself */
    void *upper_state;
    int rank, size, local_rank;
    double timeout;
    double warn_every; /* seconds after which a wait prints the ranks that it waits for, and goes on to */
    uint64_t seed, next_stream;
    uint64_t tape_steps; /* numbers the steps of all tapes of this world */
    uint64_t tapes;      /* that have been made */
    tshi_steps steps[TSHI_STEPPING];
    uint64_t recoveries;
    tsh_log log;
    tsh_allocator allocator;
    tsh_device *host;   /* the CPU: what ranks of this machine share, and where backends work */
    tsh_device *device; /* where tensors live: host itself, or a GPU */
    bool direct;        /* all ranks reach each other's GPU memory: ops runs collectives on it */
    tsh_group *group;   /* of all */
    tsh_group *groups;  /* live ones, this rank's */
    int pending;        /* works of all groups that are not done */
    bool moving;        /* one of them is being moved on */
    int spins;          /* looks at a work before sleeping: the backend's wish */
    void *state;        /* the backend's */
    uint32_t asked;     /* times that SIGUSR1 has been answered, as signal.c counts them */
    /* To turn ticks into seconds: both clocks when the world was made. */
    uint64_t start_ticks;
    double start_seconds;
};

/* The next stream of random numbers. */
uint64_t tshi_world_stream(tsh_world *world);

/* tsh_world_fail, in that step. */
void tshi_world_fail_in(tsh_world *world, const char *reason, tshi_tape_step step);
/* Whether the world is known to have failed, or to be lost; tsh_error_message() has the words then. Never waits. What
 * has failed in a later step of that tape is for the later step to find out. */
bool tshi_world_troubled(tsh_world *world, tshi_tape_step step);

/* What this world's calls go to first. */
static inline const tshi_group_ops *tshi_world_ops(const tsh_world *world) {
    return world->upper ? world->upper : world->ops;
}
/* `data` is complete once the kernels queued so far have run: a collective on it, in place, need not wait for those
 * that are queued later. Until the next mark, of NULL if it may change, or that collective. */
static inline void tshi_world_mark(tsh_world *world, const void *data) {
    if (world->upper) world->upper->mark(world, data);
}

/* Seconds of a clock that only goes forward. */
double tshi_clock(void);
/* Whether a wait has words to print: the time `next` has come, which moves on to `every` seconds from now. */
static inline bool tshi_warning_due(double *next, double every) {
    double now = tshi_clock();
    if (now < *next) return false;
    *next = now + every;
    return true;
}

/* Seconds after which a call's wait is worth a warning: TSHARD_WARN, or half of a shorter deadline. The next one comes
 * when the wait has lasted twice as long. */
static inline double tshi_word_after(const tsh_world *world) {
    return world->timeout < 2 * world->warn_every ? world->timeout / 2 : world->warn_every;
}
/* A cheap counter that goes forward at a constant rate: cycles of the time stamp counter, else nanoseconds. */
static inline uint64_t tshi_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return (uint64_t)(tshi_clock() * 1e9);
#endif
}

/* --- group.c: for worlds and meshes ------------------------------------------------------------------------------- */

/* A group with everything but the backend's state, in the world's list. NULL with the message set. */
tsh_group *tshi_group_new(tsh_world *world, const int *ranks, int n);
void tshi_group_free(tsh_group *group);
/* The mesh of one axis that a group is for itself. */
void tshi_group_own_mesh(tsh_group *group, const char *name);
/* Note a call in the ring; returns its number, from 1: collectives have their own, messages theirs. */
uint64_t tshi_group_note(tsh_group *group, const tshi_call *call);
/* "#3 all_reduce float32 [8], ..." of the last calls to the log. */
void tshi_group_log_ring(const tsh_group *group);

/* --- collectives.c ------------------------------------------------------------------------------------------------ */

/* "sum", ... */
const char *tshi_reduction_name(tsh_reduce_op reduce);
tsh_status tshi_check_tensor(const tsh_group *group, tsh_collective op, const tsh_tensor *tensor, const char *what);
/* A call that is done, in the group's counters. */
void tshi_group_count(tsh_group *group, const tshi_call *call);
/* Take part in a call for which this rank lacks what it needs; the words are in tsh_error_message(). */
tsh_status tshi_call_failed(tsh_group *group, tsh_collective op, tsh_status status);

/* --- signal.c ----------------------------------------------------------------------------------------------------- */

/* With TSHARD_SIGUSR1=1, and unless the program has a handler of its own, SIGUSR1 asks for the last calls of all
 * groups: the log gets them when somebody waits, for a backend looks while it does. */
void tshi_signal_open(tsh_world *world, bool wanted);
void tshi_signal_look(tsh_world *world);

/* --- work.c ------------------------------------------------------------------------------------------------------- */

/* A zeroed work for the call, its own except for words and counts. */
void tshi_work_set(tsh_work *work, tsh_group *group, const tshi_call *call);
/* The same from the group's pool, with copies of the counts and references to the tensors. NULL with the message
 * set. */
tsh_work *tshi_work_new(tsh_group *group, const tshi_call *call, const tsh_tensor *in, const tsh_tensor *out);
/* Behind the group's others; starts it if it is its turn. */
void tshi_work_enqueue(tsh_work *work);
/* A message at once, if the backend can; false: it has to be enqueued. */
bool tshi_work_quick(tsh_work *work);
/* Wait until it is done; its status and words. */
tsh_status tshi_work_finish(tsh_work *work);
/* Wait until what this rank queues from here on finds its result; the host need not see it done. */
tsh_status tshi_work_join(tsh_work *work);
/* Free a message, done or not. */
void tshi_message_cancel(tsh_work *work, const char *why);
/* Move on whatever is under way, without waiting. Backends call it while they wait and world->pending is not zero. */
void tshi_world_progress(tsh_world *world);
/* Wait until the group's queue is empty. failed: of the call that comes behind it, whose words, tsh_error_message(),
 * are kept. */
void tshi_group_drain(tsh_group *group, tsh_status failed);
/* ops->run in its turn. */
tsh_status tshi_group_run(tsh_group *group, const tshi_call *call);
/* End all works with TSH_ERR_STATE, without asking the backend: it is about to start anew. */
void tshi_group_forget(tsh_group *group, const char *why);

/* --- lists.c ------------------------------------------------------------------------------------------------------ */

/* The work is done: its parts get what has come. */
void tshi_work_spread(tsh_work *work);

/* --- staging.c ---------------------------------------------------------------------------------------------------- */

/* Whether the call needs host buffers for this world's tensors. */
bool tshi_call_is_staged(const tsh_group *group, const tshi_call *call);
/* The call's buffers become host buffers that hold what it gives; without memory the call is marked failed. close: what
 * came goes to the tensor if status is TSH_OK; the buffers are given back. */
void tshi_stage_open(tsh_group *group, tshi_call *call, tshi_staging *stage);
void tshi_stage_close(tsh_group *group, tshi_staging *stage, tsh_status status);
/* ops->run in between. */
tsh_status tshi_staged_run(tsh_group *group, const tshi_call *call);

/* --- backends ----------------------------------------------------------------------------------------------------- */

extern const tshi_group_ops tshi_self_ops;
extern const tshi_group_ops tshi_local_ops;
#ifdef TSHARD_HAVE_MPI
extern const tshi_group_ops tshi_mpi_ops;
#endif
#ifdef TSHARD_HAVE_NCCL
extern const tshi_group_ops tshi_nccl_ops;
#endif

#endif
