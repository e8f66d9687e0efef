/* Routers of experts, and the experts' MLPs. A file has several cases, whose tensors are named CASE.NAME. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What splits the tokens and the experts' weights, along the mesh's axes. */
typedef struct variant {
    bool tokens_by_data, tokens_by_model, experts_by_data, experts_by_model;
} variant;

static const variant whole = {0}, tokens = {.tokens_by_data = true}, experts = {.experts_by_model = true},
                     both = {.tokens_by_data = true, .experts_by_model = true},
                     gathered = {.tokens_by_model = true, .experts_by_model = true},
                     twice = {.experts_by_data = true, .experts_by_model = true};

/* --- cases of a file ---------------------------------------------------------------------------------------------- */

typedef struct expert_case {
    cv_run *run;
    const variant *v;
    char prefix[TSHI_VECTOR_NAME];
} expert_case;

#define NAMED(c, name) named((c), (name), (char[TSHI_VECTOR_NAME]){""})

static const char *named(const expert_case *c, const char *name, char *text) {
    snprintf(text, TSHI_VECTOR_NAME, "%.40s.%.20s", c->prefix, name);
    return text;
}

static bool has(const expert_case *c, const char *name) {
    return tshi_vectors_find(c->run->vectors, NAMED(c, name)) != NULL;
}

static double number(const expert_case *c, const char *name) {
    return cv_scalar(c->run, NAMED(c, name));
}

static tsh_tensor *by_tokens(const expert_case *c, const char *name, bool gradient) {
    return cv_tensor(c->run, NAMED(c, name), 2, c->v->tokens_by_data ? TSH_SHARD(0) : TSH_REPLICATED,
                     c->v->tokens_by_model ? TSH_SHARD(0) : TSH_REPLICATED, gradient);
}

/* Runs each case that has the tensor. */
static void each_case(cv_run *run, const variant *v, const char *tensor, void (*check)(expert_case *c)) {
    tsh_dtype dtype = run->dtype;
    for (int i = 0; i < run->vectors->count && !run->rank->failed; i++) {
        const char *name = run->vectors->items[i].name, *dot = strchr(name, '.');
        expert_case c = {.run = run, .v = v};
        if (!dot || strcmp(dot + 1, tensor) != 0) continue;
        snprintf(c.prefix, sizeof c.prefix, "%.*s", (int)(dot - name), name);
        check(&c);
        tsh_tape_reset(run->tape);
        while (run->tensor_count > 0) tsh_tensor_release(run->tensors[--run->tensor_count]);
        run->dtype = dtype;
    }
}

/* Compares a tensor in any layouts, whole. */
static void compare_whole(const expert_case *c, const char *name, tsh_tensor *got) {
    cv_compare(c->run, NAMED(c, name), got ? tsh_full(c->run->tape, got) : NULL);
}

/* --- the router --------------------------------------------------------------------------------------------------- */

static tsh_router_config router_of(const expert_case *c) {
    tsh_router_config config = {.top_k = (int64_t)number(c, "k"),
                                .score = (tsh_router_score)number(c, "score"),
                                .renormalize = number(c, "renormalise") > 0,
                                .scaling = number(c, "scaling"),
                                .aux_loss = number(c, "aux_coeff"),
                                .z_loss = number(c, "z_coeff")};
    if (has(c, "groups")) {
        config.groups = (int64_t)number(c, "groups");
        config.groups_kept = (int64_t)number(c, "groups_kept");
    }
    return config;
}

static void compare_experts(const expert_case *c, tsh_tensor *got) {
    const tshi_vector *wanted = cv_vector(c->run, NAMED(c, "experts"), 2);
    int64_t *ids = wanted ? calloc((size_t)wanted->count + 1, sizeof *ids) : NULL;
    if (ids && tshi_check(c->run->rank, got, "%s", tsh_tape_message(c->run->tape)) &&
        tshi_check_ok(c->run->rank, tsh_tensor_read_whole(got, ids))) {
        for (int64_t i = 0; i < wanted->count; i++)
            tshi_check(c->run->rank, ids[i] == wanted->integers[i], "%s: expert %d is %d, %d wanted", c->prefix, (int)i,
                       (int)ids[i], (int)wanted->integers[i]);
    }
    free(ids);
}

