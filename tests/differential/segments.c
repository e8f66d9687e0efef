/* Segments of a program that run again in backward. */
#include "differential/run.h"

void tshi_run_begin_segment(const tshi_run *r, int k, tshi_open_segments *open) {
    uint64_t salt = r->p->step[k].salt >> 8;
    if (open->count == MOST_OPEN || salt % 4) return;
    int last = k + (int)(salt / 4 % 8), around = open->count ? open->last[open->count - 1] : r->p->steps - 1;
    open->first[open->count] = k;
    open->last[open->count] = last < around ? last : around;
    open->mark[open->count++] = tsh_tape_mark(r->bench.tape);
}

/* A step after `last`, or an objective, takes the value. */
static bool used_after(const tshi_run *r, int last, int k) {
    for (int j = last + 1; j < r->p->steps; j++) {
        for (int i = 0; i < r->p->step[j].inputs; i++) {
            if (r->value[r->p->step[j].in[i]] == r->value[k]) return true;
        }
    }
    for (int i = 0; i < r->p->objectives; i++) {
        if (r->value[r->p->objective[i].value] == r->value[k]) return true;
    }
    return false;
}

tsh_status tshi_run_end_segments(tshi_run *r, int k, tshi_open_segments *open) {
    tsh_status status = TSH_OK;
    for (; open->count > 0 && open->last[open->count - 1] == k && status == TSH_OK; open->count--) {
        bool used[MAX_STEPS] = {false};
        int first = open->first[open->count - 1];
        for (int j = first; j <= k; j++) {
            used[j] = r->value[j] && used_after(r, k, j);
            if (used[j]) tsh_tensor_retain(r->value[j]);
        }
        const tsh_recompute_config config = {.offload = first % 2}; /* as good as random */
        if (!tsh_tape_recompute_since_with(r->bench.tape, open->mark[open->count - 1], r->value[k], &config))
            status = tshi_run_note(r, tsh_tape_status(r->bench.tape), "recompute_since");
        for (int j = first; j <= k; j++) {
            if (used[j]) tsh_tensor_release(r->value[j]);
        }
    }
    return status;
}
