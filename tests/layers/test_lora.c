/* Low-rank adapters of linear layers against plain loops, in every sharding; their collectives, merging, wrong use. */
#include "linear_variants.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(lora, .timeout = 300);

typedef struct sizes {
    int64_t n, in, out, rank;
} sizes;

/* The second leaves ranks empty at 3 and 4, and has a rank above its features; of the third, a factor is the largest
 * tensor. */
static const sizes all_sizes[] = {{5, 7, 9, 2}, {1, 2, 2, 3}, {3, 20, 4, 1}};

#define MOST 81

/* The adapter's scale: whole numbers stay exact. */
static const double scale = 2;

/* By plain loops. */
typedef struct truth {
    double x[MOST], w[MOST], bias[MOST], a[MOST], b[MOST], dy[MOST], y[MOST], dx[MOST], da[MOST], db[MOST];
} truth;

static void find_truth(sizes s, truth *t) {
    memset(t, 0, sizeof *t);
    tshi_test_integers(1, s.n * s.in, t->x);
    tshi_test_integers(2, s.out * s.in, t->w);
    tshi_test_integers(3, s.out, t->bias);
    tshi_test_integers(4, s.n * s.out, t->dy);
    tshi_test_integers(5, s.rank * s.in, t->a);
    tshi_test_integers(6, s.out * s.rank, t->b);
    for (int64_t i = 0; i < s.n; i++) {
        for (int64_t o = 0; o < s.out; o++) {
            double dy = t->dy[i * s.out + o], *y = &t->y[i * s.out + o];
            *y = t->bias[o];
            for (int64_t k = 0; k < s.in; k++) {
                double x = t->x[i * s.in + k], w = t->w[o * s.in + k];
                for (int64_t j = 0; j < s.rank; j++) {
                    double a = t->a[j * s.in + k], b = t->b[o * s.rank + j];
                    w += scale * a * b;
                    t->da[j * s.in + k] += scale * dy * x * b;
                    t->db[o * s.rank + j] += scale * dy * x * a;
                }
                *y += x * w;
                t->dx[i * s.in + k] += dy * w;
            }
        }
    }
}

static void write_whole(tshi_rank *r, tsh_tensor *t, const double *whole) {
    float single[MOST];
    for (int i = 0; i < MOST; i++) single[i] = (float)whole[i];
    bool wide = t && tsh_tensor_dtype(t) == TSH_FLOAT64;
    tshi_check_ok(r, tsh_tensor_write_whole(t, wide ? (const void *)whole : single));
}

static void write_factors(tshi_rank *r, const tsh_linear *layer, const truth *t) {
    write_whole(r, tsh_linear_weight(layer), t->w);
    write_whole(r, tsh_linear_bias(layer), t->bias);
    write_whole(r, tsh_linear_lora_a(layer), t->a);
    write_whole(r, tsh_linear_lora_b(layer), t->b);
}

static tsh_linear *make_adapted(tshi_rank *r, const variant *v, sizes s, tsh_dtype dtype, const truth *t) {
    tsh_linear *layer = make_linear(r, v, s.in, s.out, dtype);
    const tsh_lora_config lora = {.rank = s.rank, .alpha = scale * (double)s.rank};
    if (!layer || !tshi_check_ok(r, tsh_linear_adapt(layer, &lora, NULL, NULL))) return layer;
    write_factors(r, layer, t);
    return layer;
}

/* What the layer costs, forward as without an adapter; backward, besides, sums the gradient of one factor. */
static void expect(int which, bool backward, const tsh_group *g, sizes s, size_t size, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    int64_t x = s.n * s.in, y = s.n * s.out;
    bool column = which == COLUMN || which == COLUMN_GATHER || which == COLUMN_SEQUENCE, row = which >= ROW_WHOLE;
    if (!backward) {
        if (which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
        if (which == COLUMN_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, x, size);
        if (which == ROW || which == ROW_WHOLE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, y, size);
        if (which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, y, size);
        return;
    }
    if (which == COLUMN || which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, x, size);
    if (which == COLUMN_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, x, size);
    if (which == ROW_WHOLE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, x, size); /* of the slice */
    if (which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (column || which == DENSE_BATCH) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.rank * s.in, size);
    if (row || which == DENSE_BATCH) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.out * s.rank, size);
}

