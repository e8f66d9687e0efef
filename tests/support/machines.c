#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/machines.h"
#include "support/children.h"
#include "support/clock.h"
#include "support/ports.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST 60.0

static int size_of(const tshi_test_machines *m) {
    return m->machines * m->ranks;
}

static void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

void tshi_test_machines_roster(const tshi_test_machines *m, int rank, tshi_roster *out) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    if (tshi_roster_init(out, size_of(m), m->machines, &allocator) != TSH_OK) abort();
    out->rank = rank;
    for (int i = 0; i < size_of(m); i++) out->node[i] = i / m->ranks;
    for (int i = 0; i < m->machines; i++) out->host[i][0] = (char)('a' + i);
}

tsh_status tshi_test_machines_connect(const tshi_test_machines *m, const tshi_roster *roster, tshi_machine_links *out) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_settings settings = {.method = TSHI_INIT_TCP, .port = m->port, .timeout = LONGEST, .warn_every = LONGEST};
    snprintf(settings.address, sizeof settings.address, "%s", m->address);
    settings.address_known = true;
    return tshi_links_open(&settings, roster, &allocator, m->fan_out ? m->fan_out : TSHI_FAN_OUT,
                           tshi_clock() + LONGEST, out);
}

/* --- a rank ------------------------------------------------------------------------------------------------------- */

/* As ranks of a world do: the lock ends with this process, whatever is closed, and no child has it. */
static void lock_for_life(int file, int rank) {
    char path[64];
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *page = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED || madvise(page, bytes, MADV_DONTFORK) != 0) abort();
    if (fcntl(fd, F_OFD_SETLK, &mine) != 0) abort();
    close(fd);
}

static void fail(tshi_page *page, int rank) {
    snprintf(page->record[rank].reason, TSHI_MESSAGE_SIZE, "rank %d cannot go on", rank);
    page->record[rank].step = (tshi_tape_step){1, 7};
    tshi_page_set_state(page, rank, TSHI_ALIVE, TSHI_FAILED);
}

static void fork_child(tshi_test_member *me) {
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        for (;;) pause();
    }
    me->child = child;
}

static void leave(tshi_page *page, int rank, tshi_test_member *me, tshi_relay *relay) {
    double start = tshi_now();
    tshi_page_leave(page, rank);
    tshi_relay_end(relay);
    me->left_in = tshi_now() - start;
    atomic_store(&me->obeyed, TSHI_ORDER_LEAVE);
    _exit(0);
}

static void obey(tshi_test_machines *m, int rank, tshi_relay *relay, const tshi_machine_links *links) {
    tshi_page *page = m->page[rank / m->ranks];
    tshi_test_member *me = &m->member[rank];
    switch (atomic_load(&me->order)) {
    case TSHI_ORDER_FAIL: fail(page, rank); break;
    case TSHI_ORDER_RECOVER:
        if (me->argument == 3) tshi_page_set_state(page, rank, TSHI_FAILED, TSHI_ALIVE);
        tshi_page_recover_step(page, rank, (uint32_t)me->argument);
        break;
    case TSHI_ORDER_CLOSE:
        for (int fd = 3; fd < 1024; fd++) close(fd);
        break;
    case TSHI_ORDER_FORK: fork_child(me); break;
    case TSHI_ORDER_BYTES:
        for (int i = 0; i < links->nodes; i++) {
            if (links->connection[i] >= 0) send(links->connection[i], me->bytes, me->size, MSG_NOSIGNAL);
        }
        break;
    case TSHI_ORDER_ACT: m->act(m, rank, me->argument); break;
    case TSHI_ORDER_LEAVE: leave(page, rank, me, relay); break;
    default: break;
    }
}

static void live(tshi_test_machines *m, int rank) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    int node = rank / m->ranks;
    tshi_page *page = m->page[node];
    tshi_test_member *me = &m->member[rank];
    tshi_roster roster;
    tshi_machine_links links = {0};
    tshi_relay *relay = NULL;
    lock_for_life(m->file[node], rank);
    tshi_test_machines_roster(m, rank, &roster);
    atomic_store(&me->obeyed, -2);
    for (int i = 0; i < m->ranks && rank % m->ranks == 0; i++) {
        while (atomic_load(&m->member[rank + i].obeyed) == -1) tshi_nap(1e-3);
    }
    tsh_status status = TSH_OK;
    if (rank % m->ranks == 0) status = tshi_test_machines_connect(m, &roster, &links);
    if (status == TSH_OK && rank % m->ranks == 0 && node != m->raw) {
        const tshi_relay_plan plan = {page, roster, m->file[node], m->timeout, &allocator, m->queues[node]};
        status = tshi_relay_begin(&plan, &links, &relay);
    }
    if (status != TSH_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, tsh_error_message());
        abort();
    }
    atomic_store(&me->obeyed, TSHI_ORDER_NONE);
    for (;;) {
        int order = atomic_load(&me->order);
        if (order != atomic_load(&me->obeyed)) {
            obey(m, rank, relay, &links);
            atomic_store(&me->obeyed, order);
        }
        tshi_nap(200e-6);
    }
}

