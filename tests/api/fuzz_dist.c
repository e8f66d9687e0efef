/* Worlds, groups, meshes, collectives and messages. */
#include "fuzz.h"
#ifdef TSHARD_HAVE_MPI
#include "tshard/mpi.h"
#endif

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* --- worlds ------------------------------------------------------------------------------------------------------- */

static void threads_create(fuzz *f, void (*function)(void)) {
    tsh_thread_rendezvous *threads = NULL;
    tsh_world *world = NULL;
    int size = fuzz_chance(f, 70) ? 1 : fuzz_index(f, 4);
    (void)function;
    tsh_status status = tsh_thread_rendezvous_create(size, fuzz_chance(f, 5) ? NULL : &threads);
    fuzz_said(f, "threads_create", status, threads && status != TSH_OK ? threads : NULL);
    tsh_world_config config = {
        .threads = threads, .rank = fuzz_index(f, 1), .heap_bytes = 1 << 22, .blas_threads = 1, .timeout = 1};
    if (size == 1 && threads) {
        status = tsh_world_init(&config, &world);
        fuzz_said(f, "world_init", status, world && status != TSH_OK ? world : NULL);
        if (status == TSH_ERR_TIMEOUT) fuzz_wrong(f, "a world of one thread waits");
        tsh_world_destroy(world);
    }
    f->severe = false;
    tsh_thread_rendezvous_destroy(threads);
}

static void world_init(fuzz *f, void (*function)(void)) {
    static const char *const methods[] = {NULL, "env://", "none://", "tcp://", "file://", ""};
    tsh_world *world = NULL;
    tsh_world_config config = {.world_size = 1,
                               .rank = fuzz_index(f, 1),
                               .heap_bytes = (size_t)1 << 22,
                               .blas_threads = fuzz_index(f, 2),
                               .init_method = methods[fuzz_below(f, 6)],
                               .device = fuzz_chance(f, 90) ? TSH_CPU : (tsh_device_kind)fuzz_index(f, 4),
                               .timeout = fuzz_chance(f, 90) ? 5 : -1,
                               .seed = fuzz_bits(f)};
    (void)function;
    if (config.device == TSH_CUDA) config.device = TSH_CPU; /* a GPU takes long to be opened */
    tsh_status status = tsh_world_init(&config, fuzz_chance(f, 3) ? NULL : &world);
    fuzz_made(f, FUZZ_WORLD, "world_init", status, world, NULL);
}

#ifdef TSHARD_HAVE_MPI
/* The fuzzer does not start MPI. */
static void world_init_mpi(fuzz *f, void (*function)(void)) {
    tsh_world *world = NULL, **out = fuzz_chance(f, 10) ? NULL : &world;
    bool fortran = fuzz_chance(f, 50);
    tsh_status status = fortran ? tsh_world_init_mpi_f(0, NULL, out) : tsh_world_init_mpi(MPI_COMM_WORLD, NULL, out);
    (void)function;
    if (status == TSH_OK) fuzz_wrong(f, "a world without MPI");
    fuzz_said(f, "world_init_mpi", status, world);
}
#endif

static void world_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_world_destroy(NULL);
    fuzz_empty(f, FUZZ_WORLD, 0);
}

static tsh_world *any_world(fuzz *f) {
    return fuzz_chance(f, 80) ? f->world : fuzz_pick(f, FUZZ_WORLD);
}

static void world_questions(fuzz *f, void (*function)(void)) {
    tsh_world *world = any_world(f);
    (void)function;
    if (world == f->world && tsh_world_size(world) != f->size) fuzz_wrong(f, "world_size");
    if (tsh_world_rank(world) >= tsh_world_size(world) && world) fuzz_wrong(f, "world_rank");
    if (tsh_world_local_rank(world) >= tsh_world_size(world) && world) fuzz_wrong(f, "world_local_rank");
    if (tsh_world_node_count(world) != (world ? 1 : 0)) fuzz_wrong(f, "world_node_count");
    if (tsh_world_uses_rdma(world)) fuzz_wrong(f, "world_uses_rdma");
    if (tsh_group_world(tsh_world_group(world)) != world) fuzz_wrong(f, "group_world");
    if (tsh_group_mesh(tsh_world_group(world)) != tsh_world_mesh(world)) fuzz_wrong(f, "world_mesh");
    if (tsh_mesh_world(tsh_world_mesh(world)) != world) fuzz_wrong(f, "mesh_world");
    if (!tsh_world_device(world) != !world) fuzz_wrong(f, "world_device");
}

