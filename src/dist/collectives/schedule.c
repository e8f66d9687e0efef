#include "dist/collectives/schedule.h"

#include <stdio.h>
#include <string.h>

/* --- memory ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_schedule_open(tshi_schedule *m, tsh_group *group) {
    const tsh_allocator *allocator = &group->world->allocator;
    size_t n = (size_t)group->size;
    m->group = group;
    m->blocks = tshi_calloc(allocator, n, tshi_entry_room(group->size));
    m->block = tshi_calloc(allocator, n, sizeof *m->block);
    m->terms = tshi_calloc(allocator, n, sizeof *m->terms);
    m->detail = tshi_calloc(allocator, n, sizeof *m->detail);
    return m->blocks && m->block && m->terms && m->detail ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_schedule_close(tshi_schedule *m) {
    const tsh_allocator *allocator = &m->group->world->allocator;
    tshi_free(allocator, m->blocks);
    tshi_free(allocator, m->block);
    tshi_free(allocator, m->terms);
    tshi_free(allocator, m->detail);
    tshi_free(allocator, m->matrix);
    tshi_free(allocator, m->request);
    tshi_free(allocator, m->fold);
    tshi_free(allocator, m->part);
}

/* Allocates the counts of all members, for an all_to_all with unequal parts. */
static bool make_matrix(tshi_schedule *m) {
    size_t p = (size_t)m->group->size;
    if (!m->matrix) m->matrix = tshi_calloc(&m->group->world->allocator, 2 * p * p, sizeof *m->matrix);
    return m->matrix != NULL;
}

/* --- beginning and ending ----------------------------------------------------------------------------------------- */

/* The hash that all members must agree on. A call that cannot be made hashes its rank in, so that it differs from all
 * others. */
static uint64_t hash_of(const tshi_schedule *m) {
    const tshi_signature *signature = &m->signature;
    uint64_t h = tshi_fingerprint_add(TSHI_FINGERPRINT, (uint64_t)signature->kind << 32 | (uint32_t)signature->root);
    h = tshi_fingerprint_add(tshi_fingerprint_add(h, (uint64_t)signature->count), signature->check);
    if (m->call.failed != TSH_OK) return tshi_fingerprint_add(h, UINT64_C(1) + (uint64_t)m->group->rank);
    bool equal = m->call.op == TSH_COLLECTIVE_ALL_TO_ALL && m->regular;
    return equal ? tshi_fingerprint_add(h, (uint64_t)m->call.in_counts[0]) : h;
}

static bool equal_parts(const tsh_group *group, const tshi_comm_call *call) {
    if (call->op != TSH_COLLECTIVE_ALL_TO_ALL || call->failed != TSH_OK) return true;
    for (int i = 0; i < group->size; i++) {
        if (call->in_counts[i] != call->in_counts[0] || call->out_counts[i] != call->in_counts[0]) return false;
    }
    return true;
}

tsh_status tshi_schedule_begin(tshi_schedule *m, const tshi_comm_call *call, bool started) {
    m->call = *call;
    m->stopped = false;
    m->async = started;
    m->regular = equal_parts(m->group, call);
    if (!m->regular && !make_matrix(m)) m->call.failed = TSH_ERR_MEMORY;
    tshi_failure_keep(&m->outcome, m->call.failed);
    tshi_signature_of_call(&m->signature, m->group, &m->call, m->group->calls + 1);
    if (m->number++ == 0) m->copies = m->apart && !tsh_world_uses_rdma(m->group->world);
    m->phase = TSHI_ENTERING;
    uint32_t flags = (m->async ? TSHI_ENTRY_ASYNC : 0u) | (m->regular ? 0u : TSHI_ENTRY_IRREGULAR) |
                     (m->copies ? TSHI_ENTRY_COPIES : 0u);
    tsh_status status = tshi_entry_begin(m, hash_of(m), flags);
    if (status == TSH_OK) status = tshi_steps_advance(m);
    if (status == TSH_OK) return TSH_OK;
    tshi_schedule_end(m, m->ops->fail(m->group, status));
    return m->outcome.status;
}

void tshi_schedule_end(tshi_schedule *m, tsh_status status) {
    m->phase = TSHI_IDLE;
    tshi_failure_keep(&m->outcome, status);
}

