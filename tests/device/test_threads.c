/* Kernels on several threads: the same bits at any number of them, and the ranges that their work is split into. */
#include "base/hash.h"
#include "base/owner.h"
#include "device/cpu/parallel.h"
#include "kernel_test.h"

#include <sys/wait.h>
#include <unistd.h>

TestSuite(threads, .timeout = 300);

#define LEAST TSHI_LEAST_COST
#define TEAMS 4
static const int teams[TEAMS] = {1, 2, 3, 5};

static tsh_device *device_of(int threads) {
    static _Alignas(4096) char heaps[TEAMS][4096];
    tsh_device *device = NULL;
    for (int i = 0; i < TEAMS; i++) {
        if (teams[i] == threads)
            cr_assert_eq(tshi_device_create_cpu(NULL, heaps[i], sizeof heaps[i], threads, &device), TSH_OK);
    }
    return device;
}

/* --- ranges ------------------------------------------------------------------------------------------------------- */

typedef struct seen_ranges {
    int64_t from[8], end[8];
} seen_ranges;

static void note_range(const void *call, int range, int64_t from, int64_t end) {
    seen_ranges *seen = *(seen_ranges *const *)call;
    seen->from[range] = from;
    seen->end[range] = end;
}

/* Every unit once, in order; ranges of about one size that begin at multiples of the step. */
static void check_ranges(const tsh_device *device, int64_t n, int64_t step, double cost) {
    seen_ranges seen = {{0}, {0}}, *to = &seen;
    int ranges = tshi_ranges(device, n, step, cost);
    cr_assert(ranges >= 1 && ranges <= device->threads);
    tshi_parallel(device, n, step, cost, note_range, &to);
#ifdef TSHARD_HAVE_ONEDNN
    cr_assert_eq(seen.end[ranges - 1], n, "%d ranges of %lld units were wanted", ranges, (long long)n);
#else
    if (seen.end[0] == n) ranges = 1; /* no OpenMP runtime */
#endif
    for (int i = 0; i < ranges; i++) {
        cr_assert_eq(seen.from[i], i ? seen.end[i - 1] : 0);
        cr_assert(seen.from[i] % step == 0);
        cr_assert(ranges == 1 || seen.end[i] - seen.from[i] >= n / step / ranges * step);
    }
}

Test(threads, ranges) {
    const int64_t sizes[] = {0,   1,    2,     3,     4,     5,     9,     64,    127,
                             128, 1000, 16384, 32767, 32768, 49151, 49152, 49153, 1000003};
    for (int t = 0; t < TEAMS; t++) {
        tsh_device *device = device_of(teams[t]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            check_ranges(device, sizes[i], 1, 1);
            check_ranges(device, sizes[i], 64, 1);
            check_ranges(device, sizes[i], 1, 1e9);
        }
        cr_assert_eq(tshi_ranges(device, 2 * LEAST - 1, 1, 1), 1, "small calls stay on one thread");
        cr_assert_eq(tshi_ranges(device, 1 << 20, 1, 1), teams[t]);
        cr_assert_eq(tshi_ranges(device, 3, 1, 1e9), teams[t] < 3 ? teams[t] : 3);
        tshi_device_destroy(device);
    }
}

static void nested_range(const void *call, int range, int64_t from, int64_t end) {
    seen_ranges seen = {{0}, {0}}, *to = &seen;
    tshi_parallel(*(tsh_device *const *)call, 1 << 20, 1, 1, note_range, &to);
    if (range < 0 || end <= from || seen.end[0] != 1 << 20) abort(); /* one range has all */
}

Test(threads, a_range_starts_no_threads) {
    tsh_device *device = device_of(2);
    tshi_parallel(device, 2, 1, 1e9, nested_range, &device);
    tshi_device_destroy(device);
}

