/* The relays of three machines that are threads of this process, with a rank on each: failures, recovering, a peer that
 * hangs up, and leaving, for a build with ThreadSanitizer. */
#include "support/clock.h"
#include "support/machines.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MACHINES = 3, ROUNDS = 8 };

/* A relay's thread has a descriptor table of its own, which ThreadSanitizer does not know of: it takes the descriptors
 * that the rank opens and closes for those that the relay uses, and the sockets of two relays that have one number for
 * one socket. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:tshi_links_close\nrace:open_bell\nrace:read_bell\nrace:ring_relay\n";
}

static tshi_test_machines machines = {.machines = MACHINES, .ranks = 1, .raw = -1};

static pthread_barrier_t connected;

static void await_value(const _Atomic uint32_t *value, uint32_t wanted) {
    double end = tshi_now() + 60;
    while (atomic_load(value) != wanted) {
        if (tshi_now() > end) {
            printf("relay: a value is %u, not %u\n", atomic_load(value), wanted);
            exit(EXIT_FAILURE);
        }
        tshi_nap(200e-6);
    }
}

/* The rank whose turn it is fails; then all recover. */
static void live_round(tshi_page *page, int me, int round) {
    const int failing = round % MACHINES;
    char words[32];
    snprintf(words, sizeof words, "round %d", round);
    if (me == failing) {
        snprintf(page->record[me].reason, TSHI_MESSAGE_SIZE, "%s", words);
        tshi_page_set_state(page, me, TSHI_ALIVE, TSHI_FAILED);
    }
    await_value(&page->record[failing].state, TSHI_FAILED);
    if (strcmp(page->record[failing].reason, words) != 0) abort();
    for (uint32_t step = 3 * (uint32_t)round + 1; step <= 3 * (uint32_t)round + 3; step++) {
        if (step % 3 == 0) tshi_page_set_state(page, me, TSHI_FAILED, TSHI_ALIVE);
        tshi_page_recover_step(page, me, step);
        for (int i = 0; i < MACHINES; i++) {
            while (atomic_load(&page->record[i].recover) < step) tshi_nap(100e-6);
        }
    }
}

static void *live(void *argument) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    const int me = *(const int *)argument;
    tshi_roster roster;
    tshi_machine_links links;
    tshi_relay *relay;
    tshi_page *page = machines.page[me];
    tshi_test_machines_roster(&machines, me, &roster);
    const tshi_relay_plan plan = {page, roster, machines.file[me], machines.timeout, &allocator, machines.queues[me]};
    if (tshi_test_machines_connect(&machines, &roster, &links) != TSH_OK) abort();
    pthread_barrier_wait(&connected);
    if (tshi_relay_begin(&plan, &links, &relay) != TSH_OK) abort();
    for (int round = 0; round < ROUNDS; round++) live_round(page, me, round);
    tshi_page_leave(page, me);
    tshi_relay_end(relay);
    for (int i = 0; i < MACHINES; i++) {
        if (tshi_page_state(page, i) != TSHI_ALIVE) abort();
    }
    if (atomic_load(&page->failures) != 0) abort();
    tshi_roster_free(&roster, &allocator);
    return NULL;
}

int main(void) {
    pthread_t threads[MACHINES];
    int number[MACHINES];
    tshi_test_machines_prepare(&machines);
    pthread_barrier_init(&connected, NULL, MACHINES);
    for (int i = 0; i < MACHINES; i++) {
        number[i] = i;
        if (pthread_create(&threads[i], NULL, live, &number[i]) != 0) abort();
    }
    for (int i = 0; i < MACHINES; i++) pthread_join(threads[i], NULL);
    tshi_test_machines_end(&machines);
    printf("relays as threads: passed\n");
    return EXIT_SUCCESS;
}