/* --- phases ------------------------------------------------------------------------------------------------------- */

static tsh_status begin_phase(tshi_schedule *m, tshi_phase phase, tsh_status status) {
    m->phase = phase;
    return status;
}

static tsh_status begin_move(tshi_schedule *m) {
    if (m->async || !tshi_levels_take(m->group, &m->call)) return begin_phase(m, TSHI_MOVING, tshi_move_begin(m));
    tshi_schedule_end(m, tshi_levels_run(m->group, &m->call));
    return TSH_OK;
}

static tsh_status begin_compare(tshi_schedule *m) {
    tshi_detail *mine = &m->detail[m->group->rank];
    bool failed = m->call.failed != TSH_OK;
    mine->signature = m->signature;
    if (failed) mine->signature.kind = TSHI_KIND_FAILED;
    snprintf(mine->text, sizeof mine->text, "%s", failed ? m->outcome.words : "");
    return begin_phase(m, TSHI_COMPARING, tshi_gather_begin(m, m->detail, sizeof *mine));
}

/* Gathers the counts of an all_to_all: of each member those that it sends, then those that it expects. */
static tsh_status begin_count(tshi_schedule *m) {
    size_t p = (size_t)m->group->size;
    if (!make_matrix(m)) return TSH_ERR_MEMORY;
    m->regular = false;
    int64_t *rows = m->matrix + 2 * p * (size_t)m->group->rank;
    memcpy(rows, m->call.in_counts, p * sizeof *rows);
    memcpy(rows + p, m->call.out_counts, p * sizeof *rows);
    return begin_phase(m, TSHI_COUNTING, tshi_gather_begin(m, m->matrix, 2 * p * sizeof *rows));
}

static tsh_status end_entry(tshi_schedule *m) {
    uint32_t flags = tshi_entry_flags(m);
    bool differ = flags & TSHI_ENTRY_DIFFER;
    m->async = flags & TSHI_ENTRY_ASYNC;
    m->eager = flags & TSHI_ENTRY_COPIES;
    m->regular = m->regular && !(flags & TSHI_ENTRY_IRREGULAR) && !differ;
    if (differ) return begin_compare(m);
    if (!m->regular) return begin_count(m);
    if (!tshi_entry_has_data(m)) return begin_move(m);
    tshi_entry_finish(m);
    tshi_schedule_end(m, TSH_OK);
    return TSH_OK;
}

static tsh_status end_compare(tshi_schedule *m) {
    size_t text_at = offsetof(tshi_detail, text) - offsetof(tshi_detail, signature);
    tsh_status status = m->call.failed;
    if (status == TSH_OK)
        status = tshi_compare_signatures(m->group, &m->detail->signature, sizeof *m->detail, text_at);
    else
        status = tshi_failure_report(&m->outcome);
    if (status == TSH_OK)
        return m->call.op == TSH_COLLECTIVE_ALL_TO_ALL && !m->regular ? begin_count(m) : begin_move(m);
    tshi_schedule_end(m, status);
    return TSH_OK;
}

static tsh_status end_count(tshi_schedule *m) {
    tsh_status status = tshi_compare_counts(m->group, m->matrix, 2 * (size_t)m->group->size * sizeof(int64_t));
    if (status == TSH_OK) return begin_move(m);
    tshi_schedule_end(m, status);
    return TSH_OK;
}

static tsh_status end_phase(tshi_schedule *m) {
    switch (m->phase) {
    case TSHI_ENTERING: return end_entry(m);
    case TSHI_COMPARING: return end_compare(m);
    case TSHI_COUNTING: return end_count(m);
    default: tshi_schedule_end(m, TSH_OK); return TSH_OK;
    }
}

bool tshi_schedule_advance(tshi_schedule *m) {
    int64_t before = m->steps.begun + m->steps.done;
    tshi_phase phase = m->phase;
    if (m->phase == TSHI_IDLE || m->stopped) return false;
    tsh_status status = tshi_steps_advance(m);
    if (status == TSH_OK && m->steps.done == m->steps.count) status = end_phase(m);
    if (status != TSH_OK) tshi_schedule_end(m, m->ops->fail(m->group, status));
    return m->phase != phase || m->steps.begun + m->steps.done != before;
}
