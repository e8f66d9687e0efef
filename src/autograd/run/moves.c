/* The data movements of transitions: packing into rank blocks, and collectives. */
#include "autograd/run/moves.h"
#include "dist/collectives/redistribute.h"

/* A tensor around dim d: `outer` runs of `n` pieces of `piece` bytes. */
typedef struct runs {
    int64_t outer, n;
    size_t piece;
} runs;

static runs runs_of(const tsh_tensor *t, int d) {
    return (runs){tshi_outer(t, d), t->shape.local[d], (size_t)tshi_inner(t, d) * tsh_dtype_size(t->dtype)};
}

void tshi_part_copy(const tsh_tensor *whole, int d, int64_t start, int64_t length, void *part, bool out_of_whole) {
    tsh_device *device = tshi_device_of(whole);
    runs w = runs_of(whole, d);
    size_t bytes = (size_t)length * w.piece, stride = (size_t)w.n * w.piece;
    char *at = (char *)tshi_data(whole) + (size_t)start * w.piece;
    if (bytes == 0) return;
    if (out_of_whole) {
        device->ops->copy.strided(device, w.outer, bytes, at, stride, part, bytes);
    } else {
        device->ops->copy.strided(device, w.outer, bytes, part, bytes, at, stride);
    }
}

/* The slice of `whole`, along the dim that the layout splits, of rank r of the group. */
static void slice_of(const tsh_group *group, const tsh_tensor *whole, tsh_layout layout, int r, int64_t *start,
                     int64_t *length) {
    *start = 0;
    *length = whole->shape.local[layout.dim];
    tshi_layout_split(&layout, whole->shape.global[layout.dim], tshi_group_parts(group), r, start, length);
}

/* Copies `whole` to contiguous rank blocks, or back. */
static void copy_blocks(const tsh_group *group, const tsh_tensor *whole, tsh_layout layout, char *blocks, bool pack) {
    runs w = runs_of(whole, layout.dim);
    for (int r = 0; r < group->size; r++) {
        int64_t start, length;
        slice_of(group, whole, layout, r, &start, &length);
        tshi_part_copy(whole, layout.dim, start, length, blocks + (size_t)(start * w.outer) * w.piece, pack);
    }
}

/* The elements of each rank's slice, in the group's scratch; NULL for a balanced split of rows. */
static const int64_t *counts_of(const tsh_group *group, const tsh_tensor *whole, tsh_layout layout) {
    int64_t rest = tshi_outer(whole, layout.dim) * tshi_inner(whole, layout.dim);
    if (!layout.units && !layout.cuts && !tshi_group_parts(group).weights) return NULL;
    for (int r = 0; r < group->size; r++) {
        int64_t start, length;
        slice_of(group, whole, layout, r, &start, &length);
        group->counts[r] = length * rest;
    }
    return group->counts;
}

/* `whole` as rank blocks: a matrix [n, everything else], whose rows split as dim d. In whole's memory if the blocks are
 * contiguous there, else in new memory. */
static tsh_status blocks_of(const tsh_tensor *whole, int d, tsh_tensor **out) {
    runs w = runs_of(whole, d);
    int64_t rest = w.outer * tshi_inner(whole, d);
    tsh_shape shape = {.ndim = 2, .local = {w.n, rest}, .global = {w.n, rest}};
    if (w.outer == 1) return tshi_tensor_view(whole, &shape, tshi_all_local, 0, out);
    tsh_memory_purpose before = tshi_device_purpose(whole->mesh->device, TSH_MEMORY_COMMUNICATION);
    tsh_status status = tshi_tensor_new(whole->mesh, whole->dtype, &shape, tshi_all_local, out);
    whole->mesh->device->purpose = before;
    return status;
}

/* True when rank blocks of the whole are contiguous, so that no rank must unpack them; judged by the global shape,
 * because ranks' parts may differ. */
