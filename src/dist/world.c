/* Joining and leaving a world. */
#include "dist/world.h"
#include "base/cpu.h"
#include "device/record.h"
#include "dist/collectives/redistribute.h"
#include "dist/control/channel.h"
#include "dist/control/control.h"
#include "dist/control/entrance.h"
#include "dist/control/joining.h"
#include "dist/control/liveness.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"

#include <errno.h>
#include <sys/mman.h>

#define LONGEST_JOIN 120.0 /* seconds */

/* --- the log ------------------------------------------------------------------------------------------------------ */

static void pass_line(void *user, tsh_log_level level, const char *line) {
    const tsh_world *world = user;
    tsh_log_sink to = world->caller_log;
    if (level < world->log_least) return;
    if (to.fn)
        to.fn(to.user, level, line);
    else
        tshi_log_print(NULL, level, line);
}

/* Where TSHARD_LOG is not set, lines go straight to the program's sink. */
static void log_open(tsh_world *world, const tsh_log_sink *sink, int least) {
    world->log = world->caller_log = *sink;
    if (least < 0) return;
    world->log_least = (tsh_log_level)least;
    world->log = (tsh_log_sink){.fn = pass_line, .user = world};
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* The world's own group, over ranks 0 to size - 1. The backend sets its state when it joins. */
static tsh_status world_group_create(tsh_world *world) {
    int *ranks = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *ranks);
    if (!ranks) return TSH_ERR_MEMORY;
    for (int i = 0; i < world->size; i++) ranks[i] = i;
    world->group = tshi_group_new(world, world->control, ranks, world->size);
    tshi_free(&world->allocator, ranks);
    if (!world->group) return TSH_ERR_MEMORY;
    tshi_group_own_mesh(world->group, "world");
    return TSH_OK;
}

/* The host's device, over `heap` where the backend has one, and the device of the tensors. */
static tsh_status devices_create(tsh_world *world, const tshi_settings *settings, void *heap) {
    if (!heap) {
        heap = world->heap = tshi_map_memory(-1, settings->heap_bytes);
        world->heap_bytes = settings->heap_bytes;
    }
    if (!heap) {
        tshi_fail_errno(errno, "world_init: mapping a heap of %zu bytes (TSHARD_HEAP makes it smaller)",
                        settings->heap_bytes);
        return TSH_ERR_MEMORY;
    }
    tshi_prefer_node(heap, settings->heap_bytes, tshi_own_node(TSHI_NODES));
    tsh_status status =
        tshi_device_create_cpu(&world->allocator, heap, settings->heap_bytes, settings->blas_threads, &world->host);
    world->device = world->host;
    if (status == TSH_OK) world->host->purpose = TSH_MEMORY_COMMUNICATION; /* until the ranks are connected */
    if (status != TSH_OK || settings->device != TSH_CUDA) return status;
    return tshi_device_create_cuda(&world->allocator, world->local_rank, &world->device);
}

/* --- the record, where one is asked for --------------------------------------------------------------------------- */

static tsh_status record_open(tsh_world *world) {
    tsh_device *device = world->device;
    if (!device->record && tshi_setting_value(TSHI_SETTING_RECORD)) {
        device->record = tshi_record_create(&world->allocator);
        if (!device->record) return TSH_ERR_MEMORY;
    }
    if (!device->record) return TSH_OK;
    device->record->rank = world->rank;
    device->record->size = world->size;
    return TSH_OK;
}

static tsh_status record_write(const tshi_record *record, const char *name) {
    char path[TSHI_PATH_SIZE];
    int fd = -1, length = 0;
    bool opened = sscanf(name, "fd:%d%n", &fd, &length) == 1 && !name[length];
    snprintf(path, sizeof path, opened ? "%.900s" : "%.900s.%d", name, record->rank);
    FILE *to = opened ? fdopen(fd, "w") : fopen(path, "we");
    if (!to) return tshi_fail_errno(errno, "TSHARD_RECORD: %s", path);
    int error = tshi_record_write(record, to) == TSH_OK ? 0 : errno;
    if (fclose(to) != 0 && !error) error = errno;
    return error ? tshi_fail_errno(error, "TSHARD_RECORD: writing %s", path) : TSH_OK;
}

