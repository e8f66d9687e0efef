/* The world of a dry run: this process is one of its ranks, and the others do not exist. Collectives, messages and
 * agreements succeed at once and move nothing; groups count them, and the device's record keeps them. */
#include "device/plan/plan.h"
#include "base/cpu.h"
#include "dist/registry.h"
#include "dist/rendezvous/environment.h"
#include "dist/world.h"

#include <errno.h>
#include <sys/mman.h>

/* Address space reserved for tensors: at most half of a 47-bit address space, and less if that much is not free. */
#define MOST_BYTES  ((size_t)1 << 46)
#define LEAST_BYTES ((size_t)1 << 30)

#define PLACE       1

typedef struct planned_world {
    void *heap;
    size_t heap_bytes;
    const tshi_device_ops *gpu; /* the table of the GPU that the job is to run on; NULL: a CPU */
    tshi_planned *planned;      /* the device, once there is one */
} planned_world;

static tsh_status plan_probe(const tshi_start *start, bool *takes) {
    const tshi_settings *s = start->settings;
    if (!tshi_backend_is("plan")) return TSH_OK;
    if (start->config->threads || s->rank < 0 || s->size < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: a dry run is one rank of a world: RANK and WORLD_SIZE "
                                           "have to say which (tshard-plan sets them)");
    }
    *takes = true;
    return TSH_OK;
}

static void *reserve(size_t *bytes) {
    void *memory = NULL;
    for (*bytes = MOST_BYTES; !memory && *bytes >= LEAST_BYTES; *bytes /= 2) memory = tshi_map_memory(-1, *bytes);
    *bytes *= 2;
    return memory;
}

static tsh_status plan_world_open(tsh_world *world, const tshi_start *start, void **heap) {
    planned_world *p = tshi_calloc(&world->allocator, 1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    world->state[PLACE] = p;
    if (start->settings->device == TSH_CUDA) {
        p->gpu = tshi_cuda_table();
        if (!p->gpu) return TSH_ERR_UNSUPPORTED;
        start->settings->device = TSH_CPU; /* where the dry run is */
    }
    p->heap = reserve(&p->heap_bytes);
    if (!p->heap) return tshi_fail_errno(errno, "world_init: no address space for the tensors of a plan");
    *heap = p->heap;
    start->settings->heap_bytes = p->heap_bytes;
    return TSH_OK;
}

static tsh_status plan_world_join(tsh_world *world, tsh_status mine) {
    planned_world *p = world->state[PLACE];
    if (mine != TSH_OK) return mine;
    world->host->record = tshi_record_create(&world->allocator);
    if (world->host->record) {
        const tshi_device_ops *own = p->gpu ? p->gpu : world->host->ops;
        p->planned = tshi_plan_device(world->host, own, p->heap, p->heap_bytes);
    }
    return p->planned ? TSH_OK : TSH_ERR_MEMORY;
}

static void plan_world_close(tsh_world *world) {
    planned_world *p = world->state[PLACE];
    if (p->heap) munmap(p->heap, p->heap_bytes);
    tshi_planned_free(p->planned);
    tshi_free(&world->allocator, p);
    world->state[PLACE] = NULL;
}

/* The most ranks that share one machine: there the first rank of a group takes memory for it, and each sender memory
 * for its messages, which count as peak memory of a CPU. */
#define ONE_MACHINE 64
#define TAKEN       4

/* The memory that a group has taken: at its creation, and for each kind of message. */
typedef struct planned_group {
    size_t bytes[TAKEN];
    void *memory[TAKEN];
} planned_group;

static tsh_status take(tsh_group *group, size_t bytes) {
    const tsh_world *world = group->world;
    int i = 0;
    if (world->size > ONE_MACHINE || world->host->ops->kind != TSH_CPU || bytes == 0) return TSH_OK;
    if (!group->state) group->state = tshi_calloc(&world->allocator, 1, sizeof(planned_group));
    planned_group *g = group->state;
    if (!g) return TSH_ERR_MEMORY;
    while (i < TAKEN && g->bytes[i] && g->bytes[i] != bytes) i++;
    if (i == TAKEN || g->bytes[i] == bytes) return TSH_OK;
    g->memory[i] = world->host->ops->memory.alloc(world->host, bytes);
    g->bytes[i] = g->memory[i] ? bytes : 0;
    return g->memory[i] ? TSH_OK : TSH_ERR_MEMORY;
}

static void plan_close(tsh_group *group) {
    tsh_device *host = group->world->host;
    planned_group *g = group->state;
    for (int i = 0; g && i < TAKEN; i++) host->ops->memory.release(host, g->memory[i]);
    tshi_free(&group->world->allocator, g);
    group->state = NULL;
}

static tsh_status plan_prepare(tsh_group *group, uint64_t *address) {
    (void)address;
    return group->rank == 0 ? take(group, tshi_backend_of_machine()->open_bytes(group->size)) : TSH_OK;
}

static tsh_status plan_run(tsh_group *group, const tshi_comm_call *call) {
    (void)group;
    return call->failed;
}

static tsh_status plan_exchange(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan) {
    (void)group;
    (void)plan;
    return call->failed;
}

/* A receive from any rank is matched with the lowest rank that may send. */
static tsh_status plan_start(tsh_work *work) {
    if (work->call.failed != TSH_OK) return work->call.failed;
    if (work->call.op == TSH_COLLECTIVE_RECV) {
        work->sender = work->call.root == TSH_ANY_RANK ? work->group->rank == 0 : work->call.root;
    }
    if (work->call.op == TSH_COLLECTIVE_SEND) {
        tsh_status status = take(work->group, tshi_backend_of_machine()->message_bytes(&work->call));
        if (status != TSH_OK) return status;
    }
    tshi_work_end(work, TSH_OK);
    return TSH_OK;
}

const tshi_group_ops tshi_plan_ops = {
    .name = "plan",
    .place = PLACE,
    .probe = plan_probe,
    .world_open = plan_world_open,
    .world_join = plan_world_join,
    .world_close = plan_world_close,
    .prepare = plan_prepare,
    .close = plan_close,
    .run = plan_run,
    .exchange = plan_exchange,
    .start = plan_start,
};