static void check_one(tshi_rank *r, tsh_tape *tape, int which, sizes s, tsh_dtype dtype) {
    const variant *v = &variants[which];
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *g = tsh_world_group(r->world);
    size_t size = tsh_dtype_size(dtype);
    truth t;
    tsh_communication_stats wanted;
    find_truth(s, &t);
    tsh_linear *layer = make_adapted(r, v, s, dtype, &t);
    tsh_tensor *x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.in}, {v->x}}, t.x);
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.out}, {v->y}}, t.dy);
    tsh_group_reset_stats(g);
    tsh_tensor *y = r->failed ? NULL : tsh_linear_forward(tape, layer, x);
    if (tshi_check(r, y, "%s: %s", v->name, tsh_tape_message(tape))) {
        expect(which, false, g, s, size, &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tsh_layout got = tsh_tensor_layout(y, g);
        tshi_check(r, got.kind == v->y.kind && got.dim == v->y.dim, "%s: y has another layout", v->name);
        tshi_test_same(r, v->name, y, t.y, 0);
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
        expect(which, true, g, s, size, &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tshi_test_same_grad(r, v->name, x, t.dx, 0);
        tshi_test_same_grad(r, v->name, tsh_linear_lora_a(layer), t.da, 0);
        tshi_test_same_grad(r, v->name, tsh_linear_lora_b(layer), t.db, 0);
        tshi_check(r, !tsh_tensor_grad(tsh_linear_weight(layer)) && !tsh_tensor_grad(tsh_linear_bias(layer)),
                   "%s: the base is not frozen", v->name);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
    tsh_linear_destroy(layer);
}

static void all_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0] && !r->failed; s++) {
        for (int v = 0; v < VARIANTS && !r->failed; v++) {
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT32);
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT64);
        }
    }
    tsh_tape_destroy(tape);
}

/* Values, gradients, layouts, and the number and bytes of collectives of every sharding. */
Test(lora, equals_plain_loops_in_every_sharding) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y = tsh_gelu(tape, tsh_linear_forward(tape, user, inputs[0]));
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    const sizes s = {3, 5, 2, 2};
    tsh_tape *tape = NULL;
    double worst = 1;
    truth t;
    (void)arg;
    find_truth(s, &t);
    for (int i = 0; i < MOST; i++) {
        t.x[i] /= 8;
        t.a[i] /= 8;
        t.b[i] /= 8;
        t.w[i] /= 8;
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int trained = 0; trained < 2; trained++) { /* the base is frozen, or trained too */
        for (int v = 0; v < VARIANTS && !r->failed; v++) {
            tsh_linear *layer = make_adapted(r, &variants[v], s, TSH_FLOAT64, &t);
            tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world),
                                           &(tsh_tensor_config){TSH_FLOAT64, 2, {s.n, s.in}, {variants[v].x}}, t.x);
            tsh_tensor *inputs[] = {x, tsh_linear_lora_a(layer), tsh_linear_lora_b(layer), tsh_linear_weight(layer),
                                    tsh_linear_bias(layer)};
            for (int i = 3; trained && i < 5; i++) tshi_check_ok(r, tsh_tensor_require_grad(inputs[i], true));
            tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, trained ? 5 : 3, 0, layer, &worst));
            tshi_check(r, worst < 1e-7, "%s: worst %g", variants[v].name, worst);
            tsh_tensor_release(x);
            tsh_linear_destroy(layer);
        }
    }
    tsh_tape_destroy(tape);
}

Test(lora, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, check_gradients, NULL));
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* 3 KV heads with 2 query heads each: over 2 ranks they are uneven, over 4 ranks some share one. */
enum { EMBED = 10, HEADS = 6, KV_HEADS = 3, DIM = 4, HIDDEN = 7, SEQUENCES = 2, T = 3, TOKENS = SEQUENCES * T };

typedef struct blocks {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_block *block[2];
    tsh_parameters *list, *adapters;
    tsh_tensor *x;
} blocks;

