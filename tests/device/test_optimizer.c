/* Optimizers against their formulas, in plain loops in double. */
#include "kernel_test.h"

#include "support/philox.h"

TestSuite(optimizer, .timeout = 600);

enum { SGD, ADAMW, LION };

/* A step of any of them. */
typedef struct step {
    int kind;
    tshi_sgd sgd;
    tshi_adamw adamw;
    tshi_lion lion;
} step;

#define STEPS 4
#define MOST  200

/* A parameter: what it is and has, and what it is to have. */
typedef struct parameter {
    buffer p, grad, state[2];
    double *wanted[3]; /* p and both states */
} parameter;

static int states_of(const step *s) {
    return s->kind == ADAMW ? 2 : s->kind == LION || s->sgd.momentum != 0.0;
}

static void run(const step *s, tsh_dtype dtype, int count, const tshi_update *updates) {
    const tshi_optimizer_ops *ops = &kernels()->optimizer[dtype];
    if (s->kind == SGD) ops->sgd(kernel_device(), &s->sgd, count, updates);
    if (s->kind == ADAMW) ops->adamw(kernel_device(), &s->adamw, count, updates);
    if (s->kind == LION) ops->lion(kernel_device(), &s->lion, count, updates);
}

/* One element: p, and its states a and b. */
static void step_by_formula(const step *s, double g, double *p, double *a, double *b) {
    if (s->kind == SGD) {
        const tshi_sgd *o = &s->sgd;
        g += o->weight_decay * *p;
        *a = o->first ? g : o->momentum * *a + (1 - o->dampening) * g;
        if (o->momentum != 0.0) g = o->nesterov ? g + o->momentum * *a : *a;
        *p -= o->lr * g;
    } else if (s->kind == ADAMW) {
        const tshi_adamw *o = &s->adamw;
        *a = o->beta1 * *a + (1 - o->beta1) * g;
        *b = o->beta2 * *b + (1 - o->beta2) * g * g;
        double m = *a / (1 - pow(o->beta1, (double)o->step)), v = *b / (1 - pow(o->beta2, (double)o->step));
        *p -= o->lr * o->weight_decay * *p + o->lr * m / (sqrt(v) + o->eps);
    } else {
        const tshi_lion *o = &s->lion;
        double c = o->beta1 * *a + (1 - o->beta1) * g;
        *p -= o->lr * (o->weight_decay * *p + (c > 0) - (c < 0));
        *a = o->beta2 * *a + (1 - o->beta2) * g;
    }
}

static parameter parameter_make(tsh_dtype dtype, int64_t n, double state) {
    parameter u = {.p = buffer_random(dtype, n, -1, 1), .grad = buffer_make(dtype, n)};
    for (int k = 0; k < 2; k++) u.state[k] = buffer_make(tshi_dtype_sum(dtype), n);
    for (int k = 0; k < 3; k++) u.wanted[k] = calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        u.wanted[0][i] = get(&u.p, i);
        for (int k = 0; k < 2; k++) {
            set(&u.state[k], i, state);
            u.wanted[1 + k][i] = state;
        }
    }
    return u;
}

/* The next step begins at what 16 bits are left of p. */
static void check_parameter(const step *s, parameter *u) {
    for (int64_t i = 0; i < u->p.n; i++) {
        double *w[3] = {&u->wanted[0][i], &u->wanted[1][i], &u->wanted[2][i]};
        step_by_formula(s, get(&u->grad, i), w[0], w[1], w[2]);
        expect_close(&u->p, i, *w[0], 4, s->kind == SGD ? 16 : 4);
        if (tshi_dtype_sum(u->p.dtype) != u->p.dtype) *w[0] = get(&u->p, i);
        for (int k = 0; k < states_of(s); k++) expect_close(&u->state[k], i, *w[1 + k], 8, s->kind == SGD ? 16 : 1);
    }
}

/* SGD's first step does not read its momentum. */
static void check(step s, int count, const int64_t *sizes, tsh_dtype dtype) {
    static parameter u[MOST];
    static tshi_update updates[MOST];
    for (int i = 0; i < count; i++) {
        u[i] = parameter_make(dtype, sizes[i], s.kind == SGD ? (double)NAN : s.kind == LION ? 0.25 : 0);
        updates[i] = (tshi_update){.n = sizes[i], .grad = u[i].grad.data, .p = u[i].p.data};
        for (int k = 0; k < states_of(&s); k++) updates[i].state[k] = u[i].state[k].data;
    }
    for (int number = 1; number <= STEPS; number++) {
        s.sgd.first = number == 1, s.adamw.step = number;
        for (int i = 0; i < count; i++) buffer_fill_random(&u[i].grad, s.kind == SGD ? -1 : 0.1, 1);
        run(&s, dtype, count, updates);
        for (int i = 0; i < count; i++) check_parameter(&s, &u[i]);
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 3; k++) free(u[i].wanted[k]);
    free_buffers();
}

static const step steps[] = {
    {SGD, .sgd = {.lr = 0.1}},
    {SGD, .sgd = {.lr = 0.1, .weight_decay = 0.3}},
    {SGD, .sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}},
    {SGD, .sgd = {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}},
    {SGD, .sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}},
    {ADAMW, .adamw = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1}},
    {LION, .lion = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}},
};
enum { KINDS = sizeof steps / sizeof steps[0] };

