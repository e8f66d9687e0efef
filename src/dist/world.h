/* Worlds: the state that all groups of a rank share. */
#ifndef TSHI_WORLD_H
#define TSHI_WORLD_H

#include "base/clock.h"
#include "base/owner.h"
#include "dist/control/machine.h"
#include "dist/group.h"

#include <stdatomic.h>

/* The position of a tape, a member of the tape. Ranks that recover compare these positions to continue with one
 * step. */
typedef struct tshi_steps {
    uint64_t tape;   /* its number in the world, from 1 */
    uint64_t ended;  /* steps that this rank has ended */
    uint64_t behind; /* steps that this rank skips: it was behind the furthest rank by them when the world recovered */
    bool open;       /* a step has begun and not ended */
    struct tshi_steps *next; /* in the world's list of tapes, the youngest first */
} tshi_steps;

/* Sends of box exchanges that may still be in flight (collectives/redistribute.c). */
typedef struct tshi_sends_in_flight {
    tsh_work **work;
    int count, room;
    uint64_t recoveries; /* world->recoveries when the list was last checked */
} tshi_sends_in_flight;

struct tsh_world {
    const tshi_group_ops *control; /* the transport that connects the ranks */
    const tshi_group_ops *local;   /* of groups on one machine: `control`, or another in a world of several machines */
    const tshi_group_ops *data;    /* runs the calls on tensors: one on top of them, or `control` */
    void *state[TSHI_TRANSPORTS];  /* of each transport */
    int rank, size, local_rank;
    double timeout;
    struct tshi_settings *settings; /* with which it began; for the world that follows it */
    int blas_threads_asked;         /* of the configuration */
    char (*hosts)[64];              /* [machine.nodes] their names; NULL in a world of one rank, or of threads */
    tshi_machine machine;           /* the memory that the ranks of this machine share */
    bool optimizes;                 /* an optimizer has stepped */
    bool told_unstepped;            /* the log has warned of a parameter that no optimizer updates */
    bool logs_plans;                /* log each transition between layouts */
    bool checked;                   /* TSHARD_CHECK is not 0 */
    bool checks_nan;                /* TSHARD_CHECK=nan */
    bool has_joined;                /* this rank, a job that ran: tsh_world_has_joined */
    int joiners;                    /* that wait, as the ranks have last agreed */
    struct tshi_entrance *entrance; /* of rank 0, once it takes in ranks that join; else NULL */
    bool ended;                     /* destroyed before some of its objects, which can now only be released */
    tsh_world *former;              /* the previous world that ended so */
    int meshes, live_tapes;         /* that the program has not destroyed */
    tshi_owner owner;               /* the thread that created the world */
    bool deterministic;             /* calls take whole tensors where splitting would change bits */
    double warn_every;              /* seconds after which a wait warns and names the missing ranks */
    uint64_t seed, next_stream;
    uint64_t tape_steps;         /* numbers the steps of all tapes of this world */
    uint64_t tapes, meshes_made; /* so far */
    tshi_steps *steps;           /* of the live tapes */
    uint64_t recoveries;
    tsh_log_sink log;        /* the program's, or with TSHARD_LOG a filter of that level before it */
    tsh_log_sink caller_log; /* the program's */
    tsh_log_level log_least;
    tsh_allocator allocator;
    tsh_device *host;   /* the CPU: memory that ranks of this machine share, and that transports use */
    tsh_device *device; /* the tensors' device: host itself, or a GPU */
    void *heap;         /* of host, in a world of one rank */
    size_t heap_bytes;
    tsh_group *group;                  /* of all ranks */
    tsh_group *groups;                 /* this rank's live groups */
    struct tshi_exchange_plans *plans; /* NULL before the first */
    tshi_sends_in_flight in_flight;
    /* The checkpoint that is being saved in the background, or NULL; and the function by which tsh_world_destroy waits
     * for it. */
    struct tshi_background_save *background_save;
    void (*background_save_end)(tsh_world *world);
    int pending;    /* works of all groups in flight */
    bool moving;    /* tshi_world_progress is running */
    int spins;      /* polls of a work before sleeping, set by the transport */
    bool listens;   /* counted by tshi_signal_open */
    uint32_t asked; /* the count of SIGUSR1 (signal.c) that this rank has answered */
    /* Both clocks when the world was made, to convert ticks to seconds. */
    uint64_t start_ticks;
    double start_seconds;
};

