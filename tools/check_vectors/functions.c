/* Activations, norms and cross entropy. */
#include "cases.h"

static const tsh_layout replicated = TSH_REPLICATED_INIT, rows = TSH_SHARD_INIT(0), columns = TSH_SHARD_INIT(1);

/* --- activations -------------------------------------------------------------------------------------------------- */

typedef tsh_tensor *activation(tsh_tape *tape, tsh_tensor *x);

static void run_activation(cv_run *run, const tsh_layout *layout, activation *f) {
    tsh_tensor *x = cv_tensor(run, "x", 2, TSH_REPLICATED, *layout, true);
    tsh_tensor *y = x ? f(run->tape, x) : NULL;
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    if (x) cv_compare_grad(run, "dx", x);
}

static void run_gelu_erf(cv_run *run, const void *layout) {
    run_activation(run, layout, tsh_gelu);
}

static void run_gelu_tanh(cv_run *run, const void *layout) {
    run_activation(run, layout, tsh_gelu_tanh);
}

static void run_relu(cv_run *run, const void *layout) {
    run_activation(run, layout, tsh_relu);
}

static void run_silu(cv_run *run, const void *layout) {
    run_activation(run, layout, tsh_silu);
}

const cv_sharding cv_gelu_erf[] = {{"replicated", run_gelu_erf, &replicated, NULL, 1},
                                   {"rows split", run_gelu_erf, &rows, NULL, 1},
                                   {"columns split", run_gelu_erf, &columns, NULL, 1},
                                   {0}};
const cv_sharding cv_gelu_tanh[] = {{"replicated", run_gelu_tanh, &replicated, NULL, 1},
                                    {"rows split", run_gelu_tanh, &rows, NULL, 1},
                                    {"columns split", run_gelu_tanh, &columns, NULL, 1},
                                    {0}};
const cv_sharding cv_relu[] = {{"replicated", run_relu, &replicated, NULL, 1},
                               {"rows split", run_relu, &rows, NULL, 1},
                               {"columns split", run_relu, &columns, NULL, 1},
                               {0}};
const cv_sharding cv_silu[] = {{"replicated", run_silu, &replicated, NULL, 1},
                               {"rows split", run_silu, &rows, NULL, 1},
                               {"columns split", run_silu, &columns, NULL, 1},
                               {0}};

/* --- stacks of products, and sums and products of two shapes ------------------------------------------------------ */

typedef struct two_layouts {
    tsh_layout a, b;
} two_layouts;

static void run_stack(cv_run *run, const void *layouts) {
    const two_layouts *l = layouts;
    tsh_tensor *a = cv_tensor(run, "a", 4, TSH_REPLICATED, l->a, true);
    tsh_tensor *b = cv_tensor(run, "b", 4, TSH_REPLICATED, l->b, true);
    tsh_tensor *y = a && b ? tsh_matmul(run->tape, a, b) : NULL;
    if (y && tsh_tensor_layout(y, run->model).kind == TSH_KIND_PARTIAL) y = tsh_reduce(run->tape, y, run->model);
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    if (a) cv_compare_grad(run, "da", a);
    if (b) cv_compare_grad(run, "db", b);
}

/* One of the two functions, with its own gradients in the file. */
static void run_two_shapes(cv_run *run, const two_layouts *l, bool product) {
    tsh_tensor *a = cv_tensor(run, "a", 3, TSH_REPLICATED, l->a, true);
    tsh_tensor *b = cv_tensor(run, "b", 2, TSH_REPLICATED, l->b, true);
    if (!a || !b) return;
    tsh_tensor *y = product ? tsh_mul(run->tape, a, b) : tsh_add(run->tape, a, b);
    cv_compare(run, product ? "m" : "y", y);
    cv_backward(run, y, product ? "dm" : "dy");
    cv_compare_grad(run, product ? "da_mul" : "da_add", a);
    cv_compare_grad(run, product ? "db_mul" : "db_add", b);
}

static void run_broadcast(cv_run *run, const void *layouts) {
    run_two_shapes(run, layouts, false);
    run_two_shapes(run, layouts, true);
}

