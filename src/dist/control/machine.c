#include "dist/control/machine.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "dist/control/relay.h"
#include "dist/rendezvous/memory_exchange.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The user pointer of tshi_memory_plan's functions. */
typedef struct opening {
    tsh_world *world;
    size_t area_bytes;
} opening;

/* --- layout ------------------------------------------------------------------------------------------------------- */

static size_t waits_at(int size, size_t area_bytes) {
    return tshi_page_bytes(size) + tshi_round_up(area_bytes, TSHI_LINE_BYTES);
}

static size_t queues_at(int size, size_t area_bytes) {
    return tshi_round_up(waits_at(size, area_bytes) + tshi_waits_bytes(size), TSHI_LINE_BYTES);
}

size_t tshi_machine_bytes(int size, size_t area_bytes) {
    return queues_at(size, area_bytes) + tshi_packet_queues_bytes(size);
}

/* The size of one file for the page and all heaps: a rank then needs one descriptor and one mapping for any number of
 * peers. */
static tsh_status lay_out(const tshi_memory_ranks *ranks, size_t head, size_t *total) {
    tsh_status status = TSH_OK;
    *total = tshi_round_up(head, TSHI_HUGE_PAGE);
    for (int i = 0; i < ranks->size && status == TSH_OK; i++) {
        if (ranks->heap_bytes[i] > SIZE_MAX / 4) status = TSH_ERR_OVERFLOW;
        if (status == TSH_OK) {
            status = tshi_size_add(*total, tshi_round_up(ranks->heap_bytes[i], TSHI_HUGE_PAGE), total);
        }
    }
    if (status == TSH_OK && *total <= INT64_MAX) return TSH_OK;
    return tshi_fail(TSH_ERR_OVERFLOW, "world_init: the heaps of %d ranks do not fit an address space (TSHARD_HEAP)",
                     ranks->size);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* tshi_memory_plan.make: the machine's first rank records the heap of each rank, before any other rank maps the
 * file. */
static int make_memory(const tshi_memory_ranks *ranks) {
    const opening *o = ranks->user;
    const tshi_machine *m = &o->world->machine;
    size_t bytes, head = tshi_machine_bytes(o->world->size, o->area_bytes), at = tshi_round_up(head, TSHI_HUGE_PAGE);
    tsh_status status = lay_out(ranks, head, &bytes);
    if (status != TSH_OK) return -(int)status;
    int fd = tshi_memory_file("tshard", bytes);
    tshi_page *page = MAP_FAILED;
    if (fd >= 0) page = mmap(NULL, head, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        const char *limit = errno == EFBIG ? " is more than this process may make, see ulimit -f" : "";
        tshi_fail_errno(errno, "world_init: a memory file of %zu bytes%s (TSHARD_HEAP makes it smaller)", bytes, limit);
        if (fd >= 0) close(fd);
        return -TSH_ERR_MEMORY;
    }
    for (int i = 0; i < ranks->size; i++) {
        page->record[m->ranks[i]].heap_at = at;
        at += tshi_round_up(ranks->heap_bytes[i], TSHI_HUGE_PAGE);
    }
    page->size = o->world->size;
    munmap(page, head);
    return fd;
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Locks through an open file description of its own, which only a mapping keeps open. A child does not inherit the
 * mapping (MADV_DONTFORK), so the lock ends with the process, whatever descriptors the program closes. False where the
 * system has no OFD locks or no /proc. */
static bool lock_for_life(tshi_machine *m, struct flock *mine) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->deaths.file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    void *page = mmap(NULL, page_bytes(), PROT_NONE, MAP_SHARED, fd, 0);
    bool held = page != MAP_FAILED && madvise(page, page_bytes(), MADV_DONTFORK) == 0;
    held = held && fcntl(fd, F_OFD_SETLK, mine) == 0;
    close(fd);
    if (held)
        m->life = page;
    else if (page != MAP_FAILED)
        munmap(page, page_bytes());
    return held;
}

/* Fills this rank's record and takes its lock: from here on peers see the death of its process. */
static tsh_status appear(tsh_world *world) {
    tshi_machine *m = &world->machine;
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = world->rank, .l_len = 1};
    tshi_rank_record *r = &m->page->record[world->rank];
    struct stat names;
    r->process = getpid();
    r->namespace = stat("/proc/self/ns/pid", &names) == 0 ? names.st_ino : 0;
    tshi_granted_cores(r->cores, TSHI_CORE_BYTES);
    if (!lock_for_life(m, &mine) && fcntl(m->deaths.file, F_SETLK, &mine) != 0) {
        return tshi_fail_errno(errno, "world_init: a lock of the memory of all ranks");
    }
    return TSH_OK;
}

