/* Warnings about a blocking call of MPI that does not return, as a rank inside it cannot notice that a member is
 * stopped. A thread, which makes no MPI calls, warns when one call has lasted long, again when it has lasted twice as
 * long, and at the deadline together with the recent calls. It neither advances nor ends the call. */
#include "dist/transport/mpi/mpi.h"

#define LOOKS 4.0 /* polls before the first warning */

static void warn(const tsh_world *world, const tsh_group *group, double seconds) {
    char ranks[TSHI_LINE];
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s #%llu: inside MPI for %.3g s%s", world->rank,
             tsh_collective_name(op->call.op), (unsigned long long)op->signature.number, seconds,
             tshi_entry_stopped(group, ranks, sizeof ranks));
    if (seconds >= world->timeout) tshi_group_log_recent_calls(group);
}

/* tshi_watcher.look. It runs with the watcher's lock held, and closing a group waits for that lock. */
static void look(void *user) {
    const tsh_world *world = user;
    tshi_mpi_watch *w = &tshi_mpi_of(world)->watch;
    uint64_t passages = atomic_load_explicit(&w->passages, memory_order_acquire);
    double now = tshi_clock(), inside = now - w->since;
    w->thread.every = tshi_warn_after(world) / LOOKS;
    if (passages % 2 == 0 || passages != w->seen) {
        w->seen = passages;
        w->since = now;
        w->next_warning = now + tshi_warn_after(world);
    } else if (now >= w->next_warning) {
        warn(world, atomic_load_explicit(&w->group, memory_order_relaxed), inside);
        bool deadline_next = inside < world->timeout && 2 * inside > world->timeout;
        w->next_warning = deadline_next ? w->since + world->timeout : now + inside;
    }
}

void tshi_watch_open(tsh_world *world) {
    if (tshi_watcher_begin(&tshi_mpi_of(world)->watch.thread, tshi_warn_after(world) / LOOKS, look, world)) return;
    tshi_log(&world->log, TSH_LOG_WARNING, "world_init: no thread for warnings about calls that do not return");
}
