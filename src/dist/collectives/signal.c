/* SIGUSR1 prints a rank's last calls. The handler only counts; a rank that waits sees the count and logs. */
#include "dist/world.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* Signals of the process: a signal belongs to no world, so its count is a global. */
static _Atomic uint32_t asked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int listening; /* worlds that use the handler */

static void on_signal(int number) {
    (void)number;
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
}

static bool handler_is(void (*wanted)(int)) {
    struct sigaction now;
    return sigaction(SIGUSR1, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == wanted;
}

void tshi_signal_open(tsh_world *world, bool wanted) {
    const struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    world->asked = atomic_load(&asked);
    world->listens = wanted;
    if (!wanted) return;
    pthread_mutex_lock(&lock);
    listening++;
    if (handler_is(SIG_DFL)) sigaction(SIGUSR1, &mine, NULL);
    pthread_mutex_unlock(&lock);
}

void tshi_signal_close(tsh_world *world) {
    const struct sigaction none = {.sa_handler = SIG_DFL};
    if (!world->listens) return;
    pthread_mutex_lock(&lock);
    if (--listening == 0 && handler_is(on_signal)) sigaction(SIGUSR1, &none, NULL);
    pthread_mutex_unlock(&lock);
}

void tshi_signal_poll(tsh_world *world) {
    uint32_t now = atomic_load_explicit(&asked, memory_order_relaxed);
    if (now == world->asked) return;
    world->asked = now;
    const char *function = world->device->place.last;
    if (function) tshi_log(&world->log, TSH_LOG_WARNING, "rank %d's last function is %s", world->rank, function);
    for (const tsh_group *g = world->groups; g; g = g->next) {
        if (g->notes) tshi_group_log_recent_calls(g);
    }
}
