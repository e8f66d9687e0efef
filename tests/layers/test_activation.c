/* Linear layers with their activation in them: values and gradients by plain loops, everything as of the layer and the
 * function called one after the other, and what is kept in memory. */
#include "device/cpu/isa/kernels.h"
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(activation, .timeout = 120);

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    tsh_layout x, y;
    bool gather, sequence;
} variant;

enum { DENSE, DENSE_BATCH, COLUMN, COLUMN_GATHER, COLUMN_SEQUENCE, ROW, ROW_SEQUENCE, VARIANTS };

static const variant variants[VARIANTS] = {
    [DENSE] = {"dense", TSH_DENSE, R, R, false, false},
    [DENSE_BATCH] = {"dense, batch split", TSH_DENSE, S0, S0, false, false},
    [COLUMN] = {"column", TSH_COLUMN, R, S1, false, false},
    [COLUMN_GATHER] = {"column, gathered", TSH_COLUMN, R, R, true, false},
    [COLUMN_SEQUENCE] = {"column of a split sequence", TSH_COLUMN, S0, S1, false, false},
    [ROW] = {"row", TSH_ROW, S1, R, false, false},
    [ROW_SEQUENCE] = {"row to a split sequence", TSH_ROW, S1, S0, false, true}};

typedef struct function {
    tsh_activation activation;
    tsh_tensor *(*call)(tsh_tape *tape, tsh_tensor *x);
} function;

static const function functions[] = {{TSH_ACTIVATION_GELU, tsh_gelu},
                                     {TSH_ACTIVATION_GELU_TANH, tsh_gelu_tanh},
                                     {TSH_ACTIVATION_RELU, tsh_relu},
                                     {TSH_ACTIVATION_SILU, tsh_silu}};

enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static double value_of(tsh_activation f, double x) {
    switch (f) {
    case TSH_ACTIVATION_GELU: return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case TSH_ACTIVATION_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case TSH_ACTIVATION_RELU: return x > 0 ? x : 0;
    case TSH_ACTIVATION_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

/* By central differences, which is enough for all dtypes but float64: 1e-9. */
static double slope_of(tsh_activation f, double x) {
    const double h = 1e-5;
    return (value_of(f, x + h) - value_of(f, x - h)) / (2 * h);
}

typedef struct sizes {
    int64_t n, in, out;
} sizes;

/* The second leaves ranks empty at 3 and 4; the last has features in eights, as a GPU's fused GELU wants them. */
static const sizes all_sizes[] = {{5, 7, 9}, {1, 2, 2}, {20, 3, 4}, {3, 5, 16}};

enum { X, W, B, PARAMETERS, MOST = 81 };

typedef struct truth {
    double in[PARAMETERS][MOST], dy[MOST], y[MOST], grad[PARAMETERS][MOST];
} truth;

/* No sum of W x + b is 0, where relu has no gradient. */
static void find_truth(sizes s, tsh_activation f, bool bias, truth *t) {
    memset(t, 0, sizeof *t);
    tshi_test_integers(1, s.n * s.in, t->in[X]);
    tshi_test_integers(2, s.out * s.in, t->in[W]);
    tshi_test_integers(3, s.out, t->in[B]);
    tshi_test_integers(4, s.n * s.out, t->dy);
    for (int i = 0; i < MOST; i++) {
        t->in[X][i] /= 8;
        t->in[W][i] /= 8;
        t->dy[i] /= 8;
        t->in[B][i] = t->in[B][i] / 8 + 1.0 / 128; /* products are 64ths: no sum is 0 */
    }
    for (int64_t i = 0; i < s.n; i++) {
        for (int64_t o = 0; o < s.out; o++) {
            double pre = bias ? t->in[B][o] : 0;
            for (int64_t k = 0; k < s.in; k++) pre += t->in[X][i * s.in + k] * t->in[W][o * s.in + k];
            double dpre = slope_of(f, pre) * t->dy[i * s.out + o];
            t->y[i * s.out + o] = value_of(f, pre);
            t->grad[B][o] += dpre;
            for (int64_t k = 0; k < s.in; k++) {
                t->grad[X][i * s.in + k] += dpre * t->in[W][o * s.in + k];
                t->grad[W][o * s.in + k] += dpre * t->in[X][i * s.in + k];
            }
        }
    }
}

static tsh_linear *make_layer(tshi_rank *r, const variant *v, sizes s, tsh_activation f, tsh_dtype dtype, bool bias) {
    tsh_linear *layer = NULL;
    tsh_linear_create(tsh_world_group(r->world),
                      &(tsh_linear_config){.in_features = s.in,
                                           .out_features = s.out,
                                           .shard = v->shard,
                                           .bias = bias,
                                           .gather_output = v->gather,
                                           .sequence_parallel = v->sequence,
                                           .activation = f,
                                           .dtype = dtype},
                      &layer);
    tshi_check(r, layer, "%s: %s", v->name, tsh_error_message());
    return layer;
}

/* One way to y: a layer, its input, and f behind it where the layer has none. */
typedef struct way {
    tsh_linear *layer;
    tsh_tensor *x, *y;
    tsh_tensor *(*then)(tsh_tape *tape, tsh_tensor *x);
    tsh_communication_stats stats[2];
} way;

static tsh_tensor *parameter(const way *w, int which) {
    return which == X ? w->x : which == W ? tsh_linear_weight(w->layer) : tsh_linear_bias(w->layer);
}

/* wants: bit i, input i is asked for its gradient. */
static void open_way(tshi_rank *r, const variant *v, sizes s, tsh_activation f, tsh_dtype dtype, bool bias,
                     const truth *t, unsigned wants, way *w) {
    double weight[MOST], b[MOST];
    tshi_cpu_convert_base(NULL, MOST, TSH_FLOAT64, t->in[W], dtype, weight);
    tshi_cpu_convert_base(NULL, MOST, TSH_FLOAT64, t->in[B], dtype, b);
    w->layer = make_layer(r, v, s, f, dtype, bias);
    tshi_check_ok(r, tsh_linear_load(w->layer, weight, bias ? b : NULL));
    tsh_tensor_config config = {dtype, 2, {s.n, s.in}, {v->x}};
    w->x = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, t->in[X]);
    for (int i = 0; i < PARAMETERS; i++) {
        tsh_tensor *p = parameter(w, i);
        if (!p) continue;
        tshi_gradient_of(p)->required = wants >> i & 1;
        if (tshi_requires_grad(p)) tshi_check_ok(r, tsh_tensor_require_grad(p, true));
    }
}

static void close_way(way *w) {
    tsh_tensor_release(w->x);
    tsh_linear_destroy(w->layer);
}

static tsh_tensor *forward(tsh_tape *tape, way *w) {
    tsh_tensor *y = tsh_linear_forward(tape, w->layer, w->x);
    return w->then ? w->then(tape, y) : y;
}

/* Forward, and backward twice over the same step: the gradients are of both. */
static void run_way(tshi_rank *r, tsh_tape *tape, way *w, tsh_tensor *dy) {
    tsh_group *g = tsh_world_group(r->world);
    tsh_group_reset_stats(g);
    w->y = forward(tape, w);
    if (!tshi_check(r, w->y, "%s", tsh_tape_message(tape))) return;
    w->stats[0] = tsh_group_stats(g);
    tsh_backward_config config = {.gradient = dy, .retain_graph = true};
    for (int i = 0; i < 2 && tshi_requires_grad(w->y); i++) tshi_check_ok(r, tsh_backward_with(tape, w->y, &config));
    w->stats[1] = tsh_group_stats(g);
}

static void compare(tshi_rank *r, const char *what, const tsh_tensor *got, const tsh_tensor *wanted, double tolerance) {
    if (!tshi_check(r, !got == !wanted, "%s: one way has it, the other has not", what) || !got) return;
    tshi_check(r, tshi_layout_equal(got->layout[0], wanted->layout[0]), "%s: another layout", what);
    for (int64_t i = 0; i < tsh_tensor_local_numel(wanted); i++) {
        double a = tshi_test_element(got, i), b = tshi_test_element(wanted, i);
        if (!tshi_check(r, fabs(a - b) <= tolerance, "%s element %d: %.9g, two calls give %.9g", what, (int)i, a, b))
            return;
    }
}

static bool same_calls(const tsh_communication_stats *a, const tsh_communication_stats *b) {
    return memcmp(a->calls, b->calls, sizeof a->calls) == 0 && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static double tolerance_of(tsh_dtype dtype) {
    return dtype == TSH_FLOAT64 ? 1e-8 : dtype == TSH_FLOAT32 ? 1e-5 : dtype == TSH_FLOAT16 ? 1e-2 : 6e-2;
}

static void check_one(tshi_rank *r, tsh_tape *tape, const variant *v, sizes s, const function *f, tsh_dtype dtype,
                      bool bias, unsigned wants) {
    static const char *const names[] = {[X] = "dx", [W] = "dW", [B] = "db"};
    /* Gathered, f was of a rank's own features, behind the layer it is of all: elements fall into other vectors. And
     * in the layer f sees sums of 16-bit numbers before they are rounded. */
    bool same_kernels =
        tsh_device_kind_of(tsh_world_device(r->world)) == TSH_CPU && !v->gather && tshi_dtype_sum(dtype) == dtype;
    bool recording = tsh_tape_set_recording(tape, true);
    tsh_tape_set_recording(tape, recording);
    double apart = same_kernels ? 0 : 8 * tolerance_of(dtype);
    truth t;
    find_truth(s, f->activation, bias, &t);
    way in = {0}, behind = {.then = f->call};
    open_way(r, v, s, f->activation, dtype, bias, &t, wants, &in);
    open_way(r, v, s, TSH_ACTIVATION_NONE, dtype, bias, &t, wants, &behind);
    tsh_tensor *dy =
        tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){dtype, 2, {s.n, s.out}, {v->y}}, t.dy);
    run_way(r, tape, &in, dy);
    run_way(r, tape, &behind, dy);
    if (!r->failed) {
        compare(r, v->name, in.y, behind.y, apart);
        tshi_check(r, tshi_requires_grad(in.y) == tshi_requires_grad(behind.y), "%s: leads to a gradient?", v->name);
        for (int i = 0; i < 2; i++) {
            tshi_check(r, same_calls(&in.stats[i], &behind.stats[i]), "%s: other collectives", v->name);
        }
        tshi_test_same(r, v->name, in.y, t.y, tolerance_of(dtype));
    }
    for (int i = 0; i < PARAMETERS && !r->failed; i++) {
        tsh_tensor *p = parameter(&in, i), *q = parameter(&behind, i);
        for (int k = 0; k < MOST; k++) t.grad[i][k] *= 2;
        if (!p) continue;
        compare(r, names[i], tsh_tensor_grad(p), tsh_tensor_grad(q), apart);
        tshi_check(r, !tsh_tensor_grad(p) == !(recording && wants >> i & 1), "%s: %s is there, or is not", v->name,
                   names[i]);
        if (tsh_tensor_grad(p)) tshi_test_same_grad(r, names[i], p, t.grad[i], tolerance_of(dtype));
    }
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(dy);
    close_way(&in);
    close_way(&behind);
}