static tshi_record *record_end(const tsh_world *world) {
    const char *name = tshi_setting_value(TSHI_SETTING_RECORD);
    tshi_record *record = world->device ? world->device->record : NULL;
    if (!record) return NULL;
    tshi_record_end(record);
    record->peak = tsh_device_stats(world->device).bytes_peak;
    record->memory = tsh_device_memory(world->device);
    if (name && record_write(record, name) != TSH_OK) {
        tshi_log(&world->log, TSH_LOG_ERROR, "%s", tsh_error_message());
    }
    return record;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void watch_tensors(tsh_world *world, tsh_device *device) {
    if (!device) return;
    device->log = &world->log;
    device->owner = &world->owner;
    device->checked = world->checked;
}

/* Ranks that are not there, those of a planned world, have no memory. */
static tsh_status share_machine(tsh_world *world, const tshi_start *start) {
    tsh_thread_rendezvous *threads = start->config->threads;
    if (world->size == 1 || (!threads && !start->roster)) return TSH_OK;
    tsh_status status = tshi_machine_open(world, start->settings, start->roster, threads,
                                          tshi_backend_area_bytes(world->size), start->deadline);
    return status == TSH_OK ? tshi_channel_open(world) : status;
}

/* TSHARD_BACKEND chooses one transport for all groups. */
static tsh_status open_local(tsh_world *world, const tshi_start *start) {
    const tshi_group_ops *local = tshi_backend_of_machine();
    void *heap = NULL;
    if (tshi_backend_is(world->control->name)) return TSH_OK;
    tsh_status status = local->world_open(world, start, &heap);
    if (status == TSH_OK) world->local = local;
    return status;
}

static double patience_of(const tshi_start *start) {
    double longest = start->patience > 0 ? start->patience : LONGEST_JOIN;
    return start->settings->timeout < longest ? start->settings->timeout : longest;
}

static tsh_status keep_settings(tsh_world *world, const tshi_start *start) {
    world->settings = tshi_calloc(&world->allocator, 1, sizeof *world->settings);
    if (!world->settings) return TSH_ERR_MEMORY;
    *world->settings = *start->settings;
    world->blas_threads_asked = start->config->blas_threads;
    if (!start->roster) return TSH_OK;
    size_t nodes = (size_t)start->roster->nodes;
    world->hosts = tshi_calloc(&world->allocator, nodes, sizeof *world->hosts);
    if (!world->hosts) return TSH_ERR_MEMORY;
    memcpy(world->hosts, start->roster->host, nodes * sizeof *world->hosts);
    return TSH_OK;
}

static tsh_status world_enter(tsh_world *world, const tshi_start *start) {
    const tshi_settings *settings = start->settings;
    const tshi_group_ops *control = world->control;
    void *heap = NULL;
    world->rank = settings->rank;
    world->size = settings->size;
    world->local_rank = settings->local_rank;
    world->timeout = patience_of(start);
    world->warn_every = settings->warn_every;
    world->logs_plans = settings->logs_plans;
    world->deterministic = settings->deterministic;
    world->checked = settings->checks > 0;
    world->checks_nan = settings->checks > 1;
    if (world->size == 1) tshi_owner_close(&world->owner); /* a forked process has a world of its own then */
    if (world->logs_plans && !world->log.fn) world->log.fn = tshi_log_print; /* without it only warnings are printed */
    world->seed = settings->seed;
    tsh_status status = keep_settings(world, start);
    if (status == TSH_OK && control->world_open) status = control->world_open(world, start, &heap);
    if (status == TSH_OK) status = share_machine(world, start);
    if (status == TSH_OK && world->machine.nodes > 1) status = open_local(world, start);
    if (world->machine.heap) heap = world->machine.heap[world->rank];
    if (status == TSH_OK) status = devices_create(world, settings, heap);
    watch_tensors(world, world->host);
    watch_tensors(world, world->device);
    if (status == TSH_OK) status = world_group_create(world);
    /* After a failure too, because its peers wait for this rank. */
    if (control->world_join) status = control->world_join(world, status);
    if (status != TSH_OK) return status;
    status = tshi_backend_take_data(world);
    if (status == TSH_OK) status = tshi_group_open_levels(world->group, TSH_OK);
    if (status == TSH_OK) status = record_open(world);
    if (status == TSH_OK) status = tshi_trace_from_environment(world);
    /* Ranks on other machines could hear of this rank before they hear of the peer that its words are about. */
    if (status != TSH_OK && status != TSH_ERR_PEER) tshi_world_fail_in(world, tsh_error_message(), (tshi_tape_step){0});
    world->timeout = settings->timeout;
    return status;
}

/* The control backend: one that finds the ranks by its own means, or one for the ranks that the rendezvous has
 * found, or the caller. */
static tsh_status find_ranks(tsh_world *world, tshi_start *start) {
    tsh_status status = TSH_OK;
    if (start->config->threads) status = tshi_threads_settings(start->config, start->settings);
    if (status == TSH_OK) status = tshi_backend_connect(start, &world->control);
    if (status == TSH_OK && start->found->size) start->roster = start->found;
    if (status != TSH_OK || world->control) return status;
    status = tshi_rendezvous_run(start->settings, &world->log, &world->allocator, start->deadline, NULL, start->found);
    if (status != TSH_OK) return status;
    tshi_rendezvous_warn(start->settings, start->found, &world->log);
    tshi_roster_settings(start->found, start->settings);
    start->roster = start->found;
    return tshi_backend_connect(start, &world->control);
}

tsh_status tshi_world_start(tshi_start *start, tsh_world **out) {
    tsh_allocator allocator = tshi_allocator_resolve(&start->config->allocator);
    tsh_world *world = tshi_calloc(&allocator, 1, sizeof *world);
    *out = NULL;
    if (!world) return TSH_ERR_MEMORY;
    world->allocator = allocator;
    log_open(world, &start->config->log, start->settings->log);
    tshi_owner_open(&world->owner, start->settings->checks > 0, &world->log);
    tshi_roster found = {0};
    start->found = &found;
    tsh_world_config logged = *start->config;
    logged.log = world->log;
    start->config = &logged;
    world->start_ticks = tshi_ticks();
    world->start_seconds = tshi_clock();
    start->allocator = &allocator;
    start->deadline =
        world->start_seconds + (start->patience > 0 ? start->patience : tshi_rendezvous_patience(start->settings));
    tsh_status status = find_ranks(world, start);
    world->data = world->local = world->control;
    if (start->settings->rank <= 0) tshi_settings_check(&world->log);
    if (status == TSH_OK) status = world_enter(world, start);
    tshi_roster_free(&found, &allocator);
    if (status != TSH_OK) {
        tsh_world_destroy(world);
        return status;
    }
    world->host->purpose = TSH_MEMORY_OTHER;
    tshi_signal_open(world, start->settings->logs_recent_calls);
    *out = world;
    return TSH_OK;
}

/* The world of a place in it. */
static tsh_status take_place(const tsh_world_config *config, const tshi_settings *settings,
                             const tshi_join_place *place, tsh_world **out) {
    tshi_settings s = *settings;
    s.size = place->roster.size;
    s.seed = place->seed;
    if (place->port) s.port = place->port;
    tshi_roster_settings(&place->roster, &s);
    tshi_settings_share_cores(config, &s);
    tshi_start start = {.config = config, .settings = &s, .roster = &place->roster, .patience = place->patience};
    return tshi_world_start(&start, out);
}

/* Worlds of one round after another, until one is confirmed. */
static tsh_status join(const tsh_world_config *config, const tshi_settings *settings, tsh_world **out) {
    tsh_allocator allocator = tshi_allocator_resolve(&config->allocator);
    tshi_joining j;
    tsh_status status = tshi_joining_open(settings, &config->log, &allocator, &j);
    for (bool confirmed = false; status == TSH_OK && !confirmed;) {
        tshi_join_place place;
        status = tshi_joining_wait(&j, &place);
        if (status != TSH_OK) break;
        confirmed = tshi_joining_report(&j, take_place(config, settings, &place, out), place.patience);
        tshi_roster_free(&place.roster, &allocator);
        if (confirmed) break;
        tsh_world_destroy(*out);
        *out = NULL;
    }
    tshi_joining_close(&j);
    if (*out) (*out)->has_joined = true;
    return status;
}

tsh_status tsh_world_init(const tsh_world_config *config, tsh_world **out) {
    static const tsh_world_config empty;
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "world_init: out is NULL");
    *out = NULL;
    if (!config) config = &empty;
    tshi_settings settings;
    tsh_status status = tshi_settings_read(config, &settings);
    if (status != TSH_OK) return status;
    if (settings.joins) return join(config, &settings, out);
    tshi_start start = {.config = config, .settings = &settings};
    return tshi_world_start(&start, out);
}

