/* Groups: their ranks, how they are made, and what they have done. */
#include "device/record.h"
#include "dist/collectives/instrument.h"
#include "dist/control/agree.h"
#include "dist/registry.h"
#include "dist/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a rank in a list of ranks, with its comma. Ranks compare the lists as texts, so that a mismatch prints
 * both. */
#define DIGITS 11

static int index_of(const int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == rank) return i;
    }
    return -1;
}

tsh_group *tshi_group_new(tsh_world *world, const tshi_group_ops *ops, const int *ranks, int n) {
    const tsh_allocator *allocator = &world->allocator;
    tsh_group *group = tshi_calloc(allocator, 1, sizeof *group);
    if (!group) return NULL;
    group->ranks = tshi_calloc(allocator, (size_t)n, sizeof *group->ranks);
    group->counts = tshi_calloc(allocator, 2 * (size_t)n, sizeof *group->counts);
    if (!group->ranks || !group->counts) {
        tshi_free(allocator, group->ranks);
        tshi_free(allocator, group->counts);
        tshi_free(allocator, group);
        return NULL;
    }
    memcpy(group->ranks, ranks, sizeof *ranks * (size_t)n);
    group->world = world;
    group->ops = n == 1 ? tshi_backend_of_one() : ops;
    group->control = group;
    group->size = n;
    group->rank = index_of(ranks, n, world->rank);
    group->next = world->groups;
    world->groups = group;
    return group;
}

tsh_group *tshi_group_non_member(tsh_world *world, const int *ranks, int n) {
    return tshi_group_new(world, tshi_backend_of_one(), ranks, n);
}

void tshi_mesh_set(tsh_mesh *mesh, tsh_group *group) {
    *mesh = (tsh_mesh){.number = ++group->world->meshes_made,
                       .members = group->size,
                       .member = group->rank,
                       .ranks = group->ranks,
                       .group = group,
                       .device = group->world->device,
                       .world = group->world};
}

tsh_status tshi_group_missing(const char *what) {
    const char *last = tsh_error_message(), *const wrong_axis = "mesh_group: ";
    bool named = !strncmp(last, wrong_axis, strlen(wrong_axis));
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: group is NULL%s%.300s%s", what, named ? " (" : "", named ? last : "",
                     named ? ")" : "");
}

void tsh_group_part(const tsh_group *group, int64_t n, int index, int64_t *start, int64_t *length) {
    tshi_parts_split(group ? tshi_group_parts(group) : (tshi_parts){0}, n, index, start, length);
}

tshi_parts tshi_group_parts(const tsh_group *group) {
    int axis = group->mesh ? tshi_mesh_axis(group->mesh, group) : -1;
    return axis < 0 ? (tshi_parts){.count = group->size} : tshi_axis_parts(&group->mesh->axis[axis]);
}

void tshi_group_own_mesh(tsh_group *group, const char *name) {
    tsh_mesh *mesh = &group->own_mesh;
    tshi_mesh_set(mesh, group);
    mesh->axes = 1;
    snprintf(mesh->axis[0].name, sizeof mesh->axis[0].name, "%s", name);
    mesh->axis[0].size = group->size;
    mesh->axis[0].cuts = &mesh->device->cuts;
    mesh->axis[0].index = group->rank;
    mesh->axis[0].group = group;
    group->mesh = mesh;
}

void tshi_group_close(tsh_group *group) {
    tshi_group_forget(group, "the group has been destroyed");
    if (group->ops->close) group->ops->close(group);
}

void tshi_group_free(tsh_group *group) {
    tsh_world *world = group->world;
    if (!world->ended) tshi_group_close(group);
    tsh_group **link = &world->groups;
    while (*link != group) link = &(*link)->next;
    *link = group->next;
    if (world->group == group) world->group = NULL;
    if (group->control != group) tshi_group_free(group->control);
    if (group->near) tshi_group_free(group->near);
    if (group->far) tshi_group_free(group->far);
    tshi_free(&world->allocator, group->ranks);
    tshi_free(&world->allocator, group->counts);
    tshi_pool_clear(&group->works, &world->allocator);
    tshi_free(&world->allocator, group);
}

