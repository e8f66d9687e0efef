/* Failures, deaths and deadlines, and recovery from failures. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/collectives/redistribute.h"
#include "dist/collectives/signal.h"
#include "dist/transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONGEST_PARTING 2.0
#define LONGEST_DOUBT   0.5 /* about a deadlock, or a peer that moves data in a world that is lost */
#define SHORT_NAP       1e-4
#define MOST_LOOKS      32

static tshi_rank_record *record_of(const tsh_world *world, int rank) {
    return &tshi_shm_of(world)->page->record[rank];
}

static uint32_t state_of(const tsh_world *world, int rank) {
    return tshi_page_state(tshi_shm_of(world)->page, rank);
}

/* Marks the world as one that can only be destroyed. Keeps the first reason. */
static tsh_status local_break(tsh_world *world, tsh_status status, const char *words) {
    tshi_shm *local = tshi_shm_of(world);
    if (local->broken == TSH_OK) {
        local->broken = status;
        snprintf(local->broken_words, sizeof local->broken_words, "%s", words);
    }
    return tshi_fail(local->broken, "%s", local->broken_words);
}

static tsh_status rank_trouble(tsh_world *world, int rank) {
    char words[TSHI_MESSAGE_SIZE];
    const char *reason = record_of(world, rank)->reason;
    switch (state_of(world, rank)) {
    case TSHI_FAILED:
        if (rank != world->rank) return tshi_fail(TSH_ERR_PEER, "rank %d: %s", rank, reason);
        return tshi_fail(TSH_ERR_STATE, "this rank failed (%s): tsh_world_recover is due", reason);
    case TSHI_STUCK:
        snprintf(words, sizeof words, "rank %d: %.440s", rank, reason);
        return local_break(world, TSH_ERR_PEER, words);
    case TSHI_DEAD:
        snprintf(words, sizeof words, "rank %d%s%.420s%s died (killed by a signal, or exited)", rank,
                 reason[0] ? ": " : "", reason, reason[0] ? "; then it" : "");
        return local_break(world, TSH_ERR_PEER, words);
    default: return TSH_OK;
    }
}

tsh_status tshi_shm_trouble(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    if (local->broken != TSH_OK) return tshi_fail(local->broken, "%s", local->broken_words);
    if (state_of(world, world->rank) == TSHI_FAILED) return rank_trouble(world, world->rank);
    uint32_t cause = atomic_load(&local->page->cause);
    tsh_status status = cause ? rank_trouble(world, (int)cause - 1) : TSH_OK;
    for (int i = 0; status == TSH_OK && i < world->size; i++) status = rank_trouble(world, i);
    return status;
}

/* While ranks recover, failures are no errors. */
static tsh_status permanent_trouble(tsh_world *world) {
    for (int i = 0; i < world->size; i++) {
        uint32_t state = state_of(world, i);
        if (state == TSHI_STUCK || state == TSHI_DEAD) return rank_trouble(world, i);
    }
    return TSH_OK;
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The lock of an open file of its own, which a mapping keeps open that children do not inherit: so it ends with the
 * process, whatever descriptors the program closes. False where the system has no such locks, or no /proc. */
static bool lock_for_life(tshi_shm *local, struct flock *mine) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", local->file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    void *page = mmap(NULL, page_bytes(), PROT_NONE, MAP_SHARED, fd, 0);
    bool held = page != MAP_FAILED && madvise(page, page_bytes(), MADV_DONTFORK) == 0;
    held = held && fcntl(fd, F_OFD_SETLK, mine) == 0;
    close(fd);
    if (held)
        local->life = page;
    else if (page != MAP_FAILED)
        munmap(page, page_bytes());
    return held;
}

tsh_status tshi_shm_appear(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = world->rank, .l_len = 1};
    tshi_rank_record *r = record_of(world, world->rank);
    struct stat names;
    r->process = getpid();
    r->namespace = stat("/proc/self/ns/pid", &names) == 0 ? names.st_ino : 0;
    if (!lock_for_life(local, &mine) && fcntl(local->file, F_SETLK, &mine) != 0) {
        return tshi_fail_errno(errno, "world_init: a lock of the memory of all ranks");
    }
    return TSH_OK;
}

