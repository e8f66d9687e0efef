/* The table of transitions, with their costs. */
#include "layout/layout.h"

const double tshi_move_cost[TSHI_MOVE_COUNT] = {
    [TSHI_MOVE_NOTHING] = 0,  [TSHI_MOVE_ALL_REDUCE] = 2,     [TSHI_MOVE_ALL_GATHER] = 1,
    [TSHI_MOVE_SLICE] = 0,    [TSHI_MOVE_REDUCE_SCATTER] = 1, [TSHI_MOVE_ALL_TO_ALL] = 0.5,
    [TSHI_MOVE_ZERO_PAD] = 0, [TSHI_MOVE_FIRST_KEEPS] = 0,
};

static const tshi_transition table[] = {
    {TSH_KIND_REPLICATED, TSH_KIND_LOCAL, TSHI_MOVE_NOTHING, TSHI_MOVE_ALL_REDUCE, true},
    {TSH_KIND_PARTIAL, TSH_KIND_REPLICATED, TSHI_MOVE_ALL_REDUCE, TSHI_MOVE_NOTHING, true},
    {TSH_KIND_LOCAL, TSH_KIND_REPLICATED, TSHI_MOVE_ALL_REDUCE, TSHI_MOVE_NOTHING, false},
    {TSH_KIND_REPLICATED, TSH_KIND_SHARD, TSHI_MOVE_SLICE, TSHI_MOVE_ALL_GATHER, true},
    {TSH_KIND_SHARD, TSH_KIND_REPLICATED, TSHI_MOVE_ALL_GATHER, TSHI_MOVE_SLICE, true},
    {TSH_KIND_SHARD, TSH_KIND_LOCAL, TSHI_MOVE_ALL_GATHER, TSHI_MOVE_REDUCE_SCATTER, true},
    {TSH_KIND_PARTIAL, TSH_KIND_SHARD, TSHI_MOVE_REDUCE_SCATTER, TSHI_MOVE_ALL_GATHER, true},
    {TSH_KIND_PARTIAL, TSH_KIND_LOCAL, TSHI_MOVE_ALL_REDUCE, TSHI_MOVE_ALL_REDUCE, true},
    {TSH_KIND_SHARD, TSH_KIND_SHARD, TSHI_MOVE_ALL_TO_ALL, TSHI_MOVE_ALL_TO_ALL, true},
    {TSH_KIND_SHARD, TSH_KIND_PARTIAL, TSHI_MOVE_ZERO_PAD, TSHI_MOVE_SLICE, false},
    {TSH_KIND_REPLICATED, TSH_KIND_PARTIAL, TSHI_MOVE_FIRST_KEEPS, TSHI_MOVE_NOTHING, true},
};

/* Rows for shared units on one side or both: boxes overlap, so that ALL_TO_ALL is a box exchange. */
static const tshi_transition shared_table[] = {
    {TSH_KIND_REPLICATED, TSH_KIND_SHARD, TSHI_MOVE_SLICE, TSHI_MOVE_ALL_TO_ALL, true},
    {TSH_KIND_SHARD, TSH_KIND_REPLICATED, TSHI_MOVE_ALL_TO_ALL, TSHI_MOVE_ALL_TO_ALL, true},
    {TSH_KIND_SHARD, TSH_KIND_LOCAL, TSHI_MOVE_ALL_TO_ALL, TSHI_MOVE_ALL_TO_ALL, true},
    {TSH_KIND_PARTIAL, TSH_KIND_SHARD, TSHI_MOVE_ALL_TO_ALL, TSHI_MOVE_ALL_TO_ALL, true},
    {TSH_KIND_SHARD, TSH_KIND_SHARD, TSHI_MOVE_ALL_TO_ALL, TSHI_MOVE_ALL_TO_ALL, true},
};
/* SHARED -> SHARED_OWN, the counterpart of REPLICATED -> LOCAL. */
static const tshi_transition own_use = {TSH_KIND_SHARD, TSH_KIND_SHARD, TSHI_MOVE_NOTHING, TSHI_MOVE_ALL_TO_ALL, true};

/* REPLICATED -> SHARED_NEXT: a slice of two dims. */
static const tshi_transition next_slice = {TSH_KIND_REPLICATED, TSH_KIND_SHARD, TSHI_MOVE_ALL_TO_ALL,
                                           TSHI_MOVE_ALL_TO_ALL, true};

static const tshi_transition *find_shared(tsh_layout from, tsh_layout to) {
    tsh_layout own = from;
    own.sharing = TSH_SHARED_OWN;
    if (from.sharing == TSH_SHARED && tshi_layout_alike(own, to)) return &own_use;
    if (from.kind == TSH_KIND_REPLICATED && to.sharing == TSH_SHARED_NEXT) return &next_slice;
    for (size_t i = 0; i < sizeof shared_table / sizeof shared_table[0]; i++) {
        if (shared_table[i].from == from.kind && shared_table[i].to == to.kind) return &shared_table[i];
    }
    return NULL;
}

const tshi_transition *tshi_transition_find(tsh_layout from, tsh_layout to, bool automatic) {
    if (from.sharing || to.sharing) return find_shared(from, to);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].from == from.kind && table[i].to == to.kind) {
            return automatic && !table[i].automatic ? NULL : &table[i];
        }
    }
    return NULL;
}
