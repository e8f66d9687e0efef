/* What is probably a mistake in a model that trains is logged as a warning, and nothing else is. */
#include "dist/world.h"
#include "support/language.h"
#include "support/lines.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct suspect {
    const char *words;
    void (*run)(tshi_rank *r, tshi_language *l);
    bool checked; /* seen with TSHARD_CHECK=1 alone */
} suspect;

static void train(tshi_rank *r, tshi_language *l, tsh_tensor *loss) {
    tshi_check(r, tsh_backward(l->tape, loss) == TSH_OK, "%s", tsh_tape_message(l->tape));
    tshi_check_ok(r, tsh_optimizer_step(l->optimizer));
    tsh_optimizer_zero_grad(l->optimizer);
    tshi_check_ok(r, tsh_tape_reset(l->tape));
}

static void nothing_wrong(tshi_rank *r, tshi_language *l) {
    for (int i = 0; i < 3; i++) train(r, l, tshi_language_loss(l));
}

/* Beside a tsh_data_parallel its parameters get no gradient. */
static void layer_in_no_list(tshi_rank *r, tshi_language *l) {
    const tsh_norm_config config = {.features = 13, .dtype = tsh_tensor_dtype(tsh_linear_weight(l->head))};
    tsh_norm *norm = NULL;
    if (!tshi_check_ok(r, tsh_norm_create(tsh_mesh_group(l->mesh, "model"), &config, &norm))) return;
    for (int i = 0; i < 3; i++) {
        const tsh_tensor_config rows = {.dtype = config.dtype, .ndim = 2, .shape = {4, 13}};
        tsh_tensor *x = NULL;
        tshi_check_ok(r, tsh_tensor_create_uniform(l->mesh, &rows, 0, 1, &x));
        tsh_tensor *more = tsh_mean(l->tape, tsh_norm_forward(l->tape, norm, x), TSH_ALL_DIMS);
        train(r, l, tsh_add(l->tape, tshi_language_loss(l), more));
        tsh_tensor_release(x);
    }
    tsh_norm_destroy(norm);
}

/* An input that wants a gradient is no parameter. */
static void input_with_a_gradient(tshi_rank *r, tshi_language *l) {
    const tsh_dtype dtype = tsh_tensor_dtype(tsh_linear_weight(l->head));
    tsh_tensor *x = NULL;
    tshi_check_ok(r, tsh_tensor_create_full(l->mesh, &(tsh_tensor_config){.dtype = dtype}, 0.5, &x));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    for (int i = 0; i < 3; i++) train(r, l, tsh_add(l->tape, tshi_language_loss(l), x));
    tsh_tensor_release(x);
}

static void empty_list(tshi_rank *r, tshi_language *l) {
    tsh_parameters *none = NULL;
    tsh_optimizer *optimizer = NULL;
    (void)l;
    tshi_check_ok(r, tsh_parameters_create(r->world, &none));
    tshi_check_ok(r, tsh_sgd_create(none, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
    for (int i = 0; i < 2; i++) tshi_check_ok(r, tsh_optimizer_step(optimizer));
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(none);
}

static void huge_lr(tshi_rank *r, tshi_language *l) {
    tshi_check_ok(r, tsh_optimizer_set_lr(l->optimizer, 1e30));
    train(r, l, tshi_language_loss(l));
}

static void lost_values(tshi_rank *r, tshi_language *l) {
    tshi_check_ok(r, tsh_optimizer_set_lr(l->optimizer, 1e308));
    for (int i = 0; i < 3; i++) train(r, l, tshi_language_loss(l));
}

static void loss_of_nan(tshi_rank *r, tshi_language *l) {
    tshi_check_ok(r, tsh_tensor_fill(tsh_linear_weight(l->up), NAN));
    for (int i = 0; i < 2; i++) train(r, l, tshi_language_loss(l));
}

static void layer_on_one_rank(tshi_rank *r, tshi_language *l) {
    tsh_linear *extra = NULL;
    const tsh_linear_config config = {.in_features = 2, .out_features = 2};
    tsh_optimizer *optimizer = NULL;
    tsh_group *model = tsh_mesh_group(l->mesh, "model");
    if (r->rank == 0) tshi_check_ok(r, tsh_linear_create(model, &config, &extra));
    tshi_check_ok(r, tsh_sgd_create(l->parameters, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
    tsh_optimizer_destroy(optimizer);
    if (extra) tshi_check_ok(r, tsh_linear_register(extra, l->parameters, "extra"));
    tsh_status status = tsh_sgd_create(l->parameters, &(tsh_sgd_config){.lr = 0.1}, &optimizer);
    tshi_check(r, !r->world->checked || (status == TSH_ERR_MISMATCH && strstr(tsh_error_message(), "is extra.weight")),
               "%s", tsh_error_message());
    tsh_optimizer_destroy(optimizer);
    tsh_linear_destroy(extra);
}

static const suspect suspects[] = {
    {NULL, nothing_wrong, false},
    {NULL, input_with_a_gradient, false},
    {"layer_norm: float32 [13] data=REPLICATED model=REPLICATED is a layer's parameter that is in no list",
     layer_in_no_list, false},
    {"step of no parameters: the list was empty", empty_list, false},
    {"a step with the learning rate 1e+30", huge_lr, false},
    {"'embedding.weight', with an infinity or a NaN", lost_values, true},
    {"backward: the loss, ", loss_of_nan, false},
    {"rank 0 has drawn ", layer_on_one_rank, true},
};

static void one_suspect(tshi_rank *r, void *arg) {
    const suspect *s = arg;
    tshi_language l;
    if (!tshi_check_ok(r, tshi_language_create(r->world, "data=2,model=1", &l))) return;
    s->run(r, &l);
    tshi_language_destroy(&l);
}

static void check_suspect(const suspect *s, bool checked) {
    tshi_lines *lines = tshi_test_shared(sizeof *lines);
    const tshi_test_options options = {.ranks = 2, .log = {tshi_keep_warning, lines}};
    setenv("TSHARD_CHECK", checked ? "1" : "0", 1);
    cr_assert_str_empty(tshi_test_run_with(&options, one_suspect, (void *)(uintptr_t)s, NULL, NULL));
    /* A GPU's values are read under the check only. */
    const char *device = getenv("TSHARD_TEST_DEVICE");
    bool gpu = device && strcmp(device, "cpu") != 0;
    bool expected = s->words && (checked || !(s->checked || (gpu && s->run == loss_of_nan)));
    const char *found = strstr(lines->text, s->words ? s->words : "");
    cr_expect(expected ? found != NULL : s->words ? !found : !lines->text[0], "%s: \"%s\"", s->words, lines->text);
}

Test(warnings, what_is_probably_a_mistake_is_warned_of, .timeout = 120) {
    for (size_t i = 0; i < sizeof suspects / sizeof suspects[0]; i++) {
        check_suspect(&suspects[i], false);
        check_suspect(&suspects[i], true);
    }
}