/* However a process ends, the kernel takes back its locks; and children do not inherit them. */
static bool has_ended(const tsh_world *world, int rank) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(tshi_shm_of(world)->file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

bool tshi_shm_has_file(const tshi_shm *local) {
    struct stat s;
    if (local->file < 0) return false;
    if (fstat(local->file, &s) != 0) return errno != EBADF;
    bool known = local->file_number != 0; /* false where this rank could not look at the file when it came */
    return !known || (s.st_dev == local->file_device && s.st_ino == local->file_number);
}

/* Warns once where the program has closed what this rank looks at. */
static bool can_look(const tsh_world *world, tshi_shm *local) {
    if (local->file < 0 || tshi_shm_has_file(local)) return local->file >= 0;
    local->file = -1;
    tshi_log(&world->log, TSH_LOG_WARNING,
             "rank %d: the program has closed the descriptor of the memory of all ranks (closefrom?): this rank learns "
             "of deaths from others, or at the deadline",
             world->rank);
    return false;
}

/* Marks ranks whose process has ended without leaving the world: a few in each look, in turn. */
static void look_for_deaths(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    bool looks = can_look(world, local);
    for (int k = 0; looks && k < world->size && k < MOST_LOOKS; k++) {
        int i = local->next_looked;
        local->next_looked = (i + 1) % world->size;
        tshi_rank_record *r = record_of(world, i);
        if (i == world->rank || !has_ended(world, i) || atomic_load(&r->left)) continue;
        uint32_t state = state_of(world, i);
        if (state != TSHI_DEAD && state != TSHI_STUCK)
            tshi_page_set_state(tshi_shm_of(world)->page, i, state, TSHI_DEAD);
    }
}

static bool somebody_died(const tsh_world *world) {
    for (int i = 0; i < world->size; i++) {
        if (state_of(world, i) == TSHI_DEAD) return true;
    }
    return false;
}

/* True when the message may come from, or go to, member i. */
static bool comes_from(const tshi_wait *wait, int i) {
    int peer = wait->message->call.root;
    return peer < 0 ? i != wait->group->rank : i == peer;
}

static const char *name_of(const tshi_wait *wait) {
    const tshi_shm_group *lg = wait->group ? wait->group->state : NULL;
    if (wait->message) return tsh_collective_name(wait->message->call.op);
    return lg ? lg->name : "world_recover";
}

static unsigned long long number_of(const tshi_wait *wait) {
    if (wait->message) return wait->message->post;
    return wait->group ? wait->group->calls : tshi_shm_of(wait->world)->steps;
}

/* "all_reduce float32 [8] sum #7, in backward of linear". */
static void describe_call(const tshi_wait *wait, char *text, size_t size) {
    const tshi_place *place = &wait->world->device->place;
    const tshi_post *post = wait->group ? &((tshi_shm_group *)wait->group->state)->draft.post : NULL;
    if (wait->message || !post || post->kind == TSHI_KIND_TEXT || post->kind == TSHI_KIND_FAILED)
        snprintf(text, size, "%.100s #%llu", name_of(wait), number_of(wait));
    else
        tshi_post_describe(post, NULL, text, size);
    if (place->function)
        tshi_append(text, size, ", in %s%.40s", place->backward ? "backward of " : "", place->function);
}

/* What this rank has started beside the call that it waits in may be what another one waits for; a message that comes
 * from any rank needs none in particular. */
static bool stands(const tshi_wait *wait) {
    int own = wait->message || (wait->group && wait->group->queue) ? 1 : 0;
    bool any = wait->message && wait->message->call.root < 0;
    return wait->group && !any && wait->world->pending <= own;
}

void tshi_shm_post_wait(const tshi_wait *wait) {
    char text[TSHI_LINE];
    tshi_waits *waits = &tshi_shm_of(wait->world)->waits;
    int n = wait->group ? wait->group->size : wait->world->size;
    tshi_waits_begin(waits, wait->message ? wait->message->post : wait->sync);
    for (int i = 0; i < n; i++) {
        _Atomic uint32_t *word = &record_of(wait->world, i)->recover;
        if (wait->group) word = &tshi_slot_at(wait->group->state, i, wait->sync)->sync;
        bool here = wait->message ? !comes_from(wait, i) : tshi_reached(word, wait->sync);
        if (!here) tshi_waits_add(waits, wait->group ? wait->group->ranks[i] : i);
    }
    if (waits->posted) { /* not the first time, which most waits do not outlast */
        describe_call(wait, text, sizeof text);
        tshi_waits_say(waits, text, stands(wait));
    }
    tshi_waits_post(waits);
}

static void log_last_calls(const tshi_wait *wait) {
    char text[TSHI_LINE];
    if (!wait->group) return;
    const tshi_shm_group *lg = wait->group->state;
    tshi_group_log_ring(wait->group);
    for (int i = 0; i < wait->group->size; i++) {
        /* The slot of a call's second sync has the number of the first. */
        tshi_slot *last = tshi_slot_at(lg, i, 0);
        for (uint32_t k = 1; k < lg->slots; k++) {
            tshi_slot *slot = tshi_slot_at(lg, i, k);
            if (slot->post.number > last->post.number) last = slot;
        }
        bool waits = tshi_waits_call(&tshi_shm_of(wait->world)->waits, wait->group->ranks[i], text, sizeof text);
        if (!waits && last->post.number) tshi_slot_describe(last, text, sizeof text);
        tshi_log(&wait->world->log, TSH_LOG_WARNING, "rank %d%s: %s", wait->group->ranks[i],
                 waits ? " waits in" : "'s last call", text[0] ? text : "none");
    }
}

/* The first rank whose deadline passes reports it for all ranks: one whose deadline passes at that time reports the
 * same. */
static tsh_status time_out(tshi_wait *wait, const char *ranks, const char *stopped) {
    char words[TSHI_MESSAGE_SIZE];
    tsh_world *world = wait->world;
    tshi_rank_record *mine = record_of(world, world->rank);
    snprintf(words, sizeof words, "%.80s #%llu: %.180s did not come within %g s%.180s", name_of(wait), number_of(wait),
             ranks, world->timeout, stopped);
    snprintf(mine->reason, sizeof mine->reason, "%s", words);
    tshi_page_set_state(tshi_shm_of(world)->page, world->rank, state_of(world, world->rank), TSHI_STUCK);
    uint32_t first = atomic_load(&tshi_shm_of(world)->page->cause);
    if (wait->group && first && (int)first - 1 != world->rank) return rank_trouble(world, (int)first - 1);
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    log_last_calls(wait);
    return local_break(world, TSH_ERR_TIMEOUT, words);
}

static double doubt(const tsh_world *world) {
    return world->timeout < 4 * LONGEST_DOUBT ? world->timeout / 4 : LONGEST_DOUBT;
}

/* Checks the deadline, and warns before it. Where each rank waits for another one, one of them may just have been
 * released: that shows soon, or it is a deadlock. */
static tsh_status look_at_clock(tshi_wait *wait) {
    tsh_world *world = wait->world;
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    double now = tshi_clock(), grace = doubt(world);
    if (now < wait->deadline && now < wait->next_word) return TSH_OK;
    bool sure = tshi_waits_name(&tshi_shm_of(world)->waits, ranks, sizeof ranks, stopped, sizeof stopped);
    if (now >= wait->deadline + (sure ? 0 : grace)) return time_out(wait, ranks, stopped);
    if (now < wait->next_word) return TSH_OK;
    double waited = now - (wait->deadline - world->timeout);
    wait->next_word = now + waited;
    tshi_log(&world->log, TSH_LOG_WARNING, "%s #%llu: rank %d has waited %.1f s for %s%s", name_of(wait),
             number_of(wait), world->rank, waited, ranks, stopped);
    return TSH_OK;
}

/* For a receive from any rank: one of the ranks when all peers have left, else -1. */
static int all_left(const tshi_wait *wait) {
    int last = -1;
    for (int i = 0; wait->message && i < wait->group->size; i++) {
        int rank = wait->group->ranks[i];
        if (rank == wait->world->rank) continue;
        if (!atomic_load(&record_of(wait->world, rank)->left)) return -1;
        last = rank;
    }
    return last;
}

/* Both ranks fail: the one that sees it first tells the other. */
static tsh_status end_cycle(const tshi_wait *wait, const char *words) {
    tshi_shm_fail(wait->world, words, (tshi_tape_step){0});
    return tshi_fail(TSH_ERR_MISMATCH, "%s", words);
}

tsh_status tshi_shm_look(tshi_wait *wait, int rank) {
    char cycle[TSHI_MESSAGE_SIZE];
    tsh_world *world = wait->world;
    tshi_signal_look(world);
    look_for_deaths(world);
    tsh_status status = wait->group ? tshi_shm_trouble(world) : permanent_trouble(world);
    if (status != TSH_OK && somebody_died(world)) {
        char *words = tshi_shm_of(world)->broken_words;
        tshi_append(words, TSHI_MESSAGE_SIZE, " in %s #%llu", name_of(wait), number_of(wait));
        return tshi_fail(status, "%s", words);
    }
    if (status != TSH_OK) return status;
    if (rank < 0) rank = all_left(wait);
    if (rank >= 0 && atomic_load(&record_of(world, rank)->left)) {
        char words[TSHI_LINE];
        snprintf(words, sizeof words, "rank %d has left the world; %s #%llu waits for it", rank, name_of(wait),
                 number_of(wait));
        return local_break(world, TSH_ERR_PEER, words);
    }
    tshi_shm_post_wait(wait);
    return tshi_waits_cycle(&tshi_shm_of(world)->waits, cycle, sizeof cycle) ? end_cycle(wait, cycle)
                                                                             : look_at_clock(wait);
}

tsh_status tshi_shm_heard(tsh_group *group, bool look, bool waits) {
    tsh_world *world = group->world;
    if (look) look_for_deaths(world);
    tsh_status status = tshi_shm_troubled(tshi_shm_of(world)) ? tshi_shm_trouble(world) : TSH_OK;
    for (int i = 0; waits && status == TSH_OK && i < group->size; i++) {
        char words[TSHI_LINE];
        if (!atomic_load(&record_of(world, group->ranks[i])->left)) continue;
        snprintf(words, sizeof words, "rank %d has left the world", group->ranks[i]);
        status = local_break(world, TSH_ERR_PEER, words);
    }
    return status;
}

bool tshi_shm_fails_later(const tsh_world *world, tshi_tape_step step) {
    if (tshi_shm_of(world)->broken != TSH_OK) return false;
    for (int i = 0; i < world->size; i++) {
        uint32_t state = state_of(world, i);
        bool later = state == TSHI_FAILED && tshi_step_is_later(record_of(world, i)->step, step);
        if (state != TSHI_ALIVE && !later) return false;
    }
    return true;
}

void tshi_shm_fail(tsh_world *world, const char *reason, tshi_tape_step step) {
    tshi_shm *local = tshi_shm_of(world);
    tshi_rank_record *mine = record_of(world, world->rank);
    if (local->broken != TSH_OK || state_of(world, world->rank) != TSHI_ALIVE) return;
    snprintf(mine->reason, sizeof mine->reason, "%s", reason);
    mine->step = step;
    tshi_page_set_state(tshi_shm_of(world)->page, world->rank, TSHI_ALIVE, TSHI_FAILED);
    /* Wakes the ranks that sleep until this one posts; other sleepers wake soon by themselves. */
    for (const tsh_group *g = world->groups; g; g = g->next) {
        if (g->ops != world->control || !g->state) continue;
        const tshi_shm_group *lg = g->state;
        for (uint32_t k = 0; k < lg->slots; k++) tshi_wake(&tshi_slot_at(lg, g->rank, k)->sync);
    }
}

/* --- memory that peers still touch -------------------------------------------------------------------------------- */

/* A rank that leaves a call has seen trouble before it looks who moves; so here one of the two sees the other. */
tsh_status tshi_shm_move(const tsh_group *group) {
    const tshi_shm *local = tshi_shm_of(group->world);
    tshi_member *me = tshi_member_at(group->state, group->rank);
    atomic_store(&me->moving, 1);
    if (local->broken == TSH_OK && atomic_load(&local->page->troubles) == 0) return TSH_OK;
    tsh_status status = tshi_shm_trouble(group->world);
    if (status != TSH_OK) tshi_shm_moved(group);
    return status;
}

void tshi_shm_moved(const tsh_group *group) {
    atomic_store_explicit(&tshi_member_at(group->state, group->rank)->moving, 0, memory_order_release);
}

/* Copies the pages into memory of this rank's own, which takes their place: peers go on with those that were there.
 * False for threads, whose memory is one, and without memory. */
static bool keep_pages(const tshi_shm *local, const void *data, size_t bytes) {
    size_t page = page_bytes();
    char *start = (char *)((uintptr_t)data / page * page);
    if (local->threads) return false;
    if (!data || !bytes) return true;
    bytes = ((uintptr_t)data + bytes - (uintptr_t)start + page - 1) / page * page;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, start, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) != MAP_FAILED) return true;
    munmap(copy, bytes);
    return false;
}

