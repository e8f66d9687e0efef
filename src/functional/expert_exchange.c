/* The exchange of tokens with the ranks that hold their experts: all-to-alls of rows, whose numbers follow from the
 * experts that each rank's tokens chose. */
#include "functional/expert_exchange.h"
#include "device/record.h"
#include "dist/collectives/collectives.h"
#include "functional/functional.h"

/* The experts [first, end) with rows on a rank. */
typedef struct expert_range {
    int64_t first, end;
} expert_range;

int tshi_expert_exchange_axis(const tsh_tensor *x, const tsh_tensor *weights) {
    int sequence[TSH_MAX_AXES];
    tshi_split_sequence(weights->mesh->axes, weights->layout, sequence);
    for (int i = 0; i < weights->mesh->axes; i++) {
        int a = sequence[i];
        bool both = tshi_layout_splits(x->layout[a], 0) && tshi_layout_splits(weights->layout[a], 0);
        if (both && x->mesh->axis[a].size > 1) return a;
    }
    return -1;
}

static bool is_planned(const tsh_tensor *t) {
    const tsh_device *device = tshi_device_of(t);
    return device->record && device->record->planned;
}

static int64_t *take_counts(const tsh_call *call, int64_t n) {
    int64_t *counts =
        tshi_region_take(&call->tape->memory, &tshi_device_of(call->out)->allocator, (size_t)n + 1, sizeof *counts);
    for (int64_t i = 0; counts && i <= n; i++) counts[i] = 0;
    return counts;
}

/* The member of the mesh at this rank's place but for one axis. */
static int member_along(const tsh_mesh *mesh, int axis, int index) {
    int stride = 1;
    for (int a = mesh->axes - 1; a > axis; a--) stride *= mesh->axis[a].size;
    return mesh->member + (index - mesh->axis[axis].index) * stride;
}

static expert_range range_of(const tsh_tensor *weights, int64_t count, int axis, int index) {
    tshi_placement placement = tshi_mesh_placement(weights->mesh, weights->layout);
    tsh_box box = tshi_placement_box(&placement, weights->shape.ndim, weights->shape.global,
                                     member_along(weights->mesh, axis, index));
    if (tshi_box_numel(weights->shape.ndim, &box) == 0) return (expert_range){0, 0};
    int64_t each = weights->shape.ndim == 3 ? 1 : weights->shape.global[0] / count;
    return (expert_range){box.start[0] / each, (box.start[0] + box.length[0] - 1) / each + 1};
}

static bool chooses(const int64_t *experts, int64_t top_k, expert_range range) {
    for (int64_t j = 0; j < top_k; j++)
        if (experts[j] >= range.first && experts[j] < range.end) return true;
    return false;
}

/* Lists the tokens for each rank along the axis. */
static tsh_status list_rows(const tsh_call *call, int axis, const tsh_tensor *weights, int64_t count,
                            const int64_t *experts, int64_t top_k, tshi_expert_exchange *e) {
    int64_t tokens = call->in[0]->shape.local[0];
    int size = e->group->size;
    e->sends = take_counts(call, size);
    e->receives = take_counts(call, size);
    e->list = take_counts(call, tokens * size);
    if (!e->sends || !e->receives || !e->list) return TSH_ERR_MEMORY;
    for (int i = 0; i < size; i++) {
        expert_range range = range_of(weights, count, axis, i);
        for (int64_t t = 0; t < tokens; t++) {
            if (!chooses(experts + t * top_k, top_k, range)) continue;
            e->list[e->sent++] = t;
            e->sends[i]++;
        }
    }
    return TSH_OK;
}

/* Rows of `cols` elements: sends[i] of them to rank i, receives[i] from it. */
static tsh_status move_rows(const tsh_call *call, tsh_group *group, int64_t cols, const int64_t *sends,
                            const tsh_tensor *from, const int64_t *receives, tsh_tensor *to) {
    int64_t *counts = take_counts(call, 2 * (int64_t)group->size);
    if (!counts) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) {
        counts[i] = sends[i] * cols;
        counts[group->size + i] = receives[i] * cols;
    }
    return tsh_all_to_all(group, from, counts, to, counts + group->size);
}

/* `receives` from the other ranks' `sends`. A dry run, which has no values, gets from each rank what this rank sends to
 * itself. */
