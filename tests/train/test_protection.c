/* Values that outlive ranks: bitwise those of a whole step, on other meshes and in other layouts. */
#include "dist/world.h"
#include "support/ranks.h"
#include "train/protection.h"
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IN = 13, HIDDEN = 22, OUT = 7, BATCH = 12, MOST = 16 };

/* A model in a world. */
typedef struct model {
    tsh_world *world;
    tsh_mesh *mesh;
    tsh_linear *up, *down;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
    tsh_tensor *x, *target;
} model;

typedef struct plan {
    const char *before, *after; /* meshes */
    tsh_zero_level level;
    tsh_dtype dtype;
    int every, victim, victims, die_at; /* ranks victim, victim + 2, ... die after die_at steps */
    int64_t goes_on_at;                 /* -1: nothing is whole */
} plan;

static void open_model(tshi_rank *r, model *m, tsh_world *world, const char *axes, const plan *p) {
    tsh_linear_config up = {
        .dtype = p->dtype, .in_features = IN, .out_features = HIDDEN, .shard = TSH_COLUMN, .bias = true};
    tsh_linear_config down = {
        .dtype = p->dtype, .in_features = HIDDEN, .out_features = OUT, .shard = TSH_ROW, .bias = true};
    tsh_tensor_config x = {.dtype = p->dtype, .ndim = 2, .shape = {BATCH, IN}, .layout = {TSH_SHARD(0)}};
    tsh_tensor_config target = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
    *m = (model){.world = world};
    if (!tshi_check_ok(r, tsh_mesh_create(world, axes, &m->mesh))) return;
    tsh_group *group = tsh_mesh_group(m->mesh, "model");
    tshi_check_ok(r, tsh_linear_create(group, &up, &m->up));
    tshi_check_ok(r, tsh_linear_create(group, &down, &m->down));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &x, &m->x));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &target, &m->target));
    tshi_check_ok(r, tsh_tape_create(world, &m->tape));
    tshi_check_ok(r, tsh_parameters_create(world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->up, m->list, "up"));
    tshi_check_ok(r, tsh_linear_register(m->down, m->list, "down"));
    tsh_tensor_fill(m->x, 0.25);
    tsh_tensor_fill(m->target, 3);
    if (p->level)
        tshi_check_ok(r, tsh_data_parallel_create(m->tape, m->list, tsh_mesh_group(m->mesh, "data"),
                                                  &(tsh_data_parallel_config){.level = p->level}, &m->dp));
    tsh_low_bits bits = p->dtype == TSH_BFLOAT16 ? TSH_MASTER_WEIGHTS : TSH_LOSE_LOW_BITS;
    tshi_check_ok(r, tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 0.01, .low_bits = bits}, &m->optimizer));
}

static void close_model(model *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_data_parallel_destroy(m->dp);
    tsh_parameters_destroy(m->list);
    tsh_tensor_release(m->target);
    tsh_tensor_release(m->x);
    tsh_linear_destroy(m->down);
    tsh_linear_destroy(m->up);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
}

static tsh_status step(model *m) {
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, tsh_linear_forward(m->tape, m->up, m->x));
    tsh_status status = tsh_backward(m->tape, tsh_cross_entropy(m->tape, y, m->target, NULL));
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_status reset = tsh_tape_reset(m->tape);
    return status == TSH_OK ? reset : status;
}

/* Parameters, then the optimizer's states and master weights. */
static int tensors_of(const model *m, tsh_tensor *out[MOST]) {
    int n = 0;
    for (int i = 0; i < m->list->count; i++) out[n++] = m->list->items[i].tensor;
    for (int i = 0; i < m->optimizer->count; i++) {
        tshi_optimizer_slot *slot = &m->optimizer->slots[i];
        out[n++] = slot->state[0];
        out[n++] = slot->state[1];
        if (slot->master) out[n++] = slot->master;
    }
    return n;
}

enum { ROOM = IN * HIDDEN * 4 };

/* The whole values of all tensors, one after another. */
static void read_all(tshi_rank *r, const model *m, char *out) {
    tsh_tensor *t[MOST];
    int n = tensors_of(m, t);
    for (int i = 0; i < n && !r->failed; i++) {
        tshi_check_ok(r, tsh_tensor_read_whole(t[i], out + (size_t)i * ROOM));
    }
}

