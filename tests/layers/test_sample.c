/* Sampling: the probabilities that are asked for, the same ids at 1 to 4 ranks, ties, and logits that are no
 * numbers. */
#include "support/ranks.h"
#include "tshard/generate.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, CLASSES = 701, SETTINGS = 9, POSITIONS = 5, IDS = SETTINGS * POSITIONS * ROWS, HALVES = 2 * SETTINGS };

static const tsh_sample_config settings[SETTINGS] = {
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.3, .stream = 4},
    {.temperature = 1, .top_k = 7},
    {.temperature = 2, .top_k = 300, .top_p = 0.5},
    {.temperature = 0.7, .top_p = 0.9},
    {.temperature = 1000, .top_p = 0.95}, /* almost all classes */
    {.temperature = 1, .top_k = 10000, .top_p = 1},
    {.temperature = 1e-300, .top_p = 1e-9},
};

/* With some equal logits, the largest among them. */
static double logit(int64_t row, int64_t i) {
    int64_t k = (i * 389 + row * 57) % CLASSES;
    return i % 100 == 3 ? 6.5 : (double)k / 120 - (double)(k % 3);
}

static tsh_tensor *make_logits(tshi_rank *r, tsh_dtype dtype, int64_t rows, int64_t classes, tsh_layout layout,
                               double (*value)(int64_t row, int64_t i)) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = 2, .shape = {rows, classes}, .layout = {layout}};
    double *whole = malloc(sizeof *whole * (size_t)(rows * classes));
    tsh_tensor *t = NULL;
    for (int64_t i = 0; i < rows * classes; i++) {
        whole[i] = value(i / classes, i % classes);
        if (dtype == TSH_FLOAT32) ((float *)whole)[i] = (float)value(i / classes, i % classes);
    }
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_write_whole(t, whole));
    free(whole);
    return t;
}

static void sample(tshi_rank *r, tsh_tape *tape, tsh_tensor *logits, const tsh_sample_config *config, int64_t *ids) {
    tsh_tensor *y = tsh_full(tape, tsh_sample(tape, logits, config));
    if (tshi_check(r, y != NULL, "%s", tsh_tape_message(tape)))
        tshi_check_ok(r, tsh_tensor_read(y, ids, tsh_tensor_local_numel(y)));
}

static void all_settings(tshi_rank *r, tsh_dtype dtype, tsh_layout layout, int64_t *ids) {
    tsh_tape *tape = NULL;
    tsh_tensor *logits = make_logits(r, dtype, ROWS, CLASSES, layout, logit);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int s = 0; s < SETTINGS; s++) {
        for (int p = 0; p < POSITIONS; p++) {
            tsh_sample_config config = settings[s];
            config.seed = 11;
            config.position = p * 1000;
            sample(r, tape, logits, &config, ids);
            tshi_check_ok(r, tsh_tape_reset(tape));
            ids += ROWS;
        }
    }
    tsh_tensor_release(logits);
    tsh_tape_destroy(tape);
}

/* Logits of 16 bits, drawn by their index in the whole. */
static void halves(tshi_rank *r, tsh_layout layout, int64_t *ids) {
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < HALVES; i++) {
        tsh_tensor_config config = {.dtype = i % 2 ? TSH_FLOAT16 : TSH_BFLOAT16, .ndim = 2, .shape = {ROWS, CLASSES}};
        tsh_tensor *logits = NULL;
        config.layout[0] = layout;
        tsh_world_seed(r->world, 3);
        tshi_check_ok(r, tsh_tensor_create_uniform(tsh_world_mesh(r->world), &config, -4, 4, &logits));
        sample(r, tape, logits, &settings[i / 2], ids + i * ROWS);
        tsh_tensor_release(logits);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tape_destroy(tape);
}

typedef struct answer {
    int64_t f64[IDS], f32[IDS], f16[HALVES * ROWS];
} answer;

