/* Layers whose features are split by heads, and weights that ranks share, against the same layers on one rank. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(units, .timeout = 300);

enum { SEQUENCES = 3, T = 2, TOKENS = SEQUENCES * T, IN = 5, HEADS = 6, KV_HEADS = 2, DIM = 2, MOST = 72 };
enum { QUERY, KEY, VALUE, OUT, PARTS };

/* q, k and v by heads, attention, and the layer back. */
typedef struct model {
    tsh_linear *part[PARTS];
    tsh_parameters *list;
} model;

static void make_model(tshi_rank *r, tsh_group *group, bool sequence, model *m) {
    static const char *const names[] = {"q", "k", "v", "out"};
    memset(m, 0, sizeof *m);
    tsh_world_seed(r->world, 7);
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < PARTS; i++) {
        bool shared = i == KEY || i == VALUE;
        tsh_linear_config c = {.in_features = i == OUT ? HEADS * DIM : IN,
                               .out_features = i == OUT ? IN : (shared ? KV_HEADS : HEADS) * DIM,
                               .shard = i == OUT ? TSH_ROW : TSH_COLUMN,
                               .bias = true,
                               .units = KV_HEADS,
                               .blocks = shared ? 0 : HEADS,
                               .shared = shared,
                               .sequence_parallel = i == OUT && sequence,
                               .dtype = TSH_FLOAT64};
        tshi_check_ok(r, tsh_linear_create(group, &c, &m->part[i]));
        tshi_check_ok(r, tsh_linear_register(m->part[i], m->list, names[i]));
    }
}

static void free_model(model *m) {
    for (int i = 0; i < PARTS; i++) tsh_linear_destroy(m->part[i]);
    tsh_parameters_destroy(m->list);
}

static tsh_tensor *heads_of(tsh_tape *tape, tsh_tensor *x, int64_t heads) {
    return tsh_reshape(tape, x, 4, (int64_t[]){SEQUENCES, T, heads, DIM});
}

static tsh_tensor *forward(tsh_tape *tape, const model *m, tsh_tensor *x) {
    tsh_tensor *h[3];
    for (int i = QUERY; i <= VALUE; i++) {
        h[i] = tsh_linear_forward(tape, m->part[i], x);
        h[i] = heads_of(tape, h[i], i == QUERY ? HEADS : KV_HEADS);
    }
    tsh_tensor *y = tsh_attention(tape, h[QUERY], h[KEY], h[VALUE], NULL);
    y = tsh_reshape(tape, y, 2, (int64_t[]){TOKENS, HEADS * DIM});
    return tsh_linear_forward(tape, m->part[OUT], y);
}

static tsh_tensor *loss_of(tshi_rank *r, tsh_tape *tape, tsh_tensor *y) {
    double whole[MOST];
    if (!y) return NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {TOKENS, IN}};
    tshi_test_integers(3, TOKENS * IN, whole);
    tsh_tensor *c = tshi_test_tensor(r, tsh_tensor_mesh(y), &config, whole);
    tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, y, c), TSH_ALL_DIMS);
    tsh_tensor_release(c);
    return loss;
}

static tsh_tensor *make_input(tshi_rank *r, const tsh_mesh *mesh, const tsh_layout *layout) {
    double whole[MOST];
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {TOKENS, IN}};
    for (int i = 0; i < TOKENS * IN; i++) whole[i] = tshi_test_integer(1, i) / 8;
    memcpy(config.layout, layout, sizeof *layout * TSH_MAX_AXES);
    return tshi_test_leaf(r, mesh, &config, whole);
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

typedef struct truth {
    double y[MOST], dx[MOST], weight[2 * PARTS][MOST], gradient[2 * PARTS][MOST], norm;
} truth;