/* A recovery would need the pages that this rank is about to give up. */
static void give_up(tsh_world *world, int rank) {
    tshi_rank_record *mine = record_of(world, world->rank);
    char words[TSHI_MESSAGE_SIZE];
    if (tshi_shm_of(world)->broken != TSH_OK) return;
    snprintf(words, sizeof words, "rank %d did not end a call within %g s after it had failed", rank, world->timeout);
    snprintf(mine->reason, sizeof mine->reason, "%s", words);
    tshi_page_set_state(tshi_shm_of(world)->page, world->rank, state_of(world, world->rank), TSHI_STUCK);
    local_break(world, TSH_ERR_TIMEOUT, words);
}

/* Looks again whether rank `rank` is done with this rank's memory, until `end`. */
static bool waits_on(tsh_world *world, int rank, double end) {
    if (tshi_clock() > end) {
        give_up(world, rank);
        return false;
    }
    tshi_sleep(SHORT_NAP);
    look_for_deaths(world);
    return true;
}

/* How long this rank waits for a peer that moves data. In a world that is lost a moment will do. */
static double patience(const tsh_world *world) {
    return tshi_shm_of(world)->broken == TSH_OK ? world->timeout : doubt(world);
}

/* There is no memory for this rank's own copy, or it is a GPU's. */
static void hold_on(tsh_world *world, int rank, double *next_word) {
    if (tshi_warning_due(next_word, world->warn_every)) {
        tshi_log(&world->log, TSH_LOG_WARNING, "rank %d waits for rank %d, which still moves data of a failed call",
                 world->rank, rank);
    }
    tshi_sleep(LONGEST_DOUBT);
    look_for_deaths(world);
}

