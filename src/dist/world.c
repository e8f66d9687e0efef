/* Joining and leaving a world. */
#include "dist/backends/mpi/world.h"
#include "dist/backends/local/local.h"
#include "dist/backends/nccl/world.h"
#include "dist/bootstrap/environment.h"
#include "dist/bootstrap/rendezvous.h"
#include "dist/core/signal.h"

#include <string.h>
#include <sys/mman.h>

/* A tape's number and its steps, in one word. */
#define STEP_BITS 40
#define STEP_MASK ((UINT64_C(1) << STEP_BITS) - 1)

/* The world's own group, over ranks 0 to size - 1. Its state is the backend's to set. */
static tsh_status world_group_create(tsh_world *world) {
    int *ranks = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *ranks);
    if (!ranks) return TSH_ERR_MEMORY;
    for (int i = 0; i < world->size; i++) ranks[i] = i;
    world->group = tshi_group_new(world, ranks, world->size);
    tshi_free(&world->allocator, ranks);
    if (!world->group) return TSH_ERR_MEMORY;
    tshi_group_own_mesh(world->group, "world");
    return TSH_OK;
}

/* Where tensors live. */
static tsh_status device_create(tsh_world *world, tsh_device_kind kind) {
    world->device = world->host;
    return kind != TSH_CUDA ? TSH_OK : tshi_device_create_cuda(&world->allocator, world->local_rank, &world->device);
}

static tsh_status enter_mpi(tsh_world *world, const tshi_settings *settings) {
    tsh_status status = tshi_mpi_open(world, settings);
    if (status == TSH_OK) {
        status = tshi_device_create_cpu(&world->allocator, tshi_mpi_heap(world), settings->heap_bytes,
                                        settings->blas_threads, &world->host);
    }
    if (status == TSH_OK) status = device_create(world, settings->device);
    if (status == TSH_OK) status = world_group_create(world);
    /* Also after a failure: the others wait for this rank. */
    status = tshi_mpi_join(world, status);
    return status == TSH_OK ? tshi_nccl_join(world) : status;
}

static tsh_status world_enter(tsh_world *world, const tsh_world_config *config, const tshi_settings *settings,
                              double deadline) {
    world->rank = settings->rank;
    world->size = settings->size;
    world->local_rank = settings->local_rank;
    world->timeout = settings->timeout;
    world->warn_every = settings->warn_every;
    world->seed = settings->seed;
    if (settings->method == TSHI_INIT_MPI && settings->size > 1) return enter_mpi(world, settings);
    world->ops = settings->size == 1 ? &tshi_self_ops : &tshi_local_ops;
    tsh_status status = tshi_memory_open(world, settings, config->threads, deadline);
    if (status != TSH_OK) return status;
    void *heap = tshi_memory_heap(world, world->rank, NULL);
    status =
        tshi_device_create_cpu(&world->allocator, heap, settings->heap_bytes, settings->blas_threads, &world->host);
    if (status == TSH_OK) status = device_create(world, settings->device);
    if (status == TSH_OK) status = world_group_create(world);
    if (status == TSH_OK) status = tshi_memory_join(world);
    if (status == TSH_OK) status = tshi_nccl_join(world);
    return status == TSH_OK ? tshi_local_join_devices(world) : status;
}

static tsh_status check_config(const tsh_world_config *config, tshi_settings *settings) {
    tsh_status status = tshi_settings_read(config, settings);
    if (status != TSH_OK) return status;
    if (config->threads) return tshi_threads_settings(config, settings);
    bool mpi = false;
    status = tshi_mpi_settings(config, settings, &mpi);
    if (mpi) settings->method = TSHI_INIT_MPI;
    return status;
}

/* Ranks as processes find each other, and learn where they are: on several machines MPI connects them. */
static tsh_status meet(const tsh_world *world, const tsh_world_config *config, tshi_settings *settings,
                       double deadline) {
    tshi_roster roster;
    char hosts[TSHI_LINE];
    tsh_status status = tshi_rendezvous_run(settings, &world->log, &world->allocator, deadline, NULL, &roster);
    if (status != TSH_OK) return status;
    tshi_roster_settings(&roster, settings);
    if (roster.nodes > 1 && tshi_backend_is("local")) {
        status =
            tshi_fail(TSH_ERR_ARGUMENT, "world_init: the ranks are on %d machines (%s), but TSHARD_BACKEND is local",
                      roster.nodes, tshi_roster_hosts(&roster, hosts, sizeof hosts));
    } else if (roster.nodes > 1 || tshi_backend_is("mpi")) {
        status = tshi_mpi_connect(config, &roster, &world->allocator, deadline, settings);
        settings->method = TSHI_INIT_MPI;
    }
    tshi_roster_free(&roster, &world->allocator);
    return status;
}

tsh_status tsh_world_init(const tsh_world_config *config, tsh_world **out) {
    static const tsh_world_config empty;
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "world_init: out is NULL");
    *out = NULL;
    if (!config) config = &empty;
    tshi_settings settings;
    tsh_status status = check_config(config, &settings);
    if (status != TSH_OK) return status;
    tsh_allocator allocator = tshi_allocator_resolve(&config->allocator);
    tsh_world *world = tshi_calloc(&allocator, 1, sizeof *world);
    if (!world) return TSH_ERR_MEMORY;
    world->allocator = allocator;
    world->log = config->log;
    world->start_ticks = tshi_ticks();
    world->start_seconds = tshi_clock();
    double deadline = world->start_seconds + tshi_rendezvous_patience(&settings);
    if (settings.size > 1 && !config->threads && settings.method != TSHI_INIT_MPI) {
        status = meet(world, config, &settings, deadline);
    }
    if (settings.rank <= 0) tshi_settings_check(&world->log);
    if (status == TSH_OK) status = world_enter(world, config, &settings, deadline);
    if (status != TSH_OK) {
        tsh_world_destroy(world);
        return status;
    }
    tshi_signal_open(world, settings.rings);
    *out = world;
    return TSH_OK;
}

