/* All-reduce by a function of the program's: each rank gets its slice of every rank's elements, joins them in the order
 * of the ranks, and gathers all slices. It sends what a ring sends, over any backend. */
#include "device/record.h"
#include "dist/collectives/collectives.h"

typedef struct own_reduction {
    tsh_tensor *tensor;
    int64_t *in_counts, *out_counts; /* each rank's slice; this rank's slice, from each rank */
    tsh_tensor *pieces;              /* this rank's slice of each rank's elements */
} own_reduction;

static tsh_status check(const tsh_group *group, const tsh_tensor *tensor, int64_t item, tsh_join_fn *join) {
    tsh_status status = tshi_check_tensor(group, TSH_COLLECTIVE_ALL_REDUCE, tensor, "tensor");
    if (status != TSH_OK) return status;
    if (!join) return tshi_fail(TSH_ERR_ARGUMENT, "all_reduce_with: join is NULL");
    if (item < 1 || tensor->numel % item != 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "all_reduce_with: items of %lld elements in %lld", (long long)item,
                         (long long)tensor->numel);
    }
    if (tshi_device_of(tensor)->ops->kind == TSH_CPU) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "all_reduce_with: join runs on the CPU, the tensor is in memory of a GPU");
}

static tsh_status prepare(const tsh_group *group, int64_t item, own_reduction *r) {
    r->in_counts = tshi_calloc(&group->world->allocator, 2 * (size_t)group->size, sizeof *r->in_counts);
    if (!r->in_counts) return TSH_ERR_MEMORY;
    r->out_counts = r->in_counts + group->size;
    for (int i = 0; i < group->size; i++) {
        tsh_split(r->tensor->numel / item, group->size, i, NULL, &r->in_counts[i]);
        r->in_counts[i] *= item;
    }
    for (int i = 0; i < group->size; i++) r->out_counts[i] = r->in_counts[group->rank];
    return tshi_tensor_buffer(r->tensor->mesh, r->tensor->dtype, tshi_sum(r->out_counts, group->size), &r->pieces);
}

static void join_pieces(const tsh_group *group, const own_reduction *r, tsh_join_fn *join, void *user) {
    const tsh_device *device = tshi_device_of(r->tensor);
    int64_t n = r->in_counts[group->rank];
    char *into = tshi_data(r->pieces);
    size_t bytes = (size_t)n * tsh_dtype_size(r->tensor->dtype);
    if (n == 0 || (device->record && device->record->planned)) return;
    for (int i = 1; i < group->size; i++) join(user, r->tensor->dtype, n, into + (size_t)i * bytes, into);
}

static tsh_status gather(tsh_group *group, const own_reduction *r) {
    int64_t n = r->in_counts[group->rank];
    tsh_tensor *mine = NULL;
    tsh_status status =
        tshi_tensor_view(r->pieces, &(tsh_shape){.ndim = 1, .local = {n}, .global = {n}}, r->pieces->layout, 0, &mine);
    status = status == TSH_OK ? tsh_all_gather_into_tensor(group, mine, r->tensor, r->in_counts)
                              : tshi_call_failed(group, TSH_COLLECTIVE_ALL_GATHER, status);
    tshi_tensor_release(mine);
    return status;
}

tsh_status tsh_all_reduce_with(tsh_group *group, tsh_tensor *tensor, int64_t item, tsh_join_fn *join, void *user) {
    own_reduction r = {.tensor = tensor};
    if (!group) return tshi_group_missing("all_reduce_with");
    if (group->rank < 0) return TSH_OK;
    tsh_status status = check(group, tensor, item, join);
    if (status == TSH_OK) status = prepare(group, item, &r);
    status = status == TSH_OK ? tsh_all_to_all(group, tensor, r.in_counts, r.pieces, r.out_counts)
                              : tshi_call_failed(group, TSH_COLLECTIVE_ALL_TO_ALL, status);
    if (status == TSH_OK) {
        join_pieces(group, &r, join, user);
        status = gather(group, &r);
    }
    tshi_tensor_release(r.pieces);
    tshi_free(&group->world->allocator, r.in_counts);
    return status;
}
