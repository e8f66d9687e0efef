/* SIGUSR1 prints a rank's last calls. The handler only counts; a rank that waits sees the count and logs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/core/signal.h"
#include "dist/world.h"

#include <signal.h>
#include <stdatomic.h>

/* A signal belongs to the process: the one thing here that no world can own. */
static _Atomic uint32_t asked;

static void on_signal(int number) {
    (void)number;
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
}

void tshi_signal_open(tsh_world *world, bool wanted) {
    struct sigaction before;
    world->asked = atomic_load(&asked);
    if (!wanted) return;
    if (sigaction(SIGUSR1, NULL, &before) != 0 || before.sa_flags & SA_SIGINFO || before.sa_handler != SIG_DFL) return;
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &mine, NULL);
}

void tshi_signal_look(tsh_world *world) {
    uint32_t now = atomic_load_explicit(&asked, memory_order_relaxed);
    if (now == world->asked) return;
    world->asked = now;
    for (const tsh_group *g = world->groups; g; g = g->next) {
        if (g->notes) tshi_group_log_ring(g);
    }
}