/* The child has none of its parent's threads. */
Test(threads, a_forked_child_computes_alone) {
    tsh_device *device = device_of(3);
    tshi_owner owner;
    seen_ranges seen = {{0}, {0}}, *to = &seen;
    tshi_owner_open(&owner, false, NULL);
    device->owner = &owner;
    tshi_parallel(device, 1 << 20, 1, 1, note_range, &to);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        tshi_parallel(device, 1 << 20, 1, 1, note_range, &to);
        _exit(seen.from[0] == 0 && seen.end[0] == 1 << 20 ? 0 : 1);
    }
    int status = -1;
    cr_assert(child > 0 && waitpid(child, &status, 0) == child);
    cr_assert_eq(status, 0, "%d", status);
    tshi_device_destroy(device);
    tshi_owner_close(&owner);
}

/* --- the same bits ------------------------------------------------------------------------------------------------ */

/* A call whose results are hashed. */
typedef struct trial {
    tsh_device *device;
    tsh_dtype dtype;
    int64_t rows, cols;
    uint64_t hash;
} trial;

/* The same for each team. */
static uint64_t number_state;

static double next_number(void) {
    number_state = number_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(number_state >> 40) * 0x1p-24;
}

static buffer numbers(const trial *t, tsh_dtype dtype, int64_t n) {
    buffer b = buffer_make(dtype, n);
    float *wide = malloc(sizeof *wide * (size_t)(n ? n : 1));
    cr_assert_not_null(wide);
    for (int64_t i = 0; i < n; i++) wide[i] = (float)(next_number() * 4 - 2);
    t->device->ops->copy.convert(t->device, n, TSH_FLOAT32, wide, dtype, b.data);
    free(wide);
    return b;
}

static void hash_of(trial *t, const buffer *b) {
    for (size_t i = 0; i < bytes_of(b); i += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t left = bytes_of(b) - i;
        memcpy(&word, (const char *)b->data + i, left < sizeof word ? left : sizeof word);
        t->hash = tshi_fingerprint_add(t->hash, word);
    }
}

typedef void trial_fn(trial *t);

static void same_at_any_number(trial_fn *run, int64_t rows, int64_t cols, const char *what) {
    for (int d = 0; d < FLOAT_DTYPES; d++) {
        uint64_t wanted = 0;
        for (int i = 0; i < TEAMS; i++) {
            trial t = {device_of(teams[i]), float_dtypes[d], rows, cols, TSHI_FINGERPRINT};
            number_state = 7;
            run(&t);
            free_buffers();
            if (i == 0) wanted = t.hash;
            cr_assert_eq(t.hash, wanted, "%s of %s [%lld, %lld] on %d threads", what, tsh_dtype_name(t.dtype),
                         (long long)rows, (long long)cols, teams[i]);
            tshi_device_destroy(t.device);
        }
    }
}

/* Around the sizes at which another thread takes part. */
static const int64_t lengths[] = {5,         LEAST / 2 - 1,    LEAST / 2,     2 * LEAST - 1,
                                  2 * LEAST, 2 * LEAST + 1025, 5 * LEAST + 77};
/* Rows and columns of the same. */
static const int64_t shapes[][2] = {{1, 5 * LEAST + 3}, {3, 48001}, {54, 1301}, {170, 1301}, {700, 517}, {7001, 51}};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static void of_lengths(trial_fn *run, const char *what) {
    for (size_t i = 0; i < COUNT(lengths); i++) same_at_any_number(run, 1, lengths[i], what);
}

static void of_shapes(trial_fn *run, const char *what) {
    for (size_t i = 0; i < COUNT(shapes); i++) same_at_any_number(run, shapes[i][0], shapes[i][1], what);
}

static void elementwise(trial *t) {
    const tshi_elementwise_ops *ops = &t->device->ops->elementwise[t->dtype];
    const double p[2] = {1.5, 0.5};
    buffer x = numbers(t, t->dtype, t->cols), y = numbers(t, t->dtype, t->cols), z = numbers(t, t->dtype, t->cols);
    for (int f = 0; f < TSHI_UNARY_COUNT; f++) {
        if (f == TSHI_IDENTITY) continue;
        ops->unary(t->device, (tshi_unary)f, p, t->cols, x.data, y.data);
        ops->unary_backward(t->device, (tshi_unary)f, p, t->cols, x.data, y.data, 1, z.data);
        ops->unary_backward(t->device, (tshi_unary)f, p, t->cols, x.data, y.data, 0, y.data);
        ops->axpby(t->device, t->cols, 0.5, z.data, 0.25, y.data, z.data);
    }
    ops->axpby(t->device, t->cols, 3, x.data, 0, NULL, y.data);
    ops->swiglu(t->device, t->cols, x.data, y.data, y.data);
    ops->swiglu_backward(t->device, t->cols, x.data, y.data, z.data, 1, y.data, 0, z.data);
    ops->mul(t->device, t->cols, x.data, y.data, 1, z.data);
    ops->mul(t->device, t->cols, x.data, z.data, 0, x.data);
    hash_of(t, &x);
    hash_of(t, &y);
    hash_of(t, &z);
}