/* One of the two losses, with its gradient. */
static void compare_loss(const expert_case *c, tsh_router_config config, bool balance) {
    tsh_tensor *logits = by_tokens(c, "logits", true), *ids = by_tokens(c, "experts", false);
    if (!logits || !ids) return;
    if (balance) config.z_loss = 0;
    if (!balance) config.aux_loss = 0;
    tsh_tensor *loss = tsh_route_loss(c->run->tape, logits, &config, ids);
    compare_whole(c, balance ? "aux_loss" : "z_loss", loss);
    if (loss && tshi_check_ok(c->run->rank, tsh_backward(c->run->tape, loss)))
        cv_compare_grad(c->run, NAMED(c, balance ? "dlogits_aux" : "dlogits_z"), logits);
    tsh_tape_reset(c->run->tape);
}

static void check_router(expert_case *c) {
    tsh_router_config config = router_of(c);
    tsh_tensor *logits = by_tokens(c, "logits", true), *ids = NULL;
    config.bias = cv_tensor(c->run, NAMED(c, "bias"), 1, TSH_REPLICATED, TSH_REPLICATED, false);
    if (!logits || !config.bias) return;
    tsh_tensor *weights = tsh_route(c->run->tape, logits, &config, &ids);
    compare_experts(c, ids);
    cv_compare(c->run, NAMED(c, "weights"), weights);
    cv_backward(c->run, weights, NAMED(c, "dweights"));
    cv_compare_grad(c->run, NAMED(c, "dlogits"), logits);
    tsh_tape_reset(c->run->tape);
    compare_loss(c, config, true);
    /* A square of what only float64 tells from zero has no relative error in float32. */
    if (c->run->dtype == TSH_FLOAT64 || number(c, "z_loss") > 1e-12) compare_loss(c, config, false);
}

/* Routers compute in float32 at least. */
static void run_router(cv_run *run, const void *user) {
    if (run->dtype == TSH_BFLOAT16) run->dtype = TSH_FLOAT32;
    each_case(run, user, "dlogits_z", check_router);
}

const cv_sharding cv_moe_router[] = {
    {"whole", run_router, &whole, NULL, 1}, {"tokens by data", run_router, &tokens, NULL, 0}, {0}};

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* Turns the file's [experts, a, b] into [experts, b, a]. */
static void transpose_each(const expert_case *c, const char *name) {
    tshi_vector *v = (tshi_vector *)cv_vector(c->run, NAMED(c, name), 3);
    if (!v) return;
    int64_t rows = v->shape[1], cols = v->shape[2];
    double *from = calloc((size_t)v->count + 1, sizeof *from);
    if (!tshi_check(c->run->rank, from, "no memory")) return;
    memcpy(from, v->values, sizeof *from * (size_t)v->count);
    for (int64_t i = 0; i < v->count; i++) {
        int64_t e = i / (rows * cols), row = i / cols % rows, col = i % cols;
        v->values[(e * cols + col) * rows + row] = from[i];
    }
    v->shape[1] = cols;
    v->shape[2] = rows;
    free(from);
}

static int64_t stack_weights(const expert_case *c) {
    const tshi_vector *gate = cv_vector(c->run, NAMED(c, "gate"), 3);
    transpose_each(c, "down");
    transpose_each(c, "ddown");
    return gate ? gate->shape[0] : 0;
}

static tsh_tensor *by_experts(const expert_case *c, const char *name) {
    tsh_layout experts_of = TSH_SHARD_NEXT(0), features_of = TSH_SHARD(1);
    tsh_layout data = c->v->experts_by_data ? experts_of : TSH_REPLICATED;
    tsh_layout model = c->v->experts_by_data ? features_of : c->v->experts_by_model ? experts_of : TSH_REPLICATED;
    return cv_tensor(c->run, NAMED(c, name), 3, data, model, true);
}

static void check_experts(expert_case *c) {
    int64_t count = stack_weights(c);
    tsh_tensor *x = by_tokens(c, "x", true), *weights = by_tokens(c, "weights", true);
    tsh_tensor *ids = by_tokens(c, "experts", false);
    tsh_tensor *gate = by_experts(c, "gate"), *up = by_experts(c, "up"), *down = by_experts(c, "down");
    if (!x || !weights || !ids || !gate || !up || !down) return;
    tsh_tensor *y = tsh_expert_mlp(c->run->tape, x, weights, ids, gate, up, down, count);
    y = y ? tsh_full(c->run->tape, y) : NULL;
    cv_compare(c->run, NAMED(c, "y"), y);
    cv_backward(c->run, y, NAMED(c, "dy"));
    cv_compare_grad(c->run, NAMED(c, "dx"), x);
    cv_compare_grad(c->run, NAMED(c, "dweights"), weights);
    cv_compare_grad(c->run, NAMED(c, "dgate"), gate);
    cv_compare_grad(c->run, NAMED(c, "dup"), up);
    cv_compare_grad(c->run, NAMED(c, "ddown"), down);
}

