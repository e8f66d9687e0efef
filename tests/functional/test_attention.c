/* Attention of tensors in random layouts, units and ranks that share them included, against the same tensors whole. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(attention, .timeout = 300);

enum { Q, K, V, INPUTS, MOST = 4 * 3 * 8 * 2 };

typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_tape *tape;
    uint32_t state;
    char what[512];
} kit;

static int below(kit *k, int n) {
    k->state = k->state * 1664525u + 1013904223u;
    return (int)((k->state >> 8) % (uint32_t)n);
}

static int divisor(kit *k, int n) {
    int d = 1 + below(k, n);
    while (n % d) d--;
    return d;
}

/* REPLICATED, or a split of batch or heads, of other dims at times. */
static tsh_layout random_layout(kit *k, const tsh_tensor_config *config) {
    int kind = below(k, 8), d = below(k, 3) ? 2 : below(k, config->ndim);
    if (kind < 2 || d >= config->ndim) return TSH_REPLICATED;
    tsh_layout layout = TSH_SHARD_ORDER(d, below(k, 3));
    int n = (int)config->shape[d];
    if (kind > 4) return layout;
    layout.units = divisor(k, n);
    if (kind == 3) layout.blocks = layout.units * divisor(k, n / (int)layout.units);
    if (kind == 4) layout.sharing = TSH_SHARED;
    return layout;
}

static void random_layouts(kit *k, tsh_tensor_config *config) {
    tsh_shape shape = {.ndim = config->ndim};
    memcpy(shape.global, config->shape, sizeof shape.global);
    for (tsh_status status = TSH_ERR_LAYOUT; status != TSH_OK;) {
        for (int a = 0; a < k->mesh->axes; a++) config->layout[a] = random_layout(k, config);
        status = tshi_shape_resolve(k->mesh, &shape, config->layout);
    }
}

/* A leaf on the mesh, or one that every rank has the whole of. */
static tsh_tensor *make(kit *k, int i, const tsh_tensor_config *config, bool whole) {
    double values[MOST];
    tsh_tensor_config c = *config;
    for (int e = 0; e < MOST; e++) values[e] = tshi_test_integer(3 + i, e) / 8;
    if (whole) memset(c.layout, 0, sizeof c.layout);
    return tshi_test_leaf(k->r, k->mesh, &c, values);
}

/* The output, with a reference for the caller, and the gradients of the sum of each element of the output times another
 * number. */
static tsh_tensor *run_attention(kit *k, tsh_tensor *const in[INPUTS], const tsh_attention_config *config) {
    double values[MOST];
    tsh_tensor *y = tsh_attention(k->tape, in[Q], in[K], in[V], config);
    if (!tshi_check(k->r, y, "%s: %s", k->what, tsh_tape_message(k->tape))) return NULL;
    tsh_tensor_retain(y);
    const int64_t *shape = tsh_tensor_shape(y);
    tsh_tensor_config c = {.dtype = TSH_FLOAT64, .ndim = 4, .shape = {shape[0], shape[1], shape[2], shape[3]}};
    for (int e = 0; e < MOST; e++) values[e] = tshi_test_integer(11, e);
    tsh_tensor *weights = tshi_test_tensor(k->r, k->mesh, &c, values);
    tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, y, weights), TSH_ALL_DIMS);
    tshi_check(k->r, tsh_backward(k->tape, loss) == TSH_OK, "%s: %s", k->what, tsh_tape_message(k->tape));
    tsh_tensor_release(weights);
    return y;
}

static void check_same(kit *k, const char *what, const tsh_tensor *got, const tsh_tensor *wanted) {
    double a[MOST], b[MOST];
    if (k->r->failed || !tshi_check(k->r, got && wanted, "%s: %s is missing", k->what, what)) return;
    tshi_check_ok(k->r, tsh_tensor_read_whole(got, a));
    tshi_check_ok(k->r, tsh_tensor_read_whole(wanted, b));
    tshi_test_same(k->r, k->what, got, b, 1e-12);
    for (int64_t i = 0; i < tshi_shape_numel(&got->shape); i++) {
        bool same = fabs(a[i] - b[i]) <= 1e-12 * fmax(1, fabs(b[i]));
        if (!tshi_check(k->r, same, "%s: element %d of %s is %g, %g wanted", k->what, (int)i, what, a[i], b[i])) return;
    }
}

static void trial(kit *k, uint32_t seed) {
    static const char *const names[] = {"dq", "dk", "dv"};
    tsh_tensor_config c[INPUTS];
    tsh_tensor *in[INPUTS], *whole[INPUTS];
    k->state = seed * 2654435761u + 1;
    int64_t batch = 1 + below(k, 4), queries = 1 + below(k, 3), kv_heads = 1 + below(k, 4);
    int64_t heads = kv_heads * (1 + below(k, kv_heads > 2 ? 2 : 4));
    tsh_attention_config config = {.causal = below(k, 2)};
    int used = snprintf(k->what, sizeof k->what, "%d ranks, seed %u:", k->r->size, seed);
    for (int i = 0; i < INPUTS; i++) {
        c[i] = (tsh_tensor_config){
            .dtype = TSH_FLOAT64, .ndim = 4, .shape = {batch, i ? 3 : queries, i ? kv_heads : heads, 2}};
        random_layouts(k, &c[i]);
        in[i] = make(k, i, &c[i], false);
        whole[i] = make(k, i, &c[i], true);
        char text[160];
        used += snprintf(k->what + used, sizeof k->what - (size_t)used, " %.120s",
                         tsh_tensor_describe(in[i], text, sizeof text));
    }
    tsh_tensor *y = run_attention(k, in, &config), *wanted = run_attention(k, whole, &config);
    check_same(k, "the output", y, wanted);
    tsh_tensor_release(y);
    tsh_tensor_release(wanted);
    for (int i = 0; i < INPUTS; i++) {
        check_same(k, names[i], tsh_tensor_grad(in[i]), tsh_tensor_grad(whole[i]));
        tsh_tensor_release(in[i]);
        tsh_tensor_release(whole[i]);
    }
    tsh_tape_reset(k->tape);
}

static void trials(tshi_rank *r, void *arg) {
    const int *count = arg;
    static const char *const axes[] = {"a=1", "a=2", "a=3", "a=2,b=2", "a=5", "a=3,b=2", "a=7", "a=2,b=2,c=2"};
    kit k = {.r = r};
    tshi_check_ok(r, tsh_mesh_create(r->world, axes[r->size - 1], &k.mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &k.tape));
    for (int seed = 0; seed < *count && !r->failed; seed++) trial(&k, (uint32_t)seed);
    tsh_tape_destroy(k.tape);
    tsh_mesh_destroy(k.mesh);
}

Test(attention, random_layouts_of_one_axis_and_of_several) {
    int count = 120;
    cr_assert_str_empty(tshi_test_run(3, trials, &count));
    cr_assert_str_empty(tshi_test_run(4, trials, &count));
    cr_assert_str_empty(tshi_test_run(6, trials, &count));
    cr_assert_str_empty(tshi_test_run(8, trials, &count));
}