static bool make_blocks(tshi_rank *r, const char *axes, bool sequence, tsh_dtype dtype, blocks *b) {
    double x[TOKENS * EMBED];
    const tsh_block_config config = {
        .embed = EMBED,
        .sequence_parallel = sequence,
        .dtype = dtype,
        .attention = {.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM, .causal = true, .bias = true},
        .mlp = {.hidden = HIDDEN, .gated = true, .activation = TSH_ACTIVATION_SILU}};
    tsh_tensor_config rows = {.dtype = dtype, .ndim = 2, .shape = {TOKENS, EMBED}, .layout = {TSH_SHARD(0)}};
    if (sequence) rows.layout[1] = TSH_SHARD(0);
    *b = (blocks){0};
    tsh_world_seed(r->world, 5);
    for (int i = 0; i < TOKENS * EMBED; i++) x[i] = tshi_test_integer(3, i) / 4;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &b->mesh))) return false;
    tshi_check_ok(r, tsh_tape_create(r->world, &b->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &b->list));
    tshi_check_ok(r, tsh_parameters_create(r->world, &b->adapters));
    for (int i = 0; i < 2 && !r->failed; i++) {
        tshi_check_ok(r, tsh_block_create(tsh_mesh_group(b->mesh, "model"), &config, &b->block[i]));
        tshi_check_ok(r, tsh_block_register(b->block[i], b->list, i ? "layers.1" : "layers.0"));
    }
    b->x = tshi_test_leaf(r, b->mesh, &rows, x);
    return !r->failed;
}

static void destroy_blocks(blocks *b) {
    tsh_tensor_release(b->x);
    for (int i = 0; i < 2; i++) tsh_block_destroy(b->block[i]);
    tsh_parameters_destroy(b->adapters);
    tsh_parameters_destroy(b->list);
    tsh_tape_destroy(b->tape);
    tsh_mesh_destroy(b->mesh);
}

static void adapt_blocks(tshi_rank *r, blocks *b, const tsh_lora_config *config) {
    tshi_check_ok(r, tsh_parameters_freeze(b->list, "*"));
    for (int i = 0; i < 2; i++)
        tshi_check_ok(r, tsh_block_adapt(b->block[i], config, b->adapters, i ? "layers.1" : "layers.0"));
}

static tsh_tensor *blocks_forward(const blocks *b) {
    const tsh_sequences sequences = {.batch = SEQUENCES};
    tsh_tensor *y = tsh_block_forward(b->tape, b->block[0], b->x, &sequences);
    return tsh_block_forward(b->tape, b->block[1], y, &sequences);
}

static void blocks_backward(tshi_rank *r, const blocks *b, tsh_tensor *y) {
    tsh_tensor *loss = tsh_redistribute(b->tape, tsh_sum(b->tape, tsh_mul(b->tape, y, y), TSH_ALL_DIMS), NULL, NULL);
    tshi_check(r, tsh_backward(b->tape, loss) == TSH_OK, "%s", tsh_tape_message(b->tape));
}

static bool is_zero(const tsh_tensor *t) {
    bool zero = true;
    for (int64_t i = 0; t && i < tsh_tensor_local_numel(t); i++) zero = zero && tshi_test_element(t, i) == 0;
    return zero;
}

static uint64_t calls_of(const tsh_group *group) {
    uint64_t calls = 0;
    const tsh_communication_stats stats = tsh_group_stats(group);
    for (int i = 0; i < TSH_COLLECTIVE_COUNT; i++) calls += stats.calls[i];
    return calls;
}

