/* A step like the one before it chooses nothing: plans are made in the first forward, and neither backward, nor a
 * segment that runs again, nor a later step makes one. */
#include "autograd/plan/plan.h"
#include "autograd/tape.h"
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>

TestSuite(plan_kept, .timeout = 120);

typedef struct model {
    tsh_linear *up, *down;
    tsh_tensor *x, *positions;
} model;

static model make_model(tshi_rank *r) {
    model m = {0};
    tsh_group *group = tsh_world_group(r->world);
    const tsh_linear_config up = {.in_features = 6, .out_features = 9, .shard = TSH_COLUMN, .bias = true};
    const tsh_linear_config down = {.in_features = 9, .out_features = 6, .shard = TSH_ROW, .bias = true};
    const tsh_tensor_config x = {.ndim = 2, .shape = {4, 6}}, positions = {.dtype = TSH_INT64, .ndim = 1, .shape = {4}};
    tshi_check_ok(r, tsh_linear_create(group, &up, &m.up));
    tshi_check_ok(r, tsh_linear_create(group, &down, &m.down));
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &x, -1, 0.125, &m.x));
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &positions, 0, 1, &m.positions));
    return m;
}

static void free_model(model *m) {
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
    tsh_tensor_release(m->x);
    tsh_tensor_release(m->positions);
}

/* Casts, transitions, and parameters with padding between their members. */
static tsh_tensor *loss_of(tsh_tape *tape, const model *m) {
    tsh_mark start = tsh_tape_mark(tape);
    tsh_tensor *h = tsh_linear_forward(tape, m->down, tsh_gelu(tape, tsh_linear_forward(tape, m->up, m->x)));
    h = tsh_tape_recompute_since(tape, start, h);
    h = tsh_redistribute(tape, h, NULL, (tsh_layout[]){TSH_SHARD(1)});
    h = tsh_softmax(tape, tsh_redistribute(tape, h, NULL, (tsh_layout[]){TSH_SHARD(0)}), 1);
    h = tsh_reshape(tape, h, 4, (int64_t[]){1, 4, 1, 6});
    h = tsh_rotary(tape, h, m->positions, NULL);
    return tsh_full(tape, tsh_sum(tape, tsh_cast(tape, h, TSH_FLOAT64), TSH_ALL_DIMS));
}

static void steps_make_no_plan_but_the_first(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    model m = make_model(r);
    uint64_t first = 0;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int step = 0; step < 3 && !r->failed; step++) {
        tsh_tensor *loss = loss_of(tape, &m);
        uint64_t forward = tshi_plans_made(tape->plans);
        tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
        uint64_t made = tshi_plans_made(tape->plans);
        tshi_check(r, made == forward, "backward made %llu plans", (unsigned long long)(made - forward));
        if (step == 0) first = made;
        tshi_check(r, first > 0 && made == first, "step %d: %llu plans, %llu in the first one", step,
                   (unsigned long long)made, (unsigned long long)first);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tape_destroy(tape);
    free_model(&m);
}

Test(plan_kept, steps_make_no_plan_but_the_first) {
    cr_assert_str_empty(tshi_test_run(2, steps_make_no_plan_but_the_first, NULL));
}

/* Another shape is another plan. */
static void other_sizes_make_plans(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int rows = 1; rows <= 3; rows++) {
        const tsh_tensor_config config = {.ndim = 2, .shape = {rows, 6}};
        tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, -1, 0.125, &x));
        tshi_check(r, tsh_gelu(tape, x) != NULL, "%s", tsh_tape_message(tape));
        tshi_check(r, tshi_plans_made(tape->plans) == (uint64_t)rows, "%d sizes", rows);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(x);
    }
    tsh_tape_destroy(tape);
}

Test(plan_kept, other_sizes_make_plans) {
    cr_assert_str_empty(tshi_test_run(2, other_sizes_make_plans, NULL));
}