/* A member that moves data, or -1. The memory of those that have died is out of their reach. */
static int mover(const tsh_group *group) {
    for (int i = 0; i < group->size; i++) {
        bool moves = i != group->rank && atomic_load(&tshi_member_at(group->state, i)->moving);
        if (moves && state_of(group->world, group->ranks[i]) != TSHI_DEAD) return group->ranks[i];
    }
    return -1;
}

tsh_status tshi_shm_depart(tsh_group *group, const tshi_call *call, const tshi_exchange_plan *plan, tsh_status status) {
    tsh_world *world = group->world;
    double end = tshi_clock() + patience(world), next_word = 0;
    tshi_failure before;
    int rank;
    if (mover(group) < 0) return status;
    tshi_failure_keep(&before, status);
    while ((rank = mover(group)) >= 0) {
        if (waits_on(world, rank, end)) continue;
        size_t size = tsh_dtype_size(call->dtype);
        size_t in = (size_t)(plan ? tshi_box_numel(plan->e.ndim, &plan->held) : tshi_elements_in(group, call)) * size;
        size_t out = plan ? 0 : (size_t)tshi_elements_out(group, call) * size;
        bool kept = !call->on_device && keep_pages(tshi_shm_of(world), call->in, in);
        if (kept && keep_pages(tshi_shm_of(world), call->out, out)) break;
        hold_on(world, rank, &next_word);
    }
    return tshi_failure_report(&before);
}