/* With B = 0: the same bits forward, by as many collectives; dA = 0, dB is not. */
static void adds_nothing(tshi_rank *r, void *arg) {
    static const tsh_lora_config config = {.rank = 2, .alpha = 3};
    for (int sequence = 0; sequence < 2 && !r->failed; sequence++) {
        blocks base, adapted;
        if (!make_blocks(r, arg, sequence, TSH_FLOAT32, &base)) return;
        if (!make_blocks(r, arg, sequence, TSH_FLOAT32, &adapted)) return;
        adapt_blocks(r, &adapted, &config);
        tshi_check(r, tsh_parameters_count(adapted.adapters) == 2 * 2 * 7, "%d parameters of adapters",
                   tsh_parameters_count(adapted.adapters));
        tsh_group *model[2] = {tsh_mesh_group(base.mesh, "model"), tsh_mesh_group(adapted.mesh, "model")};
        for (int i = 0; i < 2; i++) tsh_group_reset_stats(model[i]);
        tsh_tensor *a = blocks_forward(&base), *b = blocks_forward(&adapted);
        tshi_check(r, calls_of(model[0]) == calls_of(model[1]), "%llu collectives, %llu without adapters",
                   (unsigned long long)calls_of(model[1]), (unsigned long long)calls_of(model[0]));
        if (tshi_check(r, a && b, "%s", tsh_tape_message(adapted.tape)))
            tshi_check(r, !memcmp(tsh_tensor_data(a), tsh_tensor_data(b), tsh_tensor_local_nbytes(a)),
                       "sequence parallel %d: other bits", sequence);
        if (!r->failed) blocks_backward(r, &adapted, b);
        for (int i = 0; i < tsh_parameters_count(adapted.adapters) && !r->failed; i++) {
            const char *name = tsh_parameters_name(adapted.adapters, i);
            const tsh_tensor *grad = tsh_tensor_grad(tsh_parameters_tensor(adapted.adapters, i));
            bool down = strstr(name, ".lora_A.weight") != NULL;
            if (!tshi_check(r, grad, "%s has no gradient", name)) continue;
            bool zero = is_zero(grad);
            tshi_check(r, zero || !down, "%s has a gradient", name);
            tshi_check(r, down || !zero || tsh_tensor_local_numel(grad) == 0, "%s has no gradient", name);
        }
        destroy_blocks(&base);
        destroy_blocks(&adapted);
    }
}

Test(lora, a_zero_b_leaves_the_output_bit_for_bit) {
    cr_assert_str_empty(tshi_test_run_meshes(adds_nothing));
}

static const tsh_lora_config random_b = {
    .rank = 3, .alpha = 2, .b_init = {.kind = TSH_INIT_NORMAL, .b = 0.3}}; /* the factors are not zeros */

enum { ADAPTERS = 2 * 2 * 7, MOST_ELEMENTS = 128 };

/* The gradients of all adapters, whole. */
static void all_gradients(tshi_rank *r, const char *axes, bool sequence, int schedule, double *out) {
    blocks b;
    tsh_data_parallel *dp = NULL;
    if (!make_blocks(r, axes, sequence, TSH_FLOAT64, &b)) return;
    adapt_blocks(r, &b, &random_b);
    const tsh_data_parallel_config config = {.model = tsh_mesh_group(b.mesh, "model"), .sequence_parallel = sequence};
    if (schedule)
        tshi_check_ok(r, tsh_data_parallel_create(b.tape, b.adapters, tsh_mesh_group(b.mesh, "data"), &config, &dp));
    blocks_backward(r, &b, blocks_forward(&b));
    for (int i = 0; i < ADAPTERS && !r->failed; i++) {
        tsh_tensor *grad = tsh_tensor_grad(tsh_parameters_tensor(b.adapters, i));
        if (tshi_check(r, grad, "%s has no gradient", tsh_parameters_name(b.adapters, i)))
            tshi_check_ok(r, tsh_tensor_read_whole(grad, out + i * MOST_ELEMENTS));
    }
    tsh_data_parallel_destroy(dp);
    destroy_blocks(&b);
}

static void one_rank(tshi_rank *r, void *arg) {
    all_gradients(r, "data=1,model=1", false, 0, arg);
}

static const double *single_rank;

static void same_gradients(tshi_rank *r, void *arg) {
    static double got[ADAPTERS * MOST_ELEMENTS];
    for (int way = 0; way < 4 && !r->failed; way++) { /* sequence parallel; with a schedule */
        memset(got, 0, sizeof got);
        all_gradients(r, arg, way & 1, way >> 1, got);
        for (int i = 0; i < ADAPTERS * MOST_ELEMENTS && !r->failed; i++)
            tshi_check(r, fabs(got[i] - single_rank[i]) <= 1e-10 * fmax(1, fabs(single_rank[i])),
                       "way %d, parameter %d, element %d: %.17g, on one rank %.17g", way, i / MOST_ELEMENTS,
                       i % MOST_ELEMENTS, got[i], single_rank[i]);
    }
}

