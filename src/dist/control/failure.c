/* The error that a call returns, and the state that a rank publishes of itself. */
#include "base/hash.h"
#include "dist/control/control.h"
#include "dist/control/heap_block.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_DOUBT 0.5

double tshi_control_doubt(const tsh_world *world) {
    return world->timeout < 4 * LONGEST_DOUBT ? world->timeout / 4 : LONGEST_DOUBT;
}

static uint32_t state_of(const tsh_world *world, int rank) {
    return tshi_page_state(world->machine.page, rank);
}

tsh_status tshi_control_break(tsh_world *world, tsh_status status, const char *format, ...) {
    tshi_machine *m = &world->machine;
    if (m->broken == TSH_OK) {
        va_list arguments;
        m->broken = status;
        va_start(arguments, format);
        vsnprintf(m->broken_words, sizeof m->broken_words, format, arguments);
        va_end(arguments);
    }
    return tshi_fail(m->broken, "%s", m->broken_words);
}

/* --- which error -------------------------------------------------------------------------------------------------- */

/* A rank on an unreachable machine may still be alive: its message does not say that it died. */
static tsh_status rank_failure(tsh_world *world, int rank) {
    char words[TSHI_MESSAGE_SIZE];
    const char *reason = world->machine.page->record[rank].reason;
    uint32_t state = state_of(world, rank);
    bool died = state == TSHI_DEAD && strncmp(reason, TSHI_MACHINE, strlen(TSHI_MACHINE)) != 0;
    if (state == TSHI_ALIVE) return TSH_OK;
    if (state == TSHI_FAILED && rank == world->rank) {
        return tshi_fail(TSH_ERR_STATE, "this rank failed (%s): tsh_world_recover is due", reason);
    }
    if (state == TSHI_FAILED) return tshi_fail(TSH_ERR_PEER, "rank %d: %s", rank, reason);
    snprintf(words, sizeof words, "rank %d%s%.420s", rank, reason[0] ? ": " : "", reason);
    if (died) {
        tshi_append(words, sizeof words, "%s died (killed by a signal, or exited)", reason[0] ? "; then it" : "");
    }
    return tshi_control_break(world, TSH_ERR_PEER, "%s", words);
}

tsh_status tshi_control_failure(tsh_world *world) {
    const tshi_machine *m = &world->machine;
    if (m->broken != TSH_OK) return tshi_fail(m->broken, "%s", m->broken_words);
    if (state_of(world, world->rank) == TSHI_FAILED) return rank_failure(world, world->rank);
    uint32_t cause = atomic_load(&m->page->cause);
    tsh_status status = cause ? rank_failure(world, (int)cause - 1) : TSH_OK;
    for (int i = 0; status == TSH_OK && i < world->size; i++) status = rank_failure(world, i);
    return status;
}

tsh_status tshi_control_lasting_failure(tsh_world *world) {
    for (int i = 0; i < world->size; i++) {
        if (tshi_control_is_lost(world, i)) return rank_failure(world, i);
    }
    return TSH_OK;
}

tsh_status tshi_control_add_call(tsh_world *world, tsh_status status, const char *call, unsigned long long number) {
    char *words = world->machine.broken_words;
    for (int i = 0; i < world->size; i++) {
        if (state_of(world, i) != TSHI_DEAD) continue;
        tshi_append(words, TSHI_MESSAGE_SIZE, " in %s #%llu", call, number);
        return tshi_fail(status, "%s", words);
    }
    return status;
}

tsh_status tshi_control_check_peers(tsh_group *group, bool look, bool waits) {
    tsh_world *world = group->world;
    if (look) tshi_machine_poll(world);
    tsh_status status = tshi_control_has_failed(world) ? tshi_control_failure(world) : TSH_OK;
    for (int i = 0; waits && status == TSH_OK && i < group->size; i++) {
        if (!tshi_control_has_left(world, group->ranks[i])) continue;
        status = tshi_control_break(world, TSH_ERR_PEER, "rank %d has left the world", group->ranks[i]);
    }
    return status;
}

bool tshi_control_fails_later(const tsh_world *world, tshi_tape_step step) {
    if (world->machine.broken != TSH_OK) return false;
    for (int i = 0; i < world->size; i++) {
        uint32_t state = state_of(world, i);
        bool later = state == TSHI_FAILED && tshi_step_is_later(world->machine.page->record[i].step, step);
        if (state != TSHI_ALIVE && !later) return false;
    }
    return true;
}

/* --- what this rank publishes ------------------------------------------------------------------------------------- */

static tshi_rank_record *own_record(const tsh_world *world) {
    return &world->machine.page->record[world->rank];
}

void tshi_control_fail(tsh_world *world, const char *reason, tshi_tape_step step) {
    tshi_rank_record *mine = own_record(world);
    if (world->machine.broken != TSH_OK || state_of(world, world->rank) != TSHI_ALIVE) return;
    snprintf(mine->reason, sizeof mine->reason, "%s", reason);
    mine->step = step;
    tshi_page_set_state(world->machine.page, world->rank, TSHI_ALIVE, TSHI_FAILED);
}

void tshi_control_leave(tsh_world *world) {
    tshi_page *page = world->machine.page;
    tshi_heap_blocks_sweep(world, true);
    if (page && !atomic_load(&page->record[world->rank].left)) tshi_page_leave(page, world->rank);
}

static void stick(tsh_world *world, const char *words) {
    tshi_rank_record *mine = own_record(world);
    snprintf(mine->reason, sizeof mine->reason, "%s", words);
    tshi_page_set_state(world->machine.page, world->rank, state_of(world, world->rank), TSHI_STUCK);
}