static bool dies(const plan *p, int rank) {
    int distance = rank - p->victim;
    return distance >= 0 && distance % 2 == 0 && distance / 2 < p->victims;
}

static void outlives(tshi_rank *r, void *arg) {
    const plan *p = arg;
    static char wanted[32][MOST * ROOM], found[MOST * ROOM];
    model before, after;
    tsh_protection *protection;
    tsh_world *next = NULL;
    int64_t at = -1;
    open_model(r, &before, r->world, p->before, p);
    if (r->failed || !tshi_check_ok(r, tsh_protection_create(before.list, before.optimizer, p->every, &protection)))
        return;
    tshi_check_ok(r, tsh_protection_step(protection, 0));
    for (int s = 0; s < p->die_at && !r->failed; s++) {
        read_all(r, &before, wanted[s]);
        tshi_check_ok(r, step(&before));
        tshi_check_ok(r, tsh_protection_step(protection, s + 1));
    }
    read_all(r, &before, wanted[p->die_at]);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (dies(p, r->rank)) kill(getpid(), SIGKILL);
    tsh_status status = r->failed ? TSH_ERR_STATE : step(&before);
    tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
    if (r->failed || !tshi_check_ok(r, tsh_world_continue(r->world, NULL, &next, NULL))) return;
    open_model(r, &after, next, p->after, p);
    if (r->failed) return;
    status = tsh_protection_move(protection, after.list, after.optimizer, &at);
    if (p->goes_on_at < 0) {
        tshi_check(r, status == TSH_ERR_STATE && strstr(tsh_error_message(), "no rank has the part of 'up.weight'"),
                   "%s: %s", tsh_status_name(status), tsh_error_message());
    } else if (tshi_check(r, status == TSH_OK && at == p->goes_on_at, "step %lld: %s", (long long)at,
                          tsh_error_message())) {
        read_all(r, &after, found);
        tshi_check(r, !memcmp(found, wanted[at], sizeof found), "the values are not those of step %lld", (long long)at);
        tshi_check(r, after.optimizer->slots[0].steps == at, "%lld steps", (long long)after.optimizer->slots[0].steps);
        tshi_check_ok(r, step(&after));
    }
    tsh_protection_destroy(protection);
    close_model(&after);
    tsh_world_destroy(next);
    close_model(&before);
}

static void check(const plan *p) {
    tshi_outcome outcomes[4];
    const tshi_test_options options = {.ranks = 4, .timeout = 100};
    tshi_test_run_with(&options, outlives, (void *)(uintptr_t)p, outcomes, NULL);
    for (int i = 0; i < 4; i++) {
        if (!dies(p, i))
            cr_assert(outcomes[i].code == 0, "%s to %s, level %d: rank %d: %s", p->before, p->after, (int)p->level, i,
                      outcomes[i].words);
    }
}

Test(protection, replicas_have_the_last_step, .timeout = 120) {
    check(&(plan){"data=4,model=1", "data=3,model=1", .every = 0, .victim = 1, .victims = 1, .die_at = 3,
                  .goes_on_at = 3});
    check(&(plan){"data=2,model=2", "data=1,model=3", .every = 0, .victim = 0, .victims = 1, .die_at = 3,
                  .goes_on_at = 3});
    check(&(plan){"data=2,model=2", "data=3,model=1", .every = 5, .victim = 3, .victims = 1, .die_at = 3,
                  .goes_on_at = 3});
}

Test(protection, copies_have_an_earlier_step, .timeout = 120) {
    check(&(plan){"data=1,model=4", "data=1,model=3", .every = 1, .victim = 2, .victims = 1, .die_at = 4,
                  .goes_on_at = 4});
    check(&(plan){"data=1,model=4", "data=3,model=1", .every = 3, .victim = 0, .victims = 1, .die_at = 4,
                  .goes_on_at = 3});
    check(&(plan){"data=1,model=4", "data=1,model=2", .every = 2, .victim = 1, .victims = 2, .die_at = 5,
                  .goes_on_at = 4});
    check(&(plan){"data=2,model=2", "data=1,model=2", .every = 2, .victim = 0, .victims = 2, .die_at = 5,
                  .goes_on_at = 4});
}

