#include "support/pipeline.h"
#include "support/tensors.h"
#include "support/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- making it ---------------------------------------------------------------------------------------------------- */

/* Whole numbers in [-2, 2]: all sums of the model's products are exact. */
static double *numbers(int seed, int64_t n) {
    double *out = malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; out && i < n; i++) out[i] = trunc(tshi_test_integer(seed, i) / 4);
    return out;
}

static int stage_of(const tshi_pipeline *p, int block) {
    for (int s = 0;; s++) {
        int64_t start, length;
        tsh_split(TSHI_PIPELINE_BLOCKS, p->config.stages, s, &start, &length);
        if (block < start + length) return s;
    }
}

static tsh_mesh *last(const tshi_pipeline *p) {
    return p->on[p->config.stages - 1];
}

static bool make_block(tshi_pipeline *p, int b) {
    tshi_rank *r = p->r;
    int64_t wide = p->config.hidden, narrow = p->config.features;
    tsh_group *model = tsh_mesh_group(p->on[stage_of(p, b)], "model");
    tsh_linear_config up = {.in_features = narrow,
                            .out_features = wide,
                            .shard = TSH_COLUMN,
                            .bias = true,
                            .activation = TSH_ACTIVATION_RELU,
                            .dtype = TSH_FLOAT64};
    tsh_linear_config down = {
        .in_features = wide, .out_features = narrow, .shard = TSH_ROW, .bias = true, .dtype = TSH_FLOAT64};
    double *weight = numbers(2 * b, wide * narrow), *bias = numbers(2 * b + 1, wide + narrow);
    char name[16];
    snprintf(name, sizeof name, "up.%d", b);
    bool good = tshi_check_ok(r, tsh_linear_create(model, &up, &p->up[b])) &&
                tshi_check_ok(r, tsh_linear_load(p->up[b], weight, bias)) &&
                tshi_check_ok(r, tsh_linear_register(p->up[b], p->list, name));
    snprintf(name, sizeof name, "down.%d", b);
    good = good && tshi_check_ok(r, tsh_linear_create(model, &down, &p->down[b])) &&
           tshi_check_ok(r, tsh_linear_load(p->down[b], weight, bias)) &&
           tshi_check_ok(r, tsh_linear_register(p->down[b], p->list, name));
    free(weight);
    free(bias);
    return good;
}

static void make_batch(tshi_pipeline *p) {
    int64_t n = p->config.features, start, rows;
    double *x = numbers(100, p->config.rows * n), *factors = numbers(101, p->config.rows * n);
    for (int m = 0; m < p->config.micro_batches; m++) {
        tsh_split(p->config.rows, p->config.micro_batches, m, &start, &rows);
        tsh_tensor_config config = {TSH_FLOAT64, 2, {rows, n}, {TSH_SHARD(0)}}; /* over data */
        p->x[m] = tshi_test_tensor(p->r, p->on[0], &config, x + start * n);
        p->factors[m] = tshi_test_tensor(p->r, last(p), &config, factors + start * n);
    }
    free(x);
    free(factors);
}

static bool make_model(tshi_pipeline *p) {
    tshi_rank *r = p->r;
    int64_t n = p->config.features;
    double *table = numbers(50, n * n);
    tsh_tensor_config square = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {n, n}};
    p->table = tshi_test_leaf(r, p->on[0], &square, table);
    free(table);
    bool good = tshi_check_ok(r, tsh_tape_create(r->world, &p->tape)) &&
                tshi_check_ok(r, tsh_parameters_create(r->world, &p->list)) &&
                tshi_check_ok(r, tsh_parameters_add(p->list, "table", p->table));
    for (int b = 0; b < TSHI_PIPELINE_BLOCKS && good; b++) good = make_block(p, b);
    if (good) make_batch(p);
    return good && tshi_check_ok(r, tsh_sgd_create(p->list, &(tsh_sgd_config){.lr = 1.0 / 1024}, &p->optimizer));
}

bool tshi_pipeline_open(tshi_rank *r, const tshi_pipeline_config *config, tshi_pipeline *p) {
    char axes[64];
    *p = (tshi_pipeline){.r = r, .config = *config};
    snprintf(axes, sizeof axes, "stage=%d,data=%d,model=%d", config->stages, config->data, config->model);
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &p->mesh))) return false;
    p->stage = tsh_group_rank(tsh_mesh_group(p->mesh, "stage"));
    for (int s = 0; s < config->stages; s++) {
        if (!tshi_check_ok(r, tsh_mesh_fix(p->mesh, "stage", s, &p->on[s]))) return false;
    }
    if (!make_model(p)) return false;
    /* All stages, so that each rank is outside some of them. */
    for (int s = 0; s < config->stages && config->sums; s++) {
        tsh_data_parallel *sums = NULL;
        tsh_group *data = tsh_mesh_group(p->on[s], "data");
        if (!tshi_check_ok(r, tsh_data_parallel_create(p->tape, p->list, data, NULL, &sums))) return false;
        if (s == p->stage)
            p->sums = sums;
        else
            tsh_data_parallel_destroy(sums);
    }
    return !r->failed;
}

bool tshi_pipeline_open_alone(tshi_rank *r, const tshi_pipeline_config *config, tshi_pipeline *p) {
    *p = (tshi_pipeline){.r = r, .config = *config};
    p->config.stages = p->config.micro_batches = 1;
    return tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank, 0, &p->alone)) &&
           tshi_check_ok(r, tsh_mesh_create_in(p->alone, "data=1,model=1", &p->on[0])) && make_model(p);
}

