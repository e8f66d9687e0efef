#include "dist/control/page.h"

#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

size_t tshi_page_bytes(int size) {
    return sizeof(tshi_page) + (size_t)size * sizeof(tshi_rank_record);
}

void tshi_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void tshi_doze(_Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers, long nanoseconds) {
    const struct timespec nap = {.tv_nsec = nanoseconds};
    /* Registered before the last load of *word: a publisher that does not see this sleeper has published before it. */
    atomic_fetch_add_explicit(sleepers, 1, memory_order_acq_rel);
    uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
    if ((int32_t)(seen - target) < 0) syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_acq_rel);
}

/* To a socket of its own, as the program may close any descriptor. Without one the relay sees the change when its sleep
 * ends. */
static void ring_relay(const tshi_page *page) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)page->relay_address_bytes);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    memcpy(to.sun_path, page->relay_address, (size_t)page->relay_address_bytes);
    sendto(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&to, size);
    close(fd);
}

/* Exchanges rather than loads: either this rank sees that the relay sleeps, or the relay, which exchanges too, sees
 * what this rank has written before. */
void tshi_page_wake_relay(tshi_page *page) {
    if (atomic_exchange(&page->relay_sleeps, 0)) ring_relay(page);
}

static void tell_relay(tshi_page *page) {
    atomic_fetch_add(&page->changed, 1);
    tshi_page_wake_relay(page);
}

void tshi_page_set_state(tshi_page *page, int rank, uint32_t from, uint32_t to) {
    uint32_t was = from, none = 0;
    bool fails = from == TSHI_ALIVE && to != TSHI_ALIVE, recovers = from != TSHI_ALIVE && to == TSHI_ALIVE;
    if (fails) atomic_fetch_add(&page->failures, 1);
    bool set = atomic_compare_exchange_strong(&page->record[rank].state, &was, to);
    if (set ? recovers : fails) atomic_fetch_sub(&page->failures, 1);
    if (!set) return;
    if (fails) atomic_compare_exchange_strong(&page->cause, &none, (uint32_t)rank + 1);
    tell_relay(page);
}

void tshi_page_leave(tshi_page *page, int rank) {
    atomic_store(&page->record[rank].left, 1);
    tshi_wake(&page->record[rank].recover);
    tell_relay(page);
}

void tshi_page_recover_step(tshi_page *page, int rank, uint32_t step) {
    tshi_rank_record *r = &page->record[rank];
    atomic_store(&r->recover, step);
    tshi_wake_sleepers(&r->sleepers, &r->recover);
    tell_relay(page);
}

void tshi_page_set_agreement(tshi_page *page, int rank, uint64_t agreement) {
    atomic_store(&page->record[rank].agreement, agreement);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&page->failures, memory_order_relaxed) != 0) tell_relay(page);
}

void tshi_page_set_wait(tshi_page *page, int rank, uint64_t wait, const char *call) {
    tshi_rank_record *r = &page->record[rank];
    uint64_t words[TSHI_CALL_BYTES / sizeof(uint64_t)] = {0};
    if (atomic_load(&r->wait) == wait) return;
    memcpy(words, call, strnlen(call, TSHI_CALL_BYTES - 1));
    atomic_store(&r->wait, 0);
    for (size_t i = 0; i < TSHI_CALL_BYTES / sizeof *words; i++) atomic_store(&r->call[i], words[i]);
    atomic_store(&r->wait, wait);
    tell_relay(page);
}

uint64_t tshi_page_wait(const tshi_page *page, int rank, char call[TSHI_CALL_BYTES]) {
    const tshi_rank_record *r = &page->record[rank];
    uint64_t words[TSHI_CALL_BYTES / sizeof(uint64_t)], wait = atomic_load(&r->wait);
    for (size_t i = 0; i < TSHI_CALL_BYTES / sizeof *words; i++) words[i] = atomic_load(&r->call[i]);
    memcpy(call, words, TSHI_CALL_BYTES);
    if (wait == 0 || atomic_load(&r->wait) != wait) call[0] = '\0';
    return wait;
}

/* Reads the steps before `failures`, and that before the agreement. When all ranks have made this rank's steps, what
 * has failed has done so after them. */
uint64_t tshi_page_told_agreement(const tshi_page *page, int rank) {
    uint32_t steps = atomic_load(&page->record[rank].recover);
    for (int i = 0; i < page->size; i++) {
        if ((int32_t)(atomic_load(&page->record[i].recover) - steps) < 0) return 0;
    }
    if (atomic_load(&page->failures) == 0) return 0;
    uint64_t agreement = atomic_load(&page->record[rank].agreement), none = tshi_agreement(steps, 0);
    return agreement >> 32 == none >> 32 ? agreement : none;
}

/* Reads in the opposite order of the writes, so that a step of a recovery is never older than the state read with
 * it. */
void tshi_page_read(const tshi_page *page, int rank, tshi_rank_news *out) {
    const tshi_rank_record *r = &page->record[rank];
    *out = (tshi_rank_news){.rank = rank};
    out->left = atomic_load(&r->left);
    out->recover = atomic_load(&r->recover);
    out->state = atomic_load(&r->state);
    out->wait = tshi_page_wait(page, rank, out->call);
    out->step = r->step;
    memcpy(out->reason, r->reason, sizeof out->reason);
    out->reason[sizeof out->reason - 1] = '\0';
}

void tshi_page_apply(tshi_page *page, const tshi_rank_news *news) {
    tshi_rank_record *r = &page->record[news->rank];
    uint32_t now = atomic_load(&r->state);
    bool recovered = news->recover != atomic_load(&r->recover);
    /* A rank that has recovered and failed again since has the same state with another reason. */
    if ((now != news->state || recovered) && now != TSHI_STUCK && now != TSHI_DEAD) {
        r->step = news->step;
        memcpy(r->reason, news->reason, sizeof r->reason);
        if (now != news->state) tshi_page_set_state(page, news->rank, now, news->state);
    }
    if (recovered) tshi_page_recover_step(page, news->rank, news->recover);
    if (news->agreement != atomic_load(&r->agreement)) {
        atomic_store(&r->agreement, news->agreement);
        tell_relay(page);
    }
    tshi_page_set_wait(page, news->rank, news->wait, news->call);
    if (news->left && !atomic_load(&r->left)) tshi_page_leave(page, news->rank);
}