static void reference(tshi_rank *r, void *arg) {
    (void)arg;
    answer *a = r->result;
    all_settings(r, TSH_FLOAT64, TSH_REPLICATED, a->f64);
    all_settings(r, TSH_FLOAT32, TSH_REPLICATED, a->f32);
    halves(r, TSH_REPLICATED, a->f16);
    /* Equal logits: the lower index. The smallest nucleus has one class. */
    for (int p = 0; p < POSITIONS * ROWS; p++)
        tshi_check(r, a->f64[p] == 3 && a->f64[(SETTINGS - 1) * POSITIONS * ROWS + p] == 3, "greedy: %d",
                   (int)a->f64[p]);
    tshi_check(r, memcmp(a->f64 + POSITIONS * ROWS, a->f64 + 2 * POSITIONS * ROWS, POSITIONS * ROWS * 8) != 0,
               "two streams are alike");
}

static void as_one_rank(tshi_rank *r, void *arg) {
    const answer *wanted = arg;
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    int64_t ids[IDS];
    for (int l = 0; l < 3; l++) {
        all_settings(r, TSH_FLOAT64, layouts[l], ids);
        for (int i = 0; i < IDS; i++)
            tshi_check(r, ids[i] == wanted->f64[i], "layout %d, setting %d: %d, not %d", l, i / ROWS / POSITIONS,
                       (int)ids[i], (int)wanted->f64[i]);
        all_settings(r, TSH_FLOAT32, layouts[l], ids);
        tshi_check(r, memcmp(ids, wanted->f32, sizeof ids) == 0, "layout %d, float32", l);
        halves(r, layouts[l], ids);
        tshi_check(r, memcmp(ids, wanted->f16, sizeof wanted->f16) == 0, "layout %d, 16 bits", l);
    }
    tshi_check(r, tsh_device_stats(tsh_world_device(r->world)).bytes_in_use == 0, "memory is left");
}

Test(sample, same_ids_at_any_number_of_ranks, .timeout = 120) {
    static answer wanted;
    tshi_test_options one = {.ranks = 1, .timeout = 60, .result_bytes = sizeof wanted};
    cr_assert_str_empty(tshi_test_run_with(&one, reference, NULL, NULL, &wanted));
    cr_assert_str_empty(tshi_test_run_each(1, 4, as_one_rank, &wanted));
}

/* --- the distribution --------------------------------------------------------------------------------------------- */

enum { FEW = 9, SEQUENCES = 50, DRAWS = 400 };

static double few_logits(int64_t row, int64_t i) {
    static const double values[FEW] = {0.5, -1, 2, 2, 0, -3, 1.5, -0.25, 0.1};
    (void)row;
    return values[i];
}

/* The probabilities, by sorting: temperature, then top_k, then top_p. */
static void probabilities(const tsh_sample_config *c, double *p) {
    int order[FEW];
    double sum = 0, before = 0;
    for (int i = 0; i < FEW; i++) {
        int at = i;
        for (; at > 0 && few_logits(0, order[at - 1]) < few_logits(0, i); at--) order[at] = order[at - 1];
        order[at] = i;
    }
    int64_t k = c->top_k ? c->top_k : FEW;
    for (int i = 0; i < FEW; i++) p[order[i]] = i < k ? exp(few_logits(0, order[i]) / c->temperature) : 0;
    for (int i = 0; i < FEW; i++) sum += p[i];
    for (int i = 0; i < FEW; i++) {
        double own = p[order[i]] / sum;
        if (c->top_p > 0 && before >= c->top_p) p[order[i]] = 0;
        before += own;
    }
    sum = 0;
    for (int i = 0; i < FEW; i++) sum += p[i];
    for (int i = 0; i < FEW; i++) p[i] /= sum;
}

