/* Whole tensors in the host memory of one rank or of all: exchanges with a mesh that has one member, or copies. */
#include "dist/collectives/redistribute.h"
#include "dist/world.h"

#include <stdio.h>

typedef struct whole {
    const char *what; /* the call */
    const tsh_tensor *tensor;
    int root; /* -1: every rank has the whole */
    bool writes;
    void *values; /* on a rank that has the whole */
    tsh_tensor *held;
    /* `held` where the host's memory is that of tensors: a tensor whose memory is `values`. */
    tsh_tensor over;
    tshi_storage storage;
} whole;

static bool holds(const whole *w) {
    return w->root < 0 || w->tensor->mesh->member == w->root;
}

static tsh_status check_whole(const whole *w, bool rooted) {
    const tsh_tensor *t = w->tensor;
    if (rooted && (w->root < 0 || w->root >= t->mesh->members)) {
        return tshi_fail(TSH_ERR_RANGE, "%s: root %d of a mesh of %d ranks", w->what, w->root, t->mesh->members);
    }
    if (holds(w) && !w->values) return tshi_fail(TSH_ERR_ARGUMENT, "%s: whole is NULL", w->what);
    if (!t->storage) return tshi_tensor_check(t, w->what, "the tensor");
    tsh_status status = tshi_tensor_check_global(t, w->what);
    return status == TSH_OK ? tshi_tensor_materialize(t) : status;
}

/* A whole that is read is written into `values` itself where that can be; one that is written lies where the peers can
 * read it. */
static tsh_status open_held(whole *w) {
    const tsh_mesh *mesh = w->tensor->mesh;
    int64_t numel = tshi_shape_numel(&w->tensor->shape);
    if (!w->writes && mesh->device == mesh->world->host) {
        w->storage = (tshi_storage){.device = mesh->device, .data = w->values, .references = 1};
        w->over = (tsh_tensor){
            .references = 1, .dtype = w->tensor->dtype, .numel = numel, .mesh = mesh, .storage = &w->storage};
        w->held = &w->over;
        return TSH_OK;
    }
    tsh_status status = tshi_tensor_buffer(mesh, w->tensor->dtype, numel, &w->held);
    if (status == TSH_OK && w->writes) status = tsh_tensor_write(w->held, w->values, numel);
    return status;
}

static tsh_status agree(const whole *w, tsh_status status) {
    char text[TSHI_LINE], described[TSHI_LINE - 48];
    snprintf(text, sizeof text, "%s %s %d", w->what, tshi_tensor_describe_whole(w->tensor, described, sizeof described),
             w->root);
    return tshi_group_agree(w->tensor->mesh->group, text, status);
}

static tsh_status exchange(const whole *w) {
    static const tsh_layout everywhere[TSH_MAX_AXES];
    const tsh_mesh *mesh = w->tensor->mesh;
    const int root = w->root < 0 ? 0 : mesh->ranks[w->root];
    tshi_placement one = {.ranks = &root};
    if (w->root < 0) one = tshi_mesh_placement(mesh, everywhere);
    return tshi_exchange_tensor(mesh->group, w->tensor, &one, w->held, w->writes);
}

static tsh_status move_whole(whole *w, bool rooted) {
    if (!w->tensor) return tshi_fail(TSH_ERR_ARGUMENT, "%s: tensor is NULL", w->what);
    if (!tshi_mesh_has_me(w->tensor->mesh)) return TSH_OK;
    tsh_status status = check_whole(w, rooted);
    if (status == TSH_OK && holds(w)) status = open_held(w);
    status = agree(w, status);
    if (status == TSH_OK) status = exchange(w);
    if (w->held == &w->over) return status;
    if (status == TSH_OK && holds(w) && !w->writes) status = tsh_tensor_read(w->held, w->values, w->held->numel);
    tshi_tensor_release(w->held);
    return status;
}

tsh_status tsh_tensor_read_whole(const tsh_tensor *tensor, void *values) {
    return move_whole(&(whole){.what = "tensor_read_whole", .tensor = tensor, .root = -1, .values = values}, false);
}

tsh_status tsh_tensor_gather_whole(const tsh_tensor *tensor, int root, void *values) {
    return move_whole(&(whole){.what = "tensor_gather_whole", .tensor = tensor, .root = root, .values = values}, true);
}

tsh_status tsh_tensor_scatter_whole(tsh_tensor *tensor, int root, const void *values) {
    whole w = {.what = "tensor_scatter_whole", .tensor = tensor, .root = root, .writes = true};
    w.values = (void *)(uintptr_t)values; /* only read */
    return move_whole(&w, true);
}