/* tshi_memory_plan.join: maps the file, and finds each rank's heap in it. */
static tsh_status map_memory(void *user) {
    const opening *o = user;
    tsh_world *world = o->world;
    tshi_machine *m = &world->machine;
    struct stat s;
    if (fstat(m->deaths.file, &s) != 0) return tshi_fail_errno(errno, "world_init: the memory of all ranks");
    m->memory_bytes = (size_t)s.st_size;
    m->file_device = s.st_dev;
    m->file_number = s.st_ino;
    if (m->memory_bytes >= tshi_machine_bytes(world->size, o->area_bytes))
        m->memory = tshi_map_memory(m->deaths.file, m->memory_bytes);
    if (!m->memory) {
        tshi_fail_errno(errno, "world_init: mapping the %zu bytes of all ranks (TSHARD_HEAP makes it smaller)",
                        m->memory_bytes);
        return TSH_ERR_MEMORY;
    }
    m->page = (tshi_page *)(void *)m->memory;
    for (int i = 0; i < m->count; i++) {
        m->heap[m->ranks[i]] = m->memory + m->page->record[m->ranks[i]].heap_at;
    }
    return appear(world);
}

static tsh_status find_ranks(tsh_world *world, const tshi_roster *roster) {
    tshi_machine *m = &world->machine;
    size_t size = (size_t)world->size;
    m->node = tshi_calloc(&world->allocator, size, sizeof *m->node);
    m->ranks = tshi_calloc(&world->allocator, size, sizeof *m->ranks);
    if (!m->node || !m->ranks) return TSH_ERR_MEMORY;
    m->nodes = roster ? roster->nodes : 1;
    for (int i = 0; i < world->size; i++) {
        m->node[i] = roster ? roster->node[i] : 0;
        if (!roster || roster->node[i] == roster->node[world->rank]) m->ranks[m->count++] = i;
    }
    return TSH_OK;
}

/* The only rank of a machine makes its memory without an exchange. */
static tsh_status memory_of_one(const tshi_settings *settings, tshi_memory_plan *plan) {
    size_t bytes = settings->heap_bytes;
    const tshi_memory_ranks alone = {.size = 1, .heap_bytes = &bytes, .user = plan->user};
    int made = plan->make(&alone);
    *plan->memory = made < 0 ? -1 : made;
    return made < 0 ? (tsh_status)-made : plan->join(plan->user);
}

