/* Optimizers, and a language model over some steps. */
#include "cases.h"

#include <stdio.h>

/* --- one parameter under given gradients -------------------------------------------------------------------------- */

static const tsh_layout replicated = TSH_REPLICATED_INIT, rows = TSH_SHARD_INIT(0), columns = TSH_SHARD_INIT(1);

/* grads[s] becomes p's gradient as that of sum(p g). */
static void set_gradient(cv_run *run, tsh_tensor *p, int64_t step) {
    tsh_tensor *g = cv_stacked(run, "grads", step, p);
    tsh_tensor *product = g ? tsh_mul(run->tape, p, g) : NULL;
    if (product) tshi_check_ok(run->rank, tsh_backward_with(run->tape, product, NULL));
    tshi_check(run->rank, product, "%s", tsh_tape_message(run->tape));
    tsh_tape_reset(run->tape);
}

static void run_steps(cv_run *run, tsh_tensor *p, tsh_optimizer *optimizer) {
    const tshi_vector *grads = cv_vector(run, "grads", 3);
    for (int64_t s = 0; grads && s < grads->shape[0] && !run->rank->failed; s++) {
        tsh_optimizer_zero_grad(optimizer);
        set_gradient(run, p, s);
        tshi_check_ok(run->rank, tsh_optimizer_step(optimizer));
        cv_compare_stacked(run, "params", s, p);
    }
}

static void run_optimizer(cv_run *run, const tsh_layout *layout, bool adam) {
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *p = cv_tensor(run, "p0", 2, TSH_REPLICATED, *layout, true);
    if (!p || !tshi_check_ok(run->rank, tsh_parameters_create(run->rank->world, &list))) return;
    tshi_check_ok(run->rank, tsh_parameters_add(list, "p", p));
    double lr = cv_scalar(run, "lr"), decay = cv_scalar(run, "weight_decay");
    if (adam) {
        tsh_adamw_config config = {.lr = lr,
                                   .beta1 = cv_scalar(run, "beta1"),
                                   .beta2 = cv_scalar(run, "beta2"),
                                   .eps = cv_scalar(run, "eps"),
                                   .weight_decay = decay};
        tshi_check_ok(run->rank, tsh_adamw_create(list, &config, &optimizer));
    } else {
        tsh_sgd_config config = {.lr = lr,
                                 .momentum = cv_scalar(run, "momentum"),
                                 .weight_decay = decay,
                                 .nesterov = cv_scalar(run, "nesterov") != 0};
        tshi_check_ok(run->rank, tsh_sgd_create(list, &config, &optimizer));
    }
    if (optimizer) run_steps(run, p, optimizer);
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
}

static void run_sgd(cv_run *run, const void *layout) {
    run_optimizer(run, layout, false);
}

static void run_adamw(cv_run *run, const void *layout) {
    run_optimizer(run, layout, true);
}

const cv_sharding cv_sgd[] = {{"replicated", run_sgd, &replicated, NULL, 1},
                              {"rows split", run_sgd, &rows, NULL, 1},
                              {"columns split", run_sgd, &columns, NULL, 1},
                              {0}};
const cv_sharding cv_adamw[] = {{"replicated", run_adamw, &replicated, NULL, 1},
                                {"rows split", run_adamw, &rows, NULL, 1},
                                {"columns split", run_adamw, &columns, NULL, 1},
                                {0}};

/* --- an MLP language model ---------------------------------------------------------------------------------------- */

typedef struct model {
    tsh_embedding *embedding;
    tsh_linear *up, *down, *head;
    tsh_tensor *ids, *target;
    int64_t batch, features; /* of the embeddings of one row's ids, side by side */
} model;

static tsh_linear *make_linear(cv_run *run, tsh_sharding shard, tsh_activation f, const char *weight,
                               const char *bias) {
    const tshi_vector *w = cv_vector(run, weight, 2);
    if (!w) return NULL;
    tsh_linear *layer = NULL;
    tsh_linear_create(run->model,
                      &(tsh_linear_config){.in_features = w->shape[1],
                                           .out_features = w->shape[0],
                                           .shard = shard,
                                           .bias = true,
                                           .activation = f,
                                           .dtype = run->dtype},
                      &layer);
    if (cv_load_linear(run, layer, weight, bias)) return layer;
    tsh_linear_destroy(layer);
    return NULL;
}

