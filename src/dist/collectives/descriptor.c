/* What each collective is: its descriptor, and the elements that two ranks exchange in a call of it. */
#include "dist/collectives/collectives.h"

const tshi_collective tshi_collectives[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {"all_reduce", TSHI_WHOLE, TSHI_WHOLE, .ring = 2, .reduces = true},
    [TSH_COLLECTIVE_ALL_GATHER] = {"all_gather", TSHI_PART, TSHI_WHOLE, .ring = 1},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {"reduce_scatter", TSHI_WHOLE, TSHI_PART, .ring = 1, .reduces = true},
    [TSH_COLLECTIVE_BROADCAST] = {"broadcast", TSHI_WHOLE, TSHI_WHOLE, .ring = 1, .contributes = TSHI_ROOT},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {"all_to_all", TSHI_LISTED, TSHI_LISTED, .ring = 0},
    [TSH_COLLECTIVE_BARRIER] = {"barrier", TSHI_NONE, TSHI_NONE, .ring = 0},
    [TSH_COLLECTIVE_REDUCE] = {"reduce", TSHI_WHOLE, TSHI_WHOLE, .ring = 1, .receives = TSHI_ROOT, .reduces = true},
    [TSH_COLLECTIVE_GATHER] = {"gather", TSHI_PART, TSHI_WHOLE, .ring = 1, .receives = TSHI_ROOT},
    [TSH_COLLECTIVE_SCATTER] = {"scatter", TSHI_WHOLE, TSHI_PART, .ring = 1, .contributes = TSHI_ROOT},
    [TSH_COLLECTIVE_SEND] = {"send", TSHI_WHOLE, TSHI_NONE, .ring = 0},
    [TSH_COLLECTIVE_RECV] = {"recv", TSHI_NONE, TSHI_WHOLE, .ring = 0},
};

const char *tsh_collective_name(tsh_collective op) {
    return (int)op >= 0 && op < TSH_COLLECTIVE_COUNT ? tshi_collectives[op].name : "unknown collective";
}

/* The share that concerns `peer` of one side of this rank, when the peer has `other` at its side. */
static tshi_span span_of(const tshi_comm_call *call, tshi_extent mine, tshi_extent other, const int64_t *listed, int me,
                         int peer) {
    switch (mine) {
    case TSHI_PART: return (tshi_span){0, call->counts[me]};
    case TSHI_LISTED: return (tshi_span){tshi_sum(listed, peer), listed[peer]};
    case TSHI_WHOLE:
        if (other == TSHI_PART) return (tshi_span){tshi_sum(call->counts, peer), call->counts[peer]};
        return (tshi_span){0, call->count};
    default: return (tshi_span){0, 0};
    }
}

static bool has_side(tshi_role role, const tshi_comm_call *call, int rank) {
    return role == TSHI_ALL || call->root == rank;
}

tshi_span tshi_span_to(const tsh_group *group, const tshi_comm_call *call, int to) {
    const tshi_collective *c = &tshi_collectives[call->op];
    if (!has_side(c->contributes, call, group->rank) || !has_side(c->receives, call, to)) return (tshi_span){0, 0};
    return span_of(call, c->in, c->out, call->in_counts, group->rank, to);
}

tshi_span tshi_span_from(const tsh_group *group, const tshi_comm_call *call, int from) {
    const tshi_collective *c = &tshi_collectives[call->op];
    if (!has_side(c->receives, call, group->rank) || !has_side(c->contributes, call, from)) return (tshi_span){0, 0};
    return span_of(call, c->out, c->in, call->out_counts, group->rank, from);
}

static int64_t elements(const tsh_group *group, const tshi_comm_call *call, tshi_extent extent, const int64_t *listed) {
    switch (extent) {
    case TSHI_WHOLE: return call->count;
    case TSHI_PART: return call->counts[group->rank];
    case TSHI_LISTED: return tshi_sum(listed, group->size);
    default: return 0;
    }
}

int64_t tshi_elements_in(const tsh_group *group, const tshi_comm_call *call) {
    const tshi_collective *c = &tshi_collectives[call->op];
    return has_side(c->contributes, call, group->rank) ? elements(group, call, c->in, call->in_counts) : 0;
}

int64_t tshi_elements_out(const tsh_group *group, const tshi_comm_call *call) {
    const tshi_collective *c = &tshi_collectives[call->op];
    return has_side(c->receives, call, group->rank) ? elements(group, call, c->out, call->out_counts) : 0;
}