static void world_seed(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_world_seed(any_world(f), fuzz_bits(f));
}

static void world_fail(fuzz *f, void (*function)(void)) {
    static const char *const reasons[] = {"", "a reason", NULL, "%s%n"};
    tsh_world *world = any_world(f);
    (void)function;
    tsh_world_fail(world, reasons[fuzz_below(f, 4)]);
    f->failed = f->failed || world == f->world;
    if (world && world != f->world) fuzz_said(f, "world_recover", tsh_world_recover(world), NULL);
}

/* Ranks here do not die: only what is refused. */
static void world_continue(fuzz *f, void (*function)(void)) {
    tsh_world *next = NULL;
    (void)function;
    fuzz_said(f, "world_continue", tsh_world_continue(NULL, NULL, &next, NULL), NULL);
    fuzz_said(f, "world_continue", tsh_world_continue(f->world, NULL, NULL, NULL), NULL);
}

/* Nor do any join. */
static void world_joiners(fuzz *f, void (*function)(void)) {
    int count = 0;
    (void)function;
    fuzz_said(f, "world_joiners", tsh_world_joiners(NULL, &count), NULL);
    fuzz_said(f, "world_joiners", tsh_world_joiners(f->world, NULL), NULL);
    if (tsh_world_has_joined(f->world) || count != 0) fuzz_wrong(f, "world_joiners");
}

static void world_recover(fuzz *f, void (*function)(void)) {
    (void)function;
    fuzz_said(f, "world_recover", tsh_world_recover(any_world(f)), NULL);
}

static void trace(fuzz *f, void (*function)(void)) {
    static const char *const folders[] = {NULL, "", "/dev/null/trace", "/proc/trace"};
    tsh_world *world = any_world(f);
    (void)function;
    fuzz_said(f, "trace_start", tsh_trace_start(world, folders[fuzz_below(f, 4)]), NULL);
    for (int i = fuzz_below(f, 3); i > 0; i--) tsh_trace_begin(world, i > 1 ? "range" : NULL);
    for (int i = fuzz_below(f, 3); i > 0; i--) tsh_trace_end(world);
    fuzz_said(f, "trace_stop", tsh_trace_stop(world), NULL);
}

/* --- groups and meshes -------------------------------------------------------------------------------------------- */

static int some_ranks(fuzz *f, int ranks[FUZZ_RANKS + 1]) {
    int n = fuzz_chance(f, 90) ? 1 + fuzz_below(f, f->size) : fuzz_index(f, FUZZ_RANKS + 1);
    int first = fuzz_below(f, f->size);
    for (int i = 0; i <= FUZZ_RANKS; i++) ranks[i] = (first + i) % f->size;
    if (fuzz_chance(f, 5)) ranks[fuzz_below(f, f->size)] = fuzz_index(f, f->size);
    return n;
}

static void group_create(fuzz *f, void (*function)(void)) {
    int ranks[FUZZ_RANKS + 1], n = some_ranks(f, ranks);
    tsh_group *group = NULL;
    (void)function;
    /* Past the array's end there is nothing to be read: the count is the caller's word. */
    if (n > FUZZ_RANKS + 1) n = FUZZ_RANKS + 1;
    tsh_status status =
        tsh_group_create(f->world, fuzz_chance(f, 3) ? NULL : ranks, n, fuzz_chance(f, 3) ? NULL : &group);
    fuzz_made(f, FUZZ_GROUP, "group_create", status, group, NULL);
}

static void group_create_in(fuzz *f, void (*function)(void)) {
    int ranks[FUZZ_RANKS + 1], n = some_ranks(f, ranks);
    tsh_group *group = NULL, *parent = fuzz_group(f);
    (void)function;
    if (n > tsh_group_size(parent)) n = tsh_group_size(parent);
    for (int i = 0; i < n; i++) ranks[i] = fuzz_chance(f, 97) ? i : ranks[i];
    tsh_status status =
        tsh_group_create_in(parent, fuzz_chance(f, 3) ? NULL : ranks, n, fuzz_chance(f, 3) ? NULL : &group);
    fuzz_made(f, FUZZ_GROUP, "group_create_in", status, group, NULL);
}

