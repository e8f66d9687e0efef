/* linear and embedding, whole and split. */
#include "cases.h"

typedef struct variant {
    tsh_sharding shard;
    tsh_layout x;
    bool gather, sequence;
} variant;

#define R  TSH_REPLICATED_INIT
#define S0 TSH_SHARD_INIT(0)
#define S1 TSH_SHARD_INIT(1)

static const variant dense = {TSH_DENSE, R, false, false}, dense_batch = {TSH_DENSE, S0, false, false},
                     column = {TSH_COLUMN, R, false, false}, column_gather = {TSH_COLUMN, R, true, false},
                     column_sequence = {TSH_COLUMN, S0, false, false}, row = {TSH_ROW, R, false, false},
                     row_split = {TSH_ROW, S1, false, false}, row_sequence = {TSH_ROW, S1, false, true},
                     row_ids_sequence = {TSH_ROW, R, false, true};

static void run_linear(cv_run *run, const void *user) {
    const variant *v = user;
    const tshi_vector *w = cv_vector(run, "W", 2);
    if (!w) return;
    tsh_linear *layer = NULL;
    tsh_linear_create(run->model,
                      &(tsh_linear_config){.in_features = w->shape[1],
                                           .out_features = w->shape[0],
                                           .shard = v->shard,
                                           .bias = true,
                                           .gather_output = v->gather,
                                           .sequence_parallel = v->sequence,
                                           .dtype = run->dtype},
                      &layer);
    tsh_tensor *x = cv_tensor(run, "x", 2, TSH_REPLICATED, v->x, true);
    if (cv_load_linear(run, layer, "W", "b") && x) {
        tsh_tensor *y = tsh_linear_forward(run->tape, layer, x);
        cv_compare(run, "y", y);
        cv_backward(run, y, "dy");
        cv_compare_grad(run, "dx", x);
        cv_compare_grad(run, "dW", tsh_linear_weight(layer));
        cv_compare_grad(run, "db", tsh_linear_bias(layer));
    }
    tsh_tape_reset(run->tape);
    tsh_linear_destroy(layer);
}

const cv_sharding cv_linear[] = {{"dense", run_linear, &dense, NULL, 1},
                                 {"dense, batch split", run_linear, &dense_batch, NULL, 1},
                                 {"column", run_linear, &column, NULL, 1},
                                 {"column, gathered", run_linear, &column_gather, NULL, 1},
                                 {"column, from sequence split", run_linear, &column_sequence, NULL, 1},
                                 {"row", run_linear, &row, NULL, 1},
                                 {"row, features split", run_linear, &row_split, NULL, 1},
                                 {"row, to sequence split", run_linear, &row_sequence, NULL, 1},
                                 {0}};

static void run_embedding(cv_run *run, const void *user) {
    const variant *v = user;
    const tshi_vector *w = cv_vector(run, "W", 2), *padding = cv_vector(run, "padding_idx", 0);
    if (!w || !padding) return;
    tsh_embedding *layer = NULL;
    tsh_embedding_create(run->model,
                         &(tsh_embedding_config){.num_embeddings = w->shape[0],
                                                 .embedding_dim = w->shape[1],
                                                 .shard = v->shard,
                                                 .has_padding = true,
                                                 .padding = padding->integers[0],
                                                 .gather_output = v->gather,
                                                 .sequence_parallel = v->sequence,
                                                 .dtype = run->dtype},
                         &layer);
    tsh_tensor *ids = cv_tensor(run, "idx", 1, TSH_REPLICATED, v->x, false);
    if (cv_load_embedding(run, layer, "W") && ids) {
        tsh_tensor *y = tsh_embedding_forward(run->tape, layer, ids);
        cv_compare(run, "y", y);
        cv_backward(run, y, "dy");
        cv_compare_grad(run, "dW", tsh_embedding_weight(layer));
    }
    tsh_tape_reset(run->tape);
    tsh_embedding_destroy(layer);
}

const cv_sharding cv_embedding[] = {{"dense", run_embedding, &dense, NULL, 1},
                                    {"dense, ids split", run_embedding, &dense_batch, NULL, 1},
                                    {"row (vocabulary)", run_embedding, &row, NULL, 1},
                                    {"row, to sequence split", run_embedding, &row_ids_sequence, NULL, 1},
                                    {"column (features)", run_embedding, &column, NULL, 1},
                                    {"column, gathered", run_embedding, &column_gather, NULL, 1},
                                    {0}};