Test(lora, gradients_are_those_of_one_rank) {
    double *one = tshi_test_shared(ADAPTERS * MOST_ELEMENTS * sizeof *one);
    cr_assert_str_empty(tshi_test_run(1, one_rank, one));
    single_rank = one;
    cr_assert_str_empty(tshi_test_run_meshes(same_gradients));
}

/* The collectives of a step on the model's group, and the buckets of its schedule. */
static uint64_t count_step(tshi_rank *r, const char *axes, bool sequence, const tsh_lora_config *config, int *buckets) {
    blocks b;
    tsh_data_parallel *dp = NULL;
    if (!make_blocks(r, axes, sequence, TSH_FLOAT32, &b)) return 0;
    if (config) adapt_blocks(r, &b, config);
    tsh_group *model = tsh_mesh_group(b.mesh, "model");
    const tsh_data_parallel_config sums = {.model = model, .sequence_parallel = sequence};
    tshi_check_ok(
        r, tsh_data_parallel_create(b.tape, config ? b.adapters : b.list, tsh_mesh_group(b.mesh, "data"), &sums, &dp));
    tsh_group_reset_stats(model);
    blocks_backward(r, &b, blocks_forward(&b));
    uint64_t calls = calls_of(model);
    *buckets = tsh_data_parallel_buckets(dp);
    tsh_data_parallel_destroy(dp);
    destroy_blocks(&b);
    return calls;
}

static void compare_steps(tshi_rank *r, void *arg) {
    static const tsh_lora_config config = {.rank = 2};
    for (int sequence = 0; sequence < 2; sequence++) {
        int all, adapters;
        uint64_t base = count_step(r, arg, sequence, NULL, &all);
        uint64_t calls = count_step(r, arg, sequence, &config, &adapters);
        tshi_check(r, calls == base, "sequence parallel %d: %llu collectives, %llu without adapters", sequence,
                   (unsigned long long)calls, (unsigned long long)base);
        tshi_check(r, adapters <= 3, "%d buckets, %d without adapters", adapters, all);
    }
}

/* With a schedule, the sums of all factors' gradients are those of a few buckets. */
Test(lora, a_step_costs_the_collectives_of_the_base) {
    cr_assert_str_empty(tshi_test_run_meshes(compare_steps));
}

enum { WIDE = 256, WIDE_HIDDEN = 1024 };

/* The bytes of gradients and of the optimizer's states of a block, after a step. */
static size_t bytes_of_step(tshi_rank *r, bool adapted) {
    const tsh_block_config config = {
        .embed = WIDE, .attention = {.heads = 4}, .mlp = {.hidden = WIDE_HIDDEN, .activation = TSH_ACTIVATION_GELU}};
    const tsh_lora_config lora = {.rank = 1};
    const tsh_tensor_config rows = {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {4, WIDE}};
    const tsh_sequences sequences = {.batch = 1};
    tsh_block *block = NULL;
    tsh_parameters *list = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    tsh_optimizer *optimizer = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_block_create(tsh_world_group(r->world), &config, &block));
    tshi_check_ok(r, tsh_block_register(block, list, "block"));
    if (adapted) tshi_check_ok(r, tsh_parameters_freeze(list, "*"));
    if (adapted) tshi_check_ok(r, tsh_block_adapt(block, &lora, list, "block"));
    tshi_check_ok(r, tsh_adamw_create(list, &(tsh_adamw_config){.lr = 0.01}, &optimizer));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &rows, &x));
    tsh_tensor *y = tsh_block_forward(tape, block, x, &sequences);
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_optimizer_step(optimizer));
    tshi_check_ok(r, tsh_tape_reset(tape));
    const tsh_memory_use use = tsh_device_memory(tsh_world_device(r->world));
    size_t bytes = use.live[TSH_MEMORY_GRADIENTS] + use.live[TSH_MEMORY_OPTIMIZER];
    tsh_tensor_release(x);
    tsh_optimizer_destroy(optimizer);
    tsh_block_destroy(block);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    return bytes;
}

