/* Parameters that are written between two calls of a step, read through views too: at each level what comes of it is
 * what comes of it without a level, or an error on all ranks that says what to do. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 4, COLS = 3, NUMEL = ROWS * COLS };

typedef struct kit {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_tensor *p, *q; /* in a bucket each */
    tsh_parameters *list;
    tsh_data_parallel *dp;
} kit;

static void make_parameter(tshi_rank *r, kit *k, const char *name, int64_t rows, tsh_tensor **out) {
    const tsh_tensor_config matrix = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, COLS}};
    tshi_check_ok(r, tsh_tensor_create(k->mesh, &matrix, out));
    tshi_check_ok(r, tsh_tensor_fill(*out, 1));
    tshi_check_ok(r, tsh_tensor_require_grad(*out, true));
    tshi_check_ok(r, tsh_parameters_add(k->list, name, *out));
}

static void make_kit(tshi_rank *r, int level, int64_t rows, kit *k) {
    const tsh_data_parallel_config config = {.level = (tsh_zero_level)level, .bucket_bytes = 8};
    *k = (kit){0};
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &k->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    make_parameter(r, k, "p", rows, &k->p);
    make_parameter(r, k, "q", ROWS, &k->q);
    tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, tsh_mesh_group(k->mesh, "data"), &config, &k->dp));
}

static void free_kit(kit *k) {
    tsh_tape_destroy(k->tape);
    tsh_data_parallel_destroy(k->dp);
    tsh_parameters_destroy(k->list);
    tsh_tensor_release(k->p);
    tsh_tensor_release(k->q);
    tsh_mesh_destroy(k->mesh);
}

typedef tsh_tensor *view_fn(tsh_tape *tape, tsh_tensor *x);

static tsh_tensor *itself(tsh_tape *tape, tsh_tensor *x) {
    (void)tape;
    return x;
}

static tsh_tensor *in_a_row(tsh_tape *tape, tsh_tensor *x) {
    return tsh_reshape(tape, x, 1, (int64_t[]){-1});
}

static tsh_tensor *turned(tsh_tape *tape, tsh_tensor *x) {
    return tsh_transpose(tape, in_a_row(tape, tsh_transpose(tape, x, 0, 1)), 0, 0);
}

static tsh_tensor *sliced(tsh_tape *tape, tsh_tensor *x) {
    return tsh_slice(tape, x, 0, 1, 2);
}

static tsh_tensor *with_one_more(tsh_tape *tape, tsh_tensor *x) {
    return tsh_transpose(tape, tsh_reshape(tape, x, 3, (int64_t[]){ROWS, 1, COLS}), 0, 1);
}

static view_fn *const views[] = {itself, in_a_row, turned, sliced, with_one_more};
enum { VIEWS = sizeof views / sizeof *views };

/* The sums of the view before and after the write, the gradient, and the view's sum when q has been used since. */
typedef struct seen {
    double before, after, later, gradient;
} seen;

static double sum_of(tshi_rank *r, kit *k, tsh_tensor *x) {
    tsh_tensor *sum = tsh_sum(k->tape, x, TSH_ALL_DIMS);
    return tshi_check(r, sum, "%s", tsh_tape_message(k->tape)) ? tsh_tensor_item(sum) : 0;
}

static void look(tshi_rank *r, int level, view_fn *view, seen *out) {
    kit k;
    double gradient[NUMEL] = {0};
    out->gradient = 0;
    make_kit(r, level, ROWS, &k);
    tsh_tensor *v = view(k.tape, k.p), *loss = tsh_sum(k.tape, v, TSH_ALL_DIMS);
    out->before = tsh_tensor_item(loss);
    tshi_check_ok(r, tsh_tensor_fill(k.p, 3));
    tsh_tensor *after = tsh_sum(k.tape, v, TSH_ALL_DIMS);
    out->after = tsh_tensor_item(after);
    loss = tsh_add(k.tape, loss, tsh_add(k.tape, after, tsh_sum(k.tape, k.q, TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_tensor_fill(k.p, 5));
    tsh_tensor *later = tsh_sum(k.tape, v, TSH_ALL_DIMS);
    out->later = tsh_tensor_item(later);
    loss = tsh_add(k.tape, loss, later);
    tshi_check_ok(r, tsh_backward(k.tape, loss));
    tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(k.p), gradient));
    for (int i = 0; i < NUMEL; i++) out->gradient += gradient[i] * (i + 1);
    free_kit(&k);
}

static void written(tshi_rank *r, void *arg) {
    (void)arg;
    for (int i = 0; i < VIEWS; i++) {
        seen plain, level;
        look(r, 0, views[i], &plain);
        for (int l = 1; l <= 3; l++) {
            look(r, l, views[i], &level);
            tshi_check(r, !memcmp(&plain, &level, sizeof plain), "view %d, level %d: %g %g %g %g for %g %g %g %g", i, l,
                       level.before, level.after, level.later, level.gradient, plain.before, plain.after, plain.later,
                       plain.gradient);
        }
    }
}

