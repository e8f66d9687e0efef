/* Ranks arranged as a grid, and the groups along its axes. */
#include "device/record.h"
#include "dist/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t name_length(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

static tsh_status bad_size(const char *axes, const tshi_axis *axis) {
    return tshi_fail(
        TSH_ERR_ARGUMENT,
        "mesh_create: \"%.200s\": the size of %s is a positive number, -1, auto, or weights like 3:1, from 0 "
        "to %d and not all 0",
        axes, axis->name, INT32_MAX);
}

/* A number without a sign, at most INT32_MAX; *text moves behind it. */
static bool parse_number(const char **text, int64_t *out) {
    char *end = NULL;
    if (**text < '0' || **text > '9') return false;
    long value = strtol(*text, &end, 10);
    *text = end;
    *out = value;
    return value <= INT32_MAX;
}

/* "2", "-1", "auto" or "3:1"; *text moves behind it. Weights that are to be measured are 0. */
static tsh_status parse_size(const char *axes, const char **text, tshi_axis *axis, int64_t *room) {
    int count = 0;
    int64_t sum = 0;
    bool number = true, open = !strncmp(*text, "-1", 2), measured = !strncmp(*text, "auto", 4);
    if (open || measured) {
        *text += measured ? 4 : 2;
        axis->size = -1;
        axis->weights = measured ? room : NULL;
        return TSH_OK;
    }
    do {
        if (count) (*text)++;
        number = parse_number(text, &room[count]);
        sum += room[count++];
    } while (number && **text == ':');
    if (!number || sum == 0) return bad_size(axes, axis);
    axis->size = count > 1 ? count : (int)room[0];
    axis->weights = count > 1 ? tshi_weights_simplify(room, count) : NULL;
    return TSH_OK;
}

/* room: for the weights of this axis and those after it. */
static tsh_status parse_axis(const char *axes, const char **cursor, tsh_mesh *mesh, int64_t *room) {
    const char *text = *cursor;
    size_t length = name_length(text);
    if (mesh->axes == TSH_MAX_AXES) {
        return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" has more than %d axes", axes, TSH_MAX_AXES);
    }
    if (length == 0 || length >= TSHI_AXIS_NAME || text[length] != '=') {
        return tshi_fail(
            TSH_ERR_ARGUMENT,
            "mesh_create: \"%.200s\": NAME=SIZE,... is expected, like \"data=2,model=2\", with names of up "
            "to %d letters, digits and _; this is not: \"%.32s\"",
            axes, TSHI_AXIS_NAME - 1, text);
    }
    tshi_axis *axis = &mesh->axis[mesh->axes];
    memcpy(axis->name, text, length);
    axis->name[length] = '\0';
    axis->cuts = &mesh->device->cuts;
    for (int i = 0; i < mesh->axes; i++) {
        if (!strcmp(mesh->axis[i].name, axis->name)) {
            return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" has the axis %s twice", axes, axis->name);
        }
    }
    text += length + 1;
    tsh_status status = parse_size(axes, &text, axis, room);
    if (status != TSH_OK) return status;
    if (*text != '\0' && *text != ',') return bad_size(axes, axis);
    mesh->axes++;
    *cursor = *text == ',' ? text + 1 : text;
    if (*text == ',' && text[1] == '\0') {
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
        if (mesh->axis[open].weights) mesh->axis[open].weights = mesh->weights + strlen(axes);
        return TSH_OK;
    }
    if (open < 0 && product == parent->size) return TSH_OK;
    bool alone = parent->world->size == 1 && product > 1;
    char hint[80] = "";
    if (alone) snprintf(hint, sizeof hint, "; tshard-run -n %lld PROGRAM starts as many", (long long)product);
    return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: \"%.200s\" is a mesh of %s%lld ranks, the %s has %d%s", axes,
                     open >= 0 ? "a multiple of " : "", (long long)product,
                     parent == parent->world->group ? "world" : "group", parent->size, hint);
}

