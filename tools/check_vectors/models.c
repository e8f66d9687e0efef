/* Models of Hugging Face folders: what transformers computes in float64 with the weights of model.safetensors lies
 * beside them in expected.safetensors. */
#include "base/base.h"
#include "cases.h"
#include "device/cpu/isa/kernels.h"
#include "io/safetensors.h"
#include "transformer/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the file ----------------------------------------------------------------------------------------------------- */

static bool is_weight(const char *name) {
    return strncmp(name, "grad.", 5) == 0 || strncmp(name, "after.", 6) == 0;
}

static bool read_vector(tshi_safetensors *file, const tshi_safetensors_entry *e, tshi_vector *v) {
    tsh_box box = {0};
    snprintf(v->name, sizeof v->name, "%s", e->name);
    v->ndim = e->ndim;
    v->count = 1;
    for (int d = 0; d < e->ndim; d++) v->count *= v->shape[d] = box.length[d] = e->shape[d];
    v->integer = e->dtype == TSH_INT64;
    if (!v->integer && e->dtype != TSH_FLOAT64) return tshi_fail(TSH_ERR_DTYPE, "%s is no float64", e->name) == TSH_OK;
    v->values = calloc((size_t)v->count, sizeof *v->values);
    if (v->integer) v->integers = calloc((size_t)v->count, sizeof *v->integers);
    if (!v->values || (v->integer && !v->integers)) return false;
    void *to = v->integer ? (void *)v->integers : (void *)v->values;
    if (tshi_safetensors_read_box(file, e, &box, to) != TSH_OK) return false;
    for (int64_t i = 0; v->integer && i < v->count; i++) v->values[i] = (double)v->integers[i];
    return true;
}

/* transformers computes rotary positions and RMS norms in float32 in models of any dtype; tests/data/models/exact.py
 * makes it use float64, and says so. */
static bool is_exact(const char *folder, const tshi_safetensors *file) {
    model_config config;
    char words[MODEL_WORDS];
    const char *computed = tshi_safetensors_metadata(file, "computed");
    if (computed && strcmp(computed, "float64") == 0) return true;
    return !model_config_read(folder, &config, words) || config.rope_theta == 0;
}

bool cv_model_vectors(const char *folder, tshi_vectors *out, bool *exact, char *error, size_t size) {
    char path[4096];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file = NULL;
    *out = (tshi_vectors){0};
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    bool good = tshi_safetensors_open(&allocator, path, &file) == TSH_OK;
    if (good) out->items = calloc((size_t)file->count + 1, sizeof *out->items);
    for (int i = 0; good && out->items && i < file->count; i++) {
        if (!is_weight(file->entries[i].name)) good = read_vector(file, &file->entries[i], &out->items[out->count++]);
    }
    *exact = good && is_exact(folder, file);
    if (!good) {
        snprintf(error, size, "%s", tsh_error_message());
        tshi_vectors_free(out);
    }
    tshi_safetensors_close(file);
    return good;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* What is wanted of a parameter, in float64 and laid out as it, and what there is. */
typedef struct weight {
    tsh_tensor *grad, *after; /* wanted */
    double grad_most, after_most;
    double *got_grad;
} weight;

typedef struct kit {
    cv_run *run;
    model *m;
    weight *weights;
    int count;
    tsh_optimizer *optimizer;
} kit;

/* A tensor as the parameter, in float64. */
static tsh_tensor *create_like(kit *k, const tsh_tensor *t) {
    tsh_tensor *out = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = t->shape.ndim};
    memcpy(config.shape, t->shape.global, sizeof *config.shape * (size_t)config.ndim);
    memcpy(config.layout, t->layout, sizeof config.layout);
    return tshi_check_ok(k->run->rank, tsh_tensor_create(t->mesh, &config, &out)) ? out : NULL;
}

/* The model's rules, for tensors whose names in the file begin with `prefix`. */
static int prefix_rules(const model *m, const char *prefix, tsh_name_rule *rules, char names[][128]) {
    int n = 0;
    for (; n < m->rule_count; n++) {
        snprintf(names[n], sizeof names[n], "%s%s", prefix, m->rules[n].tensor);
        rules[n] = m->rules[n];
        rules[n].tensor = names[n];
    }
    snprintf(names[n], sizeof names[n], "%s*", prefix);
    rules[n] = (tsh_name_rule){.parameter = "*", .tensor = names[n]};
    return n + 1;
}