Test(protection, slices_of_zero, .timeout = 120) {
    for (int level = TSH_ZERO_OPTIMIZER; level <= TSH_ZERO_PARAMETERS; level++) {
        check(&(plan){"data=4,model=1", "data=3,model=1", .level = (tsh_zero_level)level, .every = 2, .victim = 1,
                      .victims = 1, .die_at = 4, .goes_on_at = 4});
        check(&(plan){"data=2,model=2", "data=3,model=1", .level = (tsh_zero_level)level, .every = 2, .victim = 3,
                      .victims = 1, .die_at = 3, .goes_on_at = 2});
    }
}

Test(protection, master_weights, .timeout = 120) {
    check(&(plan){"data=2,model=2", "data=1,model=3", .dtype = TSH_BFLOAT16, .every = 2, .victim = 1, .victims = 1,
                  .die_at = 3, .goes_on_at = 3});
    check(&(plan){"data=1,model=4", "data=1,model=3", .dtype = TSH_BFLOAT16, .every = 2, .victim = 1, .victims = 1,
                  .die_at = 3, .goes_on_at = 2});
}

Test(protection, what_is_lost_is_named, .timeout = 120) {
    check(&(plan){"data=1,model=4", "data=1,model=3", .every = 0, .victim = 1, .victims = 1, .die_at = 3,
                  .goes_on_at = -1});
}

static void refuses(tshi_rank *r, void *arg) {
    const plan *p = arg;
    model m;
    int64_t at;
    tsh_protection *protection = NULL;
    open_model(r, &m, r->world, "data=1,model=2", p);
    tshi_check_status(r, tsh_protection_create(NULL, NULL, 1, &protection), TSH_ERR_ARGUMENT, "parameters");
    tshi_check_status(r, tsh_protection_create(m.list, NULL, -1, &protection), TSH_ERR_ARGUMENT, "every");
    tshi_check_ok(r, tsh_protection_create(m.list, NULL, 1, &protection));
    tshi_check_status(r, tsh_protection_step(protection, -1), TSH_ERR_ARGUMENT, "step");
    tshi_check_status(r, tsh_protection_step(NULL, 1), TSH_ERR_ARGUMENT, "step");
    tshi_check_status(r, tsh_protection_move(protection, m.list, NULL, &at), TSH_ERR_ARGUMENT,
                      "the world that follows");
    tsh_protection_destroy(protection);
    tsh_protection_destroy(NULL);
    close_model(&m);
}

/* An allocator without memory from the allocation number `left` on. */
typedef struct allocations {
    tsh_allocator from;
    int left;
} allocations;

static void *allocate(void *user, size_t size) {
    allocations *a = user;
    return a->left-- > 0 ? a->from.alloc(a->from.user, size) : NULL;
}

static void release(void *user, void *pointer) {
    allocations *a = user;
    a->from.release(a->from.user, pointer);
}

static void list_without_memory(tshi_rank *r, void *arg) {
    model m;
    tsh_status status = TSH_ERR_MEMORY;
    open_model(r, &m, r->world, "data=1,model=2", arg);
    allocations a = {r->world->allocator, 0};
    for (int n = 0; !r->failed && status != TSH_OK; n++) {
        tshi_protected *items = NULL;
        int count = -1;
        a.left = n;
        r->world->allocator = (tsh_allocator){.alloc = allocate, .release = release, .user = &a};
        status = tshi_protected_list(m.list, m.optimizer, &items, &count);
        r->world->allocator = a.from;
        bool good = status == TSH_OK ? n > 2 && items && count > 4 : status == TSH_ERR_MEMORY && !items && count == 0;
        tshi_check(r, good, "%d allocations: %s, %d items", n, tsh_status_name(status), count);
        if (items) tshi_protected_free(&r->world->allocator, items, count);
    }
    close_model(&m);
}

Test(protection, a_list_that_cannot_be_made_is_empty, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, list_without_memory, &(plan){.every = 1}));
}

Test(protection, wrong_use, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, refuses, &(plan){.every = 1}));
}
