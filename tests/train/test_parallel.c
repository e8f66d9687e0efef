/* Data-parallel training, alone and with tensor parallelism, against one rank on the whole batch. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients averaged over ranks -------------------------------------------------------------------------------- */

/* y = x w, w = [1,1], x = [1,1] on rank 0 and [2,2] on rank 1: averaged gradient [1.5,1.5], twice without zeroing
 * [3,3].
 */
static void averaged(tshi_rank *r, void *arg) {
    const double x[] = {1, 1, 2, 2}, once[] = {1.5, 1.5}, twice[] = {3, 3};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_linear *layer = NULL;
    tsh_linear_create(
        tsh_world_group(r->world),
        &(tsh_linear_config){.in_features = 2, .out_features = 1, .weight_init = {TSH_INIT_CONSTANT, 0, 1, 0}}, &layer);
    tsh_tensor *t =
        tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT32, 2, {2, 2}, {S0}}, x);
    const double *const wanted[] = {once, twice};
    for (int i = 0; i < 2; i++) {
        tsh_tensor *loss = tsh_mean(tape, tsh_linear_forward(tape, layer, t), TSH_ALL_DIMS);
        loss = tsh_redistribute_along(tape, loss, tsh_world_group(r->world), TSH_REPLICATED);
        tshi_check(r, loss && tsh_tensor_item(loss) == 3, "loss %g, wanted 3", tsh_tensor_item(loss));
        tshi_check_ok(r, tsh_backward(tape, loss));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_test_same_grad(r, "gradient", tsh_linear_weight(layer), wanted[i], 0);
    }
    tsh_linear_destroy(layer);
    tsh_tensor_release(t);
    tsh_tape_destroy(tape);
}

Test(parallel, averages_and_accumulates_gradients, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, averaged, NULL));
}

/* Least squares, two rows a rank, averaged over two ranks: the first gradient is -165, -220 and w goes to (2, 3). */
static void least_squares(tshi_rank *r, void *arg) {
    const double x[] = {1, 2, 2, 3, 4, 6, 3, 1}, y[] = {8, 13, 26, 9}, first[] = {-165, -220}, last[] = {2, 3};
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    (void)arg;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_linear *layer = NULL;
    tsh_linear_create(
        tsh_world_group(r->world),
        &(tsh_linear_config){
            .in_features = 2, .out_features = 1, .dtype = TSH_FLOAT64, .weight_init = {TSH_INIT_CONSTANT, 0, 0, 0}},
        &layer);
    tsh_tensor *input = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {4, 2}, {S0}}, x);
    tsh_tensor *wanted = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {4, 1}, {S0}}, y);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(layer, list, "w"));
    tshi_check_ok(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = .01}, &optimizer));
    for (int step = 0; step < 500 && !r->failed; step++) {
        tsh_optimizer_zero_grad(optimizer);
        tsh_tensor *d = tsh_sub(tape, tsh_linear_forward(tape, layer, input), wanted);
        tsh_tensor *sum = tsh_sum(tape, tsh_mul(tape, d, d), TSH_ALL_DIMS);
        tshi_check_ok(r, tsh_backward(tape, tsh_scale(tape, sum, 0.5))); /* two parts of the batch, averaged */
        if (step == 0) tshi_test_same_grad(r, "first gradient", tsh_linear_weight(layer), first, 0);
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tshi_test_same(r, "w", tsh_linear_weight(layer), last, 1e-6);
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    tsh_linear_destroy(layer);
    tsh_tensor_release(input);
    tsh_tensor_release(wanted);
    tsh_tape_destroy(tape);
}

Test(parallel, solves_least_squares, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, least_squares, NULL));
}

/* --- a model on a mesh -------------------------------------------------------------------------------------------- */

enum {
    VOCABULARY = 13,
    CONTEXT = 2,
    EMBED = 3,
    HIDDEN = 7,
    BATCH = 5,
    STEPS = 6,
    PARAMETERS = 7,
    MOST = HIDDEN * VOCABULARY
};