/* The failure of a program's last step: no later step reports it. */
static void tell_dropped(const tsh_world *world) {
    tshi_failure dropped;
    if (tshi_failure_dropped(&dropped) != TSH_OK)
        tshi_log(&world->log, TSH_LOG_ERROR, "a failure that the program has not looked at: %s", dropped.words);
}

/* Logs what the program has not destroyed before its world; false if it has destroyed everything. */
static bool tell_alive(const tsh_world *world) {
    char tensors[TSHI_LINE * 2], tapes[40] = "", meshes[40] = "";
    if (!world->device || !world->host) return false;
    tshi_tensors_alive(world->device, tensors, sizeof tensors);
    if (world->live_tapes)
        snprintf(tapes, sizeof tapes, "%s%d tape%s", tensors[0] ? ", " : "", world->live_tapes,
                 world->live_tapes > 1 ? "s" : "");
    if (world->meshes)
        snprintf(meshes, sizeof meshes, "%s%d mesh%s", tensors[0] || tapes[0] ? ", " : "", world->meshes,
                 world->meshes > 1 ? "es" : "");
    if (!tensors[0] && !tapes[0] && !meshes[0]) return false;
    tshi_log(&world->log, TSH_LOG_WARNING,
             "world_destroy: rank %d still has %s%s%s: they are destroyed before their world, and can only be released "
             "from now on",
             world->rank, tensors, tapes, meshes);
    return true;
}