/* Before an agreement: this rank has no calls of its own in flight that the others may wait for. */
static tsh_status begin_agreement(tsh_group *group, const char *text, tsh_status failed, tshi_trace_event **event) {
    tsh_status own = tshi_owner_check(&group->world->owner, text);
    if (own != TSH_OK) return own;
    const tsh_device *device = group->world->device;
    tshi_world_submit(group->world);
    *event = device && device->trace ? tshi_traced_agree(group) : NULL;
    if (!group->ops->in_order) tshi_group_drain(group, failed);
    return TSH_OK;
}

static tsh_status gather(tsh_group *group, const char *text, tsh_status failed, const void *mine, size_t bytes,
                         void *all) {
    tshi_trace_event *event;
    tsh_status own = begin_agreement(group, text, failed, &event);
    if (own != TSH_OK) return own;
    tsh_status status = tshi_control_gather(group, text, failed, mine, bytes, all);
    if (event) tshi_trace_close(event);
    return status;
}

tsh_status tshi_group_agree(tsh_group *group, const char *text, tsh_status failed) {
    return gather(group, text, failed, NULL, 0, NULL);
}

tsh_status tshi_group_fetch(tsh_group *group, const char *what, const int32_t *from, int n, void *parts, size_t bytes,
                            tsh_status failed) {
    tshi_trace_event *event;
    tsh_status own = begin_agreement(group, what, failed, &event);
    if (own != TSH_OK) return own;
    tsh_status status = tshi_control_fetch(group, what, failed, from, n, parts, bytes);
    if (event) tshi_trace_close(event);
    return status;
}

void *tshi_group_gather(tsh_group *group, const char *what, const void *mine, size_t bytes, tsh_status *status) {
    tsh_device *host = group->world->host;
    size_t total = (size_t)group->size * bytes;
    tsh_memory_purpose before = tshi_device_purpose(host, TSH_MEMORY_COMMUNICATION);
    char *all = host->ops->memory.alloc(host, total);
    host->purpose = before;
    *status = gather(group, what, *status == TSH_OK && !all ? TSH_ERR_MEMORY : *status, mine, bytes, all);
    if (*status == TSH_OK) return all;
    host->ops->memory.release(host, all);
    return NULL;
}

/* `what` names the call; `ranks` are numbered within parent. */
static tsh_status check_ranks(const tsh_group *parent, const char *what, const int *ranks, int n) {
    const char *of = parent == parent->world->group ? "world" : "group";
    bool ascends = true;
    if (!ranks || n < 1 || n > parent->size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %d ranks of a %s of %d", what, ranks ? n : 0, of, parent->size);
    }
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            return tshi_fail(TSH_ERR_RANGE, "%s: rank %d in a %s of %d", what, ranks[i], of, parent->size);
        }
        ascends = ascends && (i == 0 || ranks[i] > ranks[i - 1]);
        if (!ascends && index_of(ranks, i, ranks[i]) >= 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%s: rank %d is listed twice", what, ranks[i]);
        }
    }
    return TSH_OK;
}