Test(threads, elementwise) {
    of_lengths(elementwise, "elementwise");
}

/* A row that is broadcast, a column that is, and neither. */
static void broadcasts(trial *t) {
    const tshi_elementwise_ops *ops = &t->device->ops->elementwise[t->dtype];
    const tshi_broadcast broadcasts[] = {{2, {t->cols, t->rows}, {1, t->cols}, {1, 0}},
                                         {2, {t->cols, t->rows}, {1, t->cols}, {0, 1}},
                                         {1, {t->cols * t->rows}, {1}, {1}},
                                         {1, {t->cols * t->rows}, {1}, {0}}};
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n), z = numbers(t, t->dtype, n);
    uint8_t *mask = malloc((size_t)n);
    for (int64_t i = 0; i < n; i++) mask[i] = (uint32_t)(next_number() * 0x1p24) & 1;
    for (int i = 0; i < 4; i++) {
        for (int f = 0; f < TSHI_BINARY_COUNT; f++)
            ops->binary(t->device, (tshi_binary)f, &broadcasts[i], x.data, y.data, z.data);
        ops->mask(t->device, &broadcasts[i], x.data, mask, i % 2, 0.5, 1, z.data);
        ops->mask(t->device, &broadcasts[i], z.data, mask, false, 0.5, 0, z.data);
        ops->bias(t->device, t->rows, t->cols, z.data, y.data, x.data);
    }
    ops->bias(t->device, t->rows, t->cols, NULL, y.data, z.data);
    free(mask);
    hash_of(t, &x);
    hash_of(t, &y);
    hash_of(t, &z);
}

Test(threads, broadcasts) {
    of_shapes(broadcasts, "broadcasts");
}

static void column_sums(trial *t) {
    const tshi_sum_ops *ops = &t->device->ops->sum[t->dtype];
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n), db = numbers(t, t->dtype, t->cols);
    buffer wide = numbers(t, tshi_dtype_sum(t->dtype), t->cols);
    double squares = 1;
    for (int way = 0; way < 3; way++) {
        int64_t outer = way == 0 ? 1 : t->rows, inner = way == 1 ? 1 : t->cols, many = way == 2 ? 1 : n / outer / inner;
        ops->over_dim(t->device, outer, many, inner, 0.5, x.data, y.data);
        ops->over_dim_backward(t->device, outer, many, inner, 0.5, y.data, x.data);
        ops->cumulative(t->device, way == 1, outer, many, inner, x.data, way == 1 ? 0.5 : 0, y.data);
    }
    ops->bias_backward(t->device, t->rows, t->cols, x.data, db.data);
    ops->bias_backward_wide(t->device, t->rows, t->cols, x.data, wide.data);
    ops->squares(t->device, n, x.data, &squares);
    t->hash = tshi_fingerprint_add(t->hash, (uint64_t)(squares * 0x1p20));
    hash_of(t, &x);
    hash_of(t, &y);
    hash_of(t, &db);
    hash_of(t, &wide);
}

Test(threads, sums) {
    of_shapes(column_sums, "sums");
    same_at_any_number(column_sums, 1, (1 << 18) + 3, "sums");
}