static tsh_status memory_of_processes(tsh_world *world, const tshi_settings *settings, size_t area_bytes,
                                      double deadline) {
    static const char purpose[] = "machine";
    tshi_machine *m = &world->machine;
    const tsh_allocator *allocator = &world->allocator;
    opening o = {world, area_bytes};
    tshi_memory_plan plan = {
        .make = make_memory, .join = map_memory, .user = &o, .ranks = m->ranks, .memory = &m->deaths.file};
    m->heap = tshi_calloc(allocator, (size_t)world->size, sizeof *m->heap);
    if (!m->heap) return TSH_ERR_MEMORY;
    if (m->count == 1) return memory_of_one(settings, &plan);
    tshi_settings here = *settings;
    here.size = m->count;
    for (here.rank = 0; m->ranks[here.rank] != world->rank;) here.rank++;
    /* Two machines of the roster may be containers that share one namespace of socket names: each gets a key of its
     * own. */
    if (m->nodes > 1) {
        tshi_hmac(settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, &m->node[world->rank], sizeof *m->node,
                  here.key);
    }
    return tshi_memory_exchange(&here, &world->log, allocator, deadline, &plan);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

static tsh_status memory_of_threads(tsh_world *world, const tshi_settings *settings, tsh_thread_rendezvous *threads) {
    tshi_machine *m = &world->machine;
    int rank = world->rank;
    if (atomic_flag_test_and_set(&threads->taken[rank])) {
        return tshi_fail(TSH_ERR_STATE, "world_init: rank %d of the threads has been taken", rank);
    }
    m->threads = threads;
    m->page = (tshi_page *)(void *)threads->memory;
    m->heap = threads->heap;
    threads->heap_bytes[rank] = settings->heap_bytes;
    m->heap[rank] = tshi_map_memory(-1, settings->heap_bytes);
    tshi_granted_cores(m->page->record[rank].cores, TSHI_CORE_BYTES);
    if (m->heap[rank]) return TSH_OK;
    tshi_fail_errno(errno, "world_init: mapping the %zu bytes of rank %d's heap (TSHARD_HEAP makes it smaller)",
                    settings->heap_bytes, rank);
    return TSH_ERR_MEMORY;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* The wait graph needs rows of all ranks in shared memory, so a world of several machines has none. */
static tsh_status open_waits(tsh_world *world, size_t area_bytes) {
    tshi_machine *m = &world->machine;
    const tshi_rank_record *r = m->page->record;
    char *rows = (char *)m->page + waits_at(world->size, area_bytes);
    tsh_status status = tshi_waits_open(world, &m->waits, m->nodes == 1 ? rows : NULL);
    for (int i = 0; status == TSH_OK && !m->threads && i < m->count; i++) {
        int rank = m->ranks[i]; /* a process number of another PID namespace means nothing here */
        m->waits.process[rank] = r[rank].namespace == r[world->rank].namespace ? r[rank].process : 0;
    }
    return status;
}

/* The first rank of each machine connects to its neighbours, and starts the relay. */
static tsh_status connect_machines(tsh_world *world, const tshi_settings *settings, const tshi_roster *roster,
                                   double deadline) {
    tshi_machine *m = &world->machine;
    tshi_machine_links links;
    tshi_relay_plan plan = {
        .page = m->page,
        .roster = {.rank = world->rank, .size = world->size, .nodes = m->nodes, .node = m->node, .host = world->hosts},
        .file = m->deaths.file,
        .queues = m->channel.queue,
        .silence = settings->silence,
        .allocator = &world->allocator};
    if (m->nodes == 1 || m->ranks[0] != world->rank) return TSH_OK;
    tsh_status status = tshi_links_open(settings, roster, &world->allocator, TSHI_FAN_OUT, deadline, &links);
    return status == TSH_OK ? tshi_relay_begin(&plan, &links, &m->relay) : status;
}

tsh_status tshi_machine_open(tsh_world *world, const tshi_settings *settings, const tshi_roster *roster,
                             tsh_thread_rendezvous *threads, size_t area_bytes, double deadline) {
    tshi_machine *m = &world->machine;
    m->deaths = (tshi_deaths){.file = -1, .own = world->rank};
    tsh_status status = find_ranks(world, roster);
    if (status != TSH_OK) return status;
    status = threads ? memory_of_threads(world, settings, threads)
                     : memory_of_processes(world, settings, area_bytes, deadline);
    if (!m->page) return status;
    m->deaths.page = m->page;
    m->deaths.ranks = m->ranks;
    m->deaths.count = m->count;
    m->area = (char *)m->page + tshi_page_bytes(world->size);
    m->channel.queue = (tshi_packet_queue *)(void *)((char *)m->page + queues_at(world->size, area_bytes));
    if (status == TSH_OK) status = open_waits(world, area_bytes);
    return status == TSH_OK ? connect_machines(world, settings, roster, deadline) : status;
}

/* The descriptor still names the shared file: a program may have closed it, and opened another file under its
 * number. */
static bool has_file(const tshi_machine *m) {
    struct stat s;
    if (m->deaths.file < 0) return false;
    if (fstat(m->deaths.file, &s) != 0) return errno != EBADF;
    bool known = m->file_number != 0; /* false where fstat failed when this rank joined */
    return !known || (s.st_dev == m->file_device && s.st_ino == m->file_number);
}

void tshi_machine_disconnect(tsh_world *world) {
    tshi_relay_end(world->machine.relay);
    world->machine.relay = NULL;
}

void tshi_machine_close(tsh_world *world) {
    tshi_machine *m = &world->machine;
    const tsh_allocator *allocator = &world->allocator;
    tshi_machine_disconnect(world);
    if (m->memory) munmap(m->memory, m->memory_bytes);
    if (m->life) munmap(m->life, 1);
    if (m->node && has_file(m)) close(m->deaths.file);
    tshi_waits_close(world, &m->waits);
    if (!m->threads) tshi_free(allocator, m->heap);
    tshi_free(allocator, m->node);
    tshi_free(allocator, m->ranks);
    *m = (tshi_machine){.deaths.file = -1};
}

bool tshi_machine_oversubscribed(const tsh_world *world) {
    const tshi_machine *m = &world->machine;
    int cores = 0;
    for (int i = 0; i < TSHI_CORE_BYTES; i++) {
        unsigned any = 0;
        for (int k = 0; k < m->count; k++) any |= m->page->record[m->ranks[k]].cores[i];
        cores += __builtin_popcount(any);
    }
    return m->count > cores;
}

void tshi_machine_poll(tsh_world *world) {
    tshi_machine *m = &world->machine;
    if (m->deaths.file >= 0 && !has_file(m)) {
        m->deaths.file = -1;
        tshi_log(&world->log, TSH_LOG_WARNING,
                 "rank %d: the program has closed the descriptor of the memory of all ranks (closefrom?): this rank "
                 "learns of deaths from others, or at the deadline",
                 world->rank);
    }
    tshi_deaths_poll(&m->deaths);
}
