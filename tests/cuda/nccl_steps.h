/* Data-parallel steps over NCCL's stand-in. */
#ifndef TSHARD_NCCL_STEPS_H
#define TSHARD_NCCL_STEPS_H

#include "cuda/nccl_ranks.h"
#include "tshard/tshard.h"

typedef struct steps {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *layer;
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
    tsh_tensor *x;
} steps;

enum { DP_BATCH = 4, DP_IN = 6, DP_OUT = 5 };

static inline bool open_steps(tshi_rank *r, steps *s) {
    float weight[DP_OUT * DP_IN] = {0}, bias[DP_OUT] = {0}, x[DP_BATCH * DP_IN];
    for (int i = 0; i < DP_BATCH * DP_IN; i++) x[i] = (float)(i % 7 - 3);
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &s->mesh));
    tsh_group *model = tsh_mesh_group(s->mesh, "model");
    tsh_linear_create(
        model, &(tsh_linear_config){.in_features = DP_IN, .out_features = DP_OUT, .shard = TSH_COLUMN, .bias = true},
        &s->layer);
    if (!tshi_check(r, s->layer, "%s", tsh_error_message())) return false;
    tsh_tensor_config rows = {.ndim = 2, .shape = {DP_BATCH, DP_IN}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_linear_load(s->layer, weight, bias));
    tshi_check_ok(r, tsh_tensor_create(s->mesh, &rows, &s->x));
    tshi_check_ok(r, tsh_tensor_write_whole(s->x, x));
    tshi_check_ok(r, tsh_tape_create(r->world, &s->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &s->list));
    tshi_check_ok(r, tsh_linear_register(s->layer, s->list, "layer"));
    tshi_check_ok(r, tsh_sgd_create(s->list, &(tsh_sgd_config){.lr = 1}, &s->optimizer));
    const tsh_data_parallel_config small = {.bucket_bytes = 64};
    tshi_check_ok(r, tsh_data_parallel_create(s->tape, s->list, tsh_mesh_group(s->mesh, "data"), &small, &s->dp));
    return !r->failed;
}

static inline void close_steps(steps *s) {
    tsh_data_parallel_destroy(s->dp);
    tsh_optimizer_destroy(s->optimizer);
    tsh_parameters_destroy(s->list);
    tsh_tape_destroy(s->tape);
    tsh_linear_destroy(s->layer);
    tsh_tensor_release(s->x);
    tsh_mesh_destroy(s->mesh);
}

static inline bool step(tshi_rank *r, steps *s) {
    tsh_optimizer_zero_grad(s->optimizer);
    tsh_tensor *loss = tsh_sum(s->tape, tsh_linear_forward(s->tape, s->layer, s->x), TSH_ALL_DIMS);
    return tshi_check(r, loss, "%s", tsh_tape_message(s->tape)) && tshi_check_ok(r, tsh_backward(s->tape, loss)) &&
           tshi_check_ok(r, tsh_optimizer_step(s->optimizer)) && tshi_check_ok(r, tsh_tape_reset(s->tape));
}

/* After `steps` of them from zeros. */
static inline void expect_weight(tshi_rank *r, const steps *s, int count) {
    float weight[DP_OUT * DP_IN], wanted = 0;
    for (int row = 0; row < DP_BATCH; row++) wanted -= (float)(count * (row * DP_IN % 7 - 3));
    tshi_check_ok(r, tsh_tensor_read(tsh_linear_weight(s->layer), weight, DP_OUT * DP_IN));
    tshi_check(r, weight[0] == wanted && weight[DP_IN] == wanted, "%g, not %g", (double)weight[0], (double)wanted);
}

#endif