static void softmaxes(trial *t) {
    const tshi_softmax_ops *ops = &t->device->ops->softmax[t->dtype];
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n), dx = numbers(t, t->dtype, n);
    tsh_dtype wide = tshi_dtype_sum(t->dtype);
    for (int way = 0; way < 4; way++) {
        bool log_form = way & 1;
        int64_t inner = way & 2 ? 3 : 1, outer = t->rows, some = t->cols / inner;
        buffer max = numbers(t, wide, outer * inner), sum = numbers(t, wide, outer * inner);
        ops->max(t->device, outer, some, inner, x.data, max.data);
        ops->sum(t->device, outer, some, inner, x.data, max.data, sum.data);
        ops->forward(t->device, log_form, outer, some, inner, x.data, max.data, sum.data, y.data);
        ops->dot(t->device, log_form, outer, some, inner, y.data, x.data, max.data);
        ops->backward(t->device, log_form, outer, some, inner, y.data, x.data, max.data, dx.data);
        hash_of(t, &max);
        hash_of(t, &sum);
    }
    hash_of(t, &x);
    hash_of(t, &y);
    hash_of(t, &dx);
}

Test(threads, softmax) {
    of_shapes(softmaxes, "softmax");
}

static void cross_entropies(trial *t) {
    const tshi_cross_entropy_ops *ops = &t->device->ops->cross_entropy[t->dtype];
    tsh_dtype wide = tshi_dtype_sum(t->dtype);
    buffer logits = numbers(t, t->dtype, t->rows * t->cols), dlogits = numbers(t, t->dtype, t->rows * t->cols);
    buffer weight = numbers(t, t->dtype, t->cols), max = numbers(t, wide, t->rows),
           sums = numbers(t, wide, 4 * t->rows);
    buffer loss = numbers(t, wide, t->rows);
    int64_t *target = malloc(sizeof *target * (size_t)t->rows);
    for (int64_t i = 0; i < t->rows; i++)
        target[i] = i % 7 == 3 ? -100 : (int64_t)((uint32_t)(next_number() * 0x1p24) % 2000);
    for (int way = 0; way < 2; way++) {
        const tshi_classes c = {.rows = t->rows,
                                .n = t->cols,
                                .start = 40,
                                .classes = 2000,
                                .ignore_index = -100,
                                .smoothing = way ? 0.1 : 0,
                                .weight = way ? weight.data : NULL,
                                .z_loss = way ? 1e-3 : 0,
                                .max = max.data};
        ops->sums(t->device, &c, logits.data, target, max.data, sums.data);
        ops->shift(t->device, &c, max.data, max.data, sums.data);
        ops->loss(t->device, &c, target, sums.data, loss.data);
        ops->backward(t->device, &c, logits.data, target, max.data, sums.data, loss.data, way, NULL, way, dlogits.data);
    }
    free(target);
    hash_of(t, &logits);
    hash_of(t, &dlogits);
    hash_of(t, &weight);
    hash_of(t, &max);
    hash_of(t, &sums);
    hash_of(t, &loss);
}

Test(threads, cross_entropy) {
    of_shapes(cross_entropies, "cross entropy");
}

/* The weights are those of a row, of which there are many. */
static void element_losses(trial *t) {
    const tshi_loss_ops *ops = &t->device->ops->loss[t->dtype];
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), target = numbers(t, t->dtype, n), weight = numbers(t, t->dtype, t->cols);
    buffer loss = numbers(t, tshi_dtype_sum(t->dtype), n);
    for (int way = 0; way < 4; way++) {
        tshi_loss_inputs in = {.f = way == 3  ? TSHI_SMOOTH_ERROR
                                    : way & 1 ? TSHI_BINARY_CROSS_ENTROPY
                                              : TSHI_SQUARED_ERROR,
                               .beta = 0.5,
                               .n = n,
                               .weights = t->cols,
                               .x = x.data,
                               .target = target.data,
                               .weight = way & 1 ? weight.data : NULL};
        ops->forward(t->device, &in, loss.data);
        ops->backward(t->device, &in, way & 2, loss.data, way >> 1, 0.5, way & 1, target.data);
    }
    hash_of(t, &x);
    hash_of(t, &target);
    hash_of(t, &loss);
}

Test(threads, losses_of_elements) {
    of_shapes(element_losses, "losses");
}