#define CLIP 0.3

/* What a run leaves: losses, norms before clipping, parameters as wholes (zero where a rank holds nothing). */
typedef struct outcome {
    double losses[STEPS], norms[STEPS], parameters[PARAMETERS][MOST];
} outcome;

typedef struct plan {
    const char *axes;
    bool sequence; /* between the row and the next column layer */
    const outcome *wanted;
    bool scheduled; /* by a tsh_data_parallel, in several buckets */
} plan;

typedef struct model {
    tsh_embedding *embedding;
    tsh_linear *up, *down, *head;
} model;

static tsh_linear *linear(tsh_group *g, int64_t in, int64_t out, tsh_sharding shard, bool sequence) {
    tsh_linear_config config = {.in_features = in,
                                .out_features = out,
                                .shard = shard,
                                .bias = true,
                                .sequence_parallel = sequence,
                                .dtype = TSH_FLOAT64};
    tsh_linear *layer = NULL;
    tsh_linear_create(g, &config, &layer);
    return layer;
}

static void make_model(tshi_rank *r, tsh_group *g, bool sequence, model *m, tsh_parameters *list) {
    tsh_embedding_create(
        g,
        &(tsh_embedding_config){
            .num_embeddings = VOCABULARY, .embedding_dim = EMBED, .shard = TSH_ROW, .dtype = TSH_FLOAT64},
        &m->embedding);
    m->up = linear(g, CONTEXT * EMBED, HIDDEN, TSH_COLUMN, false);
    m->down = linear(g, HIDDEN, EMBED, TSH_ROW, sequence);
    m->head = linear(g, EMBED, VOCABULARY, TSH_COLUMN, false);
    if (!tshi_check(r, m->embedding && m->up && m->down && m->head, "%s", tsh_error_message())) return;
    tshi_check_ok(r, tsh_embedding_register(m->embedding, list, "embedding"));
    tshi_check_ok(r, tsh_linear_register(m->up, list, "up"));
    tshi_check_ok(r, tsh_linear_register(m->down, list, "down"));
    tshi_check_ok(r, tsh_linear_register(m->head, list, "head"));
}

static tsh_tensor *forward(tsh_tape *tape, const model *m, tsh_tensor *ids, tsh_tensor *target) {
    tsh_tensor *e = tsh_embedding_forward(tape, m->embedding, ids);
    tsh_tensor *x = tsh_reshape(tape, e, 2, (int64_t[]){BATCH, CONTEXT * EMBED});
    tsh_tensor *h = tsh_gelu(tape, tsh_linear_forward(tape, m->up, x));
    tsh_tensor *y = tsh_linear_forward(tape, m->down, h);
    return tsh_cross_entropy(tape, tsh_linear_forward(tape, m->head, y), target, NULL);
}

static void step(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, const model *m, tsh_parameters *list,
                 tsh_optimizer *optimizer, int s, outcome *out) {
    double ids[BATCH * CONTEXT], target[BATCH];
    for (int i = 0; i < BATCH * CONTEXT; i++) ids[i] = (s * 5 + i * 3) % VOCABULARY;
    for (int i = 0; i < BATCH; i++) target[i] = i == s ? -100 : (s + 4 * i) % VOCABULARY; /* some ignored */
    tsh_tensor *x = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 2, {BATCH, CONTEXT}, {S0}}, ids);
    tsh_tensor *t = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {BATCH}, {S0}}, target);
    tsh_optimizer_zero_grad(optimizer);
    tsh_tensor *loss = forward(tape, m, x, t);
    if (tshi_check(r, loss, "%s", tsh_tape_message(tape))) {
        out->losses[s] = tsh_tensor_item(loss);
        tshi_check_ok(r, tsh_backward(tape, loss));
        tshi_check_ok(r, tsh_clip_grad_norm(list, CLIP, &out->norms[s]));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
    }
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(x);
    tsh_tensor_release(t);
}