static const two_layouts both_whole = {TSH_REPLICATED_INIT, TSH_REPLICATED_INIT},
                         both_first = {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0)},
                         stack_rows = {TSH_SHARD_INIT(2), TSH_REPLICATED_INIT},
                         stack_columns = {TSH_REPLICATED_INIT, TSH_SHARD_INIT(3)},
                         stack_sums = {TSH_SHARD_INIT(3), TSH_SHARD_INIT(2)},
                         first_split = {TSH_SHARD_INIT(0), TSH_REPLICATED_INIT},
                         middle_split = {TSH_SHARD_INIT(1), TSH_SHARD_INIT(0)},
                         last_split = {TSH_SHARD_INIT(2), TSH_REPLICATED_INIT};

const cv_sharding cv_batched_matmul[] = {
    {"replicated", run_stack, &both_whole, NULL, 1},     {"stack split", run_stack, &both_first, NULL, 1},
    {"rows split", run_stack, &stack_rows, NULL, 1},     {"columns split", run_stack, &stack_columns, NULL, 1},
    {"products split", run_stack, &stack_sums, NULL, 1}, {0}};
const cv_sharding cv_broadcast[] = {{"replicated", run_broadcast, &both_whole, NULL, 1},
                                    {"first dim split", run_broadcast, &first_split, NULL, 1},
                                    {"middle dim split", run_broadcast, &middle_split, NULL, 1},
                                    {"last dim split", run_broadcast, &last_split, NULL, 1},
                                    {0}};

/* --- norms -------------------------------------------------------------------------------------------------------- */

static void run_norm(cv_run *run, const tsh_layout *layout, bool rms) {
    double eps = cv_scalar(run, "eps");
    tsh_tensor *x = cv_tensor(run, "x", 2, TSH_REPLICATED, *layout, true);
    tsh_tensor *gamma = cv_tensor(run, "gamma", 1, TSH_REPLICATED, TSH_REPLICATED, true);
    tsh_tensor *beta = rms ? NULL : cv_tensor(run, "beta", 1, TSH_REPLICATED, TSH_REPLICATED, true);
    if (!x || !gamma || (!rms && !beta)) return;
    tsh_tensor *y = rms ? tsh_rms_norm(run->tape, x, gamma, eps) : tsh_layer_norm(run->tape, x, gamma, beta, eps);
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    cv_compare_grad(run, "dx", x);
    cv_compare_grad(run, "dgamma", gamma);
    if (beta) cv_compare_grad(run, "dbeta", beta);
}

static void run_layer_norm(cv_run *run, const void *layout) {
    run_norm(run, layout, false);
}

static void run_rms_norm(cv_run *run, const void *layout) {
    run_norm(run, layout, true);
}

const cv_sharding cv_layer_norm[] = {
    {"replicated", run_layer_norm, &replicated, NULL, 1}, {"rows split", run_layer_norm, &rows, NULL, 1}, {0}};
const cv_sharding cv_rms_norm[] = {
    {"replicated", run_rms_norm, &replicated, NULL, 1}, {"rows split", run_rms_norm, &rows, NULL, 1}, {0}};

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

typedef struct loss_variant {
    tsh_layout logits, target, weight;
} loss_variant;

static const loss_variant loss_dense = {TSH_REPLICATED_INIT, TSH_REPLICATED_INIT, TSH_REPLICATED_INIT},
                          loss_vocabulary = {TSH_SHARD_INIT(1), TSH_REPLICATED_INIT, TSH_REPLICATED_INIT},
                          loss_weights = {TSH_SHARD_INIT(1), TSH_REPLICATED_INIT, TSH_SHARD_INIT(0)},
                          loss_batch = {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0), TSH_REPLICATED_INIT};

static void run_cross_entropy(cv_run *run, const loss_variant *v, tsh_reduction reduction) {
    const tshi_vector *ignore = cv_vector(run, "ignore_index", 0);
    bool weighted = tshi_vectors_find(run->vectors, "class_weight") != NULL;
    tsh_tensor *logits = cv_tensor(run, "logits", 2, TSH_REPLICATED, v->logits, true);
    tsh_tensor *target = cv_tensor(run, "target", 1, TSH_REPLICATED, v->target, false);
    tsh_tensor *weight = weighted ? cv_tensor(run, "class_weight", 1, TSH_REPLICATED, v->weight, false) : NULL;
    if (!ignore || !logits || !target || (weighted && !weight)) return;
    tsh_tensor *loss =
        tsh_cross_entropy(run->tape, logits, target,
                          &(tsh_cross_entropy_config){.weight = weight,
                                                      .has_ignore_index = true,
                                                      .ignore_index = ignore->integers[0],
                                                      .label_smoothing = cv_scalar(run, "label_smoothing"),
                                                      .reduction = reduction});
    cv_compare(run, "loss", loss);
    cv_backward(run, loss, "dl");
    cv_compare_grad(run, "dlogits", logits);
}