static tsh_status parse_axes(const char *axes, const tsh_group *parent, tsh_mesh *mesh) {
    if (!axes || !axes[0]) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: no axes; \"data=2,model=2\" is an example");
    const char *cursor = axes;
    mesh->weights = tshi_calloc(&mesh->world->allocator, strlen(axes) + (size_t)parent->size, sizeof *mesh->weights);
    if (!mesh->weights) return TSH_ERR_MEMORY;
    while (*cursor) {
        tsh_status status = parse_axis(axes, &cursor, mesh, mesh->weights + (cursor - axes));
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

static void keep_axis(tsh_mesh *mesh, tshi_axis *axis, tsh_group *group) {
    group->mesh = mesh;
    axis->group = group;
    axis->index = group->rank;
}

/* On a rank outside the mesh the axis' group has the ranks of the first member's. */
static tsh_status axis_elsewhere(tsh_mesh *mesh, tshi_axis *axis, int stride, int *ranks) {
    for (int i = 0; i < axis->size; i++) ranks[i] = mesh->ranks[i * stride];
    tsh_group *group = tshi_group_non_member(mesh->world, ranks, axis->size);
    if (!group) return TSH_ERR_MEMORY;
    keep_axis(mesh, axis, group);
    return TSH_OK;
}

/* This rank's group along an axis, which has still to be opened. NULL with the message set. */
static tsh_group *axis_group(const tsh_mesh *mesh, int axis, int *ranks) {
    const tshi_axis *a = &mesh->axis[axis];
    int stride = axis_stride(mesh, axis), first = mesh->member - mesh->member / stride % a->size * stride;
    for (int i = 0; i < a->size; i++) ranks[i] = first + i * stride;
    return tshi_group_of(mesh->group, ranks, a->size);
}

static tsh_status axes_create(tsh_mesh *mesh, int *ranks) {
    tsh_group *groups[TSH_MAX_AXES] = {0};
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < mesh->axes; i++) {
        if (!tshi_mesh_has_me(mesh)) {
            status = axis_elsewhere(mesh, &mesh->axis[i], axis_stride(mesh, i), ranks);
            continue;
        }
        groups[i] = axis_group(mesh, i, ranks);
        if (!groups[i]) status = TSH_ERR_MEMORY;
    }
    if (!tshi_mesh_has_me(mesh)) return status;
    status = tshi_groups_open(mesh->group, groups, mesh->axes, status);
    for (int i = 0; i < mesh->axes; i++) {
        if (groups[i] && status == TSH_OK)
            keep_axis(mesh, &mesh->axis[i], groups[i]);
        else if (groups[i])
            tshi_group_free(groups[i]);
    }
    return status;
}

static bool is_to_be_measured(const tshi_axis *axis) {
    return axis->weights && tshi_parts_holders(tshi_axis_parts(axis)) == 0;
}

/* Appends "data=2,model=3:1", without the axis `without`. */
static void axes_append(const tsh_mesh *mesh, int without, char *text, size_t size) {
    for (int a = 0, first = 1; a < mesh->axes; a++) {
        if (a == without) continue;
        tshi_append(text, size, "%s%s=", first ? "" : ",", mesh->axis[a].name);
        if (is_to_be_measured(&mesh->axis[a]))
            tshi_append(text, size, "auto");
        else
            tshi_parts_append(tshi_axis_parts(&mesh->axis[a]), text, size);
        first = 0;
    }
}

/* Until all ranks agree, this rank has only taken memory. */
static tsh_status mesh_agree(tsh_group *parent, bool own, const char *axes, tsh_mesh *mesh) {
    char text[4 * TSHI_LINE] = "mesh_create ";
    tsh_status status = mesh ? parse_axes(axes, parent, mesh) : TSH_ERR_MEMORY;
    for (int a = 0; status == TSH_OK && a < mesh->axes; a++) {
        if (own && is_to_be_measured(&mesh->axis[a]))
            status = tshi_fail(TSH_ERR_ARGUMENT, "mesh_create_on: the weights of %s must be given", mesh->axis[a].name);
    }
    if (status == TSH_OK) axes_append(mesh, -1, text, sizeof text);
    return tshi_group_agree(parent, text, status);
}