/* On a mesh of this rank alone. */
static void find_truth(tshi_rank *r, tsh_tape *tape, truth *t) {
    tsh_mesh *alone = NULL;
    model m;
    const tsh_layout layout[TSH_MAX_AXES] = {TSH_REPLICATED};
    memset(t, 0, sizeof *t);
    for (int i = 0; i < r->size; i++) { /* every rank makes every mesh */
        tsh_mesh *one = NULL;
        tshi_check_ok(r, tsh_mesh_create_on(r->world, &i, 1, "a=1", &one));
        if (i == r->rank)
            alone = one;
        else
            tsh_mesh_destroy(one);
    }
    make_model(r, tsh_mesh_axis_group(alone, 0), false, &m);
    tsh_tensor *x = make_input(r, alone, layout), *y = forward(tape, &m, x);
    if (tshi_check(r, y, "one rank: %s", tsh_tape_message(tape))) {
        tshi_check_ok(r, tsh_tensor_read(y, t->y, TOKENS * IN));
        tshi_check_ok(r, tsh_backward(tape, loss_of(r, tape, y)));
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(x), t->dx, TOKENS * IN));
        for (int i = 0; i < 2 * PARTS; i++) {
            tsh_tensor *w = tsh_parameters_tensor(m.list, i);
            tshi_check_ok(r, tsh_tensor_read(w, t->weight[i], tsh_tensor_local_numel(w)));
            tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(w), t->gradient[i], tsh_tensor_local_numel(w)));
            for (int64_t k = 0; k < tsh_tensor_local_numel(w); k++) t->norm += t->gradient[i][k] * t->gradient[i][k];
        }
        t->norm = sqrt(t->norm);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    free_model(&m);
    tsh_mesh_destroy(alone);
}

/* --- several ranks ------------------------------------------------------------------------------------------------ */

/* The whole has these values, wherever its parts are. */
static void check_whole(tshi_rank *r, const char *what, tsh_tensor *t, const double *wanted) {
    double got[MOST];
    if (!tshi_check(r, t, "%s is missing: %s", what, tsh_error_message())) return;
    tshi_check_ok(r, tsh_tensor_read_whole(t, got));
    int64_t n = tsh_tensor_shape(t)[0] * (tsh_tensor_ndim(t) > 1 ? tsh_tensor_shape(t)[1] : 1);
    for (int64_t i = 0; i < n; i++) {
        tshi_check(r, fabs(got[i] - wanted[i]) < 1e-12, "%s: element %d is %.17g, %.17g wanted", what, (int)i, got[i],
                   wanted[i]);
    }
}

static void check_model(tshi_rank *r, tsh_tape *tape, const model *m, const truth *t, tsh_tensor *x) {
    double norm = 0;
    char what[64];
    for (int i = 0; i < 2 * PARTS; i++) {
        snprintf(what, sizeof what, "%s at %d ranks", tsh_parameters_name(m->list, i), r->size);
        check_whole(r, what, tsh_parameters_tensor(m->list, i), t->weight[i]);
    }
    tsh_tensor *y = forward(tape, m, x);
    if (!tshi_check(r, y, "%d ranks: %s", r->size, tsh_tape_message(tape))) return;
    check_whole(r, "y", y, t->y);
    if (!tshi_check_ok(r, tsh_backward(tape, loss_of(r, tape, y)))) return;
    check_whole(r, "dx", tsh_tensor_grad(x), t->dx);
    for (int i = 0; i < 2 * PARTS; i++) {
        snprintf(what, sizeof what, "gradient of %s at %d ranks", tsh_parameters_name(m->list, i), r->size);
        check_whole(r, what, tsh_tensor_grad(tsh_parameters_tensor(m->list, i)), t->gradient[i]);
    }
    tshi_check_ok(r, tsh_clip_grad_norm(m->list, 1e9, &norm));
    tshi_check(r, fabs(norm - t->norm) < 1e-11, "the norm is %.17g, %.17g wanted", norm, t->norm);
}

