#include "dist/control/relay.h"
#include "base/owner.h"
#include "dist/control/descriptors.h"
#include "dist/control/relay_turn.h"
#include "dist/rendezvous/sockets.h"

#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

/* Milliseconds between two reads of the page, which matter only where a rank cannot wake the relay. */
#define IDLE_MS 10

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* A datagram socket with a name that the kernel chooses. */
static void open_bell(tshi_relay *relay) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t size = sizeof name;
    tshi_page *page = relay->plan.page;
    relay->bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (relay->bell < 0) return;
    bool named = bind(relay->bell, (struct sockaddr *)&name, sizeof name.sun_family) == 0 &&
                 getsockname(relay->bell, (struct sockaddr *)&name, &size) == 0;
    size -= named ? (socklen_t)offsetof(struct sockaddr_un, sun_path) : size;
    if (size == 0 || size > TSHI_RELAY_ADDRESS) {
        tshi_socket_close(&relay->bell, 1);
        return;
    }
    memcpy(page->relay_address, name.sun_path, size);
    page->relay_address_bytes = (int32_t)size;
}

static void *run_relay(void *argument) {
    tshi_relay *relay = argument;
    relay->apart = tshi_descriptors_own(relay->kept, relay->n_kept);
    open_bell(relay);
    sem_post(&relay->begun);
    while (tshi_relay_turn(relay, tshi_clock(), IDLE_MS)) continue;
    tshi_relay_close_links(relay);
    atomic_store(&relay->plan.page->relay_sleeps, 0);
    tshi_socket_close(&relay->bell, 1);
    return NULL;
}

/* --- starting and ending ------------------------------------------------------------------------------------------ */

tsh_status tshi_relay_begin(const tshi_relay_plan *plan, tshi_machine_links *links, tshi_relay **out) {
    tshi_relay *relay;
    *out = NULL;
    tsh_status status = tshi_relay_new(plan, links, &relay);
    if (status != TSH_OK) goto done;
    relay->process = getpid();
    sem_init(&relay->begun, 0, 0);
    int error = tshi_thread_start(&relay->thread, run_relay, relay);
    if (error != 0) {
        status = tshi_fail_errno(error, "world_init: the thread that watches the other machines");
        goto done;
    }
    while (sem_wait(&relay->begun) != 0) continue;
    /* A thread that shares this descriptor table closes the connections itself. */
    for (int i = 0; i < links->nodes && !relay->apart; i++) links->connection[i] = -1;
    *out = relay;
done:
    if (relay && status != TSH_OK) tshi_relay_free(relay);
    tshi_links_close(links, plan->allocator);
    return status;
}

void tshi_relay_end(tshi_relay *relay) {
    /* A forked child does not have the thread. */
    if (!relay || relay->process != getpid()) return;
    atomic_store(&relay->leaving, true);
    pthread_join(relay->thread, NULL);
    sem_destroy(&relay->begun);
    tshi_relay_free(relay);
}