static void group_split(fuzz *f, void (*function)(void)) {
    tsh_group *group = NULL, *parent = fuzz_group(f);
    int modulus = 1 + fuzz_below(f, 3), key = fuzz_chance(f, 50) ? 0 : -f->rank->rank;
    int color = fuzz_chance(f, 90) ? f->rank->rank % modulus : fuzz_index(f, 2);
    (void)function;
    tsh_status status = tsh_group_split(parent, color, key, fuzz_chance(f, 3) ? NULL : &group);
    fuzz_made(f, FUZZ_GROUP, "group_split", status, group, NULL);
}

static void group_part(fuzz *f, void (*function)(void)) {
    tsh_group *group = fuzz_group(f);
    int64_t n = fuzz_index(f, 100), start = 0, length = 0;
    (void)function;
    tsh_group_part(group, n, fuzz_index(f, f->size), &start, fuzz_chance(f, 5) ? NULL : &length);
    if (start < 0 || length < 0 || (n >= 0 && start + length > n)) fuzz_wrong(f, "group_part");
}

/* Seldom measures, which takes a second. */
static void group_measure(fuzz *f, void (*function)(void)) {
    int64_t weights[FUZZ_RANKS] = {0};
    tsh_group *group = fuzz_chance(f, 95) ? NULL : fuzz_group(f);
    (void)function;
    fuzz_said(f, "group_measure", tsh_group_measure(group, fuzz_chance(f, 50) ? NULL : weights), NULL);
}

static void group_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    /* What goes with its owner is left alone. */
    tsh_group_destroy(f->slots[FUZZ_GROUP][0].object);
    tsh_group_destroy(tsh_mesh_axis_group(fuzz_pick(f, FUZZ_MESH), 0));
    fuzz_empty(f, FUZZ_GROUP, 1 + fuzz_below(f, 3));
}

static void group_questions(fuzz *f, void (*function)(void)) {
    tsh_group *group = fuzz_group(f);
    int rank = fuzz_index(f, f->size);
    (void)function;
    if (tsh_group_rank(group) >= tsh_group_size(group) && group) fuzz_wrong(f, "group_rank");
    int world_rank = tsh_group_world_rank(group, rank);
    if (world_rank >= 0 && tsh_group_rank_of(group, world_rank) != rank) fuzz_wrong(f, "group_rank_of");
    if (tsh_group_rank_of(group, rank) >= tsh_group_size(group) && group) fuzz_wrong(f, "group_rank_of");
    if (!tsh_group_backend(group) != !group || !tsh_group_world(group) != !group) fuzz_wrong(f, "group_backend");
    if (!tsh_group_mesh(group) != !group) fuzz_wrong(f, "group_mesh");
    tsh_group_stats(group);
    if (fuzz_chance(f, 20)) tsh_group_reset_stats(group);
    tsh_collective op = (tsh_collective)fuzz_index(f, TSH_COLLECTIVE_COUNT);
    tsh_dtype dtype = (tsh_dtype)fuzz_index(f, TSH_DTYPE_COUNT);
    tsh_reduce_op reduce = (tsh_reduce_op)fuzz_index(f, TSH_REDUCE_OP_COUNT);
    bool supports = tsh_group_supports(group, op, dtype, reduce);
    if (group && supports != tsh_backend_supports(tsh_group_backend(group), TSH_CPU, op, dtype, reduce)) {
        fuzz_wrong(f, "backend_supports and group_supports differ");
    }
    if (!tsh_collective_name(op)) fuzz_wrong(f, "collective_name");
}

static const char *some_axes(fuzz *f, char text[64]) {
    static const char *const odd[] = {"a",
                                      "a=",
                                      "=2",
                                      "a=2,",
                                      "a=1,a=1",
                                      "a=0",
                                      "a=-1,b=-1",
                                      "a=1,b=1,c=1,d=1,e=-1",
                                      "",
                                      "a=99999999999",
                                      "a b=1",
                                      NULL,
                                      "a=0:0",
                                      "a=1:",
                                      "a=:1",
                                      "a=1:-1",
                                      "a=99999999999:1"};
    int split = f->size % 2 == 0 && fuzz_chance(f, 50) ? 2 : 1;
    if (fuzz_chance(f, 8)) return odd[fuzz_below(f, (int)(sizeof odd / sizeof *odd))];
    if (fuzz_chance(f, 40)) { /* weights along one axis */
        size_t used = (size_t)snprintf(text, 64, fuzz_chance(f, 50) ? "b=%d,a=1" : "a=%d,b=1", split);
        for (int i = 1; i < f->size / split; i++)
            used += (size_t)snprintf(text + used, 64 - used, ":%d", fuzz_below(f, 4));
        return text;
    }
    snprintf(text, 64,
             fuzz_chance(f, 50)   ? "a=%d,b=%d"
             : fuzz_chance(f, 50) ? "a=%d,b=-1"
                                  : "a=-1,b=%d",
             split, f->size / split);
    return text;
}