/* Sets rank and size of a world of threads. */
tsh_status tshi_threads_settings(const tsh_world_config *config, struct tshi_settings *settings);

/* tsh_world_init, for a start with config and settings; with a roster if the caller knows the ranks. */
tsh_status tshi_world_start(tshi_start *start, tsh_world **out);

/* Takes the next stream of random numbers. */
uint64_t tshi_world_stream(tsh_world *world);

/* --- collectives/signal.c ----------------------------------------------------------------------------------------- */

/* SIGUSR1 asks for the last calls of all groups; the log gets them the next time that a transport waits. wanted:
 * TSHARD_SIGUSR1. A handler of the program's own, or a signal that it ignores, stays. */
void tshi_signal_open(tsh_world *world, bool wanted);
/* After the last world the signal does again what it did before. */
void tshi_signal_close(tsh_world *world);
/* Transports call it while they wait, and each step calls it when it ends. */
void tshi_signal_poll(tsh_world *world);

/* --- trace.c ------------------------------------------------------------------------------------------------------ */

/* Starts a trace where TSHARD_TRACE names a folder. */
tsh_status tshi_trace_from_environment(tsh_world *world);
/* The trace of a world that is about to be destroyed ends; failures are logged. */
void tshi_trace_leave(tsh_world *world);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

/* tsh_world_fail in that step. */
void tshi_world_fail_in(tsh_world *world, const char *reason, tshi_tape_step step);
/* Once this rank has published its wait: TSH_ERR_MISMATCH if ranks wait for each other. All ranks of the cycle fail:
 * the one that finds it first becomes FAILED, and the others see that. */
tsh_status tshi_world_end_cycle(tsh_world *world);
/* The control transport's part of tsh_world_recover. */
tsh_status tshi_recover_control(tsh_world *world);
/* tsh_world_recover for transports whose groups need nothing else: control barriers (control.h), with the calls below
 * between them. */
tsh_status tshi_recover_groups(tsh_world *world);
/* After the first barrier of a recovery: ends all works, and stops all groups. */
void tshi_groups_stop(tsh_world *world);
/* After the second one. */
void tshi_groups_restart(tsh_world *world);
/* A rank of the world has failed or died, as far as this rank knows; tsh_error_message() says why. Never waits. False
 * if the failure is in a later step of that tape: the later step reports it. */
bool tshi_world_has_failed(tsh_world *world, tshi_tape_step step);

/* A collective of the group that is started early overlaps with compute: it makes progress while the host computes, or
 * the host waits for it while a GPU computes. All ranks return the same. */
static inline bool tshi_group_overlaps(const tsh_group *group) {
    return group->ops->in_order || group->world->device != group->world->host ||
           (group->ops->overlaps && group->ops->overlaps(group));
}

/* A futex wakes for one event only. With works in flight a sleep lasts a share of the wait so far, within these limits
 * (seconds). */
#define TSHI_SHORTEST_NAP 20e-6
#define TSHI_LONGEST_NAP  1e-3

static inline double tshi_world_nap(double since) {
    double seconds = (tshi_clock() - since) / 16;
    if (seconds < TSHI_SHORTEST_NAP) return TSHI_SHORTEST_NAP;
    return seconds < TSHI_LONGEST_NAP ? seconds : TSHI_LONGEST_NAP;
}

/* Seconds after which a call's wait warns: TSHARD_WARN, but at most half the timeout. The next warning comes when the
 * wait has lasted twice as long. */
static inline double tshi_warn_after(const tsh_world *world) {
    return world->timeout < 2 * world->warn_every ? world->timeout / 2 : world->warn_every;
}

#endif