static bool load_wanted(kit *k, const char *prefix, size_t member) {
    char names[MODEL_RULES + 1][128], path[4096];
    tsh_name_rule rules[MODEL_RULES + 1];
    tsh_load_options options = {.rules = rules, .allow_unexpected = true};
    options.rule_count = prefix_rules(k->m, prefix, rules, names);
    tsh_parameters *list = NULL;
    bool good = tshi_check_ok(k->run->rank, tsh_parameters_create(k->run->rank->world, &list));
    for (int i = 0; good && i < k->count; i++) {
        tsh_tensor *t = create_like(k, tsh_parameters_tensor(k->m->parameters, i));
        *(tsh_tensor **)((char *)&k->weights[i] + member) = t;
        good = t && tshi_check_ok(k->run->rank, tsh_parameters_add(list, tsh_parameters_name(k->m->parameters, i), t));
    }
    snprintf(path, sizeof path, "%s/expected.safetensors", k->run->folder);
    good = good && tshi_check_ok(k->run->rank, tsh_load(list, path, &options));
    tsh_parameters_destroy(list);
    return good;
}

/* The largest magnitude of the whole tensor. */
static double most_of(kit *k, const tsh_tensor *t) {
    int64_t n = 1;
    double most = 0;
    for (int d = 0; d < t->shape.ndim; d++) n *= t->shape.global[d];
    double *whole = calloc((size_t)n + 1, sizeof *whole);
    if (whole && tshi_check_ok(k->run->rank, tsh_tensor_read_whole(t, whole))) {
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(whole[i]));
    }
    free(whole);
    return most;
}

/* The gradient of a key's bias is zero but for rounding: a bias is compared on the scale of its weight. */
static void share_scales(kit *k) {
    for (int i = 1; i < k->count; i++) {
        const char *before = tsh_parameters_name(k->m->parameters, i - 1);
        const char *bias = tsh_parameters_name(k->m->parameters, i);
        size_t length = strlen(bias) - strlen("bias");
        if (strcmp(bias + length, "bias") == 0 && strncmp(before, bias, length) == 0)
            k->weights[i].grad_most = fmax(k->weights[i].grad_most, k->weights[i - 1].grad_most);
    }
}

static void compare_gradients(kit *k) {
    if (!load_wanted(k, "grad.", offsetof(weight, grad))) return;
    for (int i = 0; i < k->count; i++) k->weights[i].grad_most = most_of(k, k->weights[i].grad);
    share_scales(k);
    for (int i = 0; i < k->count && !k->run->rank->failed; i++) {
        weight *w = &k->weights[i];
        const tsh_tensor *got = tsh_tensor_grad(tsh_parameters_tensor(k->m->parameters, i));
        const double *wanted = tsh_tensor_data(w->grad);
        if (!tshi_check(k->run->rank, got, "%s has no gradient", tsh_parameters_name(k->m->parameters, i))) return;
        w->got_grad = cv_read(k->run, got);
        for (int64_t j = 0; w->got_grad && j < tsh_tensor_local_numel(got); j++)
            cv_note_error(k->run, (w->got_grad[j] - wanted[j]) / w->grad_most);
    }
}

/* --- one step of AdamW -------------------------------------------------------------------------------------------- */

static const tsh_adamw_config adamw = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/* AdamW's first step over the learning rate: that of a gradient of almost zero is much of the step, whatever the
 * rounding error that the gradient is. So the step with the gradient that there is, is compared with the wanted one. */
static double first_step(double g) {
    return g / (fabs(g) + adamw.eps);
}

static void compare_step(kit *k) {
    if (!load_wanted(k, "after.", offsetof(weight, after))) return;
    if (!tshi_check_ok(k->run->rank, tsh_adamw_create(k->m->parameters, &adamw, &k->optimizer))) return;
    tshi_check_ok(k->run->rank, tsh_optimizer_step(k->optimizer));
    for (int i = 0; i < k->count && !k->run->rank->failed; i++) {
        weight *w = &k->weights[i];
        const tsh_tensor *p = tsh_parameters_tensor(k->m->parameters, i);
        const double *grad = tsh_tensor_data(w->grad), *after = tsh_tensor_data(w->after);
        double scale = most_of(k, w->after), *got = cv_read(k->run, p);
        for (int64_t j = 0; got && j < tsh_tensor_local_numel(p); j++) {
            double wanted = after[j] + adamw.lr * (first_step(grad[j]) - first_step(w->got_grad[j]));
            cv_note_error(k->run, (got[j] - wanted) / scale);
        }
        free(got);
    }
}

