/* Parameters: the list that optimizers take, and functions that all layers share. */
#include "layers/layers.h"

#include <stdio.h>
#include <string.h>

tsh_status tsh_parameters_create(tsh_world *world, tsh_parameters **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "parameters_create: out is NULL");
    *out = NULL;
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "parameters_create: a world is required");
    tsh_parameters *list = tshi_calloc(&world->allocator, 1, sizeof *list);
    if (!list) return TSH_ERR_MEMORY;
    list->world = world;
    tsh_status status =
        tshi_tensor_create(tsh_world_mesh(world), &(tsh_tensor_config){.dtype = TSH_FLOAT64}, &list->scalar);
    if (status != TSH_OK) {
        tsh_parameters_destroy(list);
        return status;
    }
    *out = list;
    return TSH_OK;
}

/* Called when the list that owns the tensor's name is destroyed. */
static void forget_name(tsh_tensor *tensor, const char *name) {
    tsh_device *device = tshi_device_of(tensor);
    tsh_tensor *whole = tshi_gradient_whole(tensor); /* a slice's, which has the same name */
    if (tensor->name == name) tensor->name = NULL;
    if (whole->name == name) whole->name = NULL;
    if (device->place.layer == name) device->place.layer = NULL;
}

void tsh_parameters_destroy(tsh_parameters *list) {
    if (!list) return;
    const tsh_allocator *allocator = &list->world->allocator;
    for (int i = 0; i < list->count; i++) {
        forget_name(list->items[i].tensor, list->items[i].name);
        tshi_free(allocator, list->items[i].name);
        tshi_tensor_release(list->items[i].tensor);
    }
    tshi_tensor_release(list->scalar);
    tshi_free(allocator, list->items);
    tshi_free(allocator, list);
}

tsh_status tsh_parameters_add(tsh_parameters *list, const char *name, tsh_tensor *tensor) {
    return tshi_parameters_add_part(list, name, NULL, tensor);
}

/* Takes ownership of `name`, from the list's allocator. */
static tsh_status append_parameter(tsh_parameters *list, char *name, tsh_tensor *tensor) {
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].name, name) != 0) continue;
        return tshi_fail(TSH_ERR_ARGUMENT, "parameters_add: a parameter '%s' already exists", name);
    }
    tsh_status status = tshi_grow(&list->world->allocator, (void **)&list->items, &list->capacity, list->count + 1,
                                  sizeof *list->items);
    if (status != TSH_OK) return status;
    list->items[list->count++] = (tshi_parameter){name, tshi_tensor_retain(tensor)};
    tensor->parameter = tensor->listed = true;
    if (!tensor->name) tensor->name = name;
    return TSH_OK;
}

tsh_status tshi_parameters_add_part(tsh_parameters *list, const char *prefix, const char *part, tsh_tensor *tensor) {
    if (!list || !prefix) return tshi_fail(TSH_ERR_ARGUMENT, "parameters_add: a list and a name are required");
    if (!tensor) return TSH_OK;
    tsh_status usable = tshi_tensor_is_free(tensor) ? tshi_tensor_check(tensor, "parameters_add", prefix) : TSH_OK;
    if (usable != TSH_OK) return usable;
    if (tensor->mesh->world != list->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "parameters_add: '%s' and the list belong to different worlds", prefix);
    }
    size_t size = strlen(prefix) + (part ? strlen(part) : 0) + 2;
    char *name = tshi_calloc(&list->world->allocator, size, 1);
    if (!name) return TSH_ERR_MEMORY;
    snprintf(name, size, "%s%s%s", prefix, part ? "." : "", part ? part : "");
    tsh_status status = append_parameter(list, name, tensor);
    if (status != TSH_OK) tshi_free(&list->world->allocator, name);
    return status;
}

int tsh_parameters_count(const tsh_parameters *list) {
    return list ? list->count : 0;
}

static bool has_index(const tsh_parameters *list, int index) {
    return list && index >= 0 && index < list->count;
}

tsh_tensor *tsh_parameters_tensor(const tsh_parameters *list, int index) {
    return has_index(list, index) ? list->items[index].tensor : NULL;
}

const char *tsh_parameters_name(const tsh_parameters *list, int index) {
    return has_index(list, index) ? list->items[index].name : NULL;
}

