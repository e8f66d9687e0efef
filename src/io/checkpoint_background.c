/* Saves in the background: the thread, and the agreement of the ranks on its outcome. */
#include "io/checkpoint_background.h"
#include "dist/world.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* When training uses all cores, the thread gets about a tenth of one. */
#define NICENESS 10

typedef enum stage { WRITING, WRITTEN, OVER } stage;

struct tshi_background_save {
    tshi_checkpoint_save *save;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    stage stage;
    tshi_failure written, committed;
};

static void enter_stage(struct tshi_background_save *s, stage next) {
    pthread_mutex_lock(&s->mutex);
    s->stage = next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* Waits until the stage is reached, at most `seconds` (0: without a limit). */
static bool await_stage(struct tshi_background_save *s, stage wanted, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->mutex);
    for (int error = 0; s->stage < wanted && error != ETIMEDOUT;) {
        error = seconds > 0 ? pthread_cond_timedwait(&s->changed, &s->mutex, &until)
                            : pthread_cond_wait(&s->changed, &s->mutex);
    }
    bool reached = s->stage >= wanted;
    pthread_mutex_unlock(&s->mutex);
    return reached;
}

static void *write_in_background(void *argument) {
    struct tshi_background_save *s = argument;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    tshi_failure_keep(&s->written, tshi_checkpoint_save_write(s->save));
    enter_stage(s, WRITTEN);
    if (s->save->world->rank == 0 && s->written.status == TSH_OK)
        tshi_failure_keep(&s->committed, tshi_checkpoint_save_commit(s->save));
    enter_stage(s, OVER);
    return NULL;
}

/* Joins the thread, which ends soon, and frees the save. */
static void end_background_save(tsh_world *world, struct tshi_background_save *s) {
    const tsh_allocator *allocator = &world->allocator;
    if (s->started) pthread_join(s->thread, NULL);
    bool failed = s->written.status != TSH_OK || s->committed.status != TSH_OK;
    if (failed && s->save->world->rank == 0) tshi_folder_remove(s->save->folder);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    tshi_checkpoint_save *save = s->save; /* frees s as well */
    tshi_checkpoint_save_clear(save);
    tshi_free(allocator, save);
    world->background_save = NULL;
}

/* Called when the world is destroyed: only rank 0 waits, for the parts of its peers. */
static void end_save_with_world(tsh_world *world) {
    struct tshi_background_save *s = world->background_save;
    const tshi_group_ops *control = world->control;
    if (!s) return;
    atomic_store(&s->save->awaited, true);
    await_stage(s, WRITTEN, 0);
    while (!await_stage(s, OVER, 0.05)) {
        if (control->check_peers && control->check_peers(world->group->control, true, false) != TSH_OK) {
            atomic_store(&s->save->cancelled, true);
        }
    }
    const tshi_failure *o = s->written.status != TSH_OK ? &s->written : &s->committed;
    if (o->status != TSH_OK) {
        tshi_log(&world->log, TSH_LOG_WARNING, "the checkpoint of step %" PRId64 " was not saved: %s", s->save->step,
                 o->words);
    }
    end_background_save(world, s);
}

struct tshi_background_save *tshi_background_save_new(const tsh_world *world) {
    return tshi_calloc(&world->allocator, 1, sizeof(struct tshi_background_save));
}

void tshi_background_save_start(tshi_checkpoint_save *save) {
    tsh_world *world = save->world;
    struct tshi_background_save *s = save->background;
    world->background_save = s;
    world->background_save_end = end_save_with_world;
    s->save = save;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_t forward;
    pthread_condattr_init(&forward);
    pthread_condattr_setclock(&forward, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &forward);
    pthread_condattr_destroy(&forward);
    int error = tshi_thread_start(&s->thread, write_in_background, s);
    s->started = error == 0;
    if (s->started) return;
    tshi_failure_keep(&s->written, tshi_fail_errno(error, "checkpoint_save: no thread"));
    s->stage = OVER;
}

tsh_status tshi_background_save_finish(tsh_world *world) {
    struct tshi_background_save *s = world->background_save;
    if (!s) return TSH_OK;
    atomic_store(&s->save->awaited, true);
    await_stage(s, WRITTEN, 0);
    tsh_status status =
        tshi_group_agree(world->group, "checkpoint: the background save", tshi_failure_report(&s->written));
    if (status == TSH_OK) {
        await_stage(s, OVER, 0);
        status = tshi_group_agree(world->group, "checkpoint: its folder", tshi_failure_report(&s->committed));
    }
    atomic_store(&s->save->cancelled, true);
    end_background_save(world, s);
    return status;
}