static bool in_one_run(const tsh_tensor *whole, int d) {
    int64_t outer = 1;
    for (int i = 0; i < d; i++) outer *= whole->shape.global[i];
    return outer <= 1;
}

static void copy_all(const tsh_tensor *in, tsh_tensor *out) {
    if (tshi_data(in) != tshi_data(out))
        tshi_device_of(in)->ops->copy.within(tshi_device_of(in), tsh_tensor_local_nbytes(in), tshi_data(in),
                                             tshi_data(out));
}

static tsh_status all_reduce(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                             tsh_work **work) {
    (void)from, (void)to;
    copy_all(in, out);
    return work ? tsh_all_reduce_async(group, out, TSH_REDUCE_SUM, work) : tsh_all_reduce(group, out, TSH_REDUCE_SUM);
}

static tsh_status all_gather(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                             tsh_work **work) {
    (void)to;
    tsh_tensor *blocks;
    if (work && !in_one_run(out, from.dim)) return TSH_OK;
    tsh_status status = blocks_of(out, from.dim, &blocks);
    bool unpack = status == TSH_OK && tshi_data(blocks) != tshi_data(out);
    if (status == TSH_OK) {
        const int64_t *counts = counts_of(group, out, from);
        status = work ? tsh_all_gather_into_tensor_async(group, in, blocks, counts, work)
                      : tsh_all_gather_into_tensor(group, in, blocks, counts);
    }
    if (status == TSH_OK && unpack) copy_blocks(group, out, from, tshi_data(blocks), false);
    tshi_tensor_release(blocks);
    return status;
}

static tsh_status slice_own_part(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from,
                                 tsh_layout to, tsh_work **work) {
    (void)from, (void)work;
    int64_t start, length;
    slice_of(group, in, to, group->rank, &start, &length);
    tshi_part_copy(in, to.dim, start, length, tshi_data(out), true);
    return TSH_OK;
}

static tsh_status reduce_scatter(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from,
                                 tsh_layout to, tsh_work **work) {
    (void)from;
    tsh_tensor *blocks;
    tsh_status status = blocks_of(in, to.dim, &blocks);
    if (status == TSH_OK && tshi_data(blocks) != tshi_data(in)) {
        copy_blocks(group, in, to, tshi_data(blocks), true);
    }
    if (status == TSH_OK) {
        const int64_t *counts = counts_of(group, in, to);
        status = work ? tsh_reduce_scatter_tensor_async(group, blocks, out, counts, TSH_REDUCE_SUM, work)
                      : tsh_reduce_scatter_tensor(group, blocks, out, counts, TSH_REDUCE_SUM);
    }
    tshi_tensor_release(blocks);
    return status;
}

/* Writes to the group's scratch the elements that this rank sends to each rank (its rows of from.dim, the other's slice
 * of to.dim) and receives from it. */
static void exchange_counts(tsh_group *group, const tsh_tensor *in, const tsh_tensor *out, tsh_layout from,
                            tsh_layout to) {
    int64_t per_column = tshi_outer(in, to.dim) * tshi_inner(in, to.dim);
    int64_t per_row = tshi_outer(out, from.dim) * tshi_inner(out, from.dim);
    for (int r = 0; r < group->size; r++) {
        int64_t start, columns, rows;
        slice_of(group, in, to, r, &start, &columns);
        slice_of(group, out, from, r, &start, &rows);
        group->counts[r] = columns * per_column;
        group->counts[group->size + r] = rows * per_row;
    }
}

/* The placement along the group's axis, with this layout, of a part of t. */
static tshi_placement along(const tsh_group *group, const tsh_tensor *t, tsh_layout layout, const int64_t *part) {
    tshi_parts parts = tshi_group_parts(group);
    tshi_placement p = {.axes = 1,
                        .size = {parts.count},
                        .weights = {parts.weights},
                        .cuts = parts.cuts,
                        .ranks = group->ranks,
                        .layout = {layout}};
    if (layout.units) p.layout[0] = tshi_layout_of_part(layout, t->shape.global[layout.dim], part[layout.dim]);
    p.layout[0].order = 0;
    return p;
}