static void run_mean(cv_run *run, const void *variant) {
    run_cross_entropy(run, variant, TSH_REDUCTION_MEAN);
}

static void run_sum(cv_run *run, const void *variant) {
    run_cross_entropy(run, variant, TSH_REDUCTION_SUM);
}

static void run_none(cv_run *run, const void *variant) {
    run_cross_entropy(run, variant, TSH_REDUCTION_NONE);
}

const cv_sharding cv_cross_entropy_mean[] = {{"dense", run_mean, &loss_dense, NULL, 1},
                                             {"vocabulary split", run_mean, &loss_vocabulary, NULL, 1},
                                             {"vocabulary, weights split", run_mean, &loss_weights, "class_weight", 1},
                                             {"batch split", run_mean, &loss_batch, NULL, 1},
                                             {0}};
const cv_sharding cv_cross_entropy_sum[] = {{"dense", run_sum, &loss_dense, NULL, 1},
                                            {"vocabulary split", run_sum, &loss_vocabulary, NULL, 1},
                                            {"vocabulary, weights split", run_sum, &loss_weights, "class_weight", 1},
                                            {"batch split", run_sum, &loss_batch, NULL, 1},
                                            {0}};
const cv_sharding cv_cross_entropy_none[] = {{"dense", run_none, &loss_dense, NULL, 1},
                                             {"vocabulary split", run_none, &loss_vocabulary, NULL, 1},
                                             {"vocabulary, weights split", run_none, &loss_weights, "class_weight", 1},
                                             {"batch split", run_none, &loss_batch, NULL, 1},
                                             {0}};

/* --- cross entropy of a linear layer's logits --------------------------------------------------------------------- */

/* Reductions as PyTorch numbers them. */
static const tsh_reduction reductions[] = {TSH_REDUCTION_NONE, TSH_REDUCTION_MEAN, TSH_REDUCTION_SUM};

static void run_linear_cross_entropy(cv_run *run, const void *variant) {
    const loss_variant *v = variant;
    const tshi_vector *ignore = cv_vector(run, "ignore_index", 0), *reduction = cv_vector(run, "reduction", 0);
    bool weighted = tshi_vectors_find(run->vectors, "class_weight") != NULL;
    tsh_layout split = v->logits.dim == 1 ? TSH_SHARD(0) : TSH_REPLICATED;
    tsh_tensor *x = cv_tensor(run, "x", 2, TSH_REPLICATED, v->target, true);
    tsh_tensor *w = cv_tensor(run, "W", 2, TSH_REPLICATED, split, true);
    tsh_tensor *target = cv_tensor(run, "target", 1, TSH_REPLICATED, v->target, false);
    tsh_tensor *weight = weighted ? cv_tensor(run, "class_weight", 1, TSH_REPLICATED, v->weight, false) : NULL;
    if (!ignore || !reduction || !x || !w || !target || (weighted && !weight)) return;
    const tsh_linear_cross_entropy_config config = {.loss = {.weight = weight,
                                                             .has_ignore_index = true,
                                                             .ignore_index = ignore->integers[0],
                                                             .label_smoothing = cv_scalar(run, "label_smoothing"),
                                                             .reduction = reductions[reduction->integers[0]]},
                                                    .z_loss = cv_scalar(run, "z_loss"),
                                                    .chunk = 3};
    tsh_tensor *loss = tsh_linear_cross_entropy(run->tape, x, w, target, &config);
    cv_compare(run, "loss", loss);
    cv_backward(run, loss, "dl");
    cv_compare_grad(run, "dx", x);
    cv_compare_grad(run, "dW", w);
}

const cv_sharding cv_linear_cross_entropy[] = {
    {"dense", run_linear_cross_entropy, &loss_dense, NULL, 1},
    {"vocabulary split", run_linear_cross_entropy, &loss_vocabulary, NULL, 1},
    {"vocabulary, weights split", run_linear_cross_entropy, &loss_weights, "class_weight", 1},
    {"batch split", run_linear_cross_entropy, &loss_batch, NULL, 1},
    {0}};