static void compare_bytes(tshi_rank *r, void *arg) {
    (void)arg;
    size_t all = bytes_of_step(r, false), adapters = bytes_of_step(r, true);
    tshi_check(r, adapters > 0 && adapters * 100 <= all, "%zu bytes of gradients and states, %zu without adapters",
               adapters, all);
}

Test(lora, gradients_and_states_take_a_hundredth) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, compare_bytes, NULL));
}

/* --- merging ------------------------------------------------------------------------------------------------------ */

static void merge(tshi_rank *r, void *arg) {
    blocks b;
    double y[TOKENS * EMBED], weight[3][HEADS * DIM * EMBED];
    if (!make_blocks(r, arg, false, TSH_FLOAT64, &b)) return;
    adapt_blocks(r, &b, &random_b);
    tsh_tape_set_recording(b.tape, false);
    tsh_linear *q = tsh_self_attention_linear(tsh_block_attention(b.block[1]), TSH_ATTENTION_QUERY);
    for (int way = 0; way < 3 && !r->failed; way++) { /* the adapters beside the base; merged; separate again */
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < 2; i++) tshi_check_ok(r, tsh_block_merge(b.block[i], way == 1));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_linear_weight(q), weight[way]));
        tsh_tensor *got = blocks_forward(&b);
        if (way == 0) {
            tshi_check_ok(r, tsh_tensor_read_whole(got, y));
        } else if (tshi_check(r, got, "%s", tsh_tape_message(b.tape))) {
            tshi_test_same(r, way == 1 ? "merged" : "separate again", got, y, 1e-12);
        }
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    tshi_check(r, memcmp(weight[0], weight[1], sizeof weight[0]) != 0, "merging has not changed the weight");
    for (int i = 0; i < HEADS * DIM * EMBED; i++)
        tshi_check(r, fabs(weight[0][i] - weight[2][i]) < 1e-15, "weight %d: %.17g, %.17g before", i, weight[2][i],
                   weight[0][i]);
    destroy_blocks(&b);
}

Test(lora, a_merged_weight_computes_the_same_and_back) {
    cr_assert_str_empty(tshi_test_run_meshes(merge));
}

/* --- names, wrong use --------------------------------------------------------------------------------------------- */

static void named(tshi_rank *r, void *arg) {
    static const char *const attention[] = {"q_proj", "self_attn.v_proj", NULL};
    static const char *const some[] = {"layers.1.mlp.*_proj", "o_pro", "proj", NULL};
    static const struct {
        const char *const *targets;
        int count;
        const char *first, *last;
    } cases[] = {{attention, 8, "layers.0.self_attn.q_proj.lora_A.weight", "layers.1.self_attn.v_proj.lora_B.weight"},
                 {some, 6, "layers.1.mlp.gate_proj.lora_A.weight", "layers.1.mlp.down_proj.lora_B.weight"},
                 {NULL, 28, "layers.0.self_attn.q_proj.lora_A.weight", "layers.1.mlp.down_proj.lora_B.weight"}};
    (void)arg;
    for (size_t i = 0; i < 3 && !r->failed; i++) {
        blocks b;
        if (!make_blocks(r, "data=1,model=1", false, TSH_FLOAT32, &b)) return;
        adapt_blocks(r, &b, &(tsh_lora_config){.rank = 1, .targets = cases[i].targets});
        int count = tsh_parameters_count(b.adapters);
        if (tshi_check(r, count == cases[i].count, "case %zu: %d parameters", i, count)) {
            const char *first = tsh_parameters_name(b.adapters, 0), *last = tsh_parameters_name(b.adapters, count - 1);
            tshi_check(r, !strcmp(first, cases[i].first) && !strcmp(last, cases[i].last), "%s ... %s", first, last);
        }
        destroy_blocks(&b);
    }
}