void tsh_world_destroy(tsh_world *world) {
    if (!world) return;
    tsh_allocator allocator = world->allocator;
    while (world->groups) tshi_group_free(world->groups);
    if (world->state && tshi_world_ops(world)->leave) tshi_world_ops(world)->leave(world);
    if (world->device != world->host) tshi_device_destroy(world->device);
    tshi_device_destroy(world->host);
    if (tshi_mpi_owns(world))
        tshi_mpi_close(world);
    else
        tshi_memory_close(world);
    tshi_free(&allocator, world);
}

int tsh_world_rank(const tsh_world *world) {
    return world ? world->rank : -1;
}

int tsh_world_size(const tsh_world *world) {
    return world ? world->size : 0;
}

int tsh_world_local_rank(const tsh_world *world) {
    return world ? world->local_rank : -1;
}

int tsh_world_node_count(const tsh_world *world) {
    if (!world) return 0;
    return tshi_mpi_owns(world) ? tshi_mpi_nodes(world) : 1;
}

bool tsh_world_uses_rdma(const tsh_world *world) {
    return world && tshi_mpi_owns(world) && tshi_mpi_rdma(world);
}

tsh_device *tsh_world_device(const tsh_world *world) {
    return world ? world->device : NULL;
}

tsh_group *tsh_world_group(const tsh_world *world) {
    return world ? world->group : NULL;
}

const tsh_mesh *tsh_world_mesh(const tsh_world *world) {
    return world ? &world->group->own_mesh : NULL;
}

void tsh_world_seed(tsh_world *world, uint64_t seed) {
    if (!world) return;
    world->seed = seed;
    world->next_stream = 0;
}

uint64_t tshi_world_stream(tsh_world *world) {
    return world->next_stream++;
}

void tshi_world_fail_in(tsh_world *world, const char *reason, tshi_tape_step step) {
    tshi_world_ops(world)->fail(world, reason, step);
}

void tsh_world_fail(tsh_world *world, const char *reason) {
    if (world) tshi_world_fail_in(world, reason ? reason : "", (tshi_tape_step){0});
}

/* The group whose calls are on the host's memory. */
static tsh_group *host_group(const tsh_world *world) {
    return world->group->control ? world->group->control : world->group;
}

bool tshi_world_troubled(tsh_world *world, tshi_tape_step step) {
    const tshi_group_ops *ops = world->ops;
    if (!ops->trouble || ops->trouble(host_group(world), false, false) == TSH_OK) return false;
    return !ops->fails_later || !ops->fails_later(world, step);
}

/* Half steps, so that one that is under way counts as more than none. */
static int64_t place_of(const tshi_steps *s) {
    return (int64_t)(s->tape << STEP_BITS | ((2 * s->ended + s->open) & STEP_MASK));
}

/* A step that is under way on all ranks alike goes on; otherwise it is one of those that are skipped. A rank that has
 * not made the tape misses no step of it. */
static void fall_in(tshi_steps *s, uint64_t furthest, uint64_t least) {
    bool known = furthest >> STEP_BITS == s->tape && furthest != least;
    uint64_t ended = ((furthest & STEP_MASK) + 1) / 2;
    s->behind = known ? ended - s->ended : 0;
}

/* The failure came to each rank in a step, before a random number and before a tape of its own: all go on with the
 * furthest. */
static tsh_status catch_up(tsh_world *world) {
    enum { HEAD = 2, LEAST = HEAD + TSHI_STEPPING, COUNT = LEAST + TSHI_STEPPING };
    int64_t furthest[COUNT] = {(int64_t)world->next_stream, (int64_t)world->tapes};
    const tshi_call call = {.op = TSH_COLLECTIVE_ALL_REDUCE,
                            .dtype = TSH_INT64,
                            .reduce = TSH_MAX,
                            .in = furthest,
                            .out = furthest,
                            .count = COUNT};
    for (int i = 0; i < TSHI_STEPPING; i++) {
        furthest[HEAD + i] = place_of(&world->steps[i]);
        furthest[LEAST + i] = -furthest[HEAD + i];
    }
    /* So little goes through the backend's own memory, wherever it lies. */
    tsh_status status = world->ops->run(host_group(world), &call);
    if (status != TSH_OK) return status;
    world->next_stream = (uint64_t)furthest[0];
    world->tapes = (uint64_t)furthest[1];
    for (int i = 0; i < TSHI_STEPPING; i++) {
        fall_in(&world->steps[i], (uint64_t)furthest[HEAD + i], (uint64_t)-furthest[LEAST + i]);
    }
    return TSH_OK;
}

tsh_status tsh_world_recover(tsh_world *world) {
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "world_recover: world is NULL");
    tsh_status status = tshi_world_ops(world)->recover(world);
    if (status == TSH_OK && world->size > 1) status = catch_up(world);
    if (status == TSH_OK) world->recoveries++;
    return status;
}