static void norms(trial *t) {
    const tshi_norm_ops *ops = &t->device->ops->norm[t->dtype];
    tsh_dtype wide = tshi_dtype_sum(t->dtype);
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n), dx = numbers(t, t->dtype, n);
    buffer gamma = numbers(t, t->dtype, t->cols), beta = numbers(t, t->dtype, t->cols);
    buffer dgamma = numbers(t, t->dtype, t->cols), dbeta = numbers(t, t->dtype, t->cols);
    buffer mean = numbers(t, wide, t->rows), rstd = numbers(t, wide, t->rows);
    for (int rms = 0; rms < 2; rms++) {
        ops->forward(t->device, rms, t->rows, t->cols, 1e-5, x.data, gamma.data, beta.data, y.data, mean.data,
                     rstd.data);
        ops->backward(t->device, rms, t->rows, t->cols, x.data, gamma.data, mean.data, rstd.data, y.data, rms, dx.data,
                      dgamma.data, dbeta.data);
        ops->backward(t->device, rms, t->rows, t->cols, x.data, NULL, mean.data, rstd.data, y.data, 1, dx.data, NULL,
                      NULL);
        ops->backward(t->device, rms, t->rows, t->cols, x.data, gamma.data, mean.data, rstd.data, y.data, 1, NULL,
                      dgamma.data, NULL);
    }
    hash_of(t, &x);
    hash_of(t, &y);
    hash_of(t, &dx);
    hash_of(t, &dgamma);
    hash_of(t, &dbeta);
    hash_of(t, &mean);
    hash_of(t, &rstd);
}

Test(threads, norms) {
    of_shapes(norms, "norms");
}

/* Many equal ids; some lie outside the slice, some are padding. */
static void embeddings(trial *t) {
    enum { ROWS = 37 };
    const tshi_embedding_ops *ops = &t->device->ops->embedding[t->dtype];
    buffer table = numbers(t, t->dtype, ROWS * t->cols), y = numbers(t, t->dtype, t->rows * t->cols);
    int64_t *ids = malloc(sizeof *ids * (size_t)t->rows);
    for (int64_t i = 0; i < t->rows; i++) ids[i] = (int64_t)((uint32_t)(next_number() * 0x1p24) % (ROWS + 20));
    ops->forward(t->device, t->rows, ids, 10, ROWS, t->cols, table.data, y.data);
    ops->backward(t->device, t->rows, ids, 10, ROWS, t->cols, 12, y.data, table.data);
    free(ids);
    hash_of(t, &table);
    hash_of(t, &y);
}

Test(threads, embedding) {
    of_shapes(embeddings, "embedding");
}

static void rotations(trial *t) {
    const tshi_attention_ops *ops = &t->device->ops->attention[t->dtype];
    int64_t tokens = t->rows, dim = t->cols / 2 * 2, n = 3 * tokens * dim;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n);
    int64_t *positions = malloc(sizeof *positions * (size_t)(3 * tokens));
    for (int64_t i = 0; i < 3 * tokens; i++) positions[i] = (int64_t)((uint32_t)(next_number() * 0x1p24) % 500);
    for (int way = 0; way < 4; way++) {
        tshi_rotary r = {.batch = way & 1 ? 3 : 1,
                         .tokens = tokens,
                         .heads = way & 1 ? 1 : 3,
                         .dim = dim,
                         .dims = dim / 4 * 2,
                         .pairs = way & 1,
                         .batched = way & 2,
                         .theta = 10000,
                         .factor = 1,
                         .low = 1,
                         .high = 4,
                         .original = 512,
                         .positions = positions};
        ops->rotary(t->device, &r, way & 2, x.data, way & 1, y.data);
    }
    free(positions);
    hash_of(t, &x);
    hash_of(t, &y);
}

Test(threads, rotary) {
    same_at_any_number(rotations, 400, 128, "rotary");
    same_at_any_number(rotations, 1201, 66, "rotary");
    same_at_any_number(rotations, 3, 65000, "rotary");
}