tsh_status tshi_control_stick(tsh_world *world, tsh_status status, const char *format, ...) {
    char words[TSHI_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    if (world->machine.broken == TSH_OK) stick(world, words);
    return tshi_control_break(world, status, "%s", words);
}

bool tshi_deadline_report(tsh_world *world, const char *words) {
    stick(world, words);
    uint32_t first = atomic_load(&world->machine.page->cause);
    if (first && (int)first - 1 != world->rank && rank_failure(world, (int)first - 1) != TSH_OK) return false;
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    tshi_control_break(world, TSH_ERR_TIMEOUT, "%s", words);
    return true;
}

/* --- the deadline ------------------------------------------------------------------------------------------------- */

tshi_deadline tshi_deadline_since(const tsh_world *world, double since, const char *name, unsigned long long number) {
    return (tshi_deadline){since + world->timeout, since + tshi_warn_after(world), name, number, NULL, false};
}

#define AGREES (UINT64_C(1) << 32)

/* Identifies the call: its name, whether it is an agreement, and in the lower half its number in the group. Every
 * member computes the same value. A group and the one that connects its ranks may have the same id. */
static uint64_t fingerprint_of(const tshi_deadline *wait) {
    const tsh_group *group = wait->group;
    uint64_t number = tshi_fingerprint_add(TSHI_FINGERPRINT, group->id);
    number = tshi_fingerprint_add(tshi_fingerprint_add(number, group->control != group), wait->number);
    uint64_t name = tshi_fingerprint_text(TSHI_FINGERPRINT, wait->name) << 32 & ~AGREES;
    return name | AGREES << 1 | (wait->agrees ? AGREES : 0) | (uint32_t)number;
}

/* Earlier than the first warning: news take a moment to reach other machines. */
void tshi_deadline_publish(tsh_world *world, const tshi_deadline *wait) {
    double since = wait->end - world->timeout;
    if (wait->group && tshi_clock() >= since + tshi_warn_after(world) / 4)
        tshi_page_set_wait(world->machine.page, world->rank, fingerprint_of(wait), wait->name);
}

tsh_status tshi_deadline_compare(tsh_world *world, const tshi_deadline *wait) {
    const tshi_page *page = world->machine.page;
    char words[TSHI_MESSAGE_SIZE], theirs[TSHI_CALL_BYTES], ours[TSHI_CALL_BYTES];
    /* Ranks that have recovered have made different numbers of calls. */
    if (!wait->group || world->machine.steps || tshi_control_has_failed(world)) return TSH_OK;
    uint64_t here = fingerprint_of(wait);
    if (tshi_page_wait(page, world->rank, ours) != here) return TSH_OK;
    for (int i = 0; i < wait->group->size; i++) {
        int rank = wait->group->ranks[i];
        uint64_t there = tshi_page_wait(page, rank, theirs);
        if ((uint32_t)there != (uint32_t)here || !((there ^ here) & AGREES) || !theirs[0]) continue;
        bool first = world->rank < rank;
        snprintf(words, sizeof words, "rank %d: %s #%llu, rank %d: %s #%llu", first ? world->rank : rank,
                 first ? ours : theirs, wait->number, first ? rank : world->rank, first ? theirs : ours, wait->number);
        tshi_control_fail(world, words, (tshi_tape_step){0});
        return tshi_fail(TSH_ERR_MISMATCH, "%s", words);
    }
    return TSH_OK;
}

/* A rank of another machine is never known to be stopped. */
static bool name_absent(const tsh_world *world, const tshi_deadline *wait, char *ranks, char *stopped) {
    const tshi_machine *m = &world->machine;
    uint64_t here = fingerprint_of(wait);
    char absent[TSHI_LINE] = "";
    for (int i = 0; i < wait->group->size; i++) {
        int rank = wait->group->ranks[i];
        if (rank == world->rank || atomic_load(&m->page->record[rank].wait) == here) continue;
        tshi_append(absent, sizeof absent, "%s%d", absent[0] ? ", " : "rank ", rank);
        if (tshi_process_stopped(m->waits.process[rank])) tshi_append(stopped, TSHI_LINE, "; rank %d is stopped", rank);
    }
    if (absent[0]) memcpy(ranks, absent, sizeof absent);
    return absent[0] != '\0';
}

bool tshi_deadline_name(const tsh_world *world, const tshi_deadline *wait, char *ranks, char *stopped) {
    if (tshi_waits_name(&world->machine.waits, ranks, TSHI_LINE, stopped, TSHI_LINE)) return true;
    const tshi_waits *waits = &world->machine.waits;
    bool graph = waits->rows && waits->published;
    return !graph && wait->group && name_absent(world, wait, ranks, stopped);
}

bool tshi_deadline_passed(tsh_world *world, tshi_deadline *wait, char *ranks, char *stopped) {
    double now = tshi_clock(), grace = tshi_control_doubt(world);
    tshi_deadline_publish(world, wait);
    if (now < wait->end && now < wait->next_warning) return false;
    bool sure = tshi_deadline_name(world, wait, ranks, stopped) || !world->machine.waits.rows;
    if (now >= wait->end + (sure ? 0 : grace)) return true;
    if (now < wait->next_warning) return false;
    double waited = now - (wait->end - world->timeout);
    wait->next_warning = now + waited;
    tshi_log(&world->log, TSH_LOG_WARNING, "%.160s #%llu: rank %d has waited %.1f s for %s%s", wait->name, wait->number,
             world->rank, waited, ranks[0] ? ranks : "the others", stopped);
    return false;
}
