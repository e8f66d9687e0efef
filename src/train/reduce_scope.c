/* The ranks over which data parallelism sums a gradient: along its own axis and, for parameters that ranks of the
 * model's axis hold alike and use with different data, also along that axis. */
#include "train/bucket.h"

#include <stdio.h>

/* True when the layout shares a head between ranks of the axis. */
static bool is_shared_along(const tsh_data_parallel *dp, tsh_layout layout) {
    tshi_parts ranks = tshi_axis_parts(&dp->mesh->axis[dp->model]);
    int first;
    for (int i = 0; layout.sharing == TSH_SHARED && i < ranks.count; i++) {
        if (tshi_layout_sharers(&layout, ranks, i, &first) > 1) return true;
    }
    return false;
}

/* No rank has the whole of a matrix that is sharded with a level: its sum along the model's axis runs separately. */
tshi_reduce_scope tshi_reduce_scope_of(const tsh_data_parallel *dp, const tsh_tensor *parameter) {
    if (dp->model < 0 || (dp->level && parameter->shape.ndim > 1)) return TSHI_REDUCE_COPIES;
    tsh_layout layout = parameter->layout[dp->model];
    bool own_terms = dp->splits_tokens || (parameter->term_axes >> dp->model & 1u);
    if (own_terms && layout.kind == TSH_KIND_REPLICATED) return TSHI_REDUCE_MODEL;
    bool known = dp->shared.units == 0 || dp->shared.units == layout.units;
    return known && is_shared_along(dp, layout) ? TSHI_REDUCE_SHARERS : TSHI_REDUCE_COPIES;
}

/* True when members i and j of the mesh are in one sum: they differ only along the schedule's axis and, by `scope`, the
 * model's. */
static bool in_one_sum(const tsh_data_parallel *dp, tshi_reduce_scope scope, int i, int j) {
    for (int a = dp->mesh->axes - 1; a >= 0; a--) {
        int size = dp->mesh->axis[a].size, x = i % size, y = j % size, first = x, other = y;
        i /= size;
        j /= size;
        if (x == y || a == dp->schedule.axis) continue;
        if (a != dp->model) return false;
        if (scope == TSHI_REDUCE_MODEL) continue;
        tshi_layout_sharers(&dp->shared, tshi_axis_parts(&dp->mesh->axis[a]), x, &first);
        tshi_layout_sharers(&dp->shared, tshi_axis_parts(&dp->mesh->axis[a]), y, &other);
        if (first != other) return false;
    }
    return true;
}

/* Lists the members in one sum with member `first`; returns 0 if a member before it is in that sum. */
static int list_sum(const tsh_data_parallel *dp, tshi_reduce_scope scope, int first, int *ranks) {
    int n = 0;
    for (int i = 0; i < dp->mesh->members; i++) {
        if (!in_one_sum(dp, scope, first, i)) continue;
        if (i < first) return 0;
        ranks[n++] = i;
    }
    return n;
}

/* Opens the groups of all of the mesh's ranks in one order; this rank keeps its own. */
static tsh_status open_groups(tsh_data_parallel *dp, tshi_reduce_scope scope, int *ranks) {
    tsh_status status = TSH_OK;
    for (int first = 0; first < dp->mesh->members && status == TSH_OK; first++) {
        tsh_group *group = NULL;
        int n = list_sum(dp, scope, first, ranks);
        if (n) status = tsh_group_create_in(dp->mesh->group, ranks, n, &group);
        if (group) dp->scopes[scope] = group;
    }
    return status;
}

tsh_status tshi_reduce_scopes_open(tsh_data_parallel *dp) {
    const tsh_allocator *allocator = tshi_data_parallel_allocator(dp);
    int counts[TSHI_REDUCE_SCOPES] = {0};
    char text[160];
    for (int i = 0; i < dp->count; i++) counts[dp->slots[i].scope]++;
    int *ranks = tshi_calloc(allocator, (size_t)dp->mesh->members, sizeof *ranks);
    snprintf(text, sizeof text, "data_parallel_create: sums along %s too, of %d parameters and of %d with shared units",
             dp->mesh->axis[dp->model].name, counts[TSHI_REDUCE_MODEL], counts[TSHI_REDUCE_SHARERS]);
    tsh_status status = tshi_group_agree(dp->mesh->group, text, ranks ? TSH_OK : TSH_ERR_MEMORY);
    for (tshi_reduce_scope scope = TSHI_REDUCE_MODEL; scope < TSHI_REDUCE_SCOPES && status == TSH_OK; scope++) {
        if (counts[scope]) status = open_groups(dp, scope, ranks);
    }
    tshi_free(allocator, ranks);
    return status;
}
