/* Global tensors: values from the world's random streams, and tensors made of each rank's part. */
#include "dist/world.h"

#include <stdio.h>
#include <string.h>

static tsh_status create_drawn(const char *what, const tsh_mesh *mesh, const tsh_tensor_config *config, bool normal,
                               double a, double b, tsh_tensor **out) {
    if (out) *out = NULL;
    if (!mesh || !config || !out) return tshi_fail(TSH_ERR_ARGUMENT, "%s: mesh, config and out are required", what);
    tsh_status status = tshi_check_computes(mesh->device, config->dtype, what);
    if (status == TSH_OK) status = tshi_check_distribution(what, normal, a, b);
    if (status == TSH_OK) status = tsh_tensor_create(mesh, config, out);
    if (status != TSH_OK) return status;
    tshi_tensor_draw(*out, normal, mesh->world->seed, tshi_world_stream(mesh->world), a, b);
    return TSH_OK;
}

tsh_status tsh_tensor_create_uniform(const tsh_mesh *mesh, const tsh_tensor_config *config, double low, double high,
                                     tsh_tensor **out) {
    return create_drawn("tensor_create_uniform", mesh, config, false, low, high, out);
}

tsh_status tsh_tensor_create_normal(const tsh_mesh *mesh, const tsh_tensor_config *config, double mean,
                                    double deviation, tsh_tensor **out) {
    return create_drawn("tensor_create_normal", mesh, config, true, mean, deviation, out);
}

/* --- from parts --------------------------------------------------------------------------------------------------- */

/* What a rank says of its part. */
typedef struct part {
    tsh_dtype dtype;
    int ndim;
    bool has_shape; /* the caller has passed the global shape */
    int64_t local[TSH_MAX_DIMS], global[TSH_MAX_DIMS];
    tsh_layout layout[TSH_MAX_AXES];
} part;

/* A member says the same of its tensor as member 0 does, and of its whole's shape as the first member of that. */
static bool parts_agree(const tsh_mesh *mesh, const part *all, int first, int member) {
    const part *p = &all[member];
    return p->dtype == all->dtype && p->ndim == all->ndim && p->has_shape == all->has_shape &&
           tshi_layouts_equal(mesh->axes, p->layout, all->layout) &&
           !memcmp(p->global, all[first].global, sizeof *p->global * (size_t)(p->has_shape ? p->ndim : 0));
}

/* "float32 [3,4] of [6,4] data=SHARD(0)" */
static char *part_name(const tsh_mesh *mesh, const part *p, char text[TSHI_LINE]) {
    char dims[128], layout[TSHI_LAYOUT_NAME];
    snprintf(text, TSHI_LINE, "%s %s", tsh_dtype_name(p->dtype), tshi_dims_name(p->ndim, p->local, dims, sizeof dims));
    if (p->has_shape) tshi_append(text, TSHI_LINE, " of %s", tshi_dims_name(p->ndim, p->global, dims, sizeof dims));
    for (int a = 0; a < mesh->axes; a++) {
        tshi_append(text, TSHI_LINE, " %s=%s", mesh->axis[a].name,
                    tshi_layout_name(p->layout[a], tshi_axis_parts(&mesh->axis[a]), layout, sizeof layout));
    }
    return text;
}

/* The member has index 0 along every axis that does not shard dim d, and is the first of those that share a unit of it:
 * such members hold each part of the dim once. */
static bool counts_once(const tshi_placement *p, int d, int member) {
    for (int a = p->axes - 1; a >= 0; a--) {
        int first, index = member % p->size[a];
        bool shards = tshi_layout_splits(p->layout[a], d);
        tshi_layout_sharers(&p->layout[a], tshi_placement_parts(p, a), index, &first);
        if (shards ? index != first : index) return false;
        member /= p->size[a];
    }
    return true;
}

/* The first member of the whole that a member has a part of: along LOCAL axes each index is a whole of its own. */
static int first_of_whole(const tshi_placement *p, int member) {
    int first = 0, stride = 1;
    for (int a = p->axes - 1; a >= 0; a--) {
        if (p->layout[a].kind == TSH_KIND_LOCAL) first += member % p->size[a] * stride;
        member /= p->size[a];
        stride *= p->size[a];
    }
    return first;
}