/* The slowest of the ranks with one index decides: the others wait for it. */
static tsh_status measure_axis(tsh_mesh *mesh, tshi_axis *axis, int stride) {
    int64_t *speed = tshi_calloc(&mesh->world->allocator, (size_t)mesh->members, sizeof *speed);
    int64_t *weights = mesh->weights + (axis->weights - mesh->weights);
    tsh_status status = tshi_group_agree(mesh->group, "mesh_create auto", speed ? TSH_OK : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = tsh_group_measure(mesh->group, speed);
    for (int i = 0; status == TSH_OK && i < mesh->members; i++) {
        int64_t *weight = &weights[i / stride % axis->size];
        if (*weight == 0 || speed[i] < *weight) *weight = speed[i];
    }
    if (status == TSH_OK) axis->weights = tshi_weights_simplify(weights, axis->size);
    tshi_free(&mesh->world->allocator, speed);
    return status;
}

static tsh_status measure_axes(tsh_mesh *mesh) {
    tsh_status status = TSH_OK;
    for (int a = 0; status == TSH_OK && a < mesh->axes; a++) {
        if (is_to_be_measured(&mesh->axis[a])) status = measure_axis(mesh, &mesh->axis[a], axis_stride(mesh, a));
    }
    return status;
}

/* A dry run keeps the mesh of all ranks with the most axes. */
static void record_mesh(const tsh_mesh *mesh, tshi_record *record) {
    if (mesh->group != mesh->world->group || mesh->axes <= record->axes) return;
    record->axes = mesh->axes;
    for (int a = 0; a < mesh->axes; a++) {
        snprintf(record->axis[a].name, sizeof record->axis[a].name, "%s", mesh->axis[a].name);
        record->axis[a].size = mesh->axis[a].size;
        record->axis[a].weights[0] = '\0';
        if (mesh->axis[a].weights)
            tshi_parts_append(tshi_axis_parts(&mesh->axis[a]), record->axis[a].weights, sizeof record->axis[a].weights);
    }
}

/* A mesh of the group's ranks; `own`: the mesh frees the group, also on failure. */
static tsh_status mesh_open(tsh_group *group, bool own, const char *axes, tsh_mesh **out) {
    tsh_world *world = group->world;
    tsh_status status = tshi_owner_check(&world->owner, "mesh_create");
    if (status != TSH_OK) return status;
    tsh_mesh *mesh = tshi_calloc(&world->allocator, 1, sizeof *mesh);
    int *ranks = tshi_calloc(&world->allocator, (size_t)group->size, sizeof *ranks);
    if (mesh) tshi_mesh_set(mesh, group);
    if (mesh && !own) group->meshes++;
    status = mesh_agree(group, own, axes, ranks ? mesh : NULL);
    if (status == TSH_OK) status = measure_axes(mesh);
    if (status == TSH_OK) status = axes_create(mesh, ranks);
    tshi_free(&world->allocator, ranks);
    if (own && mesh) {
        mesh->owns_group = true;
        group->mesh = mesh; /* so that the caller cannot destroy it */
    }
    if (status == TSH_OK && world->device->record) record_mesh(mesh, world->device->record);
    if (mesh) world->meshes++;
    if (status == TSH_OK)
        *out = mesh;
    else if (mesh)
        tsh_mesh_destroy(mesh);
    else if (own)
        tshi_group_free(group);
    return status;
}

tsh_status tsh_mesh_create(tsh_world *world, const char *axes, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create: world and out are required");
    return mesh_open(world->group, false, axes, out);
}

tsh_status tsh_mesh_create_in(tsh_group *parent, const char *axes, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!parent || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create_in: parent and out are required");
    return mesh_open(parent, false, axes, out);
}

/* A mesh of some ranks of `parent`, which are numbered within it. */
static tsh_status mesh_open_of(tsh_group *parent, const int *ranks, int n, const char *axes, tsh_mesh **out) {
    tsh_world *world = parent->world;
    tsh_group *group = NULL;
    tsh_status status = TSH_OK;
    if (parent->rank >= 0) status = tshi_group_open(parent, "mesh_create_on", ranks, n, &group);
    if (status != TSH_OK) return status;
    if (!group) {
        int *world_ranks = tshi_calloc(&world->allocator, (size_t)n, sizeof *world_ranks);
        for (int i = 0; world_ranks && i < n; i++) world_ranks[i] = parent->ranks[ranks[i]];
        if (world_ranks) group = tshi_group_non_member(world, world_ranks, n);
        tshi_free(&world->allocator, world_ranks);
    }
    return group ? mesh_open(group, true, axes, out) : TSH_ERR_MEMORY;
}

tsh_status tsh_mesh_create_on(tsh_world *world, const int *ranks, int n, const char *axes, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_create_on: world and out are required");
    return mesh_open_of(world->group, ranks, n, axes, out);
}

static int find_axis(const tsh_mesh *mesh, const char *name) {
    for (int i = 0; name && i < mesh->axes; i++) {
        if (!strcmp(mesh->axis[i].name, name)) return i;
    }
    return -1;
}

tsh_status tsh_mesh_fix(const tsh_mesh *mesh, const char *axis, int index, tsh_mesh **out) {
    if (out) *out = NULL;
    if (!mesh || !out) return tshi_fail(TSH_ERR_ARGUMENT, "mesh_fix: mesh and out are required");
    int a = find_axis(mesh, axis), n = 0;
    if (a < 0 || index < 0 || index >= mesh->axis[a].size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "mesh_fix: the mesh has no index %d along an axis \"%.32s\"", index,
                         axis ? axis : "(null)");
    }
    int *ranks = tshi_calloc(&mesh->world->allocator, (size_t)mesh->members, sizeof *ranks);
    if (!ranks) return TSH_ERR_MEMORY;
    for (int i = 0; i < mesh->members; i++) {
        if (i / axis_stride(mesh, a) % mesh->axis[a].size == index) ranks[n++] = i;
    }
    size_t room = 64 * (size_t)mesh->axes + 12 * (size_t)mesh->members; /* a name and a size; weights */
    char *axes = tshi_calloc(&mesh->world->allocator, room, 1);
    tsh_status status = axes ? TSH_OK : TSH_ERR_MEMORY;
    if (axes) axes_append(mesh, a, axes, room);
    if (axes && mesh->axes == 1) snprintf(axes, room, "%s=1", mesh->axis[a].name);
    if (status == TSH_OK) status = mesh_open_of(mesh->group, ranks, n, axes, out);
    tshi_free(&mesh->world->allocator, axes);
    tshi_free(&mesh->world->allocator, ranks);
    return status;
}