/* --- cases -------------------------------------------------------------------------------------------------------- */

static const int64_t *integers(kit *k, const char *name, int64_t *batch, int64_t *tokens) {
    const tshi_vector *v = cv_vector(k->run, name, 2);
    if (!v || !tshi_check(k->run->rank, v->integer, "%s is no int64", name)) return NULL;
    *batch = v->shape[0];
    *tokens = v->shape[1];
    return v->integers;
}

/* The file's tensor [batch, tokens, n] as the model has it, [batch tokens, n]. */
static void collapse(kit *k, const char *name) {
    for (int i = 0; i < k->run->vectors->count; i++) {
        tshi_vector *v = &k->run->vectors->items[i];
        if (v->ndim != 3 || strcmp(v->name, name) != 0) continue;
        v->ndim = 2;
        v->shape[0] *= v->shape[1];
        v->shape[1] = v->shape[2];
    }
}

/* The likeliest next token, without a cache: all tokens are computed again for each. -1 on failure. */
static int64_t next_token(kit *k, const int64_t *ids, int64_t count) {
    model_input in = {0};
    int64_t best = -1, n = k->m->config.vocabulary;
    double *logits = calloc((size_t)(count * n), sizeof *logits);
    if (tshi_check(k->run->rank, logits, "no memory") &&
        tshi_check_ok(k->run->rank, model_input_create(k->m, 1, count, false, &in)) &&
        tshi_check_ok(k->run->rank, model_input_write(&in, ids, NULL, NULL))) {
        tsh_tensor *y = model_forward(k->m, k->run->tape, &in);
        if (tshi_check(k->run->rank, y, "%s", tsh_tape_message(k->run->tape)) &&
            tshi_check_ok(k->run->rank, tsh_tensor_read_whole(y, logits))) {
            best = 0;
            for (int64_t i = 1; i < n; i++) {
                if (logits[(count - 1) * n + i] > logits[(count - 1) * n + best]) best = i;
            }
        }
    }
    tshi_check_ok(k->run->rank, tsh_tape_reset(k->run->tape));
    model_input_release(&in);
    free(logits);
    return best;
}

static void compare_generated(kit *k) {
    int64_t batch, count, ids[256];
    const int64_t *prompt = integers(k, "prompt", &batch, &count);
    const tshi_vector *wanted = cv_vector(k->run, "generated", 1);
    if (!prompt || !wanted || !tshi_check(k->run->rank, wanted->count + count <= 256, "more than 256 tokens")) return;
    tsh_tape_set_recording(k->run->tape, false);
    memcpy(ids, prompt, sizeof *ids * (size_t)count);
    for (int64_t i = 0; i < wanted->count && !k->run->rank->failed; i++, count++) {
        ids[count] = next_token(k, ids, count);
        tshi_check(k->run->rank, ids[count] == wanted->integers[i], "generated token %lld is %lld, %lld wanted",
                   (long long)i, (long long)ids[count], (long long)wanted->integers[i]);
    }
    tsh_tape_set_recording(k->run->tape, true);
}

/* int64 [batch, tokens] in this order, its tokens split over the data axis; or [tokens], the order itself. */
static tsh_tensor *split_tokens(kit *k, int64_t batch, int64_t tokens, const int64_t *order, const int64_t *from) {
    int64_t *values = calloc((size_t)(batch * tokens) + 1, sizeof *values);
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = batch ? 2 : 1, .shape = {batch ? batch : tokens, tokens}};
    config.layout[0] = TSH_SHARD(config.ndim - 1);
    for (int64_t i = 0; values && i < batch * tokens; i++)
        values[i] = from ? from[i / tokens * tokens + order[i % tokens]] : order[i % tokens];
    if (tshi_check_ok(k->run->rank, tsh_tensor_create(k->run->mesh, &config, &t)))
        tshi_check_ok(k->run->rank, tsh_tensor_write_whole(t, batch ? values : order));
    free(values);
    return t;
}