tsh_tensor *tsh_parameters_find(const tsh_parameters *list, const char *name) {
    for (int i = 0; name && i < tsh_parameters_count(list); i++) {
        if (strcmp(list->items[i].name, name) == 0) return list->items[i].tensor;
    }
    return NULL;
}

static tsh_status check_values(const tsh_tensor *x, const char *what, const char *name) {
    bool found = false;
    tsh_status status = x ? tshi_tensor_look_for(TSHI_NOT_FINITE, x, &found) : TSH_OK;
    if (status != TSH_OK || !found) return status;
    return tshi_fail(TSH_ERR_RANGE, "check_finite: the %s '%s', %s, has an infinity or a NaN", what, name,
                     TSHI_TENSOR_TEXT(x));
}

tsh_status tsh_parameters_check_finite(const tsh_parameters *list) {
    tsh_status status = list ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "check_finite: a list is required");
    for (int i = 0; i < tsh_parameters_count(list) && status == TSH_OK; i++) {
        const tshi_parameter *p = &list->items[i];
        status = check_values(p->tensor, "parameter", p->name);
        if (status == TSH_OK) status = check_values(tsh_tensor_grad(p->tensor), "gradient of", p->name);
    }
    return status;
}

void tsh_parameters_zero_grad(tsh_parameters *list) {
    for (int i = 0; i < tsh_parameters_count(list); i++) tsh_tensor_zero_grad(list->items[i].tensor);
}

/* --- parameters of layers ----------------------------------------------------------------------------------------- */

tsh_status tshi_parameter_create_as(const tsh_mesh *mesh, const tsh_tensor_config *config, const tsh_init *init,
                                    const tsh_init *fallback, tsh_tensor **out) {
    tsh_status status = tshi_tensor_defer(mesh, config, out);
    if (status == TSH_OK) status = tsh_tensor_init(*out, init->kind == TSH_INIT_DEFAULT ? fallback : init);
    if (status == TSH_OK) status = tsh_tensor_require_grad(*out, true);
    if (status == TSH_OK) {
        (*out)->parameter = true;
        return TSH_OK;
    }
    tshi_tensor_release(*out);
    *out = NULL;
    return status;
}

tsh_status tshi_parameter_create(tsh_group *group, tsh_dtype dtype, int ndim, const int64_t *shape, tsh_layout layout,
                                 const tsh_init *init, const tsh_init *fallback, tsh_tensor **out) {
    const tsh_mesh *mesh = tsh_group_mesh(group);
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim};
    memcpy(config.shape, shape, sizeof *shape * (size_t)ndim);
    config.layout[tshi_mesh_axis(mesh, group)] = layout;
    return tshi_parameter_create_as(mesh, &config, init, fallback, out);
}

bool tshi_layer_ready(tsh_tape *tape, const char *what, const void *layer, tsh_tensor *x) {
    if (!tshi_tape_ready(tape, what, 1, &x)) return false;
    if (!layer) tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: a layer is required", what);
    return layer != NULL;
}

tsh_status tshi_sharding_check(const char *what, const tsh_group *group, tsh_sharding shard, bool gather_output,
                               bool sequence_parallel, tsh_dtype dtype) {
    if (!group) return tshi_group_missing(what);
    if (shard != TSH_DENSE && shard != TSH_ROW && shard != TSH_COLUMN) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: unknown sharding %d", what, (int)shard);
    }
    if (gather_output && shard != TSH_COLUMN) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: gather_output is only for TSH_COLUMN", what);
    }
    if (sequence_parallel && shard != TSH_ROW) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: sequence_parallel is only for TSH_ROW", what);
    }
    char subject[80];
    snprintf(subject, sizeof subject, "%s: config.dtype", what);
    return tshi_check_computes(tsh_world_device(tsh_group_world(group)), dtype, subject);
}

tshi_want tshi_layer_want(const tsh_group *group, tsh_sharding shard, bool gather_output, bool sequence_parallel) {
    bool moves = shard == TSH_ROW || gather_output;
    return (tshi_want){.axis = moves ? tshi_mesh_axis(tsh_group_mesh(group), group) : -1,
                       .out = sequence_parallel ? TSH_SHARD(0) : TSH_REPLICATED};
}