/* Worlds destroyed before their tensors, tapes or meshes. They stay reachable until the process ends, so that a leak
 * checker does not report them. */
static _Atomic(tsh_world *) former_worlds;

static void keep_ended(tsh_world *world) {
    world->device->record = NULL;
    world->former = atomic_load(&former_worlds);
    while (!atomic_compare_exchange_weak(&former_worlds, &world->former, world)) continue;
}

/* Closes the groups, and frees them unless a mesh or a tensor can still use them. */
static void end_groups(tsh_world *world) {
    if (!world->ended) {
        while (world->groups) tshi_group_free(world->groups);
        return;
    }
    for (tsh_group *g = world->groups; g; g = g->next) tshi_group_close(g);
}

void tsh_world_destroy(tsh_world *world) {
    if (!world || tshi_owner_refuses(&world->owner, "world_destroy")) return;
    tell_dropped(world);
    tsh_allocator allocator = world->allocator;
    const tshi_group_ops *control = world->control, *local = world->local, *data = world->data;
    tshi_signal_close(world);
    if (world->background_save) world->background_save_end(world);
    tshi_entrance_close(world, world->entrance, !world->machine.page || !tshi_control_has_failed(world));
    tshi_exchanges_free(world);
    tshi_trace_leave(world);
    bool alive = tell_alive(world);
    world->ended = alive;
    end_groups(world);
    tshi_record *record = record_end(world);
    if (data != control) data->leave(world);
    if (control && world->state[control->place] && control->leave) control->leave(world);
    tshi_control_leave(world);
    if (local != control) local->leave(world);
    if (world->host) tshi_tensors_end(world->host);
    if (world->device) tshi_tensors_end(world->device);
    if (!alive && world->device != world->host) tshi_device_destroy(world->device);
    if (!alive) tshi_device_destroy(world->host);
    if (world->heap) munmap(world->heap, world->heap_bytes);
    if (local != control) local->world_close(world);
    if (control && world->state[control->place]) control->world_close(world);
    tshi_channel_close(world);
    tshi_liveness_close(world);
    tshi_machine_close(world);
    tshi_record_destroy(record);
    tshi_owner_close(&world->owner);
    tshi_free(&allocator, world->settings);
    world->settings = NULL;
    tshi_free(&allocator, world->hosts);
    world->hosts = NULL;
    if (alive)
        keep_ended(world);
    else
        tshi_free(&allocator, world);
}

int tsh_world_rank(const tsh_world *world) {
    return world ? world->rank : -1;
}

int tsh_world_size(const tsh_world *world) {
    return world ? world->size : 0;
}

bool tsh_world_has_joined(const tsh_world *world) {
    return world && world->has_joined;
}

int tsh_world_local_rank(const tsh_world *world) {
    return world ? world->local_rank : -1;
}

int tsh_world_node_count(const tsh_world *world) {
    if (!world) return 0;
    return world->machine.nodes ? world->machine.nodes : 1;
}

bool tsh_world_uses_rdma(const tsh_world *world) {
    return world && world->control->rdma && world->control->rdma(world);
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