static bool make_model(cv_run *run, bool split, model *m) {
    const tshi_vector *table = cv_vector(run, "E", 2), *ids = cv_vector(run, "idx", 2);
    if (!table || !ids) return false;
    m->batch = ids->shape[0];
    m->features = ids->shape[1] * table->shape[1];
    tsh_embedding_create(run->model,
                         &(tsh_embedding_config){.num_embeddings = table->shape[0],
                                                 .embedding_dim = table->shape[1],
                                                 .shard = split ? TSH_ROW : TSH_DENSE,
                                                 .dtype = run->dtype},
                         &m->embedding);
    if (!cv_load_embedding(run, m->embedding, "E")) return false;
    m->up = make_linear(run, split ? TSH_COLUMN : TSH_DENSE, TSH_ACTIVATION_GELU, "W1", "b1");
    m->down = make_linear(run, split ? TSH_ROW : TSH_DENSE, TSH_ACTIVATION_NONE, "W2", "b2");
    m->head = make_linear(run, split ? TSH_COLUMN : TSH_DENSE, TSH_ACTIVATION_NONE, "Wo", "bo");
    m->ids = cv_tensor(run, "idx", 2, TSH_SHARD(0), TSH_REPLICATED, false);
    m->target = cv_tensor(run, "target", 1, TSH_SHARD(0), TSH_REPLICATED, false);
    return m->up && m->down && m->head && m->ids && m->target;
}

static void destroy_model(model *m) {
    tsh_embedding_destroy(m->embedding);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
    tsh_linear_destroy(m->head);
}

static tsh_tensor *loss_of(cv_run *run, const model *m) {
    tsh_tensor *e = tsh_embedding_forward(run->tape, m->embedding, m->ids);
    tsh_tensor *x = tsh_reshape(run->tape, e, 2, (int64_t[]){m->batch, m->features});
    tsh_tensor *h = tsh_linear_forward(run->tape, m->up, x);
    tsh_tensor *y = tsh_linear_forward(run->tape, m->down, h);
    return tsh_cross_entropy(run->tape, tsh_linear_forward(run->tape, m->head, y), m->target, NULL);
}

/* The file's names of the parameters, in the order of the list. */
static const char *const names[] = {"E", "W1", "b1", "W2", "b2", "Wo", "bo"};

static void compare_parameters(cv_run *run, const tsh_parameters *list, const char *prefix, bool gradients) {
    char name[TSHI_VECTOR_NAME];
    for (int i = 0; i < tsh_parameters_count(list); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        tsh_tensor *p = tsh_parameters_tensor(list, i);
        if (gradients) {
            cv_compare_grad(run, name, p);
        } else {
            cv_compare(run, name, p);
        }
    }
}

static void train(cv_run *run, const model *m, tsh_parameters *list, tsh_optimizer *optimizer) {
    const tshi_vector *losses = cv_vector(run, "losses", 1);
    for (int64_t s = 0; losses && s < losses->count && !run->rank->failed; s++) {
        tsh_optimizer_zero_grad(optimizer);
        tsh_tensor *loss = loss_of(run, m);
        if (!tshi_check(run->rank, loss, "%s", tsh_tape_message(run->tape))) return;
        cv_compare_value(run, "losses", s, tsh_tensor_item(loss));
        tshi_check_ok(run->rank, tsh_backward(run->tape, loss));
        if (s == 0) compare_parameters(run, list, "grad0_", true);
        tshi_check_ok(run->rank, tsh_optimizer_step(optimizer));
        tshi_check_ok(run->rank, tsh_tape_reset(run->tape));
    }
    compare_parameters(run, list, "final_", false);
}

static void run_mlp_lm(cv_run *run, const void *split) {
    model m = {0};
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    if (make_model(run, *(const bool *)split, &m) &&
        tshi_check_ok(run->rank, tsh_parameters_create(run->rank->world, &list))) {
        tshi_check_ok(run->rank, tsh_embedding_register(m.embedding, list, "embedding"));
        tshi_check_ok(run->rank, tsh_linear_register(m.up, list, "up"));
        tshi_check_ok(run->rank, tsh_linear_register(m.down, list, "down"));
        tshi_check_ok(run->rank, tsh_linear_register(m.head, list, "head"));
        tsh_sgd_config config = {.lr = cv_scalar(run, "lr")};
        if (tshi_check_ok(run->rank, tsh_sgd_create(list, &config, &optimizer))) train(run, &m, list, optimizer);
    }
    tsh_tape_reset(run->tape);
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    destroy_model(&m);
}

static const bool split = true, whole = false;

const cv_sharding cv_mlp_lm[] = {{"dense", run_mlp_lm, &whole, NULL, 1},
                                 {"dense, batch split", run_mlp_lm, &whole, NULL, 0},
                                 {"vocabulary, column, row", run_mlp_lm, &split, NULL, 1},
                                 {"2 x the same, batch split", run_mlp_lm, &split, NULL, 2},
                                 {0}};