static tsh_status sum_shape(const tshi_placement *p, const part *all, int first, int64_t *shape) {
    for (int d = 0; d < all->ndim; d++) {
        shape[d] = 0;
        for (int i = 0; i < tshi_placement_members(p); i++) {
            bool counts = first_of_whole(p, i) == first && counts_once(p, d, i - first);
            if (!counts || !__builtin_add_overflow(shape[d], all[i].local[d], &shape[d])) continue;
            return tshi_fail(TSH_ERR_OVERFLOW, "from_local: the sum of the parts along dim %d overflows", d);
        }
    }
    return TSH_OK;
}

static tsh_status compare_parts(const tsh_mesh *mesh, const tshi_placement *p, const part *all) {
    char one[TSHI_LINE], other[TSHI_LINE];
    for (int i = 1; i < mesh->members; i++) {
        int first = first_of_whole(p, i);
        if (parts_agree(mesh, all, first, i)) continue;
        return tshi_fail(all[i].dtype == all[first].dtype ? TSH_ERR_SHAPE : TSH_ERR_DTYPE,
                         "from_local: rank %d has %.220s, rank %d has %.220s", tshi_placement_rank(p, first),
                         part_name(mesh, &all[first], one), tshi_placement_rank(p, i), part_name(mesh, &all[i], other));
    }
    return TSH_OK;
}

/* The parts of the whole whose first member is `first` are the boxes of its shape. */
static tsh_status check_whole(const tsh_mesh *mesh, const tshi_placement *p, const part *all, int first,
                              int64_t *shape) {
    char one[TSHI_LINE], dims[2][128];
    int64_t numel;
    if (all->has_shape) memcpy(shape, all[first].global, sizeof all->global);
    tsh_status status = all->has_shape ? TSH_OK : sum_shape(p, all, first, shape);
    if (status == TSH_OK) status = tshi_dims_product(all->ndim, shape, &numel);
    for (int i = 0; status == TSH_OK && i < mesh->members; i++) {
        tsh_box box = tshi_placement_box(p, all->ndim, shape, i);
        bool same = !memcmp(box.length, all[i].local, sizeof *box.length * (size_t)all->ndim);
        if (same || first_of_whole(p, i) != first) continue;
        status = tshi_fail(TSH_ERR_SHAPE, "from_local: rank %d has %.220s, its part of %s%s is %s",
                           tshi_placement_rank(p, i), part_name(mesh, &all[i], one),
                           tshi_dims_name(all->ndim, shape, dims[0], sizeof dims[0]),
                           all->has_shape ? "" : ", the sum of all parts,",
                           tshi_dims_name(all->ndim, box.length, dims[1], sizeof dims[1]));
    }
    return status;
}

/* Checks all parts, with the same outcome on every rank; *shape is that of this rank's whole. */
static tsh_status check_parts(const tsh_mesh *mesh, const part *all, int64_t *shape) {
    tshi_placement p = tshi_mesh_placement(mesh, all->layout);
    int64_t other[TSH_MAX_DIMS];
    tsh_status status = compare_parts(mesh, &p, all);
    for (int i = 0; status == TSH_OK && i < mesh->members; i++) {
        bool mine = i == first_of_whole(&p, mesh->member);
        if (first_of_whole(&p, i) == i) status = check_whole(mesh, &p, all, i, mine ? shape : other);
    }
    return status;
}

/* Dims with cut points have the size at which these end. */
static void take_cut_sizes(const tsh_mesh *mesh, const tsh_layout *layouts, tsh_shape *shape) {
    for (int a = 0; a < mesh->axes; a++) {
        const tshi_cuts *cuts =
            layouts[a].kind == TSH_KIND_SHARD ? tshi_cuts_find(mesh->axis[a].cuts, layouts[a].cuts) : NULL;
        int d = layouts[a].dim < 0 ? layouts[a].dim + shape->ndim : layouts[a].dim;
        if (cuts && d >= 0 && d < shape->ndim) shape->global[d] = cuts->at[cuts->parts];
    }
}