void fuzz_make_mesh(fuzz *f, void (*function)(void)) {
    char text[64];
    tsh_mesh *mesh = NULL;
    const char *axes = some_axes(f, text);
    (void)function;
    tsh_status status = tsh_mesh_create(f->world, axes, fuzz_chance(f, 3) ? NULL : &mesh);
    fuzz_made(f, FUZZ_MESH, "mesh_create", status, mesh, NULL);
}

static void mesh_create_in(fuzz *f, void (*function)(void)) {
    char text[64];
    tsh_mesh *mesh = NULL;
    tsh_group *parent = fuzz_group(f);
    (void)function;
    if (fuzz_chance(f, 90)) {
        snprintf(text, sizeof text, fuzz_chance(f, 50) ? "x=-1" : "y=1,x=-1");
    } else {
        some_axes(f, text);
    }
    tsh_status status = tsh_mesh_create_in(parent, text, fuzz_chance(f, 3) ? NULL : &mesh);
    fuzz_made(f, FUZZ_MESH, "mesh_create_in", status, mesh, NULL);
}

/* All ranks in another order. */
static void mesh_create_on(fuzz *f, void (*function)(void)) {
    char text[64];
    int ranks[FUZZ_RANKS], turn = fuzz_below(f, f->size);
    tsh_mesh *mesh = NULL;
    const char *axes = some_axes(f, text);
    (void)function;
    for (int i = 0; i < f->size; i++) ranks[i] = (i + turn) % f->size;
    if (fuzz_chance(f, 5)) ranks[fuzz_below(f, f->size)] = fuzz_index(f, f->size + 1);
    int n = fuzz_chance(f, 5) ? fuzz_index(f, f->size) : f->size;
    tsh_status status =
        tsh_mesh_create_on(f->world, fuzz_chance(f, 3) ? NULL : ranks, n, axes, fuzz_chance(f, 3) ? NULL : &mesh);
    fuzz_made(f, FUZZ_MESH, "mesh_create_on", status, mesh, NULL);
}

static void mesh_fix(fuzz *f, void (*function)(void)) {
    const tsh_mesh *of = fuzz_mesh(f);
    int axis = fuzz_index(f, 2), index = fuzz_index(f, 2);
    tsh_mesh *mesh = NULL;
    (void)function;
    tsh_status status = tsh_mesh_fix(of, tsh_mesh_axis_name(of, axis), index, fuzz_chance(f, 3) ? NULL : &mesh);
    fuzz_made(f, FUZZ_MESH, "mesh_fix", status, mesh, NULL);
}

static void mesh_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    fuzz_empty(f, FUZZ_MESH, 1 + fuzz_below(f, 3));
}

static void mesh_questions(fuzz *f, void (*function)(void)) {
    const tsh_mesh *mesh = fuzz_mesh(f);
    int axis = fuzz_index(f, 2);
    const char *name = tsh_mesh_axis_name(mesh, axis);
    (void)function;
    bool exists = mesh && axis >= 0 && axis < tsh_mesh_axes(mesh);
    if (!name == exists) fuzz_wrong(f, "mesh_axis_name");
    if (tsh_mesh_group(mesh, name) != tsh_mesh_axis_group(mesh, axis)) fuzz_wrong(f, "mesh_group");
    if (!tsh_mesh_world(mesh) != !mesh) fuzz_wrong(f, "mesh_world");
    if (!tsh_mesh_members(mesh) != !mesh) fuzz_wrong(f, "mesh_members");
    if (tsh_mesh_is_member(mesh) != (tsh_group_rank(tsh_mesh_members(mesh)) >= 0)) fuzz_wrong(f, "mesh_is_member");
}

/* --- collectives: blocking, or started with the work in a slot ---------------------------------------------------- */