/* "group_create 0,2,3", or NULL without memory. */
static char *list_ranks(const tsh_allocator *allocator, const char *what, const int *ranks, int n) {
    size_t head = strlen(what), size = head + 2 + (size_t)n * DIGITS, used = head;
    char *text = tshi_calloc(allocator, size, 1);
    if (!text) return NULL;
    memcpy(text, what, head);
    for (int i = 0; i < n; i++) {
        used += (size_t)snprintf(text + used, size - used, "%c%d", i ? ',' : ' ', ranks[i]);
    }
    return text;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

bool tshi_ranks_share_machine(const tsh_world *world, const int *ranks, int n) {
    const int *node = world->machine.node;
    for (int i = 1; node && i < n; i++) {
        if (node[ranks[i]] != node[ranks[0]]) return false;
    }
    return true;
}

static const tshi_group_ops *host_transport(const tsh_world *world, const int *ranks, int n) {
    return tshi_ranks_share_machine(world, ranks, n) ? world->local : world->control;
}

/* Moves `inner`, the head of the world's list, behind the group that owns it: the list is freed from its head. */
static void list_behind(tsh_group *group, tsh_group *inner) {
    group->world->groups = inner->next;
    inner->next = group->next;
    group->next = inner;
}

static tsh_status control_new(tsh_group *group) {
    tsh_world *world = group->world;
    tsh_group *control =
        tshi_group_new(world, host_transport(world, group->ranks, group->size), group->ranks, group->size);
    if (!control) return TSH_ERR_MEMORY;
    group->control = control;
    tshi_group_own_mesh(control, "control");
    list_behind(group, control);
    return TSH_OK;
}

tsh_group *tshi_group_of(tsh_group *parent, const int *ranks, int n) {
    tsh_world *world = parent->world;
    bool on_top = world->data != world->control;
    int *world_ranks = tshi_calloc(&world->allocator, (size_t)n, sizeof *world_ranks);
    tsh_group *group = NULL;
    for (int i = 0; world_ranks && i < n; i++) world_ranks[i] = parent->ranks[ranks[i]];
    if (world_ranks)
        group = tshi_group_new(world, on_top ? world->data : host_transport(world, world_ranks, n), world_ranks, n);
    tshi_free(&world->allocator, world_ranks);
    if (group && on_top && n > 1 && control_new(group) != TSH_OK) {
        tshi_group_free(group);
        return NULL;
    }
    if (group) tshi_group_own_mesh(group, "group");
    return group;
}

static tsh_status prepare_all(tsh_group *const *groups, int n, uint64_t *address) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < n && status == TSH_OK; i++) {
        tsh_group *group = groups[i] ? groups[i]->control : NULL;
        if (group && group->ops->prepare) status = group->ops->prepare(group, &address[i]);
    }
    return status;
}

tsh_status tshi_groups_open(tsh_group *parent, tsh_group *const *groups, int n, tsh_status status) {
    tsh_world *world = parent->world;
    uint64_t address[TSH_MAX_AXES] = {0};
    int32_t first[TSH_MAX_AXES] = {0};
    tsh_memory_purpose before = tshi_device_purpose(world->host, TSH_MEMORY_COMMUNICATION);
    if (status == TSH_OK) status = prepare_all(groups, n, address);
    for (int i = 0; i < n; i++) first[i] = groups[i] ? tsh_group_rank_of(parent, groups[i]->ranks[0]) : parent->rank;
    status = tshi_group_fetch(parent, "group_create: memory", first, n, address, sizeof *address, status);
    bool agreed = status == TSH_OK;
    /* No member fails for want of memory from here on: `open` allocates nothing. */
    for (int i = 0; i < n && status == TSH_OK; i++) {
        tsh_group *control = groups[i] ? groups[i]->control : NULL;
        if (control) groups[i]->id = control->id = tshi_control_group_id(parent, i);
        if (control && control->ops->open) status = control->ops->open(control, address[i]);
        if (status == TSH_OK && parent->ops->split)
            status = parent->ops->split(parent, groups[i] && groups[i]->size > 1 ? groups[i] : NULL);
    }
    for (int i = 0; agreed && i < n; i++) {
        if (groups[i]) status = tshi_group_open_levels(groups[i], status);
    }
    world->host->purpose = before;
    return status;
}

/* --- two levels --------------------------------------------------------------------------------------------------- */

/* Members on each machine, if all machines have as many and the members of each are neighbours; else 0. */
static int members_a_machine(const tsh_group *group) {
    const int *node = group->world->machine.node, *ranks = group->ranks;
    int k = 1;
    while (k < group->size && node[ranks[k]] == node[ranks[0]]) k++;
    if (k == 1 || k == group->size || group->size % k != 0) return 0;
    for (int i = 0; i < group->size; i++) {
        if (node[ranks[i]] != node[ranks[i - i % k]]) return 0;
        for (int first = 0; i % k == 0 && first < i; first += k) {
            if (node[ranks[first]] == node[ranks[i]]) return 0;
        }
    }
    return k;
}