static void each_mesh(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    const truth *t = arg;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int way = 0; way < 4 && !r->failed; way++) {
        tsh_layout layout[TSH_MAX_AXES] = {TSH_REPLICATED};
        model m;
        if (way & 1) layout[0] = TSH_SHARD_UNITS(0, SEQUENCES, 0);
        if (way & 2) layout[1] = TSH_SHARD(0);
        make_model(r, tsh_mesh_axis_group(mesh, 1), way & 2, &m);
        tsh_tensor *x = make_input(r, mesh, layout);
        check_model(r, tape, &m, t, x);
        tsh_tape_reset(tape);
        tsh_tensor_release(x);
        free_model(&m);
    }
    tsh_tape_destroy(tape);
}

static void attention_by_heads(tshi_rank *r, void *arg) {
    truth t;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    find_truth(r, tape, &t);
    tsh_tape_destroy(tape);
    tshi_test_each_mesh(r, each_mesh, &t);
}

Test(units, attention_by_heads_at_1_to_8_ranks) {
    cr_assert_str_empty(tshi_test_run_each(1, 8, attention_by_heads, NULL));
}

/* --- what moves --------------------------------------------------------------------------------------------------- */

/* Forward one all-reduce, of the output; backward one, of the input's gradient, and for each weight and bias that ranks
 * share one exchange. */
static void costs(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    const tsh_layout layout[TSH_MAX_AXES] = {TSH_REPLICATED};
    model m;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    make_model(r, group, false, &m);
    tsh_tensor *x = make_input(r, tsh_world_mesh(r->world), layout);
    tsh_group_reset_stats(group);
    tsh_tensor *y = forward(tape, &m, x);
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == 1, "%d all-reduces forward",
               (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE]);
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == 0, "exchanges forward");
    tsh_group_reset_stats(group);
    tshi_check_ok(r, tsh_backward(tape, loss_of(r, tape, y)));
    stats = tsh_group_stats(group);
    int wanted = r->size > KV_HEADS ? 4 : 0;
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == 1, "%d all-reduces backward",
               (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE]);
    tshi_check(r, (int)stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == wanted, "%d exchanges backward, %d wanted",
               (int)stats.calls[TSH_COLLECTIVE_ALL_TO_ALL], wanted);
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    free_model(&m);
    tsh_tape_destroy(tape);
}

Test(units, collectives_of_attention_by_heads) {
    cr_assert_str_empty(tshi_test_run_each(2, 5, costs, NULL));
}

/* --- tensors that ranks share ------------------------------------------------------------------------------------- */

/* Rank 0 prints each element once. */
static void check_print(tshi_rank *r, tsh_tensor *t, const double *whole) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    tshi_check_ok(r, tsh_tensor_print(t, to, NULL));
    fclose(to);
    const char *at = text;
    for (int i = 0; r->rank == 0 && i < KV_HEADS * DIM * 3; i++) {
        char *end;
        at += strcspn(at, "-0123456789");
        tshi_check(r, strtod(at, &end) == whole[i], "element %d of\n%s", i, text);
        at = end;
    }
    free(text);
}

/* Parts of ranks that share a unit count once. */
static void parts_make_the_whole(tshi_rank *r, void *arg) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    double whole[MOST], own[MOST];
    (void)arg;
    tshi_test_integers(5, KV_HEADS * DIM * 3, whole);
    for (int known = 0; known < 2; known++) {
        const tsh_layout shared[] = {TSH_SHARD_SHARED(0, KV_HEADS)};
        tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL};
        tsh_tensor *t = NULL, *part = NULL, *joined = NULL;
        tsh_tensor_config config = {
            .dtype = TSH_FLOAT64, .ndim = 2, .shape = {KV_HEADS * DIM, 3}, .layout = {shared[0]}};
        tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
        tshi_check_ok(r, tsh_tensor_write_whole(t, whole));
        tshi_check_ok(r, tsh_tensor_read(t, own, tsh_tensor_local_numel(t)));
        config = (tsh_tensor_config){
            .dtype = TSH_FLOAT64, .ndim = 2, .shape = {tsh_tensor_local_shape(t)[0], 3}, .layout = {local[0]}};
        tshi_check_ok(r, tsh_tensor_create(mesh, &config, &part));
        tshi_check_ok(r, tsh_tensor_write(part, own, tsh_tensor_local_numel(t)));
        tshi_check_ok(r, tsh_from_local(part, shared, known ? (int64_t[]){KV_HEADS * DIM, 3} : NULL, &joined));
        check_whole(r, "from_local", joined, whole);
        check_print(r, joined, whole);
        tsh_tensor_release(t);
        tsh_tensor_release(part);
        tsh_tensor_release(joined);
    }
}