/* The file's tensor [batch, tokens, n] with its tokens in this order. */
static void reorder(kit *k, const char *name, const int64_t *order) {
    for (int i = 0; i < k->run->vectors->count; i++) {
        tshi_vector *v = &k->run->vectors->items[i];
        if (v->ndim != 3 || strcmp(v->name, name) != 0) continue;
        int64_t tokens = v->shape[1], n = v->shape[2];
        double *old = calloc((size_t)v->count, sizeof *old);
        if (!tshi_check(k->run->rank, old, "no memory")) return;
        memcpy(old, v->values, (size_t)v->count * sizeof *old);
        for (int64_t row = 0; row < v->shape[0] * tokens; row++)
            memcpy(v->values + row * n, old + (row / tokens * tokens + order[row % tokens]) * n,
                   (size_t)n * sizeof *old);
        free(old);
    }
}

/* The losses and gradients of what the model makes of the file's ids. */
/* In 16 bits rounding decides which experts a token takes whose scores are close, and then all of its numbers differ:
 * only the mean over tokens, the loss, is compared. */
static void compare_training(kit *k, const model_input *in, tsh_tensor *target) {
    bool by_token = k->m->config.experts == 0 || k->run->dtype != TSH_BFLOAT16;
    tsh_tensor *logits = model_forward(k->m, k->run->tape, in);
    tsh_tensor *loss = tsh_cross_entropy(k->run->tape, logits, target, NULL);
    if (by_token) cv_compare(k->run, "logits", logits);
    if (tshi_check(k->run->rank, loss, "%s", tsh_tape_message(k->run->tape))) {
        double value = cv_scalar(k->run, "loss");
        cv_note_error(k->run, (tsh_tensor_item(loss) - value) / value);
        tshi_check_ok(k->run->rank, tsh_backward(k->run->tape, loss));
    }
    if (by_token && !k->run->rank->failed) compare_gradients(k);
    if (by_token && !k->run->rank->failed) compare_step(k);
}

/* The tokens of each sequence are split over the ranks, zigzag. */
static void run_split_tokens(kit *k) {
    int64_t batch = 0, tokens = 0;
    const int64_t *ids = integers(k, "ids", &batch, &tokens), *wanted = integers(k, "target", &batch, &tokens);
    int64_t *order = calloc((size_t)tokens + 1, sizeof *order);
    if (ids && wanted && tshi_check(k->run->rank, order, "no memory")) {
        tsh_zigzag(tokens, k->run->rank->size, order);
        model_input in = {.batch = batch, .tokens = tokens, .ids = split_tokens(k, batch, tokens, order, ids)};
        tsh_tensor *target = split_tokens(k, batch, tokens, order, wanted);
        in.places = split_tokens(k, batch, tokens, order, NULL);
        in.positions = split_tokens(k, 0, tokens, order, NULL);
        reorder(k, "logits", order);
        if (!k->run->rank->failed) compare_training(k, &in, target);
        tsh_tensor_release(target);
        tsh_tensor_release(in.ids);
        tsh_tensor_release(in.places);
        tsh_tensor_release(in.positions);
    }
    free(order);
}

static void run_causal(kit *k) {
    model_input in = {0};
    int64_t batch = 0, tokens = 0;
    const int64_t *ids = integers(k, "ids", &batch, &tokens), *wanted = integers(k, "target", &batch, &tokens);
    tsh_tensor *target = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {batch * tokens}};
    if (k->run->dtype == TSH_FLOAT64) compare_generated(k);
    if (ids && wanted && tshi_check_ok(k->run->rank, tsh_tensor_create(k->run->mesh, &config, &target)) &&
        tshi_check_ok(k->run->rank, tsh_tensor_write_whole(target, wanted)) &&
        tshi_check_ok(k->run->rank, model_input_create(k->m, batch, tokens, false, &in)) &&
        tshi_check_ok(k->run->rank, model_input_write(&in, ids, NULL, NULL))) {
        collapse(k, "logits");
        compare_training(k, &in, target);
    }
    model_input_release(&in);
    tsh_tensor_release(target);
}