Test(lora, adapts_the_layers_that_are_named) {
    cr_assert_str_empty(tshi_test_run(1, named, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    const tsh_lora_config good = {.rank = 2};
    tsh_linear *layer = make_linear(r, &variants[COLUMN], all_sizes[0].in, all_sizes[0].out, TSH_FLOAT32),
               *other = NULL;
    tsh_parameters *list = NULL;
    tsh_tape *tape = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_status(r, tsh_linear_adapt(NULL, &good, list, "a"), TSH_ERR_ARGUMENT, "a layer is required");
    tshi_check_status(r, tsh_linear_adapt(layer, NULL, list, "a"), TSH_ERR_ARGUMENT, "a configuration is required");
    tshi_check_status(r, tsh_linear_adapt(layer, &(tsh_lora_config){.alpha = 1}, list, "a"), TSH_ERR_ARGUMENT,
                      "rank=0");
    tshi_check_status(r, tsh_linear_adapt(layer, &(tsh_lora_config){.rank = 1, .alpha = NAN}, list, "a"),
                      TSH_ERR_ARGUMENT, "alpha=nan");
    tshi_check_status(r, tsh_linear_adapt(layer, &(tsh_lora_config){.rank = 1, .dropout = 1}, list, "a"),
                      TSH_ERR_ARGUMENT, "dropout=1");
    tshi_check(r, !tsh_linear_lora_a(layer) && tsh_parameters_count(list) == 0, "a failed call has left an adapter");
    tshi_check_ok(r, tsh_linear_merge(layer, true));
    tshi_check_ok(r, tsh_linear_adapt(layer, &good, list, "a"));
    tshi_check_status(r, tsh_linear_adapt(layer, &good, list, "b"), TSH_ERR_STATE, "has an adapter already");
    other = make_linear(r, &variants[ROW], all_sizes[0].in, all_sizes[0].out, TSH_FLOAT32);
    tshi_check_status(r, tsh_linear_adapt(other, &good, list, "a"), TSH_ERR_ARGUMENT, "'a.lora_A.weight' already");
    tshi_check(r, !tsh_linear_lora_b(other), "a failed call has left an adapter");
    tsh_linear_destroy(other);
    other = make_linear(r, &variants[ROW], all_sizes[0].in, all_sizes[0].out, TSH_FLOAT32);
    tshi_check_ok(r, tsh_linear_register(other, list, "other"));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world), NULL, &dp));
    tshi_check_status(r, tsh_linear_adapt(other, &good, list, "other"), TSH_ERR_STATE, "freeze it before creating");
    tshi_check(r, !tsh_linear_lora_b(other), "a failed call has left an adapter");
    tsh_linear_destroy(other);
    tsh_data_parallel_destroy(dp);
    tsh_linear_destroy(layer);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
}

/* "gate_proj" is an expert's weight here; without targets only attention has adapters. */
static void experts_have_none(tshi_rank *r, void *arg) {
    static const char *const targets[] = {"q_proj", "gate_proj", NULL};
    const tsh_block_config config = {
        .embed = 4, .attention = {.heads = 2}, .experts = {.hidden = 3, .experts = 2, .router = {.top_k = 1}}};
    tsh_block *block = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_block_create(tsh_world_group(r->world), &config, &block));
    tshi_check_status(r, tsh_block_adapt(block, &(tsh_lora_config){.rank = 1, .targets = targets}, list, "b"),
                      TSH_ERR_UNSUPPORTED, "b.mlp.experts.gate_proj is part of experts");
    tshi_check(r, tsh_parameters_count(list) == 0, "a refused call has adapted q_proj");
    tshi_check_ok(r, tsh_block_adapt(block, &(tsh_lora_config){.rank = 1}, list, "b"));
    tshi_check(r, tsh_parameters_count(list) == 8, "%d parameters", tsh_parameters_count(list));
    tsh_block_destroy(block);
    tsh_parameters_destroy(list);
}

Test(lora, refuses_experts_that_are_named) {
    cr_assert_str_empty(tshi_test_run(1, experts_have_none, NULL));
}

Test(lora, refuses_wrong_use) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
}