typedef struct arguments {
    tsh_group *group;
    tsh_tensor *x, *y;
    tsh_tensor *list[FUZZ_RANKS + 1], *others[FUZZ_RANKS + 1];
    int64_t counts[FUZZ_RANKS], *maybe_counts;
    int root;
    tsh_reduce_op op;
    tsh_work *work, **out;
} arguments;

static void draw_arguments(fuzz *f, arguments *a) {
    *a = (arguments){.group = fuzz_group(f), .x = fuzz_tensor(f)};
    a->y = fuzz_tensor_like(f, a->x);
    a->op = fuzz_reduce(f);
    a->root = fuzz_index(f, tsh_group_size(a->group));
    for (int i = 0; i <= FUZZ_RANKS; i++) {
        a->list[i] = fuzz_tensor_like(f, a->x);
        a->others[i] = fuzz_tensor_like(f, a->x);
    }
    for (int i = 0; i < FUZZ_RANKS; i++) a->counts[i] = fuzz_chance(f, 5) ? -fuzz_below(f, 9) : fuzz_below(f, 9);
    a->maybe_counts = fuzz_chance(f, 15) ? a->counts : NULL;
    a->out = fuzz_chance(f, 3) ? NULL : &a->work;
}

static void started(fuzz *f, const char *name, const arguments *a, tsh_status status) {
    fuzz_said(f, name, status, status != TSH_OK ? a->work : NULL);
    if (!a->work && status == TSH_OK) fuzz_wrong(f, "%s: TSH_OK and no work", name);
    fuzz_put(f, FUZZ_WORK, a->work, NULL);
}

#define OUT_PARTS (fuzz_chance(f, 3) ? NULL : a.list)
#define IN_PARTS  (fuzz_chance(f, 3) ? NULL : (const tsh_tensor *const *)a.others)

/* The first rank's elements. */
static void keep_first(void *user, tsh_dtype dtype, int64_t count, const void *from, void *into) {
    (void)user, (void)dtype, (void)count, (void)from, (void)into;
}

static void all_reduce_with(fuzz *f, void (*function)(void)) {
    arguments a;
    (void)function;
    draw_arguments(f, &a);
    int64_t item = fuzz_chance(f, 80) ? 1 : fuzz_index(f, 4);
    fuzz_said(f, "all_reduce_with", tsh_all_reduce_with(a.group, a.x, item, fuzz_chance(f, 3) ? NULL : keep_first, f),
              NULL);
}