static void compare(tshi_rank *r, const plan *p, const outcome *got, const tsh_parameters *list) {
    for (int s = 0; s < STEPS; s++) {
        double loss = p->wanted->losses[s], norm = p->wanted->norms[s];
        tshi_check(r, fabs(got->losses[s] - loss) < 1e-12 * loss, "%s: loss %d is %.15g, wanted %.15g", p->axes, s,
                   got->losses[s], loss);
        tshi_check(r, fabs(got->norms[s] - norm) < 1e-11 * norm, "%s: norm %d is %.15g, wanted %.15g", p->axes, s,
                   got->norms[s], norm);
    }
    for (int i = 0; i < tsh_parameters_count(list); i++) {
        tshi_test_same(r, tsh_parameters_name(list, i), tsh_parameters_tensor(list, i), p->wanted->parameters[i],
                       1e-10);
    }
}

static void train(tshi_rank *r, void *arg) {
    const plan *p = arg;
    outcome *out = r->result;
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_data_parallel *dp = NULL;
    model m = {0};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_mesh_create(r->world, p->axes, &mesh));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    make_model(r, tsh_mesh_group(mesh, "model"), p->sequence, &m, list);
    tshi_check_ok(r, tsh_adamw_create(list, &(tsh_adamw_config){.lr = 0.05, .weight_decay = 0.1}, &optimizer));
    if (p->scheduled) {
        const tsh_data_parallel_config config = {.bucket_bytes = 600, .first_bucket_bytes = 100};
        tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &config, &dp));
    }
    for (int s = 0; s < STEPS && !r->failed; s++) step(r, tape, mesh, &m, list, optimizer, s, out);
    for (int i = 0; i < tsh_parameters_count(list); i++) {
        const tsh_tensor *t = tsh_parameters_tensor(list, i);
        for (int64_t k = 0; k < tsh_tensor_local_numel(t); k++) {
            out->parameters[i][tshi_test_place(t, k)] = tshi_test_element(t, k);
        }
    }
    if (p->wanted && !r->failed) compare(r, p, out, list);
    tsh_data_parallel_destroy(dp);
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    tsh_embedding_destroy(m.embedding);
    tsh_linear_destroy(m.up);
    tsh_linear_destroy(m.down);
    tsh_linear_destroy(m.head);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

/* AdamW with clipping on every mesh of up to four ranks is the one-rank run on the whole batch: batches of 5 over 2 to
 * 4 ranks, 13 classes and 7 hidden features, none of which divides. */
Test(mesh, trains_as_one_rank_does, .timeout = 120) {
    static outcome one;
    const struct {
        int ranks;
        plan plan;
    } runs[] = {{2, {"data=2,model=1", false, &one, false}}, {2, {"data=1,model=2", false, &one, false}},
                {3, {"data=3,model=1", false, &one, false}}, {3, {"data=1,model=3", true, &one, false}},
                {4, {"data=2,model=2", false, &one, false}}, {4, {"data=2,model=2", true, &one, false}},
                {4, {"data=4,model=1", false, &one, false}}, {4, {"data=1,model=4", true, &one, false}}};
    plan alone = {"data=1,model=1", false, NULL, false};
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof one};
    cr_assert_str_empty(tshi_test_run_with(&options, train, &alone, NULL, &one));
    for (int s = 0; s < STEPS; s++) cr_assert(one.norms[s] > CLIP, "step %d is not clipped: norm %g", s, one.norms[s]);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (int scheduled = 0; scheduled <= 1; scheduled++) {
            plan p = runs[i].plan;
            p.scheduled = scheduled;
            options.ranks = runs[i].ranks;
            const char *words = tshi_test_run_with(&options, train, &p, NULL, NULL);
            cr_assert_str_empty(words, "%s, sequence %d, scheduled %d: %s", p.axes, p.sequence, scheduled, words);
        }
    }
}