/* --- the layer ---------------------------------------------------------------------------------------------------- */

static bool load_part(const expert_case *c, const tsh_experts *layer, tsh_experts_part part, const char *name) {
    tsh_tensor *to = tsh_experts_weight(layer, part);
    const tshi_vector *v = cv_vector(c->run, NAMED(c, name), tsh_tensor_ndim(to));
    cv_run as = *c->run;
    as.dtype = tsh_tensor_dtype(to);
    void *elements = v ? cv_elements(&as, v, 0, v->count) : NULL;
    bool good = elements && tshi_check_ok(c->run->rank, tsh_tensor_write_whole(to, elements));
    free(elements);
    return good;
}

static const struct {
    tsh_experts_part part;
    const char *name, *gradient;
} parts[] = {{TSH_EXPERTS_ROUTER, "router", "drouter"},
             {TSH_EXPERTS_GATE, "gate", "dgate"},
             {TSH_EXPERTS_UP, "up", "dup"},
             {TSH_EXPERTS_DOWN, "down", "ddown"},
             {TSH_EXPERTS_BIAS, "bias", NULL}};

enum { PARTS = sizeof parts / sizeof *parts };

/* Backward from sum(y dy) and the router's losses. */
static void compare_block(const expert_case *c, tsh_experts *layer) {
    tsh_tensor *x = by_tokens(c, "x", true), *dy = by_tokens(c, "dy", false);
    if (!x || !dy) return;
    tsh_tape *tape = c->run->tape;
    tsh_tensor *y = tsh_experts_forward(tape, layer, x);
    cv_compare(c->run, NAMED(c, "y"), y);
    compare_experts(c, tsh_experts_chosen(layer));
    if (!y) return;
    tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, y, dy), TSH_ALL_DIMS);
    tsh_tensor *router = tsh_cast(tape, tsh_experts_loss(layer), c->run->dtype);
    if (!tshi_check_ok(c->run->rank, tsh_backward(tape, tsh_add(tape, loss, router)))) return;
    cv_compare_grad(c->run, NAMED(c, "dx"), x);
    for (int i = 0; i < PARTS; i++)
        if (parts[i].gradient)
            cv_compare_grad(c->run, NAMED(c, parts[i].gradient), tsh_experts_weight(layer, parts[i].part));
}

static void check_block(expert_case *c) {
    int64_t count = stack_weights(c);
    const tshi_vector *gate = cv_vector(c->run, NAMED(c, "gate"), 3);
    tsh_experts *layer = NULL;
    if (!gate) return;
    tsh_experts_config config = {.embed = gate->shape[2],
                                 .hidden = gate->shape[1],
                                 .experts = count,
                                 .router = router_of(c),
                                 .choice_bias = true,
                                 .expert_group = c->v->experts_by_data ? c->run->data : NULL,
                                 .dtype = c->run->dtype};
    if (!tshi_check_ok(c->run->rank, tsh_experts_create(c->run->model, &config, &layer))) return;
    bool good = true;
    for (int i = 0; i < PARTS && good; i++) good = load_part(c, layer, parts[i].part, parts[i].name);
    if (good) compare_block(c, layer);
    tsh_tape_reset(c->run->tape);
    tsh_experts_destroy(layer);
}

static void run_layer(cv_run *run, const void *user) {
    each_case(run, user, "dweights", check_experts);
    each_case(run, user, "drouter", check_block);
}

const cv_sharding cv_moe_layer[] = {{"whole", run_layer, &whole, NULL, 0},
                                    {"tokens by data", run_layer, &tokens, NULL, 0},
                                    {"experts", run_layer, &experts, NULL, 1},
                                    {"experts, tokens gathered", run_layer, &gathered, NULL, 1},
                                    {"tokens by data, experts", run_layer, &both, NULL, 2},
                                    {"experts by data, features by model", run_layer, &twice, NULL, 2},
                                    {0}};