#define BLOCKING(name, ...)                                                                                            \
    static void name(fuzz *f, void (*function)(void)) {                                                                \
        arguments a;                                                                                                   \
        (void)function;                                                                                                \
        draw_arguments(f, &a);                                                                                         \
        fuzz_said(f, #name, tsh_##name(__VA_ARGS__), NULL);                                                            \
    }                                                                                                                  \
    static void name##_async(fuzz *f, void (*function)(void)) {                                                        \
        arguments a;                                                                                                   \
        (void)function;                                                                                                \
        draw_arguments(f, &a);                                                                                         \
        started(f, #name, &a, tsh_##name##_async(__VA_ARGS__, a.out));                                                 \
    }

BLOCKING(all_reduce, a.group, a.x, a.op)
BLOCKING(all_gather_into_tensor, a.group, a.x, a.y, a.maybe_counts)
BLOCKING(reduce_scatter_tensor, a.group, a.x, a.y, a.maybe_counts, a.op)
BLOCKING(broadcast, a.group, a.x, a.root)
BLOCKING(all_to_all, a.group, a.x, a.maybe_counts, a.y, a.maybe_counts)
BLOCKING(reduce_to_root, a.group, a.x, a.op, a.root)
BLOCKING(gather_to_root, a.group, a.x, a.y, a.maybe_counts, a.root)
BLOCKING(scatter_from_root, a.group, a.x, a.y, a.maybe_counts, a.root)
BLOCKING(barrier, a.group)
BLOCKING(all_gather_list, a.group, a.x, OUT_PARTS)
BLOCKING(reduce_scatter_list, a.group, IN_PARTS, a.x, a.op)
BLOCKING(all_to_all_list, a.group, IN_PARTS, OUT_PARTS)

static void work_test(fuzz *f, void (*function)(void)) {
    bool done = false;
    (void)function;
    fuzz_said(f, "work_test", tsh_work_test(fuzz_pick(f, FUZZ_WORK), fuzz_chance(f, 3) ? NULL : &done), NULL);
}

static void work_wait(fuzz *f, void (*function)(void)) {
    tsh_work *work = fuzz_pick(f, FUZZ_WORK);
    (void)function;
    fuzz_said(f, "work_wait", tsh_work_wait(work), NULL);
    tsh_work_sender(work);
}

static void work_release(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_work_release(NULL);
    fuzz_empty(f, FUZZ_WORK, fuzz_below(f, 5));
}

/* --- messages: between two of a group's ranks --------------------------------------------------------------------- */

/* What a rank does in this step: -1 nothing, 0 sends, 1 receives. */
static int part_of(fuzz *f, tsh_group *group, int *to, int *from) {
    *from = fuzz_index(f, tsh_group_size(group));
    *to = fuzz_index(f, tsh_group_size(group));
    if (tsh_group_rank(group) == *from) return 0;
    return tsh_group_rank(group) == *to ? 1 : -1;
}

/* A receive from any rank is drawn only where a rank sends: otherwise it would wait for ever. */
static int sender_for(fuzz *f, const tsh_group *group, int from) {
    bool any = fuzz_chance(f, 20);
    bool sends = from >= 0 && from < tsh_group_size(group);
    return any && sends ? TSH_ANY_RANK : from == TSH_ANY_RANK ? INT_MIN : from;
}

/* A message that was not sent is waited for. */
static void give_up(fuzz *f, tsh_status status) {
    if (status == TSH_OK) return;
    tsh_world_fail(f->world, "a message could not be sent or received");
    f->failed = true;
}

static void message(fuzz *f, void (*function)(void)) {
    int to, from, sender;
    tsh_group *group = fuzz_group(f);
    tsh_tensor *x = fuzz_tensor(f), *y = fuzz_tensor_like(f, x);
    int part = part_of(f, group, &to, &from);
    int named = sender_for(f, group, from);
    (void)function;
    tsh_status status = TSH_OK;
    if (part == 0) status = tsh_send(group, x, to);
    if (part == 1) status = tsh_recv(group, y, named, named < 0 ? NULL : &sender);
    fuzz_said(f, "message", status, NULL);
    give_up(f, status);
}

static void message_async(fuzz *f, void (*function)(void)) {
    int to, from;
    arguments a;
    draw_arguments(f, &a);
    int part = part_of(f, a.group, &to, &from);
    int named = sender_for(f, a.group, from);
    (void)function;
    tsh_status status = TSH_OK;
    if (part == 0) status = tsh_send_async(a.group, a.x, to, a.out);
    if (part == 1) status = tsh_recv_async(a.group, a.y, named, a.out);
    fuzz_said(f, "message_async", status, status != TSH_OK ? a.work : NULL);
    fuzz_put(f, FUZZ_WORK, a.work, NULL);
    give_up(f, status);
}

static void message_new(fuzz *f, void (*function)(void)) {
    int to, from, sender;
    tsh_group *group = fuzz_group(f);
    const tsh_mesh *mesh = fuzz_mesh(f);
    tsh_tensor *x = fuzz_tensor(f), *fresh = NULL;
    int part = part_of(f, group, &to, &from);
    bool no_out = fuzz_chance(f, 2);
    int named = sender_for(f, group, from);
    tsh_status status = TSH_OK;
    (void)function;
    if (part == 0) status = tsh_send_new(group, x, to);
    if (part == 1) status = tsh_recv_new(group, mesh, named, &sender, no_out ? NULL : &fresh);
    fuzz_said(f, "message_new", status, status != TSH_OK ? fresh : NULL);
    give_up(f, status);
    tsh_tensor_release(fresh); /* only one rank has it */
}

const fuzz_call fuzz_dist_calls[] = {
    {"tsh_thread_rendezvous_create tsh_thread_rendezvous_destroy", threads_create, NULL, 1},
    {"tsh_world_init", world_init, NULL, 2},
#ifdef TSHARD_HAVE_MPI
    {"tsh_world_init_mpi tsh_world_init_mpi_f", world_init_mpi, NULL, 1},
#endif
    {"tsh_world_destroy", world_destroy, NULL, 1},
    {"tsh_world_rank tsh_world_size tsh_world_local_rank tsh_world_node_count tsh_world_uses_rdma tsh_world_device "
     "tsh_world_group tsh_world_mesh",
     world_questions, NULL, 2},
    {"tsh_world_seed", world_seed, NULL, 1},
    {"tsh_trace_start tsh_trace_stop tsh_trace_begin tsh_trace_end", trace, NULL, 1},
    {"tsh_world_fail", world_fail, NULL, 1},
    {"tsh_world_recover", world_recover, NULL, 2},
    {"tsh_world_continue", world_continue, NULL, 1},
    {"tsh_world_joiners tsh_world_has_joined", world_joiners, NULL, 1},
    {"tsh_group_create", group_create, NULL, 1},
    {"tsh_group_create_in", group_create_in, NULL, 1},
    {"tsh_group_split", group_split, NULL, 1},
    {"tsh_group_part", group_part, NULL, 1},
    {"tsh_group_measure", group_measure, NULL, 1},
    {"tsh_group_destroy", group_destroy, NULL, 1},
    {"tsh_group_rank tsh_group_size tsh_group_world_rank tsh_group_backend tsh_group_rank_of tsh_group_world "
     "tsh_group_mesh tsh_group_stats tsh_group_reset_stats tsh_group_supports tsh_backend_supports "
     "tsh_collective_name",
     group_questions, NULL, 3},
    {"tsh_mesh_create", fuzz_make_mesh, NULL, 1},
    {"tsh_mesh_create_in", mesh_create_in, NULL, 1},
    {"tsh_mesh_create_on", mesh_create_on, NULL, 1},
    {"tsh_mesh_fix", mesh_fix, NULL, 1},
    {"tsh_mesh_destroy", mesh_destroy, NULL, 1},
    {"tsh_mesh_group tsh_mesh_axes tsh_mesh_axis_group tsh_mesh_axis_name tsh_mesh_world tsh_mesh_members "
     "tsh_mesh_is_member",
     mesh_questions, NULL, 2},
    {"tsh_all_reduce", all_reduce, NULL, 5},
    {"tsh_all_reduce_with", all_reduce_with, NULL, 3},
    {"tsh_all_gather_into_tensor", all_gather_into_tensor, NULL, 4},
    {"tsh_reduce_scatter_tensor", reduce_scatter_tensor, NULL, 4},
    {"tsh_broadcast", broadcast, NULL, 4},
    {"tsh_all_to_all", all_to_all, NULL, 4},
    {"tsh_reduce_to_root", reduce_to_root, NULL, 4},
    {"tsh_gather_to_root", gather_to_root, NULL, 4},
    {"tsh_scatter_from_root", scatter_from_root, NULL, 4},
    {"tsh_barrier", barrier, NULL, 3},
    {"tsh_all_gather_list", all_gather_list, NULL, 3},
    {"tsh_reduce_scatter_list", reduce_scatter_list, NULL, 3},
    {"tsh_all_to_all_list", all_to_all_list, NULL, 3},
    {"tsh_all_reduce_async", all_reduce_async, NULL, 4},
    {"tsh_all_gather_into_tensor_async", all_gather_into_tensor_async, NULL, 3},
    {"tsh_reduce_scatter_tensor_async", reduce_scatter_tensor_async, NULL, 3},
    {"tsh_broadcast_async", broadcast_async, NULL, 3},
    {"tsh_all_to_all_async", all_to_all_async, NULL, 3},
    {"tsh_reduce_to_root_async", reduce_to_root_async, NULL, 3},
    {"tsh_gather_to_root_async", gather_to_root_async, NULL, 3},
    {"tsh_scatter_from_root_async", scatter_from_root_async, NULL, 3},
    {"tsh_barrier_async", barrier_async, NULL, 2},
    {"tsh_all_gather_list_async", all_gather_list_async, NULL, 3},
    {"tsh_reduce_scatter_list_async", reduce_scatter_list_async, NULL, 3},
    {"tsh_all_to_all_list_async", all_to_all_list_async, NULL, 3},
    {"tsh_work_test", work_test, NULL, 6},
    {"tsh_work_wait tsh_work_sender", work_wait, NULL, 8},
    {"tsh_work_release", work_release, NULL, 6},
    {"tsh_send tsh_recv", message, NULL, 6},
    {"tsh_send_async tsh_recv_async", message_async, NULL, 6},
    {"tsh_send_new tsh_recv_new", message_new, NULL, 4},
    {NULL, NULL, NULL, 0},
};
