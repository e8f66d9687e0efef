/* Groups: who is in them, and what they have done. */
#include "dist/dist.h"

#include <stdio.h>
#include <string.h>

/* Every rank posts its list as text, so that a disagreement prints both. */
#define DIGITS 11

static int index_of(const int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == rank) return i;
    }
    return -1;
}

tsh_group *tshi_group_new(tsh_world *world, const int *ranks, int n) {
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
    group->ops = n == 1 ? &tshi_self_ops : world->ops;
    group->size = n;
    group->rank = index_of(ranks, n, world->rank);
    group->next = world->groups;
    world->groups = group;
    return group;
}

void tshi_group_own_mesh(tsh_group *group, const char *name) {
    tsh_mesh *mesh = &group->own_mesh;
    *mesh = (tsh_mesh){.axes = 1, .device = group->world->device, .world = group->world};
    snprintf(mesh->axis[0].name, sizeof mesh->axis[0].name, "%s", name);
    mesh->axis[0].size = group->size;
    mesh->axis[0].index = group->rank;
    mesh->axis[0].group = group;
    group->mesh = mesh;
}

void tshi_group_free(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_group_forget(group, "the group has been destroyed");
    tsh_group **link = &world->groups;
    while (*link != group) link = &(*link)->next;
    *link = group->next;
    if (group->ops->close) group->ops->close(group);
    if (world->group == group) world->group = NULL;
    tshi_free(&world->allocator, group->ranks);
    tshi_free(&world->allocator, group->counts);
    tshi_pool_clear(&group->works, &world->allocator);
    tshi_free(&world->allocator, group);
}

static tsh_status check_ranks(const tsh_world *world, const int *ranks, int n) {
    if (!ranks || n < 1 || n > world->size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "group_create: %d ranks of a world of %d", ranks ? n : 0, world->size);
    }
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->size) {
            return tshi_fail(TSH_ERR_RANGE, "group_create: rank %d in a world of %d", ranks[i], world->size);
        }
        if (index_of(ranks, i, ranks[i]) >= 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "group_create: rank %d is listed twice", ranks[i]);
        }
    }
    return TSH_OK;
}

/* "group_create 0,2,3", or NULL without memory. */
static char *list_ranks(const tsh_allocator *allocator, const int *ranks, int n) {
    static const char head[] = "group_create ";
    size_t size = sizeof head + (size_t)n * DIGITS, used = sizeof head - 1;
    char *text = tshi_calloc(allocator, size, 1);
    if (!text) return NULL;
    memcpy(text, head, sizeof head);
    for (int i = 0; i < n; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? "," : "", ranks[i]);
    }
    return text;
}

static tsh_status group_open(tsh_world *world, const int *ranks, int n, tsh_group **out) {
    tsh_group *group = NULL;
    char *text = NULL;
    tsh_status status = check_ranks(world, ranks, n);
    if (status == TSH_OK) {
        text = list_ranks(&world->allocator, ranks, n);
        bool member = index_of(ranks, n, world->rank) >= 0;
        if (member) group = tshi_group_new(world, ranks, n);
        if (!text || (member && !group)) status = TSH_ERR_MEMORY;
    }
    status = world->ops->agree(world->group, text ? text : "", status);
    if (status == TSH_OK && n > 1) status = world->ops->open(world->group, ranks, n, group);
    tshi_free(&world->allocator, text);
    if (status != TSH_OK && group) {
        tshi_group_free(group);
        group = NULL;
    }
    if (group) tshi_group_own_mesh(group, "group");
    *out = group;
    return status;
}

tsh_status tsh_group_create(tsh_world *world, const int *ranks, int n, tsh_group **out) {
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "group_create: world and out are required");
    return group_open(world, ranks, n, out);
}

void tsh_group_destroy(tsh_group *group) {
    /* A mesh's groups and the world's go with their owner. */
    if (!group || group->mesh != &group->own_mesh || group == group->world->group) return;
    tshi_group_free(group);
}

int tsh_group_rank(const tsh_group *group) {
    return group->rank;
}

int tsh_group_size(const tsh_group *group) {
    return group->size;
}

int tsh_group_world_rank(const tsh_group *group, int group_rank) {
    if (group_rank < 0 || group_rank >= group->size) return -1;
    return group->ranks[group_rank];
}

int tsh_group_rank_of(const tsh_group *group, int world_rank) {
    return index_of(group->ranks, group->size, world_rank);
}

const char *tsh_group_backend(const tsh_group *group) {
    return group->ops->name;
}

tsh_world *tsh_group_world(const tsh_group *group) {
    return group->world;
}

const tsh_mesh *tsh_group_mesh(const tsh_group *group) {
    return group->mesh;
}

/* --- what it has done --------------------------------------------------------------------------------------------- */

uint64_t tshi_group_note(tsh_group *group, const tshi_call *call) {
    uint64_t number = ++group->calls;
    group->ring[number % TSHI_RING] =
        (tshi_ring_entry){.number = number, .op = call->op, .dtype = call->dtype, .count = call->count};
    return number;
}

void tshi_group_log_ring(const tsh_group *group) {
    char line[768];
    size_t used = 0;
    line[0] = '\0';
    for (uint64_t i = 0; i < TSHI_RING && i < group->calls && used + 64 < sizeof line; i++) {
        const tshi_ring_entry *e = &group->ring[(group->calls - i) % TSHI_RING];
        /* Creating groups has numbers too, but is no collective. */
        if (e->number != group->calls - i) continue;
        used += (size_t)snprintf(line + used, sizeof line - used, "%s#%llu %s %s [%lld]", used ? ", " : "",
                                 (unsigned long long)e->number, tsh_collective_name(e->op), tsh_dtype_name(e->dtype),
                                 (long long)e->count);
    }
    tshi_log(&group->world->log, TSH_LOG_WARNING, "rank %d's last calls, newest first: %s", group->world->rank,
             used ? line : "none");
}

tsh_group_stats tsh_group_get_stats(const tsh_group *group) {
    const tsh_world *world = group->world;
    tsh_group_stats stats = group->stats;
    uint64_t ticks = tshi_ticks() - world->start_ticks;
    double seconds = tshi_clock() - world->start_seconds;
    stats.seconds = ticks ? (double)group->ticks * (seconds / (double)ticks) : 0;
    return stats;
}

void tsh_group_reset_stats(tsh_group *group) {
    group->stats = (tsh_group_stats){0};
    group->ticks = 0;
}