static void all_variants(tshi_rank *r, void *arg) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0]; s++) {
        for (int k = 0; k < VARIANTS * FUNCTIONS * 4 && !r->failed; k++) {
            tsh_dtype dtype = dtypes[k % 4];
            if (!tshi_device_computes(tsh_world_device(r->world), dtype)) continue;
            const function *f = &functions[k / 4 % FUNCTIONS];
            const variant *v = &variants[k / 4 / FUNCTIONS];
            check_one(r, tape, v, all_sizes[s], f, dtype, true, 7);
            /* Without a bias some sums are 0, where relu's gradient would be a matter of taste. */
            if (s == 0 && f->activation != TSH_ACTIVATION_RELU) check_one(r, tape, v, all_sizes[s], f, dtype, false, 7);
        }
    }
    tsh_tape_destroy(tape);
}

Test(activation, is_that_of_two_calls_and_of_plain_loops) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
}

/* Each subset of x, W and b that wants a gradient; recorded and not. */
static void frozen(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (unsigned wants = 0; wants < 8 && !r->failed; wants++) {
        for (int v = 0; v < VARIANTS; v++)
            check_one(r, tape, &variants[v], all_sizes[0], &functions[0], TSH_FLOAT32, true, wants);
    }
    tsh_tape_set_recording(tape, false);
    for (int v = 0; v < VARIANTS && !r->failed; v++)
        check_one(r, tape, &variants[v], all_sizes[0], &functions[1], TSH_FLOAT32, true, 7);
    tsh_tape_destroy(tape);
}