static void distribution(tshi_rank *r, void *arg) {
    (void)arg;
    static const tsh_sample_config cases[] = {
        {.temperature = 1, .seed = 5},
        {.temperature = 1.7, .seed = 6, .top_k = 4},
        {.temperature = 0.8, .seed = 7, .top_p = 0.8},
        {.temperature = 1.2, .seed = 8, .top_k = 6, .top_p = 0.7},
    };
    tsh_tape *tape = NULL;
    tsh_tensor *logits = make_logits(r, TSH_FLOAT64, SEQUENCES, FEW, TSH_SHARD(1), few_logits);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t ids[SEQUENCES], count[FEW] = {0};
        double p[FEW], chi = 0;
        int free = -1;
        tsh_sample_config c = cases[k];
        for (c.position = 0; c.position < DRAWS && !r->failed; c.position++) {
            sample(r, tape, logits, &c, ids);
            for (int b = 0; b < SEQUENCES; b++) count[ids[b]]++;
            tshi_check_ok(r, tsh_tape_reset(tape));
        }
        probabilities(&c, p);
        for (int i = 0; i < FEW; i++) {
            double wanted = p[i] * SEQUENCES * DRAWS, apart = (double)count[i] - wanted;
            if (p[i] == 0) tshi_check(r, count[i] == 0, "case %d: class %d was drawn", (int)k, i);
            if (p[i] == 0) continue;
            chi += apart * apart / wanted;
            free++;
        }
        /* 8 degrees of freedom at most: above 26 with a probability of 0.001. */
        tshi_check(r, free >= 2 && chi < 26, "case %d: chi square is %g with %d degrees", (int)k, chi, free);
    }
    tsh_tensor_release(logits);
    tsh_tape_destroy(tape);
}

Test(sample, draws_with_the_right_probabilities, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, distribution, NULL));
    cr_assert_str_empty(tshi_test_run(2, distribution, NULL));
}

/* --- costs, and what is refused ----------------------------------------------------------------------------------- */

static void count_calls(tshi_rank *r, const tsh_sample_config *config, int gathers, int reduces) {
    tsh_tape *tape = NULL;
    int64_t ids[ROWS];
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *logits = make_logits(r, TSH_FLOAT64, ROWS, CLASSES, TSH_SHARD(1), logit);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    sample(r, tape, logits, config, ids);
    tshi_check_ok(r, tsh_tape_reset(tape));
    uint64_t allocations = tsh_device_stats(tsh_world_device(r->world)).allocations;
    tsh_group_reset_stats(group);
    sample(r, tape, logits, config, ids);
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r,
               stats.calls[TSH_COLLECTIVE_ALL_GATHER] == (uint64_t)gathers &&
                   stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == (uint64_t)reduces,
               "%d all-gathers, %d all-reduces", (int)stats.calls[TSH_COLLECTIVE_ALL_GATHER],
               (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE]);
    tshi_check(r, tsh_device_stats(tsh_world_device(r->world)).allocations == allocations, "memory was allocated");
    tsh_tensor_release(logits);
    tsh_tape_destroy(tape);
}

static void costs(tshi_rank *r, void *arg) {
    (void)arg;
    count_calls(r, &settings[0], 1, 0);
    count_calls(r, &settings[1], 2, 1);
    count_calls(r, &settings[3], 1, 0);
    count_calls(r, &settings[5], 2, 8);
    count_calls(r, &settings[6], 2, 8);
}

Test(sample, small_collectives_alone, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(3, costs, NULL));
}

static double with_nan(int64_t row, int64_t i) {
    return row == 1 && i == 5 ? NAN : (double)i;
}

static double without_any(int64_t row, int64_t i) {
    return row == 2 ? -INFINITY : (double)i;
}

static void not_a_number(tshi_rank *r, void *arg) {
    (void)arg;
    const tsh_sample_config *const configs[] = {NULL, &settings[1], &settings[3], &settings[5]};
    tsh_tape *tape = NULL;
    tsh_tensor *bad[] = {make_logits(r, TSH_FLOAT64, 3, 7, TSH_SHARD(1), with_nan),
                         make_logits(r, TSH_FLOAT64, 3, 7, TSH_SHARD(1), without_any)};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 8; i++) {
        const char *words =
            i % 2 ? "the largest logit of sequence 2 is -inf" : "the largest logit of sequence 1 is nan";
        tshi_check(r, !tsh_sample(tape, bad[i % 2], configs[i / 2]) && strstr(tsh_tape_message(tape), words),
                   "\"%s\" is not in \"%s\"", words, tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor_release(bad[0]);
    tsh_tensor_release(bad[1]);
    tsh_tape_destroy(tape);
}

Test(sample, logits_that_are_no_numbers, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, not_a_number, NULL));
}
