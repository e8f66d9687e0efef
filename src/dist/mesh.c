/* A group's ranks, mostly the world's, arranged as a grid, and the groups along its axes. */
#include "dist/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The length of a name of letters, digits and _. */
static size_t name_length(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

static tsh_status parse_axis(const char *axes, const char **cursor, tsh_mesh *mesh) {
    const char *text = *cursor;
    size_t length = name_length(text);
    if (mesh->axes == TSH_MAX_AXES) {
        return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" has more than %d axes", axes, TSH_MAX_AXES);
    }
    if (length == 0 || length >= TSHI_AXIS_NAME || text[length] != '=') {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "mesh_create: \"%.200s\": \"%.32s\" is no name of up to %d letters, digits and _, then =",
                         axes, text, TSHI_AXIS_NAME - 1);
    }
    tshi_axis *axis = &mesh->axis[mesh->axes];
    memcpy(axis->name, text, length);
    axis->name[length] = '\0';
    for (int i = 0; i < mesh->axes; i++) {
        if (!strcmp(mesh->axis[i].name, axis->name)) {
            return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" has the axis %s twice", axes, axis->name);
        }
    }
    text += length + 1;
    char *end = NULL;
    bool number = (text[0] >= '1' && text[0] <= '9') || !strncmp(text, "-1", 2);
    long size = number ? strtol(text, &end, 10) : 0;
    if (!number || size > INT32_MAX || (*end != '\0' && *end != ',')) {
        return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\": the size of %s is a positive number or -1", axes,
                         axis->name);
    }
    axis->size = (int)size;
    mesh->axes++;
    *cursor = *end == ',' ? end + 1 : end;
    if (*end == ',' && end[1] == '\0') {
        return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" ends in a comma", axes);
    }
    return TSH_OK;
}

/* Resolves -1 and compares the product of the sizes with the number of ranks. */
static tsh_status check_sizes(const char *axes, const tsh_group *parent, tsh_mesh *mesh) {
    int64_t product = 1;
    int open = -1;
    for (int i = 0; i < mesh->axes; i++) {
        int size = mesh->axis[i].size;
        if (size == -1 && open >= 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" leaves more than one size open", axes);
        }
        if (size == -1) open = i;
        if (size == -1) continue;
        if (product <= INT32_MAX) product *= size;
    }
    bool divides = product <= parent->size && parent->size % product == 0;
    if (open >= 0 && divides) {
        mesh->axis[open].size = (int)(parent->size / product);
        return TSH_OK;
    }
    if (open < 0 && product == parent->size) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" is a mesh of %s%lld ranks, the %s has %d", axes,
                     open >= 0 ? "a multiple of " : "", (long long)product,
                     parent == parent->world->group ? "world" : "group", parent->size);
}

static tsh_status parse_axes(const char *axes, const tsh_group *parent, tsh_mesh *mesh) {
    if (!axes || !axes[0]) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: no axes; \"data=2,model=2\" is an example");
    const char *cursor = axes;
    while (*cursor) {
        tsh_status status = parse_axis(axes, &cursor, mesh);
        if (status != TSH_OK) return status;
    }
    return check_sizes(axes, parent, mesh);
}

/* The distance of neighbouring ranks along `axis`; the last axis is the fastest. */
static int axis_stride(const tsh_mesh *mesh, int axis) {
    int stride = 1;
    for (int i = axis + 1; i < mesh->axes; i++) stride *= mesh->axis[i].size;
    return stride;
}

/* Opens all groups along one axis, in one order on every rank; this rank keeps its own. */
static tsh_status axis_create(tsh_group *parent, tsh_mesh *mesh, int axis, int *ranks) {
    tshi_axis *a = &mesh->axis[axis];
    int stride = axis_stride(mesh, axis);
    for (int first = 0; first < parent->size; first++) {
        if (first / stride % a->size != 0) continue;
        for (int i = 0; i < a->size; i++) ranks[i] = first + i * stride;
        tsh_group *group;
        tsh_status status = tsh_group_create_in(parent, ranks, a->size, &group);
        if (status != TSH_OK) return status;
        if (!group) continue;
        group->mesh = mesh;
        a->group = group;
        a->index = group->rank;
    }
    return TSH_OK;
}

/* Nothing but memory has to be undone before all ranks agree. */
static tsh_status mesh_agree(tsh_group *parent, const char *axes, tsh_mesh *mesh) {
    char text[TSHI_LINE] = "";
    tsh_status status = mesh ? parse_axes(axes, parent, mesh) : TSH_ERR_MEMORY;
    if (status == TSH_OK) {
        size_t used = (size_t)snprintf(text, sizeof text, "mesh_create ");
        for (int i = 0; i < mesh->axes; i++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%d", i ? "," : "", mesh->axis[i].name,
                                     mesh->axis[i].size);
        }
    }
    return tshi_group_agree(parent, text, status);
}

static tsh_status mesh_open(tsh_group *parent, const char *axes, tsh_mesh **out) {
    tsh_world *world = parent->world;
    tsh_mesh *mesh = tshi_calloc(&world->allocator, 1, sizeof *mesh);
    int *ranks = tshi_calloc(&world->allocator, (size_t)parent->size, sizeof *ranks);
    if (mesh) *mesh = (tsh_mesh){.device = world->device, .world = world};
    tsh_status status = mesh_agree(parent, axes, ranks ? mesh : NULL);
    for (int i = 0; status == TSH_OK && i < mesh->axes; i++) status = axis_create(parent, mesh, i, ranks);
    tshi_free(&world->allocator, ranks);
    if (status != TSH_OK) {
        if (mesh) tsh_mesh_destroy(mesh);
        return status;
    }
    *out = mesh;
    return TSH_OK;
}

tsh_status tsh_mesh_create(tsh_world *world, const char *axes, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: world and out are required");
    return mesh_open(world->group, axes, out);
}

tsh_status tsh_mesh_create_in(tsh_group *parent, const char *axes, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!parent || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create_in: parent and out are required");
    return mesh_open(parent, axes, out);
}

void tsh_mesh_destroy(tsh_mesh *mesh) {
    if (!mesh) return;
    for (int i = 0; i < mesh->axes; i++) {
        if (mesh->axis[i].group) tshi_group_free(mesh->axis[i].group);
    }
    tshi_free(&mesh->world->allocator, mesh);
}

tsh_group *tsh_mesh_group(const tsh_mesh *mesh, const char *axis) {
    char names[TSHI_LINE];
    size_t used = 0;
    if (!mesh) {
        tshi_fail(TSH_ERR_ARGUMENT, "mesh_group: mesh is NULL");
        return NULL;
    }
    for (int i = 0; i < mesh->axes; i++) {
        if (axis && !strcmp(mesh->axis[i].name, axis)) return mesh->axis[i].group;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", mesh->axis[i].name);
    }
    tshi_fail(TSH_ERR_ARGUMENT, "mesh_group: no axis \"%.32s\"; there are %s", axis ? axis : "(null)", names);
    return NULL;
}

int tsh_mesh_axes(const tsh_mesh *mesh) {
    return mesh ? mesh->axes : 0;
}

tsh_group *tsh_mesh_axis_group(const tsh_mesh *mesh, int axis) {
    return mesh && axis >= 0 && axis < mesh->axes ? mesh->axis[axis].group : NULL;
}

const char *tsh_mesh_axis_name(const tsh_mesh *mesh, int axis) {
    return mesh && axis >= 0 && axis < mesh->axes ? mesh->axis[axis].name : NULL;
}

tsh_world *tsh_mesh_world(const tsh_mesh *mesh) {
    return mesh ? mesh->world : NULL;
}