/* Ranks use what they share in ways of their own: rank r takes it r + 1 times. The gradient sums over sharers. */
static void own_uses(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    double whole[MOST], wanted[KV_HEADS] = {0};
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_test_integers(5, KV_HEADS, whole);
    for (int i = 0; i < r->size; i++) {
        tsh_layout shared = TSH_SHARD_SHARED(0, KV_HEADS);
        int64_t start = 0, length = KV_HEADS;
        tshi_layout_split(&shared, KV_HEADS, (tshi_parts){.count = r->size}, i, &start, &length);
        for (int64_t k = start; k < start + length; k++) wanted[k] += i + 1;
    }
    tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 1, .shape = {KV_HEADS}, .layout = {TSH_SHARD_SHARED(0, KV_HEADS)}};
    tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, whole);
    tsh_tensor *y = tsh_scale(tape, tsh_to_local(tape, x, NULL), r->rank + 1);
    if (tshi_check(r, y, "%s", tsh_tape_message(tape))) {
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
        tshi_test_same_grad(r, "x", x, wanted, 0);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(units, own_uses_of_what_ranks_share) {
    cr_assert_str_empty(tshi_test_run_each(1, 7, own_uses, NULL));
}

/* Two ranks share x; with a LOCAL bias of each there is no one value of what they share: each takes half of x. */
static void local_bias(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_tensor *b = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {2, 1}, .layout = {TSH_SHARD_SHARED(0, 1)}};
    tsh_tensor *x = tshi_test_leaf(r, mesh, &config, (double[]){10, 20});
    config = (tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}, .layout = {TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &b));
    tshi_check_ok(r, tsh_tensor_write(b, (double[]){r->rank + 1}, 1));
    tsh_tensor *y = tsh_bias(tape, x, b);
    check_whole(r, "y", y, (double[]){11, 22});
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(b);
}

Test(units, beside_a_local_input_are_not_shared) {
    cr_assert_str_empty(tshi_test_run(2, local_bias, NULL));
}

Test(units, parts_of_ranks_that_share_make_the_whole) {
    cr_assert_str_empty(tshi_test_run_each(1, 7, parts_make_the_whole, NULL));
}

static void shared_rows_are_for_columns(tshi_rank *r, void *arg) {
    tsh_linear *layer = NULL;
    tsh_linear_config c = {.in_features = 4, .out_features = 4, .shard = TSH_ROW, .units = 2, .shared = true};
    (void)arg;
    tshi_check_status(r, tsh_linear_create(tsh_world_group(r->world), &c, &layer), TSH_ERR_ARGUMENT, "shared only for");
    c = (tsh_linear_config){.in_features = 4, .out_features = 4, .units = 2};
    tshi_check_status(r, tsh_linear_create(tsh_world_group(r->world), &c, &layer), TSH_ERR_ARGUMENT, "TSH_ROW");
    c = (tsh_linear_config){.in_features = 4, .out_features = 5, .shard = TSH_COLUMN, .units = 2};
    tshi_check_status(r, tsh_linear_create(tsh_world_group(r->world), &c, &layer), TSH_ERR_SHAPE, "SHARD(0, 2 units)");
}

Test(units, that_a_layer_cannot_have_are_refused) {
    cr_assert_str_empty(tshi_test_run(2, shared_rows_are_for_columns, NULL));
}