static tsh_status count_received(tsh_call *call, tshi_expert_exchange *e) {
    tsh_device *device = tshi_device_of(call->out);
    size_t bytes = (size_t)e->group->size * sizeof *e->sends;
    tsh_tensor *sends = tsh_call_scratch(call, TSH_INT64, e->group->size);
    tsh_tensor *receives = sends ? tsh_call_scratch(call, TSH_INT64, e->group->size) : NULL;
    if (!receives) return TSH_ERR_MEMORY;
    device->ops->copy.from_host(device, bytes, e->sends, tshi_data(sends));
    tsh_status status = tsh_all_to_all(e->group, sends, NULL, receives, NULL);
    if (status != TSH_OK) return status;
    device->ops->copy.to_host(device, bytes, tshi_data(receives), e->receives);
    for (int i = 0; i < e->group->size; i++) {
        if (is_planned(sends)) e->receives[i] = e->sends[e->group->rank];
        e->received += e->receives[i];
    }
    return TSH_OK;
}

/* A dry run receives from each rank what this rank sends to itself. */
static tsh_status receive_experts(tsh_call *call, const int64_t *experts, int64_t top_k, tshi_expert_exchange *e) {
    tsh_device *device = tshi_device_of(call->out);
    int64_t sent = e->sent * top_k, received = e->received * top_k;
    int64_t *mine = take_counts(call, sent);
    e->experts = take_counts(call, received);
    tsh_tensor *from = tsh_call_scratch(call, TSH_INT64, sent);
    tsh_tensor *to = from ? tsh_call_scratch(call, TSH_INT64, received) : NULL;
    if (!mine || !e->experts || !to) return TSH_ERR_MEMORY;
    for (int64_t i = 0; i < sent; i++) mine[i] = experts[e->list[i / top_k] * top_k + i % top_k];
    device->ops->copy.from_host(device, (size_t)sent * sizeof *mine, mine, tshi_data(from));
    tsh_status status = move_rows(call, e->group, top_k, e->sends, from, e->receives, to);
    if (status != TSH_OK) return status;
    device->ops->copy.to_host(device, (size_t)received * sizeof *mine, tshi_data(to), e->experts);
    int64_t own = tshi_sum(e->sends, e->group->rank) * top_k, length = e->sends[e->group->rank] * top_k;
    for (int64_t i = 0; i < received && is_planned(to); i++) e->experts[i] = mine[own + i % length];
    return TSH_OK;
}

tsh_status tshi_expert_exchange_make(tsh_call *call, int axis, const tsh_tensor *weights, int64_t count,
                                     const int64_t *experts, int64_t top_k, tshi_expert_exchange **out) {
    tshi_expert_exchange *e = tshi_region_take(&call->tape->memory, &tshi_device_of(weights)->allocator, 1, sizeof *e);
    *out = NULL;
    if (!e) return TSH_ERR_MEMORY;
    *e = (tshi_expert_exchange){.group = weights->mesh->axis[axis].group};
    tsh_status status = list_rows(call, axis, weights, count, experts, top_k, e);
    if (status == TSH_OK) status = count_received(call, e);
    if (status == TSH_OK) status = receive_experts(call, experts, top_k, e);
    if (status == TSH_OK) *out = e;
    return status;
}

tsh_tensor *tshi_expert_exchange_rows(tsh_call *call, const tshi_expert_exchange *e) {
    tsh_device *device = tshi_device_of(call->out);
    tsh_tensor *rows = tsh_call_scratch(call, TSH_INT64, e->sent);
    if (rows) device->ops->copy.from_host(device, (size_t)e->sent * sizeof *e->list, e->list, tshi_data(rows));
    return rows;
}

tsh_status tshi_expert_exchange_send(tsh_call *call, const tshi_expert_exchange *e, const tsh_tensor *rows,
                                     int64_t cols, const tsh_tensor *from, tsh_tensor *to) {
    tsh_device *device = tshi_device_of(from);
    if (cols == 0) return TSH_OK; /* on all ranks */
    tsh_tensor *packed = tsh_call_scratch(call, from->dtype, e->sent * cols);
    if (!packed) return TSH_ERR_MEMORY;
    device->ops->embedding[from->dtype].forward(device, e->sent, tshi_data(rows), 0, from->numel / cols, cols,
                                                tshi_data(from), tshi_data(packed));
    return move_rows(call, e->group, cols, e->sends, packed, e->receives, to);
}

tsh_status tshi_expert_exchange_return(tsh_call *call, const tshi_expert_exchange *e, const tsh_tensor *rows,
                                       int64_t cols, const tsh_tensor *from, const tsh_tensor *to) {
    tsh_device *device = tshi_device_of(from);
    tsh_tensor *packed = tsh_call_scratch(call, from->dtype, e->sent * cols);
    if (!packed) return TSH_ERR_MEMORY;
    tsh_status status = move_rows(call, e->group, cols, e->receives, from, e->sends, packed);
    if (status != TSH_OK) return status;
    device->ops->embedding[to->dtype].backward(device, e->sent, tshi_data(rows), 0, to->numel / cols, cols, -1,
                                               tshi_data(packed), tshi_data(to));
    return TSH_OK;
}
