/* Tensors written and read by the boxes of a program's own decomposition: exchanges with a placement that no layout
 * describes. */
#include "device/record.h"
#include "dist/collectives/redistribute.h"
#include "dist/world.h"

#include <string.h>

/* What a rank says of its box and of the tensor. */
typedef struct part {
    tsh_box box;
    uint64_t tensor; /* fingerprint of dtype, shape, layouts and mesh */
} part;

typedef struct parts {
    const char *what; /* the call */
    const tsh_tensor *tensor;
    tsh_group *group;
    const tsh_box *box;
    bool writes;
    void *values;
    tsh_tensor *held; /* the box's elements in memory that peers may read */
} parts;

/* --- checks ------------------------------------------------------------------------------------------------------- */

static tsh_status check_box(const parts *p) {
    const tsh_shape *shape = &p->tensor->shape;
    for (int d = 0; d < shape->ndim; d++) {
        int64_t start = p->box->start[d], length = p->box->length[d];
        if (start >= 0 && length >= 0 && length <= shape->global[d] - start) continue;
        return tshi_fail(TSH_ERR_RANGE, "%s: the box is [%lld, +%lld) along dim %d, whose size is %lld", p->what,
                         (long long)start, (long long)length, d, (long long)shape->global[d]);
    }
    if (p->values || tshi_box_numel(shape->ndim, p->box) == 0) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: values is NULL, but the box has elements", p->what);
}

static tsh_status check(const parts *p) {
    const tsh_tensor *t = p->tensor;
    const tshi_record *record = p->group->world->device->record;
    if (record && record->planned && p->group->size > 1) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: a dry run does not know the boxes of other ranks", p->what);
    }
    if (!t || !p->box) return tshi_fail(TSH_ERR_ARGUMENT, "%s: tensor and box are required", p->what);
    if (p->group->world != t->mesh->world) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a group of another world", p->what);
    if (t->numel && !t->storage) return tshi_fail(TSH_ERR_STATE, "%s: the memory has been freed", p->what);
    tsh_status status = tshi_tensor_check_global(t, p->what);
    if (status != TSH_OK) return status;
    for (int i = 0; i < t->mesh->members; i++) {
        int rank = t->mesh->ranks[i];
        if (tsh_group_rank_of(p->group, rank) >= 0) continue;
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: rank %d of the tensor's mesh is not in the group", p->what, rank);
    }
    return check_box(p);
}

/* The boxes of all ranks are disjoint and together the whole. The same on every rank. */
static tsh_status check_cover(const parts *p, const tsh_box *boxes) {
    int ndim = p->tensor->shape.ndim, n = p->group->size;
    int64_t numel = tshi_shape_numel(&p->tensor->shape), sum = 0;
    for (int i = 0; i < n; i++) {
        tsh_box both;
        sum += tshi_box_numel(ndim, &boxes[i]);
        for (int k = 0; k < i; k++) {
            if (!tshi_box_intersect(ndim, &boxes[i], &boxes[k], &both)) continue;
            return tshi_fail(TSH_ERR_SHAPE, "%s: the boxes of ranks %d and %d overlap", p->what, p->group->ranks[k],
                             p->group->ranks[i]);
        }
    }
    if (sum == numel) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "%s: the boxes of all ranks have %lld of %lld elements", p->what, (long long)sum,
                     (long long)numel);
}

static uint64_t tensor_fingerprint(const parts *p) {
    char text[TSHI_LINE];
    uint64_t h = tshi_fingerprint_text(TSHI_FINGERPRINT, tshi_tensor_describe_whole(p->tensor, text, sizeof text));
    for (int i = 0; i < p->tensor->mesh->members; i++) {
        h = tshi_fingerprint_add(h, (uint64_t)p->tensor->mesh->ranks[i]);
    }
    return tshi_fingerprint_add(h, p->writes);
}

/* The box of each rank of the group, for the caller to release; NULL unless *status is TSH_OK. */
static tsh_box *gather_boxes(const parts *p, tsh_status *status) {
    tsh_device *host = p->group->world->host;
    part mine = {{{0}, {0}}, 0};
    if (*status == TSH_OK) {
        size_t bytes = sizeof *mine.box.start * (size_t)p->tensor->shape.ndim;
        memcpy(mine.box.start, p->box->start, bytes);
        memcpy(mine.box.length, p->box->length, bytes);
        mine.tensor = tensor_fingerprint(p);
    }
    part *all = tshi_group_gather(p->group, p->what, &mine, sizeof mine, status);
    tsh_box *boxes = (tsh_box *)(void *)all;
    uint64_t first = *status == TSH_OK ? all->tensor : 0;
    for (int i = 0; *status == TSH_OK && i < p->group->size; i++) { /* the boxes move to the front, one after another */
        if (all[i].tensor != first) {
            *status = tshi_fail(TSH_ERR_MISMATCH, "%s: ranks %d and %d have tensors of different shapes or layouts",
                                p->what, p->group->ranks[0], p->group->ranks[i]);
            break;
        }
        memmove(&boxes[i], &all[i].box, sizeof *boxes);
    }
    if (*status == TSH_OK && p->writes) *status = check_cover(p, boxes);
    if (*status == TSH_OK) return boxes;
    host->ops->memory.release(host, all);
    return NULL;
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

static tsh_status exchange(const parts *p, const tsh_box *boxes) {
    const tshi_placement own = {
        .axes = 1, .size = {p->group->size}, .ranks = p->group->ranks, .layout = {TSH_SHARD_INIT(0)}, .boxes = boxes};
    return tshi_exchange_tensor(p->group, p->tensor, &own, p->held, p->writes);
}

static tsh_status move_parts(parts *p) {
    if (!p->group) return tshi_group_missing(p->what);
    if (p->group->rank < 0) return TSH_OK;
    tsh_device *host = p->group->world->host;
    tsh_status status = check(p);
    int64_t numel = status == TSH_OK ? tshi_box_numel(p->tensor->shape.ndim, p->box) : 0;
    if (status == TSH_OK) status = tshi_tensor_buffer(p->group->mesh, p->tensor->dtype, numel, &p->held);
    if (status == TSH_OK && p->writes && numel) status = tsh_tensor_write(p->held, p->values, numel);
    tsh_box *boxes = gather_boxes(p, &status);
    if (status == TSH_OK) status = exchange(p, boxes);
    if (status == TSH_OK && !p->writes && numel) status = tsh_tensor_read(p->held, p->values, numel);
    if (boxes) host->ops->memory.release(host, boxes);
    tshi_tensor_release(p->held);
    return status;
}

tsh_status tsh_tensor_write_parts(tsh_tensor *tensor, tsh_group *group, const tsh_box *box, const void *values) {
    parts p = {.what = "tensor_write_parts", .tensor = tensor, .group = group, .box = box, .writes = true};
    p.values = (void *)(uintptr_t)values; /* only read */
    return move_parts(&p);
}

tsh_status tsh_tensor_read_parts(const tsh_tensor *tensor, tsh_group *group, const tsh_box *box, void *values) {
    return move_parts(
        &(parts){.what = "tensor_read_parts", .tensor = tensor, .group = group, .box = box, .values = values});
}