void tshi_shm_await_reader(tsh_world *world, int rank, _Atomic uint32_t *word, uint32_t held, const void *data,
                           size_t bytes) {
    double end = tshi_clock() + patience(world), next_word = 0;
    while (atomic_load(word) == held && state_of(world, rank) != TSHI_DEAD) {
        if (waits_on(world, rank, end)) continue;
        if (keep_pages(tshi_shm_of(world), data, bytes)) return;
        hold_on(world, rank, &next_word);
    }
}

/* --- recovering --------------------------------------------------------------------------------------------------- */

/* Returns when all ranks have made this step. */
static tsh_status recover_step(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    double now = tshi_clock();
    tshi_wait wait = {world, NULL, ++local->steps, now + world->timeout, now + tshi_word_after(world), NULL};
    tsh_status status = TSH_OK;
    tshi_page_recover_step(local->page, world->rank, local->steps);
    tshi_shm_post_wait(&wait);
    for (int i = 0; i < world->size && status == TSH_OK; i++) {
        tshi_rank_record *r = record_of(world, i);
        status = tshi_wait_for(&wait, &r->recover, wait.sync, &r->sleepers, i);
    }
    tshi_waits_end(&local->waits);
    return status;
}

/* The furthest sync that any member has posted. */
static uint32_t last_sync(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    uint32_t last = lg->sync;
    for (int i = 0; i < group->size; i++) {
        for (uint32_t k = 0; k < lg->slots; k++) {
            uint32_t sync = atomic_load(&tshi_slot_at(lg, i, k)->sync);
            if ((int32_t)(sync - last) > 0) last = sync;
        }
    }
    return last;
}