/* The n members from `first` on, `stride` apart, as a group of that one. */
static tsh_group *level_of(tsh_group *group, int first, int stride, int n) {
    const tsh_allocator *allocator = &group->world->allocator;
    int *ranks = tshi_calloc(allocator, (size_t)n, sizeof *ranks);
    for (int i = 0; ranks && i < n; i++) ranks[i] = first + i * stride;
    tsh_group *level = ranks ? tshi_group_of(group, ranks, n) : NULL;
    if (level) list_behind(group, level);
    tshi_free(allocator, ranks);
    return level;
}

tsh_status tshi_group_open_levels(tsh_group *group, tsh_status status) {
    const tsh_world *world = group->world;
    bool may = world->data == world->control && world->local != world->control && group->ops == world->control;
    int k = may ? members_a_machine(group) : 0;
    if (k == 0) return status;
    group->near = level_of(group, group->rank - group->rank % k, 1, k);
    group->far = level_of(group, group->rank % k, k, group->size / k);
    if (status == TSH_OK && !(group->near && group->far)) status = TSH_ERR_MEMORY;
    tsh_group *levels[] = {group->near, group->far};
    return tshi_groups_open(group, levels, 2, status);
}

tsh_status tshi_group_open(tsh_group *parent, const char *what, const int *ranks, int n, tsh_group **out) {
    tsh_world *world = parent->world;
    tsh_group *group = NULL;
    char *text = NULL;
    tsh_status status = tshi_owner_check(&world->owner, what);
    if (status != TSH_OK) return status;
    status = check_ranks(parent, what, ranks, n);
    if (status == TSH_OK) {
        text = list_ranks(&world->allocator, what, ranks, n);
        bool member = index_of(ranks, n, parent->rank) >= 0;
        if (member) group = tshi_group_of(parent, ranks, n);
        if (!text || (member && !group)) status = TSH_ERR_MEMORY;
    }
    status = tshi_group_agree(parent, text ? text : "", status);
    if (status == TSH_OK && n > 1) status = tshi_groups_open(parent, &group, 1, TSH_OK);
    tshi_free(&world->allocator, text);
    if (status != TSH_OK && group) {
        tshi_group_free(group);
        group = NULL;
    }
    *out = group;
    return status;
}

tsh_status tsh_group_create(tsh_world *world, const int *ranks, int n, tsh_group **out) {
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "group_create: world and out are required");
    return tshi_group_open(world->group, "group_create", ranks, n, out);
}

tsh_status tsh_group_create_in(tsh_group *parent, const int *ranks, int n, tsh_group **out) {
    if (out) *out = NULL;
    if (!parent || !out) return tshi_fail(TSH_ERR_ARGUMENT, "group_create_in: parent and out are required");
    return tshi_group_open(parent, "group_create_in", ranks, n, out);
}

/* --- by colour ---------------------------------------------------------------------------------------------------- */

typedef struct membership {
    int64_t color, key, rank;
} membership;

static int compare_members(const void *left, const void *right) {
    const membership *a = left, *b = right;
    if (a->color != b->color) return a->color < b->color ? -1 : 1;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* This rank's group, or NULL. `members` are sorted, and equal on all ranks. */
static tsh_status open_color(tsh_group *parent, const membership *members, int color, tsh_group **out) {
    const tsh_allocator *allocator = &parent->world->allocator;
    tsh_status status = TSH_OK;
    int n = 0;
    int *ranks = tshi_calloc(allocator, (size_t)parent->size, sizeof *ranks);
    for (int i = 0; ranks && color >= 0 && i < parent->size; i++) {
        if (members[i].color == color) ranks[n++] = (int)members[i].rank;
    }
    if (n > 0) *out = tshi_group_of(parent, ranks, n);
    if (!ranks || (n > 0 && !*out)) status = TSH_ERR_MEMORY;
    tshi_free(allocator, ranks);
    return tshi_groups_open(parent, out, 1, status);
}

tsh_status tsh_group_split(tsh_group *parent, int color, int key, tsh_group **out) {
    if (out) *out = NULL;
    if (!parent || !out) return tshi_fail(TSH_ERR_ARGUMENT, "group_split: parent and out are required");
    const tshi_record *record = parent->world->device->record;
    if (record && record->planned && parent->size > 1) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "group_split: a dry run does not know the colours of other ranks; "
                                              "group_create and mesh_create tell it the ranks of every group");
    }
    tsh_device *host = parent->world->host;
    const membership mine = {color, key, parent->rank};
    tsh_status status = TSH_OK;
    membership *all = tshi_group_gather(parent, "group_split", &mine, sizeof mine, &status);
    if (status == TSH_OK) {
        qsort(all, (size_t)parent->size, sizeof *all, compare_members);
        status = open_color(parent, all, color, out);
    }
    if (status != TSH_OK && *out) {
        tshi_group_free(*out);
        *out = NULL;
    }
    host->ops->memory.release(host, all);
    return status;
}