/* rows: KV heads of each of two batches; cols: queries and keys. */
static void attentions(trial *t) {
    const tshi_attention_ops *ops = &t->device->ops->attention[t->dtype];
    tsh_dtype wide = tshi_dtype_sum(t->dtype);
    const int64_t of_batch[] = {t->cols, t->cols / 3};
    tshi_attention a = {.batch = 2,
                        .queries = t->cols,
                        .keys = t->cols,
                        .capacity = t->cols,
                        .heads = 2 * t->rows,
                        .kv_heads = t->rows,
                        .dim = 24,
                        .sharers = 2,
                        .causal = true,
                        .scale = 0.2,
                        .lengths = of_batch,
                        .dropout = 0.1,
                        .heads_whole = 2 * t->rows};
    int64_t queries = a.batch * a.queries * a.heads * a.dim, keys = a.batch * a.keys * a.kv_heads * a.dim;
    buffer q = numbers(t, t->dtype, queries), k = numbers(t, t->dtype, keys), v = numbers(t, t->dtype, keys);
    buffer y = numbers(t, t->dtype, queries), dq = numbers(t, t->dtype, queries);
    buffer dk = numbers(t, t->dtype, keys), dv = numbers(t, t->dtype, keys);
    buffer sums = numbers(t, wide, a.batch * a.heads * a.queries);
    buffer scratch = buffer_make(wide, ops->scratch(t->device, &a, false));
    buffer more = buffer_make(wide, ops->scratch(t->device, &a, true));
    const tshi_attention_grads g = {dq.data, dk.data, dv.data, 0, 1, 0};
    ops->forward(t->device, &a, q.data, k.data, v.data, y.data, sums.data, scratch.data);
    ops->backward(t->device, &a, q.data, k.data, v.data, y.data, sums.data, y.data, &g, more.data);
    hash_of(t, &y);
    hash_of(t, &sums);
    hash_of(t, &dq);
    hash_of(t, &dk);
    hash_of(t, &dv);
}

Test(threads, attention) {
    same_at_any_number(attentions, 1, 160, "attention");
    same_at_any_number(attentions, 2, 120, "attention");
    same_at_any_number(attentions, 3, 130, "attention");
    same_at_any_number(attentions, 4, 9, "attention");
}

static void random_numbers(trial *t) {
    const tshi_random_ops *ops = &t->device->ops->random[t->dtype];
    int64_t n = t->rows * t->cols;
    buffer x = numbers(t, t->dtype, n), y = numbers(t, t->dtype, n);
    const tshi_block blocks[] = {{1, t->rows, t->cols, 0, 3, t->rows + 9}, {t->rows, t->cols, 1, 5, 3, t->cols + 3}};
    for (int i = 0; i < 2; i++) {
        ops->dropout(t->device, &blocks[i], 3, 4, 0.2, x.data, 1, y.data);
        ops->dropout(t->device, &blocks[i], 3, 5, 0.2, y.data, 0, x.data);
        ops->uniform(t->device, &blocks[i], 3, 6, -1, 1, y.data);
        ops->normal(t->device, &blocks[i], 3, 7, 1, 2, i ? x.data : y.data);
    }
    hash_of(t, &x);
    hash_of(t, &y);
}

Test(threads, random_numbers) {
    of_shapes(random_numbers, "random");
}