static tsh_status check_local(const tsh_tensor *local, const tsh_layout *layouts, bool has_shape) {
    char text[160];
    const tsh_mesh *mesh = local->mesh;
    if (!layouts) return tshi_fail(TSH_ERR_ARGUMENT, "from_local: layouts is NULL");
    if (!local->storage) return tshi_tensor_check(local, "from_local", "the tensor");
    if (local->taped) {
        return tshi_fail(TSH_ERR_STATE, "from_local: %s was made by a tape, whose layouts are not claims",
                         tsh_tensor_describe(local, text, sizeof text));
    }
    for (int a = 0; a < mesh->axes; a++) {
        if (local->layout[a].kind != TSH_KIND_LOCAL) {
            return tshi_fail(TSH_ERR_LAYOUT, "from_local: %s is not LOCAL along axis %s",
                             tsh_tensor_describe(local, text, sizeof text), mesh->axis[a].name);
        }
        if (!has_shape && layouts[a].kind == TSH_KIND_SHARD && layouts[a].sharing == TSH_SHARED_NEXT) {
            return tshi_fail(TSH_ERR_ARGUMENT, "from_local: with SHARD_NEXT, along axis %s, the global shape is wanted",
                             mesh->axis[a].name);
        }
    }
    return TSH_OK;
}

/* `shape` is global as far as this rank knows it: where it is the sum of the parts, zeros, except for cut points. */
static tsh_status open_view(const tsh_tensor *local, const tsh_layout *layouts, bool has_shape, tsh_shape *shape,
                            tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES] = {{0}};
    int64_t numel;
    tsh_status status = check_local(local, layouts, has_shape);
    if (status == TSH_OK) status = tshi_dims_product(shape->ndim, shape->global, &numel);
    if (status != TSH_OK) return status;
    memcpy(layout, layouts, sizeof *layout * (size_t)local->mesh->axes);
    status = tshi_shape_resolve(local->mesh, shape, layout);
    return status == TSH_OK ? tshi_tensor_view(local, shape, layout, 0, out) : status;
}

/* A member's view becomes the global tensor that the parts of all members are. */
static tsh_status join_parts(const tsh_tensor *local, bool has_shape, tsh_tensor *view, tsh_status status) {
    const tsh_mesh *mesh = local->mesh;
    tsh_device *host = mesh->world->host;
    part mine = {.dtype = local->dtype, .ndim = local->shape.ndim, .has_shape = has_shape};
    memcpy(mine.local, local->shape.local, sizeof mine.local);
    if (view) memcpy(mine.global, view->shape.global, sizeof mine.global);
    if (view) memcpy(mine.layout, view->layout, sizeof mine.layout);
    part *all = tshi_group_gather(mesh->group, "from_local", &mine, sizeof mine, &status);
    if (status == TSH_OK) status = check_parts(mesh, all, view->shape.global);
    if (status == TSH_OK) {
        status = tshi_shape_resolve(mesh, &view->shape, view->layout); /* the local shape is that of `local` */
        view->numel = local->numel;
    }
    host->ops->memory.release(host, all);
    return status;
}

tsh_status tsh_from_local(const tsh_tensor *local, const tsh_layout *layouts, const int64_t *shape, tsh_tensor **out) {
    if (out) *out = NULL;
    if (!local) return tshi_fail(TSH_ERR_ARGUMENT, "from_local: local is NULL");
    bool member = tshi_mesh_has_me(local->mesh);
    tsh_shape global = {.ndim = local->shape.ndim};
    tsh_tensor *view = NULL;
    tsh_status status = TSH_OK;
    if (!out) status = tshi_fail(TSH_ERR_ARGUMENT, "from_local: out is NULL");
    if (status == TSH_OK && !member && !shape) {
        status = tshi_fail(TSH_ERR_ARGUMENT, "from_local: a rank outside the mesh needs the global shape");
    }
    if (shape)
        memcpy(global.global, shape, sizeof *shape * (size_t)global.ndim);
    else if (layouts)
        take_cut_sizes(local->mesh, layouts, &global);
    if (status == TSH_OK) status = open_view(local, layouts, shape != NULL, &global, &view);
    if (member) status = join_parts(local, shape != NULL, view, status);
    if (status != TSH_OK) {
        tshi_tensor_release(view);
        return status;
    }
    view->program_refs = 1;
    *out = view;
    return TSH_OK;
}