void tsh_group_destroy(tsh_group *group) {
    /* A mesh's groups and the world's go with their owner. */
    if (!group || group->mesh != &group->own_mesh || group == group->world->group) return;
    if (tshi_owner_refuses(&group->world->owner, "group_destroy")) return;
    tshi_group_drop(group);
}

void tshi_group_drop(tsh_group *group) {
    group->dropped = true;
    if (group->meshes == 0)
        tshi_group_free(group);
    else if (group->mesh != &group->own_mesh)
        tshi_group_own_mesh(group, "group"); /* its mesh goes */
}

int tsh_group_rank(const tsh_group *group) {
    return group ? group->rank : -1;
}

int tsh_group_size(const tsh_group *group) {
    return group ? group->size : 0;
}

int tsh_group_world_rank(const tsh_group *group, int group_rank) {
    if (!group || group_rank < 0 || group_rank >= group->size) return -1;
    return group->ranks[group_rank];
}

int tsh_group_rank_of(const tsh_group *group, int world_rank) {
    return group ? index_of(group->ranks, group->size, world_rank) : -1;
}

const char *tsh_group_backend(const tsh_group *group) {
    return group ? group->ops->name : NULL;
}

tsh_world *tsh_group_world(const tsh_group *group) {
    return group ? group->world : NULL;
}

const tsh_mesh *tsh_group_mesh(const tsh_group *group) {
    return group ? group->mesh : NULL;
}

/* --- what they have done ------------------------------------------------------------------------------------------ */

uint64_t tshi_group_note(tsh_group *group, const tshi_comm_call *call) {
    bool message = call->op == TSH_COLLECTIVE_SEND || call->op == TSH_COLLECTIVE_RECV;
    uint64_t number = message ? ++group->posts : ++group->calls;
    group->recent[group->notes++ % TSHI_RECENT_CALLS] =
        (tshi_recent_call){.number = number, .op = call->op, .dtype = call->dtype, .count = call->count};
    return number;
}

void tshi_group_log_recent_calls(const tsh_group *group) {
    char line[768] = "";
    for (uint64_t i = 1; i <= TSHI_RECENT_CALLS && i <= group->notes; i++) {
        const tshi_recent_call *e = &group->recent[(group->notes - i) % TSHI_RECENT_CALLS];
        tshi_append(line, sizeof line, "%s#%llu %s %s [%lld]", i > 1 ? ", " : "", (unsigned long long)e->number,
                    tsh_collective_name(e->op), tsh_dtype_name(e->dtype), (long long)e->count);
    }
    tshi_log(&group->world->log, TSH_LOG_WARNING, "rank %d's last calls, newest first: %s", group->world->rank,
             line[0] ? line : "none");
}

tsh_communication_stats tsh_group_stats(const tsh_group *group) {
    if (!group) return (tsh_communication_stats){0};
    const tsh_world *world = group->world;
    tsh_communication_stats stats = group->stats;
    uint64_t ticks = tshi_ticks() - world->start_ticks;
    double seconds = tshi_clock() - world->start_seconds;
    stats.seconds = ticks ? (double)group->ticks * (seconds / (double)ticks) : 0;
    return stats;
}

void tsh_group_reset_stats(tsh_group *group) {
    if (!group) return;
    group->stats = (tsh_communication_stats){0};
    group->ticks = 0;
}