/* The lengths of sequences of which a mask of ones and zeros says what is seen. */
static bool lengths_of(kit *k, const int64_t *mask, int64_t batch, int64_t tokens, int64_t *lengths) {
    bool good = true;
    for (int64_t b = 0; mask && b < batch; b++) {
        const int64_t *row = mask + b * tokens;
        for (lengths[b] = 0; lengths[b] < tokens && row[lengths[b]] == 1;) lengths[b]++;
        for (int64_t i = lengths[b]; i < tokens; i++) good = good && row[i] == 0;
    }
    return tshi_check(k->run->rank, mask && good, "the mask is no rows of ones and then zeros");
}

/* dy, laid out as y's gradient, is the gradient of y. */
static void backward_from(kit *k, tsh_tensor *y) {
    collapse(k, "dy");
    tsh_tensor *dy = cv_tensor(k->run, "dy", 2, y->layout[0], y->layout[1], false);
    tsh_backward_config config = {.gradient = dy};
    if (dy) tshi_check_ok(k->run->rank, tsh_backward_with(k->run->tape, y, &config));
}

static void run_bert(kit *k) {
    model_input in = {0};
    int64_t batch, tokens, lengths[64];
    const int64_t *ids = integers(k, "ids", &batch, &tokens), *mask = integers(k, "mask", &batch, &tokens);
    if (!ids || !tshi_check(k->run->rank, batch <= 64, "a batch of more than 64") ||
        !lengths_of(k, mask, batch, tokens, lengths))
        return;
    if (tshi_check_ok(k->run->rank, model_input_create(k->m, batch, tokens, true, &in)) &&
        tshi_check_ok(k->run->rank, model_input_write(&in, ids, NULL, lengths))) {
        tsh_tensor *hidden = model_forward(k->m, k->run->tape, &in);
        collapse(k, "hidden");
        cv_compare(k->run, "hidden", hidden);
        cv_compare(k->run, "pooled", model_pool(k->m, k->run->tape, hidden, &in));
        if (!k->run->rank->failed) backward_from(k, hidden);
        if (!k->run->rank->failed) compare_gradients(k);
    }
    model_input_release(&in);
}

/* How a model is split beside its heads. */
typedef struct split {
    bool sequence_parallel, experts_by_data;
    tsh_context context; /* with it the tokens are split, and no heads */
} split;

static void run_model(cv_run *run, const void *variant) {
    model_config config;
    const split *by = variant;
    model_options options = {.dtype = run->dtype,
                             .sequence_parallel = by->sequence_parallel,
                             .context = by->context,
                             .experts = by->experts_by_data ? run->data : NULL};
    char words[MODEL_WORDS];
    kit k = {.run = run};
    if (tshi_check(run->rank, model_config_read(run->folder, &config, words), "%s", words) &&
        tshi_check_ok(run->rank, model_create(run->model, &config, &options, &k.m)) &&
        tshi_check_ok(run->rank, model_load(k.m, run->folder))) {
        k.count = tsh_parameters_count(k.m->parameters);
        k.weights = calloc((size_t)k.count, sizeof *k.weights);
        bool room = tshi_check(run->rank, k.weights, "no memory");
        if (room && by->context)
            run_split_tokens(&k);
        else if (room)
            config.family == MODEL_BERT ? run_bert(&k) : run_causal(&k);
    }
    tsh_tape_reset(run->tape);
    tsh_optimizer_destroy(k.optimizer);
    for (int i = 0; k.weights && i < k.count; i++) {
        tsh_tensor_release(k.weights[i].grad);
        tsh_tensor_release(k.weights[i].after);
        free(k.weights[i].got_grad);
    }
    free(k.weights);
    model_destroy(k.m);
}

static const split heads = {0}, sequence = {.sequence_parallel = true}, experts = {.experts_by_data = true},
                   both = {.sequence_parallel = true, .experts_by_data = true},
                   gather = {.context = TSH_CONTEXT_GATHER}, exchange = {.context = TSH_CONTEXT_EXCHANGE};

const cv_sharding cv_model[] = {{"heads", run_model, &heads, NULL, 1},
                                {"heads, sequence parallel", run_model, &sequence, NULL, 1},
                                {"heads, experts by data", run_model, &experts, "expert_tokens", 2},
                                {"heads, experts, sequence", run_model, &both, "expert_tokens", 2},
                                {"tokens, keys gathered", run_model, &gather, "target", 0},
                                {"tokens, heads exchanged", run_model, &exchange, "target", 0},
                                {0}};