/* --- the test ----------------------------------------------------------------------------------------------------- */

void tshi_test_machines_prepare(tshi_test_machines *m) {
    if (!m->address) m->address = "127.0.0.1";
    if (!m->port) m->port = tshi_test_port();
    if (m->timeout <= 0) m->timeout = LONGEST;
    m->pid = shared_memory((size_t)size_of(m) * sizeof *m->pid);
    m->member = shared_memory((size_t)size_of(m) * sizeof *m->member);
    for (int i = 0; i < size_of(m); i++) atomic_store(&m->member[i].obeyed, -1);
    for (int i = 0; i < m->machines; i++) {
        m->page[i] = shared_memory(tshi_page_bytes(size_of(m)));
        m->page[i]->size = size_of(m);
        m->queues[i] = shared_memory(tshi_packet_queues_bytes(size_of(m)));
        m->file[i] = tshi_memory_file("machine", 4096);
        if (m->file[i] < 0) abort();
    }
}

pid_t tshi_test_machines_fork(tshi_test_machines *m, int rank) {
    pid_t child = tshi_test_fork();
    if (child == 0) live(m, rank);
    return m->pid[rank] = child;
}

static bool await_obeyed(const tshi_test_member *member, int order) {
    double end = tshi_now() + LONGEST;
    while (atomic_load(&member->obeyed) != order) {
        if (tshi_now() > end) return false;
        tshi_nap(200e-6);
    }
    return true;
}

void tshi_test_machines_begin(tshi_test_machines *m) {
    tshi_test_machines_prepare(m);
    for (int i = 0; i < size_of(m); i++) tshi_test_machines_fork(m, i);
    for (int i = 0; i < size_of(m); i++) {
        if (!await_obeyed(&m->member[i], TSHI_ORDER_NONE)) abort();
    }
}

void tshi_test_order_do(tshi_test_machines *m, int rank, tshi_test_order order, int argument) {
    tshi_test_member *member = &m->member[rank];
    atomic_store(&member->order, TSHI_ORDER_NONE);
    if (!await_obeyed(member, TSHI_ORDER_NONE)) abort();
    member->argument = argument;
    atomic_store(&member->order, order);
    if (!await_obeyed(member, (int)order)) abort();
}

int tshi_test_machines_reap(tshi_test_machines *m, int rank) {
    int end = 0;
    while (waitpid(m->pid[rank], &end, 0) < 0) continue;
    m->pid[rank] = 0;
    return WIFSIGNALED(end) ? -WTERMSIG(end) : WEXITSTATUS(end);
}

void tshi_test_machines_kill(tshi_test_machines *m, int rank) {
    kill(m->pid[rank], SIGKILL);
    tshi_test_machines_reap(m, rank);
}

void tshi_test_machines_end(tshi_test_machines *m) {
    for (int i = 0; i < size_of(m); i++) {
        if (m->pid[i] > 0) tshi_test_machines_kill(m, i);
        if (m->member[i].child > 0) kill(m->member[i].child, SIGKILL);
    }
    for (int i = 0; i < m->machines; i++) {
        munmap(m->page[i], tshi_page_bytes(size_of(m)));
        munmap(m->queues[i], tshi_packet_queues_bytes(size_of(m)));
        close(m->file[i]);
    }
    munmap(m->member, (size_t)size_of(m) * sizeof *m->member);
    munmap(m->pid, (size_t)size_of(m) * sizeof *m->pid);
}

double tshi_test_await_state(const tshi_test_machines *m, int machine, int of, uint32_t state) {
    double start = tshi_now();
    while (tshi_page_state(m->page[machine], of) != state) {
        if (tshi_now() > start + LONGEST) return -1;
        tshi_nap(200e-6);
    }
    return tshi_now() - start;
}