/* Parameters of several sizes; runs that end inside a range. */
static void optimizers(trial *t) {
    const tshi_optimizer_ops *ops = &t->device->ops->optimizer[t->dtype];
    tsh_dtype wide = tshi_dtype_sum(t->dtype);
    bool half = wide != t->dtype;
    enum { PARAMETERS = 4 };
    const int64_t sizes[PARAMETERS] = {7, t->cols, 1025, t->cols / 2};
    const tshi_rounding rounding = {3, 4, 11, 700, 900};
    buffer p[PARAMETERS], grad[PARAMETERS], first[PARAMETERS], second[PARAMETERS], master[PARAMETERS];
    tshi_update updates[PARAMETERS];
    double squares = 9;
    for (int i = 0; i < PARAMETERS; i++) {
        p[i] = numbers(t, t->dtype, sizes[i]);
        grad[i] = numbers(t, i & 1 ? wide : t->dtype, sizes[i]);
        first[i] = numbers(t, wide, sizes[i]);
        second[i] = numbers(t, wide, sizes[i]);
        master[i] = numbers(t, wide, sizes[i]);
        for (int64_t j = 0; j < sizes[i]; j++) set(&second[i], j, fabs(get(&second[i], j)));
        updates[i] = (tshi_update){.n = sizes[i],
                                   .grad = grad[i].data,
                                   .state = {first[i].data, second[i].data},
                                   .p = p[i].data,
                                   .master = half && i < 2 ? master[i].data : NULL,
                                   .rounding = t->dtype == TSH_BFLOAT16 && i != 2 ? &rounding : NULL,
                                   .wide_grad = half && (i & 1)};
    }
    ops->adamw(t->device, &(tshi_adamw){0.1, 0.9, 0.99, 1e-8, 0.1, 3}, PARAMETERS, updates);
    ops->lion(t->device, &(tshi_lion){0.1, 0.9, 0.99, 0.1}, PARAMETERS, updates);
    ops->sgd(t->device, &(tshi_sgd){0.1, 0.9, 0, 0.1, true, false}, PARAMETERS, updates);
    ops->clip(t->device, sizes[1], &squares, 0.5, 1, p[1].data);
    for (int i = 0; i < PARAMETERS; i++) {
        hash_of(t, &p[i]);
        hash_of(t, &first[i]);
        hash_of(t, &second[i]);
        hash_of(t, &master[i]);
    }
}

Test(threads, optimizers) {
    of_lengths(optimizers, "optimizers");
}

static void conversions(trial *t) {
    const tshi_device_ops *ops = t->device->ops;
    buffer x = numbers(t, t->dtype, t->cols);
    for (int to = 0; to < TSH_COMPLEX64; to++) {
        buffer y = buffer_make((tsh_dtype)to, t->cols);
        ops->copy.convert(t->device, t->cols, t->dtype, x.data, (tsh_dtype)to, y.data);
        hash_of(t, &y);
    }
}

Test(threads, conversions) {
    of_lengths(conversions, "conversions");
}

static void top_elements(trial *t) {
    enum { KEPT = 5 };
    buffer x = numbers(t, t->dtype, t->rows * t->cols);
    tshi_candidate *top = calloc((size_t)(t->rows * KEPT), sizeof *top);
    t->device->ops->top.find(t->device, t->dtype, t->rows, t->cols, 1, KEPT, 3, x.data, top);
    for (int64_t i = 0; i < t->rows * KEPT; i++) t->hash = tshi_fingerprint_add(t->hash, (uint64_t)top[i].index);
    free(top);
    hash_of(t, &x);
}

Test(threads, top) {
    of_shapes(top_elements, "top");
}

/* Products of integers, which are exact however they are split. rows: products; an odd number of them has gaps. */
static void batches(trial *t) {
    const int64_t m = t->cols, n = 2 * t->cols, k = t->cols + 3, stride = m * n + t->rows % 2;
    const size_t heap_bytes = (size_t)32 << 20;
    void *heap = aligned_alloc(4096, heap_bytes);
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cpu(NULL, heap, heap_bytes, t->device->threads, &device), TSH_OK);
    buffer a = buffer_make(t->dtype, t->rows * m * k), b = buffer_make(t->dtype, t->rows * k * n);
    buffer c = buffer_make(t->dtype, t->rows * stride);
    for (int64_t i = 0; i < a.n; i++) set(&a, i, (double)(i * 7 % 11 - 5));
    for (int64_t i = 0; i < b.n; i++) set(&b, i, (double)(i * 5 % 13 - 6));
    tsh_status status = device->ops->product.gemm_batch(device, t->dtype, t->rows, false, false, m, n, k, 1, a.data, k,
                                                        m * k, b.data, n, k * n, 0, c.data, n, stride);
    cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
    hash_of(t, &c);
    tshi_device_destroy(device);
    free(heap);
}

Test(threads, batches) {
    same_at_any_number(batches, 1, 40, "a batch");
    same_at_any_number(batches, 4, 61, "a batch");
    same_at_any_number(batches, 5, 80, "a batch");
    same_at_any_number(batches, 37, 40, "a batch");
}