Test(optimizer, steps_of_every_size) {
    const int64_t large[] = {4095, 4096, 4097, 9000};
    for (int bits = 0; bits < FLOAT_DTYPES * LAYOUTS * KINDS; bits++) {
        tsh_dtype dtype = float_dtypes[bits % FLOAT_DTYPES];
        const step *s = &steps[bits / FLOAT_DTYPES / LAYOUTS];
        lay_buffers(bits / FLOAT_DTYPES % LAYOUTS);
        for (int i = 0; i < ODD_SIZES; i++) check(*s, 1, &odd_sizes[i], dtype);
        for (int i = 0; i < 4 && s->kind == ADAMW; i++) check(*s, 1, &large[i], dtype);
    }
}

/* More than a launch takes, of many sizes, with empty ones between, at the end, and nothing else. */
Test(optimizer, many_parameters_at_once) {
    int64_t sizes[MOST], none[2] = {0, 0};
    for (int i = 0; i < MOST; i++) sizes[i] = i == 80 ? 10000 : i % 5 == 4 ? 0 : (i * 37) % 90;
    lay_buffers(SCATTERED);
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        check(steps[2], MOST, sizes, float_dtypes[t]);
        check(steps[5], MOST, sizes, float_dtypes[t]);
    }
    check(steps[5], 0, NULL, TSH_FLOAT32);
    check(steps[0], 2, none, TSH_FLOAT32);
}

Test(optimizer, adamw_of_a_zero_gradient_only_decays) {
    const step s = {ADAMW,
                    .adamw = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.5, .step = 1}};
    buffer p = buffer_of(TSH_FLOAT64, 1, (double[]){2}), rest[3];
    for (int i = 0; i < 3; i++) rest[i] = buffer_make(TSH_FLOAT64, 1);
    run(&s, TSH_FLOAT64, 1,
        &(tshi_update){.n = 1, .grad = rest[0].data, .state = {rest[1].data, rest[2].data}, .p = p.data});
    cr_assert_float_eq(get(&p, 0), 1.9, 1e-15);
    free_buffers();
}

Test(optimizer, a_state_of_float32_keeps_what_a_half_would_lose) {
    const step s = {ADAMW, .adamw = {.beta1 = 0.999, .beta2 = 0.5, .eps = 1e-8, .step = 1}};
    buffer p = buffer_make(TSH_BFLOAT16, 1), grad = buffer_of(TSH_BFLOAT16, 1, (double[]){1});
    buffer m = buffer_of(TSH_FLOAT32, 1, (double[]){1.5}), v = buffer_of(TSH_FLOAT32, 1, (double[]){1});
    run(&s, TSH_BFLOAT16, 1, &(tshi_update){.n = 1, .grad = grad.data, .state = {m.data, v.data}, .p = p.data});
    cr_assert_float_eq(get(&m, 0), 0.999 * 1.5 + 0.001, 1e-6);
    free_buffers();
}

/* --- elements of 16 bits ------------------------------------------------------------------------------------------ */

/* Element i of an update rounded to bfloat16 as tshi_rounding has it: up where its word is below what is cut off. */
static double rounded_at_random(const tshi_rounding *r, int64_t i, double value) {
    uint32_t words[4], bits;
    uint64_t element = (uint64_t)(r->first + i / r->run * r->stride + i % r->run);
    float wide = (float)value;
    tshi_philox_block(r->seed, r->stream, element / 4, words);
    memcpy(&bits, &wide, sizeof bits);
    bits = (bits + (words[element % 4] >> 16)) & 0xffff0000u;
    memcpy(&wide, &bits, sizeof wide);
    return (double)wide;
}

/* Steps of whole numbers are exact in float32, so that p is what it is rounded to. */
static void check_narrow(tsh_dtype dtype, int64_t n, bool has_master, bool wide, const tshi_rounding *rounding) {
    const step s = {SGD, .sgd = {.lr = 0x1p-10}};
    buffer grad = buffer_integers(wide ? TSH_FLOAT32 : dtype, n), master = buffer_integers(TSH_FLOAT32, n);
    buffer p = buffer_make(dtype, n);
    for (int64_t i = 0; i < n; i++) set(&p, i, 2 + (double)(random_word() % 64) / 64);
    double *from = calloc((size_t)n + 1, sizeof *from);
    tshi_update u = {.n = n, .grad = grad.data, .p = p.data, .rounding = rounding, .wide_grad = wide};
    u.master = data_if(&master, has_master);
    for (int number = 0; number < 3; number++) {
        for (int64_t i = 0; i < n; i++) from[i] = get(has_master ? &master : &p, i) - 0x1p-10 * get(&grad, i);
        run(&s, dtype, 1, &u);
        for (int64_t i = 0; i < n; i++) {
            if (has_master) expect_equal(&master, i, from[i]);
            expect_equal(&p, i, rounding ? rounded_at_random(rounding, i, from[i]) : from[i]);
        }
    }
    free(from);
    free_buffers();
}

Test(optimizer, master_weights_wide_gradients_and_stochastic_rounding) {
    const tshi_rounding r = {.seed = 7, .stream = UINT64_C(1) << 63 | 5, .first = 11, .run = 13, .stride = 29};
    const int64_t sizes[] = {0, 1, 13, 4096, 5000};
    for (int s = 0; s < 5; s++) {
        lay_buffers(s % LAYOUTS);
        for (int kind = 0; kind < 8; kind++)
            check_narrow(kind & 4 ? TSH_BFLOAT16 : TSH_FLOAT16, sizes[s], kind & 1, kind & 2, NULL);
        for (int kind = 0; kind < 2; kind++) check_narrow(TSH_BFLOAT16, sizes[s], false, kind, &r);
    }
}