/* No rank is inside a call between the first step and the third: ranks read before the second step and write after
 * it. */
static void groups_look(tsh_world *world) {
    for (tsh_group *g = world->groups; g; g = g->next) {
        tshi_shm_group *lg = g->ops == world->control ? g->state : NULL;
        if (lg) lg->agreed = last_sync(g);
    }
}

static void groups_align(tsh_world *world) {
    for (tsh_group *g = world->groups; g; g = g->next) {
        tshi_shm_group *lg = g->ops == world->control ? g->state : NULL;
        if (!lg) continue;
        lg->sync = lg->agreed;
        lg->heard = lg->agreed;
        for (uint32_t k = 0; k < lg->slots; k++) atomic_store(&tshi_slot_at(lg, g->rank, k)->sync, lg->agreed);
        tshi_messages_reset(g);
    }
}

tsh_status tshi_shm_recover(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    if (local->broken != TSH_OK) return tshi_fail(local->broken, "%s", local->broken_words);
    /* What this rank has started may be moved by peers, until they recover too; this rank moves nothing any more. */
    bool moving = world->moving;
    world->moving = true;
    tsh_status status = recover_step(world);
    world->moving = moving;
    if (status != TSH_OK) return status;
    for (tsh_group *g = world->groups; g; g = g->next) tshi_group_forget(g, "the world recovered meanwhile");
    groups_look(world);
    status = recover_step(world);
    if (status != TSH_OK) return status;
    groups_align(world);
    record_of(world, world->rank)->reason[0] = '\0';
    tshi_page_set_state(tshi_shm_of(world)->page, world->rank, TSHI_FAILED, TSHI_ALIVE);
    atomic_store(&local->page->cause, 0);
    return recover_step(world);
}

/* This rank's GPU memory must not be freed while peers have it mapped; threads have nothing mapped. A rank that takes
 * longer to leave the world is not waited for: the memory is freed with this process. */
static void let_go(tsh_world *world) {
    if (!tshi_shm_of(world)->maps) return;
    world->device->ops->sharing->unmap(world->device);
    atomic_store(&record_of(world, world->rank)->let_go, 1);
    double end = tshi_clock() + LONGEST_PARTING;
    for (int i = 0; i < world->size; i++) {
        while (!atomic_load(&record_of(world, i)->let_go) && state_of(world, i) != TSHI_DEAD) {
            if (tshi_clock() > end) {
                world->device->ops->sharing->keep(world->device);
                return;
            }
            tshi_sleep(100e-6);
            look_for_deaths(world);
        }
    }
}

void tshi_shm_leave(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    tshi_shm_sweep(world, true);
    if (!local->page) return;
    tshi_page_leave(local->page, world->rank);
    let_go(world);
}