Test(written_values, views_have_what_the_parameter_has, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, written, NULL));
}

/* A view that is not used by a function has the values that were gathered, never earlier ones, and takes none. */
static void read_through_a_view(tshi_rank *r, void *arg) {
    double values[NUMEL] = {0};
    (void)arg;
    for (int level = 1; level <= 3; level++) {
        kit k;
        make_kit(r, level, ROWS, &k);
        tsh_tensor *v = in_a_row(k.tape, k.p);
        tshi_check(r, sum_of(r, &k, v) == NUMEL, "level %d", level);
        tshi_check_ok(r, tsh_tensor_read(v, values, NUMEL));
        tshi_check(r, values[1] == 1, "level %d: %g", level, values[1]);
        tshi_check_ok(r, tsh_tensor_fill(k.p, 3));
        tshi_check_status(r, tsh_tensor_read(v, values, NUMEL), TSH_ERR_STATE, "tsh_full copies them");
        tshi_check(r, sum_of(r, &k, v) == 3 * NUMEL, "level %d", level);
        tshi_check_ok(r, tsh_tensor_read(v, values, NUMEL));
        tshi_check(r, values[1] == 3, "level %d: %g", level, values[1]);
        tshi_check_status(r, tsh_tensor_fill(v, 1), TSH_ERR_STATE, "this rank's slice, can be written to");
        tshi_check_status(r, tsh_tensor_write(v, values, NUMEL), TSH_ERR_STATE, "this rank's slice");
        tshi_check_status(r, tsh_tensor_write_whole(v, values), TSH_ERR_STATE, "this rank's slice");
        free_kit(&k);
    }
}

Test(written_values, a_view_is_read_only_while_its_values_are_there, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, read_through_a_view, NULL));
}

/* --- a write on one rank ------------------------------------------------------------------------------------------ */

static void written_alone(tshi_rank *r, void *arg) {
    (void)arg;
    for (int level = 1; level <= 3; level++) {
        kit k;
        make_kit(r, level, ROWS, &k);
        tsh_tensor *loss = tsh_sum(k.tape, k.p, TSH_ALL_DIMS);
        if (r->rank == 1) tshi_check_ok(r, tsh_tensor_fill(k.p, 3));
        loss = tsh_add(k.tape, loss, tsh_sum(k.tape, k.p, TSH_ALL_DIMS));
        tsh_status status = tsh_backward(k.tape, loss);
        tshi_check(r, status != TSH_OK, "level %d", level);
        tshi_check(r, strstr(tsh_tape_message(k.tape), "'p' was written to between two calls of a step: all ranks"),
                   "level %d, rank %d: %s", level, r->rank, tsh_tape_message(k.tape));
        tshi_check_ok(r, tsh_tape_reset(k.tape));
        tshi_check_ok(r, tsh_world_recover(r->world));
        free_kit(&k);
    }
}

Test(written_values, a_write_on_one_rank_is_an_error_on_all, .timeout = 60) {
    const tshi_test_options options = {.ranks = 2, .world_timeout = "30", .timeout = 40};
    cr_assert_str_empty(tshi_test_run_with(&options, written_alone, NULL, NULL, NULL));
}

/* --- slices of nothing -------------------------------------------------------------------------------------------- */

/* The second rank has no row: its slice is empty, and changes with the other one's. */
static void changes_empty(tshi_rank *r, void *arg) {
    (void)arg;
    for (int level = 1; level <= 3; level++) {
        kit k;
        tsh_optimizer *sgd = NULL;
        make_kit(r, level, 1, &k);
        tshi_check_ok(r, tsh_sgd_create(k.list, &(tsh_sgd_config){.lr = 2}, &sgd));
        tshi_check_ok(r, tsh_backward(k.tape, tsh_sum(k.tape, k.p, TSH_ALL_DIMS)));
        tshi_check_ok(r, tsh_tape_reset(k.tape));
        tshi_check(r, sum_of(r, &k, k.p) == COLS, "level %d", level);
        tshi_check_ok(r, tsh_optimizer_step(sgd));
        double stepped = sum_of(r, &k, k.p);
        tshi_check_ok(r, tsh_tensor_fill(k.p, 3));
        double filled = sum_of(r, &k, k.p);
        tshi_check(r, stepped == -COLS && filled == 3 * COLS, "level %d: %g, %g", level, stepped, filled);
        tsh_optimizer_destroy(sgd);
        free_kit(&k);
    }
}

Test(written_values, an_empty_slice_changes_with_the_others, .timeout = 60) {
    const tshi_test_options options = {.ranks = 2, .world_timeout = "30", .timeout = 40};
    cr_assert_str_empty(tshi_test_run_with(&options, changes_empty, NULL, NULL, NULL));
}