void tshi_pipeline_close(tshi_pipeline *p) {
    tsh_data_parallel_destroy(p->sums);
    tsh_optimizer_destroy(p->optimizer);
    tsh_parameters_destroy(p->list);
    tsh_tape_destroy(p->tape);
    tsh_tensor_release(p->table);
    for (int m = 0; m < TSHI_PIPELINE_MOST; m++) {
        tsh_tensor_release(p->x[m]);
        tsh_tensor_release(p->factors[m]);
    }
    for (int b = 0; b < TSHI_PIPELINE_BLOCKS; b++) {
        tsh_linear_destroy(p->up[b]);
        tsh_linear_destroy(p->down[b]);
    }
    for (int s = 0; s < TSHI_PIPELINE_BLOCKS; s++) tsh_mesh_destroy(p->on[s]);
    tsh_mesh_destroy(p->mesh);
    tsh_group_destroy(p->alone);
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static const tsh_layout rows[] = {TSH_SHARD_INIT(0), TSH_REPLICATED_INIT};

static void forward(tshi_pipeline *p, int m) {
    tsh_tape *tape = p->tape;
    if (p->before) p->before(p, m, p->arg);
    tsh_tensor *h = tsh_matmul(tape, p->x[m], p->table);
    for (int b = 0; b < TSHI_PIPELINE_BLOCKS; b++) {
        h = tsh_redistribute(tape, h, p->on[stage_of(p, b)], rows);
        h = tsh_linear_forward(tape, p->down[b], tsh_linear_forward(tape, p->up[b], h));
    }
    h = tsh_matmul(tape, h, tsh_redistribute(tape, p->table, last(p), NULL));
    p->loss[m] = tsh_full(tape, tsh_sum(tape, tsh_mul(tape, h, p->factors[m]), TSH_ALL_DIMS));
}

tsh_status tshi_pipeline_gradients(tshi_pipeline *p) {
    int n = p->config.micro_batches, under_way = p->config.forwards_first ? n : p->config.stages - p->stage;
    for (int begun = 0, ended = 0; ended < n;) {
        if (begun < n && begun - ended < under_way) {
            forward(p, begun++);
            continue;
        }
        tsh_data_parallel_set_sync(p->sums, ended == n - 1);
        tsh_status status = tsh_backward(p->tape, p->loss[ended++]);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

static double loss_of(const tshi_pipeline *p) {
    double loss = 0;
    for (int m = 0; m < p->config.micro_batches; m++) loss += tsh_tensor_item(p->loss[m]);
    return loss;
}

void tshi_pipeline_check_gradients(const tshi_pipeline *p, const tshi_pipeline *alone, double tolerance) {
    double loss = tsh_mesh_is_member(last(p)) ? loss_of(p) : 0, wanted = loss_of(alone);
    tshi_check(p->r, !tsh_mesh_is_member(last(p)) || loss == wanted, "loss %.17g, alone %.17g", loss, wanted);
    for (int i = 0; i < tsh_parameters_count(p->list); i++) {
        const tsh_tensor *truth = tsh_tensor_grad(tsh_parameters_tensor(alone->list, i));
        if (!tshi_check(p->r, truth, "no gradient on one rank")) return;
        tshi_test_same_grad(p->r, tsh_parameters_name(p->list, i), tsh_parameters_tensor(p->list, i),
                            tsh_tensor_data(truth), tolerance);
    }
}

void tshi_pipeline_check_parameters(const tshi_pipeline *p, const tshi_pipeline *alone, double tolerance) {
    for (int i = 0; i < tsh_parameters_count(p->list); i++) {
        tshi_test_same(p->r, tsh_parameters_name(p->list, i), tsh_parameters_tensor(p->list, i),
                       tsh_tensor_data(tsh_parameters_tensor(alone->list, i)), tolerance);
    }
}

void tshi_pipeline_check_step(tshi_rank *r, const tshi_pipeline_config *config) {
    tshi_pipeline p = {0}, alone = {0};
    double norm = 0, wanted = 0;
    if (tshi_pipeline_open(r, config, &p) && tshi_pipeline_open_alone(r, config, &alone) &&
        tshi_check_ok(r, tshi_pipeline_gradients(&alone)) && tshi_check_ok(r, tshi_pipeline_gradients(&p))) {
        tshi_pipeline_check_gradients(&p, &alone, 0);
        tshi_check_ok(r, tsh_optimizer_step(p.optimizer));
        tshi_check_ok(r, tsh_optimizer_step(alone.optimizer));
        tshi_pipeline_check_parameters(&p, &alone, 0);
        tshi_check_ok(r, tsh_clip_grad_norm(p.list, 1, &norm));
        tshi_check_ok(r, tsh_clip_grad_norm(alone.list, 1, &wanted));
        tshi_check(r, fabs(norm - wanted) < 1e-12 * wanted, "norm %.17g, alone %.17g", norm, wanted);
        tshi_pipeline_check_gradients(&p, &alone, 1e-12);
        tshi_check_ok(r, tsh_tape_reset(p.tape));
    }
    tshi_pipeline_close(&alone);
    tshi_pipeline_close(&p);
}
