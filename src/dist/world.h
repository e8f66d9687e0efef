/* Worlds: what all groups of a rank share. */
#ifndef TSHI_WORLD_H
#define TSHI_WORLD_H

#include "base/clock.h"
#include "base/owner.h"
#include "dist/control/machine.h"
#include "dist/group.h"

#include <stdatomic.h>

/* The position of a tape, by which ranks that recover go on with the same step. It is part of the tape. */
typedef struct tshi_steps {
    uint64_t tape;   /* its number in its world, from 1 */
    uint64_t ended;  /* steps that this rank has ended */
    uint64_t behind; /* steps by which this rank was behind the furthest one when the world recovered: it skips them */
    bool open;       /* a step is under way */
    struct tshi_steps *next; /* of the world's tapes, the youngest first */
} tshi_steps;

/* Sends of box exchanges that have not ended, as far as this rank knows (collectives/redistribute.c). */
typedef struct tshi_sends_in_flight {
    tsh_work **work;
    int count, room;
    uint64_t recoveries; /* of the world when the list was last checked */
} tshi_sends_in_flight;

struct tsh_world {
    const tshi_group_ops *control; /* the backend that connects the ranks */
    void *state;                   /* its own */
    const tshi_group_ops *data;    /* the backend that runs the calls on tensors: control itself, or one above it */
    void *data_state;              /* its own, where it is not control */
    int rank, size, local_rank;
    double timeout;
    tshi_machine machine;   /* what the ranks of this machine share */
    bool optimizes;         /* an optimizer has made a step */
    bool told_unstepped;    /* the log has warned of a parameter that no optimizer updates */
    bool logs_plans;        /* each change of layout goes to the log */
    bool checked;           /* TSHARD_CHECK */
    bool ended;             /* destroyed before what belongs to it, which can only be released */
    tsh_world *former;      /* the world that ended in this way before this one */
    int meshes, live_tapes; /* that the program has not destroyed yet */
    tshi_owner owner;       /* the thread that has created the world */
    bool deterministic;     /* calls take whole tensors where parts would change bits */
    double warn_every;      /* seconds after which a wait warns of the ranks that it waits for */
    uint64_t seed, next_stream;
    uint64_t tape_steps;         /* numbers the steps of all tapes of this world */
    uint64_t tapes, meshes_made; /* so far */
    tshi_steps *steps;           /* of the tapes that live */
    uint64_t recoveries;
    tsh_log_sink log;        /* the program's, or with TSHARD_LOG one that hands it the lines of that level */
    tsh_log_sink caller_log; /* the program's */
    tsh_log_level log_least;
    tsh_allocator allocator;
    tsh_device *host;   /* the CPU: what ranks of this machine share, and where backends work */
    tsh_device *device; /* where tensors live: host itself, or a GPU */
    void *heap;         /* of host, in a world of one rank */
    size_t heap_bytes;
    tsh_group *group;                  /* of all ranks */
    tsh_group *groups;                 /* this rank's live groups */
    struct tshi_exchange_plans *plans; /* NULL: none made yet */
    tshi_sends_in_flight in_flight;
    /* A checkpoint that is being saved in the background, or NULL; and what waits for it, for tsh_world_destroy. */
    struct tshi_background_save *background_save;
    void (*background_save_end)(tsh_world *world);
    int pending;    /* works of all groups that are not done */
    bool moving;    /* tshi_world_progress is running */
    int spins;      /* looks at a work before sleeping, set by the backend */
    bool listens;   /* tshi_signal_open has counted it */
    uint32_t asked; /* times that SIGUSR1 has been answered, as signal.c counts them */
    /* Both clocks when the world was made, to convert ticks to seconds. */
    uint64_t start_ticks;
    double start_seconds;
};

/* Sets rank and size of a world of threads. */
tsh_status tshi_threads_settings(const tsh_world_config *config, struct tshi_settings *settings);

/* tsh_world_init, for a start whose config and settings are set; the roster too where the caller knows the ranks. */
tsh_status tshi_world_start(tshi_start *start, tsh_world **out);

/* Takes the next stream of random numbers. */
uint64_t tshi_world_stream(tsh_world *world);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

/* tsh_world_fail in that step. */
void tshi_world_fail_in(tsh_world *world, const char *reason, tshi_tape_step step);
/* The world is known to have failed or to be lost; tsh_error_message() says why. Never waits. False for
 * a failure in a later step of that tape: the later step reports it. */
bool tshi_world_has_failed(tsh_world *world, tshi_tape_step step);

/* Other work hides a collective of the group that is started early: the collective goes on while the host computes, or
 * the host waits for it while a GPU computes. The same answer on all ranks. */
static inline bool tshi_group_overlaps(const tsh_group *group) {
    return group->ops->in_order || group->world->device != group->world->host ||
           (group->ops->overlaps && group->ops->overlaps(group));
}

/* Seconds after which a call's wait is worth a warning: TSHARD_WARN, or half of a shorter deadline. The next one comes
 * when the wait has lasted twice as long. */
static inline double tshi_warn_after(const tsh_world *world) {
    return world->timeout < 2 * world->warn_every ? world->timeout / 2 : world->warn_every;
}

#endif