bool tsh_mesh_is_member(const tsh_mesh *mesh) {
    return mesh && tshi_mesh_has_me(mesh);
}

tsh_group *tsh_mesh_members(const tsh_mesh *mesh) {
    return mesh ? mesh->group : NULL;
}

void tsh_mesh_destroy(tsh_mesh *mesh) {
    if (!mesh || tshi_owner_refuses(&mesh->world->owner, "mesh_destroy")) return;
    for (int i = 0; i < mesh->axes; i++) {
        if (mesh->axis[i].group) tshi_group_drop(mesh->axis[i].group);
    }
    if (mesh->owns_group)
        tshi_group_drop(mesh->group);
    else if (--mesh->group->meshes == 0 && mesh->group->dropped)
        tshi_group_free(mesh->group);
    mesh->world->meshes--;
    tshi_free(&mesh->world->allocator, mesh->weights);
    tshi_free(&mesh->world->allocator, mesh);
}

tsh_group *tsh_mesh_group(const tsh_mesh *mesh, const char *axis) {
    char names[TSHI_LINE] = "";
    if (!mesh) {
        tshi_fail(TSH_ERR_ARGUMENT, "mesh_group: mesh is NULL");
        return NULL;
    }
    int found = find_axis(mesh, axis);
    if (found >= 0) return mesh->axis[found].group;
    for (int i = 0; i < mesh->axes; i++) tshi_append(names, sizeof names, "%s%s", i ? ", " : "", mesh->axis[i].name);
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