/* A box exchange along only the group's axis, of the part that its ranks hold together. For SHARED_OWN units, the first
 * rank gets the gradient, the others zeros. */
static tsh_status exchange(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to) {
    tsh_layout whole[TSH_MAX_AXES];
    tsh_shape part = in->shape;
    int first;
    memcpy(whole, in->layout, sizeof whole);
    whole[tshi_mesh_axis(in->mesh, group)] = TSH_REPLICATED;
    tsh_status status = tshi_shape_resolve(in->mesh, &part, whole);
    if (status != TSH_OK) return status;
    tshi_exchange e = {
        .ndim = part.ndim, .from = along(group, in, from, part.local), .to = along(group, in, to, part.local)};
    memcpy(e.shape, part.local, sizeof e.shape);
    status = tshi_exchange_run(group, &e, in, out);
    if (to.sharing != TSH_SHARED_OWN) return status;
    tshi_layout_sharers(&to, tshi_group_parts(group), group->rank, &first);
    if (first != group->rank)
        tshi_device_of(out)->ops->copy.zero(tshi_device_of(out), tsh_tensor_local_nbytes(out), tshi_data(out));
    return status;
}

/* Started asynchronously only if no rank must unpack. */
static tsh_status all_to_all(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                             tsh_work **work) {
    tsh_tensor *send = NULL, *receive = NULL;
    bool both_split = from.kind == TSH_KIND_SHARD && to.kind == TSH_KIND_SHARD && from.dim != to.dim;
    if (!work) return exchange(group, in, out, from, to);
    if (!both_split || from.sharing || to.sharing || !in_one_run(out, from.dim)) return TSH_OK;
    tsh_status status = blocks_of(out, from.dim, &receive);
    if (status == TSH_OK) status = blocks_of(in, to.dim, &send);
    if (status == TSH_OK) {
        if (tshi_data(send) != tshi_data(in)) copy_blocks(group, in, to, tshi_data(send), true);
        exchange_counts(group, in, out, from, to);
        const int64_t *sends = group->counts, *receives = sends + group->size;
        status = tsh_all_to_all_async(group, send, sends, receive, receives, work);
    }
    tshi_tensor_release(send);
    tshi_tensor_release(receive);
    return status;
}

static tsh_status zero_pad(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                           tsh_work **work) {
    (void)to, (void)work;
    int64_t start, length;
    slice_of(group, out, from, group->rank, &start, &length);
    tshi_device_of(out)->ops->copy.zero(tshi_device_of(out), tsh_tensor_local_nbytes(out), tshi_data(out));
    tshi_part_copy(out, from.dim, start, length, tshi_data(in), false);
    return TSH_OK;
}

static tsh_status first_keeps(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                              tsh_work **work) {
    (void)from, (void)to, (void)work;
    if (group->rank == 0)
        copy_all(in, out);
    else
        tshi_device_of(out)->ops->copy.zero(tshi_device_of(out), tsh_tensor_local_nbytes(out), tshi_data(out));
    return TSH_OK;
}

const tshi_move tshi_moves[TSHI_MOVE_COUNT] = {
    [TSHI_MOVE_NOTHING] = {NULL, true, false},
    [TSHI_MOVE_ALL_REDUCE] = {all_reduce, true, true},
    [TSHI_MOVE_ALL_GATHER] = {all_gather, false, true},
    [TSHI_MOVE_SLICE] = {slice_own_part, false, false},
    [TSHI_MOVE_REDUCE_SCATTER] = {reduce_scatter, false, true},
    [TSHI_MOVE_ALL_TO_ALL] = {all_to_all, false, true},
    [TSHI_MOVE_ZERO_PAD] = {zero_pad, false, false},
    [TSHI_MOVE_FIRST_KEEPS] = {first_keeps, false, false},
};