Test(activation, gradients_of_what_is_not_frozen) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, frozen, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

/* inputs: x, weight, bias; the layer in `user` holds the last two. */
static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y = tsh_linear_forward(tape, user, inputs[0]);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    const sizes s = {3, 5, 2};
    tsh_tape *tape = NULL;
    double worst = 1;
    truth t;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < VARIANTS * FUNCTIONS && !r->failed; k++) {
        const variant *v = &variants[k / FUNCTIONS];
        tsh_activation f = functions[k % FUNCTIONS].activation;
        way w = {0};
        find_truth(s, f, true, &t);
        open_way(r, v, s, f, TSH_FLOAT64, true, &t, 7, &w);
        tsh_tensor *inputs[] = {w.x, tsh_linear_weight(w.layer), tsh_linear_bias(w.layer)};
        tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, 3, 0, w.layer, &worst));
        tshi_check(r, worst < 1e-7, "%s, function %d: worst %g", v->name, (int)f, worst);
        close_way(&w);
    }
    tsh_tape_destroy(tape);
}

Test(activation, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, check_gradients, NULL));
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

typedef struct held {
    size_t forward, peak, unrecorded;
} held;

/* Bytes that a forward holds, that forward and backward hold at most, and that a forward without recording holds. */
static held measure(tshi_rank *r, tsh_tape *tape, way *w, tsh_tensor *dy) {
    tsh_device *device = tsh_world_device(r->world);
    held bytes = {0};
    for (int recording = 1; recording >= 0; recording--) {
        tsh_tape_set_recording(tape, recording != 0);
        size_t before = tsh_device_stats(device).bytes_in_use;
        tsh_device_reset_peak(device);
        tsh_tensor *y = forward(tape, w);
        size_t now = tsh_device_stats(device).bytes_in_use - before;
        if (recording) {
            bytes.forward = now;
            tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
            bytes.peak = tsh_device_stats(device).bytes_peak - before;
        } else {
            bytes.unrecorded = now;
        }
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    return bytes;
}

static void memory(tshi_rank *r, void *arg) {
    const sizes s = {20, 3, 4};
    const variant *v = &variants[COLUMN];
    tsh_tape *tape = NULL;
    truth t;
    (void)arg;
    find_truth(s, TSH_ACTIVATION_GELU, true, &t);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *dy =
        tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT64, 2, {s.n, s.out}, {v->y}}, t.dy);
    way in = {0}, behind = {.then = tsh_gelu};
    open_way(r, v, s, TSH_ACTIVATION_GELU, TSH_FLOAT64, true, &t, 7, &in);
    open_way(r, v, s, TSH_ACTIVATION_NONE, TSH_FLOAT64, true, &t, 7, &behind);
    held warm = measure(r, tape, &in, dy); /* makes the gradients of the leaves */
    measure(r, tape, &behind, dy);
    held one = measure(r, tape, &in, dy), two = measure(r, tape, &behind, dy);
    size_t y = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tsh_tensor *like_y = NULL;
    tsh_tensor_config config = {TSH_FLOAT64, 2, {s.n, s.out}, {v->y}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &like_y));
    y = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use - y;
    tshi_check(r, warm.forward == one.forward, "the first forward held %zu, the next %zu", warm.forward, one.forward);
    tshi_check(r, one.forward == two.forward && one.peak <= two.peak, "one call holds %zu, %zu at most, two %zu, %zu",
               one.forward, one.peak, two.forward, two.peak);
    tshi_check(r, one.unrecorded == y && two.unrecorded == 2 * y,
               "not recorded one call holds %zu, two hold %zu, y is %zu", one.unrecorded, two.unrecorded, y);
    tsh_tensor_release(like_y);
    tsh_tensor_release(dy);
    close_way(&in);
    close_way(&behind);
    tsh_tape_destroy(tape);
}

Test(activation, holds_no_more_than_two_calls_and_unrecorded_its_output_alone) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, memory, NULL));
}
