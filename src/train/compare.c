/* With TSHARD_CHECK=1 optimizers compare what ranks have in common: seeds, lists of parameters, values of copies. */
#include "train/optimizer.h"

#include "base/hash.h"

#include <stdio.h>

/* TSH_ERR_MISMATCH, with both texts, unless all ranks of each axis of t's mesh have one text; with `copies` the axes along
 * which t is REPLICATED alone. A failure along one axis reaches the ranks of the next ones. */
static tsh_status agree(const tsh_tensor *t, bool copies, const char *text) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < t->mesh->axes; a++) {
        tsh_group *group = tsh_mesh_axis_group(t->mesh, a);
        if (copies && t->layout[a].kind != TSH_KIND_REPLICATED) continue;
        if (tsh_group_size(group) > 1 && tsh_group_rank(group) >= 0) status = tshi_group_agree(group, text, status);
    }
    return status;
}

/* A fingerprint of this rank's values; that of nothing where the host cannot read them. */
static uint64_t fingerprint_of(const tsh_tensor *t) {
    const unsigned char *byte = tsh_device_kind_of(tshi_device_of(t)) == TSH_CPU ? tshi_data(t) : NULL;
    size_t bytes = byte ? (size_t)t->numel * tsh_dtype_size(t->dtype) : 0;
    uint64_t h = TSHI_FINGERPRINT;
    for (size_t i = 0; i < bytes; i++) h = tshi_fingerprint_add(h, byte[i]);
    return h;
}

/* An empty list names no mesh: its rank compares along the world, as do ranks with a parameter on all ranks. */
static bool spans_world(const tsh_parameters *list) {
    bool spans = list->count == 0;
    for (int i = 0; i < list->count; i++) spans = spans || list->items[i].tensor->mesh->members == list->world->size;
    return spans;
}

tsh_status tshi_compare_lists(const tsh_parameters *list) {
    const tsh_world *world = list->world;
    tsh_status status = TSH_OK;
    char text[TSHI_LINE + 160], shape[TSHI_LINE];
    if (!world->checked) return TSH_OK;
    int used = snprintf(text, sizeof text, "optimizer of %d parameters, of seed %llu", list->count,
                        (unsigned long long)world->seed);
    if (world->size > 1 && spans_world(list)) status = tshi_group_agree(tsh_world_group(list->world), text, TSH_OK);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tsh_tensor *t = list->items[i].tensor;
        snprintf(text + used, sizeof text - (size_t)used, ": parameter %d is %.100s, %s", i, list->items[i].name,
                 tshi_tensor_describe_whole(t, shape, sizeof shape));
        status = agree(t, false, text);
    }
    return status;
}

tsh_status tshi_compare_values(const tsh_optimizer *optimizer) {
    tsh_status status = TSH_OK;
    char text[96];
    for (int i = 0; optimizer->world->checked && i < optimizer->count && status == TSH_OK; i++) {
        const tsh_tensor *t = optimizer->slots[i].parameter;
        snprintf(text, sizeof text, "optimizer_step: parameter %d has values of fingerprint %016llx", i,
                 (unsigned long long)fingerprint_of(t));
        status = agree(t, true, text);
    }
    return status;
}
