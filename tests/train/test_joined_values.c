/* Ranks that join get values bitwise: parameters, optimizer states and master weights, on other meshes and in other
 * layouts. */
#include "support/ranks.h"
#include "train/optimizer.h"
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IN = 11, OUT = 7, BATCH = 6, MEMBERS = 2, TENSORS = 8, ROOM = IN * OUT * 8, STEPS = 4 };

typedef struct plan {
    const char *before, *after; /* meshes */
    tsh_zero_level level;
    tsh_dtype dtype;
    bool frozen; /* the bias is not learnt */
} plan;

typedef struct model {
    tsh_mesh *mesh;
    tsh_linear *layer;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
    tsh_tensor *x, *target;
} model;

static void open_model(tshi_rank *r, model *m, tsh_world *world, const char *axes, const plan *p) {
    const tsh_linear_config layer = {
        .dtype = p->dtype, .in_features = IN, .out_features = OUT, .shard = TSH_COLUMN, .bias = true};
    const tsh_tensor_config x = {.dtype = p->dtype, .ndim = 2, .shape = {BATCH, IN}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config target = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
    *m = (model){.mesh = NULL};
    if (!tshi_check_ok(r, tsh_mesh_create(world, axes, &m->mesh))) return;
    tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(m->mesh, "model"), &layer, &m->layer));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &x, &m->x));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &target, &m->target));
    tshi_check_ok(r, tsh_tape_create(world, &m->tape));
    tshi_check_ok(r, tsh_parameters_create(world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->layer, m->list, "layer"));
    tsh_tensor_fill(m->x, 0.25);
    tsh_tensor_fill(m->target, 3);
    if (p->frozen) tshi_check_ok(r, tsh_parameters_freeze(m->list, "layer.bias"));
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
    tsh_linear_destroy(m->layer);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
}

static tsh_status make_step(model *m) {
    tsh_tensor *y = tsh_linear_forward(m->tape, m->layer, m->x);
    tsh_status status = tsh_backward(m->tape, tsh_cross_entropy(m->tape, y, m->target, NULL));
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_status reset = tsh_tape_reset(m->tape);
    return status == TSH_OK ? reset : status;
}

/* The whole values of parameters, states and master weights, one after another. */
static void read_all(tshi_rank *r, const model *m, char *out) {
    tsh_tensor *t[TENSORS];
    int n = 0;
    for (int i = 0; i < m->list->count; i++) t[n++] = m->list->items[i].tensor;
    for (int i = 0; i < m->optimizer->count; i++) {
        const tshi_optimizer_slot *slot = &m->optimizer->slots[i];
        for (int k = 0; k < 2; k++) {
            if (slot->state[k]) t[n++] = slot->state[k];
        }
        if (slot->master) t[n++] = slot->master;
    }
    for (int i = 0; i < n && !r->failed; i++) tshi_check_ok(r, tsh_tensor_read_whole(t[i], out + (size_t)i * ROOM));
}

/* On a member: the world with those that have joined, and the values before. */
static tsh_world *train_and_grow(tshi_rank *r, const plan *p, model *m, tsh_protection **protection, char *wanted) {
    tsh_world *next = NULL;
    int count = 0;
    open_model(r, m, r->world, p->before, p);
    if (r->failed || !tshi_check_ok(r, tsh_protection_create(m->list, m->optimizer, 2, protection))) return NULL;
    tshi_check_ok(r, tsh_protection_step(*protection, 0));
    for (int s = 0; s < STEPS && !r->failed; s++) {
        tshi_check_ok(r, make_step(m));
        tshi_check_ok(r, tsh_protection_step(*protection, s + 1));
    }
    read_all(r, m, wanted);
    while (count < r->size - MEMBERS && tshi_check_ok(r, tsh_world_joiners(r->world, &count))) usleep(1000);
    tshi_check_ok(r, tsh_world_continue(r->world, &(tsh_continue_config){.step = STEPS}, &next, NULL));
    return next;
}

static void grows(tshi_rank *r, void *arg) {
    static char wanted[TENSORS * ROOM], found[TENSORS * ROOM];
    const plan *p = arg;
    const bool joins = r->rank >= MEMBERS;
    model before = {.mesh = NULL}, after;
    tsh_protection *protection = NULL;
    char text[64];
    int64_t at = -1;
    snprintf(text, sizeof text, "127.0.0.1:%d", tshi_test_master_port());
    if (joins) setenv("TSHARD_JOIN", text, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    tsh_world *next = joins ? r->world : train_and_grow(r, p, &before, &protection, wanted);
    if (r->failed) return;
    open_model(r, &after, next, p->after, p);
    if (r->failed) return;
    tshi_check_ok(r, tsh_protection_move(protection, after.list, after.optimizer, &at));
    tshi_check(r, at == STEPS, "step %lld", (long long)at);
    if (!r->failed) read_all(r, &after, found);
    tshi_check(r, joins || memcmp(wanted, found, sizeof found) == 0, "the values differ");
    if (!r->failed) tshi_check_ok(r, make_step(&after));
    close_model(&after);
    tsh_protection_destroy(protection);
    if (!joins) close_model(&before);
    if (!joins) tsh_world_destroy(r->world);
    tsh_world_destroy(next);
}

static void check(int ranks, const plan *p) {
    const tshi_test_options options = {.ranks = ranks, .bare = true, .timeout = 60};
    const char *words = tshi_test_run_with(&options, grows, (void *)(uintptr_t)p, NULL, NULL);
    cr_assert_str_empty(words, "%s to %s: %s", p->before, p->after, words);
}

Test(joined_values, of_other_meshes, .timeout = 300) {
    check(3, &(plan){"data=1,model=2", "data=1,model=3", .dtype = TSH_FLOAT32});
    check(4, &(plan){"data=2,model=1", "data=2,model=2", .dtype = TSH_FLOAT64});
    check(3, &(plan){"data=1,model=3:1", "data=1,model=2:1:4", .dtype = TSH_FLOAT32, .frozen = true});
}

Test(joined_values, of_sharded_optimizers, .timeout = 300) {
    check(4, &(plan){"data=2,model=1", "data=4,model=1", TSH_ZERO_GRADIENTS, TSH_BFLOAT16, false});
    check(3, &(plan){"data=2,model=1", "data=3,model=1", TSH_ZERO_OPTIMIZER, TSH_FLOAT32, true});
    check(3, &(plan){"data=2,model=1", "data=3,model=1", TSH_ZERO_PARAMETERS, TSH_BFLOAT16, false});
}
