/* The backward of an activation in the product that comes after it: when it is done there, and the same gradients. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(activation_backward, .timeout = 120);

enum { ROWS = 5, IN = 3, HIDDEN = 8, OUT = 4, MOST = HIDDEN * OUT };

/* What the program does with h = f(up(x)) beside y = down(h). */
typedef enum use { ALONE, RETAINED, TWICE, KEPT_GRAPH, RECOMPUTED, RECOMPUTED_APART, USES } use;

static const char *const names[USES] = {"alone",      "with a retained gradient", "used twice",
                                        "kept graph", "in one segment",           "in two segments"};

typedef struct kit {
    tsh_linear *up, *down;
    tsh_tensor *x;
    tsh_tape *tape;
} kit;

static tsh_linear *make_layer(tshi_rank *r, tsh_dtype dtype, int64_t in, int64_t out, tsh_sharding shard,
                              tsh_activation f) {
    const tsh_linear_config config = {
        .in_features = in, .out_features = out, .shard = shard, .bias = true, .dtype = dtype, .activation = f};
    tsh_linear *layer = NULL;
    tsh_linear_create(tsh_world_group(r->world), &config, &layer);
    tshi_check(r, layer, "%s", tsh_error_message());
    return layer;
}

static void open_kit(tshi_rank *r, tsh_dtype dtype, tsh_activation f, kit *k) {
    const tsh_tensor_config config = {.dtype = dtype, .ndim = 2, .shape = {ROWS, IN}};
    double x[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++) x[i] = (double)(i % 7 - 3) / 4;
    k->up = make_layer(r, dtype, IN, HIDDEN, TSH_COLUMN, f);
    k->down = make_layer(r, dtype, HIDDEN, OUT, TSH_ROW, TSH_ACTIVATION_NONE);
    k->x = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, x);
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
}

static void close_kit(kit *k) {
    tsh_tape_destroy(k->tape);
    tsh_linear_destroy(k->up);
    tsh_linear_destroy(k->down);
    tsh_tensor_release(k->x);
}

static tsh_tensor *forward(tshi_rank *r, const kit *k, use how) {
    tsh_mark start = tsh_tape_mark(k->tape);
    tsh_tensor *h = tsh_linear_forward(k->tape, k->up, k->x);
    if (how == RETAINED) tshi_check_ok(r, tsh_tensor_retain_grad(h));
    if (how == RECOMPUTED_APART) h = tsh_tape_recompute_since(k->tape, start, h);
    tsh_mark middle = tsh_tape_mark(k->tape);
    tsh_tensor *y = tsh_linear_forward(k->tape, k->down, h);
    if (how == RECOMPUTED) y = tsh_tape_recompute_since(k->tape, start, y);
    if (how == RECOMPUTED_APART) y = tsh_tape_recompute_since(k->tape, middle, y);
    tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, y, y), TSH_ALL_DIMS);
    return how == TWICE ? tsh_add(k->tape, loss, tsh_sum(k->tape, h, TSH_ALL_DIMS)) : loss;
}

static tshi_gemm_unary_backward_fn *fused;
static int count;

static tsh_status count_fused(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *a,
                              const void *b, tshi_unary f, const void *z, void *c) {
    count++;
    return fused(device, dtype, m, n, k, a, b, f, z, c);
}

/* Returns how often a product does the backward of an activation. */
static int backward(tshi_rank *r, const kit *k, use how) {
    tsh_device *device = tsh_world_device(r->world);
    const tshi_device_ops *before = device->ops;
    tshi_device_ops counted = *before;
    tsh_tensor *loss = forward(r, k, how);
    const tsh_backward_config config = {.retain_graph = how == KEPT_GRAPH};
    fused = before->product.gemm_unary_backward;
    counted.product.gemm_unary_backward = count_fused;
    count = 0;
    device->ops = &counted;
    tshi_check(r, tsh_backward_with(k->tape, loss, &config) == TSH_OK, "%s: %s", names[how], tsh_tape_message(k->tape));
    device->ops = before;
    return count;
}

enum { PARAMETERS = 5 };

typedef struct gradients {
    double of[PARAMETERS][MOST];
} gradients;

/* Those of x and the parameters, which are zeroed. */
static void take_gradients(tshi_rank *r, const kit *k, gradients *out) {
    tsh_tensor *const tensors[PARAMETERS] = {k->x, tsh_linear_weight(k->up), tsh_linear_bias(k->up),
                                             tsh_linear_weight(k->down), tsh_linear_bias(k->down)};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < PARAMETERS; i++) {
        const tsh_tensor *g = tsh_tensor_grad(tensors[i]);
        if (!tshi_check(r, g, "no gradient %d", i)) return;
        for (int64_t j = 0; j < tsh_tensor_local_numel(g); j++) out->of[i][j] = tshi_test_element(g, j);
        tsh_tensor_zero_grad(tensors[i]);
    }
    tshi_check_ok(r, tsh_tape_reset(k->tape));
}

/* A float64 gradient is that of two kernels in sequence, on any device: the same bits. */
static void compare(tshi_rank *r, use how, const gradients *got, const gradients *wanted) {
    for (int i = 0; i < PARAMETERS; i++) {
        for (int j = 0; j < MOST; j++) {
            double a = got->of[i][j], b = wanted->of[i][j];
            if (!tshi_check(r, a == b, "%s: gradient %d, element %d: %.17g, not %.17g", names[how], i, j, a, b)) return;
        }
    }
}

static void uses(tshi_rank *r, void *arg) {
    const tsh_activation f = *(const tsh_activation *)arg;
    static const int wanted[USES] = {[ALONE] = 1, [RECOMPUTED] = 1};
    kit k;
    gradients truth, got;
    open_kit(r, TSH_FLOAT64, f, &k);
    backward(r, &k, RETAINED);
    take_gradients(r, &k, &truth);
    for (use how = ALONE; how < USES && !r->failed; how++) {
        int products = backward(r, &k, how);
        take_gradients(r, &k, &got);
        /* A segment that is not run again yet has nothing of z. */
        tshi_check(r, products == wanted[how], "%s: %d products do it", names[how], products);
        if (how != TWICE) compare(r, how, &got, &truth);
    }
    close_kit(&k);
}

Test(activation_backward, is_done_by_the_next_product_where_nothing_else_takes_the_gradient) {
    const tsh_activation all[] = {TSH_ACTIVATION_GELU_TANH, TSH_ACTIVATION_GELU, TSH_ACTIVATION_SILU};
    for (int p = 1; p <= 3; p++)
        for (int i = 0; i < 3; i++) cr_assert_str_empty(tshi_test_run(p, uses, (void *)(uintptr_t)&all[i]), "%d", p);
}

static void none(tshi_rank *r, void *arg) {
    (void)arg;
    kit k;
    open_kit(r, TSH_FLOAT32, TSH_ACTIVATION_NONE, &k);
    tshi_check(r, backward(r, &k, ALONE) == 0, "there is no activation");
    close_kit(&k);
}

Test(activation_backward, is_not_done_without_an_activation) {
    cr_assert_str_empty(tshi_test_run(2, none, NULL));
}
