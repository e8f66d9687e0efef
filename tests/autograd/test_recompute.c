/* Segments that run again in backward: gradients are those without them, bit for bit, collectives are counted, and
 * memory is that of the results of parts and one part's inside. */
#include "support/files.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(recompute, .timeout = 300);

enum { ROWS = 7, COLS = 6, HIDDEN = 9, LEAVES = 4, GROUP = 3 };

typedef enum segments { NONE, PARTS, NESTED } segments;

/* Parts share their weights, so that memory grows with results alone. */
typedef struct bench {
    tshi_rank *r;
    tsh_group *group;
    tsh_tape *tape;
    tsh_dtype dtype;
    bool sequence; /* results of parts are SHARD(0), not REPLICATED */
    bool offload;  /* segments' inputs wait in host memory */
    tsh_tensor
        *leaf[LEAVES]; /* x [ROWS, COLS], up [COLS, HIDDEN] by columns, down [HIDDEN, COLS] by rows, scale [COLS] */
} bench;

static tsh_layout between(const bench *b) {
    return b->sequence ? TSH_SHARD(0) : TSH_REPLICATED;
}

static bench set_up(tshi_rank *r, tsh_dtype dtype, bool sequence) {
    bench b = {.r = r, .group = tsh_world_group(r->world), .dtype = dtype, .sequence = sequence};
    const tsh_tensor_config shapes[LEAVES] = {{dtype, 2, {ROWS, COLS}, {between(&b)}},
                                              {dtype, 2, {COLS, HIDDEN}, {TSH_SHARD(1)}},
                                              {dtype, 2, {HIDDEN, COLS}, {TSH_SHARD(0)}},
                                              {dtype, 1, {COLS}, {TSH_REPLICATED}}};
    tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
    for (int i = 0; i < LEAVES; i++) {
        tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &shapes[i], -1, 0.03125, &b.leaf[i]));
        tshi_check_ok(r, tsh_tensor_require_grad(b.leaf[i], true));
    }
    return b;
}

static void tear_down(bench *b) {
    for (int i = 0; i < LEAVES; i++) tsh_tensor_release(b->leaf[i]);
    tsh_tape_destroy(b->tape);
    size_t left = tsh_device_stats(tsh_world_device(b->r->world)).bytes_in_use;
    tshi_check(b->r, left == 0, "%zu bytes are left", left);
}

/* x + norm(dropout(gelu(x up)) down): what the norm reads is a sum over ranks. */
static tsh_tensor *part(const bench *b, tsh_tensor *x) {
    tsh_tape *tape = b->tape;
    tsh_tensor *h = tsh_gelu(tape, tsh_matmul(tape, x, b->leaf[1]));
    h = tsh_matmul(tape, tsh_dropout(tape, h, 0.25), b->leaf[2]);
    h = tsh_redistribute(tape, h, NULL, (tsh_layout[]){between(b)});
    return tsh_add(tape, x, tsh_rms_norm(tape, h, b->leaf[3], 1e-5));
}

static tsh_tensor *end_segment(const bench *b, tsh_mark start, tsh_tensor *x) {
    return tsh_tape_recompute_since_with(b->tape, start, x, &(tsh_recompute_config){.offload = b->offload});
}

static tsh_tensor *chain(const bench *b, int depth, segments how) {
    tsh_tensor *x = b->leaf[0];
    tsh_mark outer = tsh_tape_mark(b->tape);
    for (int i = 0; i < depth; i++) {
        tsh_mark start = tsh_tape_mark(b->tape);
        x = part(b, x);
        if (how != NONE) x = end_segment(b, start, x);
        if (how != NESTED || i % GROUP != GROUP - 1) continue;
        x = end_segment(b, outer, x);
        outer = tsh_tape_mark(b->tape);
    }
    return x;
}

static tsh_tensor *loss_of(const bench *b, tsh_tensor *x) {
    return tsh_full(b->tape, tsh_sum(b->tape, tsh_mul(b->tape, x, x), TSH_ALL_DIMS));
}

static void zero(const bench *b) {
    for (int i = 0; i < LEAVES; i++) tsh_tensor_zero_grad(b->leaf[i]);
}

/* The loss and the gradients of a step, as bytes. */
typedef struct bits {
    double loss;
    char gradient[LEAVES][COLS * HIDDEN * sizeof(double)];
} bits;

static void copy_bits(const bench *b, tsh_tensor *loss, bits *out) {
    memset(out, 0, sizeof *out);
    if (loss) out->loss = tsh_tensor_item(loss);
    for (int i = 0; i < LEAVES; i++) {
        const tsh_tensor *g = tsh_tensor_grad(b->leaf[i]);
        if (g) memcpy(out->gradient[i], tsh_tensor_data((tsh_tensor *)(uintptr_t)g), tsh_tensor_local_nbytes(g));
    }
}

static void check_bits(const bench *b, const bits *got, const bits *wanted, const char *what) {
    tshi_check(b->r, got->loss == wanted->loss, "%s: a loss of %.17g, not %.17g", what, got->loss, wanted->loss);
    for (int i = 0; i < LEAVES; i++) {
        bool same = memcmp(got->gradient[i], wanted->gradient[i], sizeof got->gradient[i]) == 0;
        tshi_check(b->r, same, "%s: the gradient of leaf %d", what, i);
    }
}

static void step(const bench *b, int depth, segments how, bits *out) {
    tsh_world_seed(b->r->world, 5);
    zero(b);
    tsh_tensor *loss = loss_of(b, chain(b, depth, how));
    tshi_check_ok(b->r, tsh_backward(b->tape, loss));
    copy_bits(b, loss, out);
    tshi_check_ok(b->r, tsh_tape_reset(b->tape));
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static void gradients(tshi_rank *r, void *arg) {
    (void)arg;
    for (int k = 0; k < 4 && !r->failed; k++) {
        bits wanted, got;
        bench b = set_up(r, k % 2 ? TSH_FLOAT32 : TSH_FLOAT64, k / 2);
        step(&b, 2 * GROUP, NONE, &wanted);
        for (int offload = 0; offload < 2; offload++) {
            b.offload = offload;
            step(&b, 2 * GROUP, PARTS, &got);
            check_bits(&b, &got, &wanted, offload ? "offloaded segments" : "segments");
            step(&b, 2 * GROUP, NESTED, &got);
            check_bits(&b, &got, &wanted, offload ? "offloaded nested segments" : "nested segments");
        }
        tshi_check(r, wanted.loss > 0, "the loss is %g", wanted.loss);
        tear_down(&b);
    }
}

Test(recompute, gradients_have_the_bits_of_those_without) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, gradients, NULL));
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* A part's sum runs again, for the norm reads it; with nested segments twice, but for the last part of each group,
 * whose result is kept. */
static void collectives(tshi_rank *r, void *arg) {
    enum { DEPTH = 2 * GROUP };
    (void)arg;
    for (int k = 0; k < 2 && !r->failed; k++) {
        bench b = set_up(r, TSH_FLOAT64, k);
        tsh_communication_stats before, after;
        bits ignored;
        tsh_group_reset_stats(b.group);
        step(&b, DEPTH, NONE, &ignored);
        before = tsh_group_stats(b.group);
        for (segments how = PARTS; how <= NESTED; how++) {
            tsh_group_reset_stats(b.group);
            step(&b, DEPTH, how, &ignored);
            after = tsh_group_stats(b.group);
            int more = r->size == 1 ? 0 : how == PARTS ? DEPTH : 2 * DEPTH - DEPTH / GROUP;
            tsh_collective sum = k ? TSH_COLLECTIVE_REDUCE_SCATTER : TSH_COLLECTIVE_ALL_REDUCE;
            tshi_check(r, after.calls[sum] == before.calls[sum] + (uint64_t)more, "%d sums run again, not %d",
                       (int)(after.calls[sum] - before.calls[sum]), more);
            uint64_t gathers = after.calls[TSH_COLLECTIVE_ALL_GATHER] - before.calls[TSH_COLLECTIVE_ALL_GATHER];
            tshi_check(r, gathers == (uint64_t)(k ? more : 0), "%d gathers run again", (int)gathers);
        }
        tear_down(&b);
    }
}

Test(recompute, collectives_of_the_second_run_are_counted) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, collectives, NULL));
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* The most memory of a step, which takes none that was never used once it has run a few times. */
static size_t peak_of(const bench *b, int depth, segments how) {
    tsh_device *device = tsh_world_device(b->r->world);
    bits ignored;
    for (int i = 0; i < 3; i++) step(b, depth, how, &ignored);
    uint64_t before = tsh_device_stats(device).allocations;
    tsh_device_reset_peak(device);
    step(b, depth, how, &ignored);
    tsh_memory_stats stats = tsh_device_stats(device);
    tshi_check(b->r, stats.allocations == before, "a steady step took new memory");
    return stats.bytes_peak;
}

static void memory(tshi_rank *r, void *arg) {
    enum { DEPTH = 12 };
    (void)arg;
    for (int k = 0; k < 2 && !r->failed; k++) {
        bench b = set_up(r, TSH_FLOAT64, k);
        size_t result = (tsh_tensor_local_nbytes(b.leaf[0]) + 63) / 64 * 64;
        size_t none = peak_of(&b, 2 * DEPTH, NONE) - peak_of(&b, DEPTH, NONE);
        size_t parts = peak_of(&b, 2 * DEPTH, PARTS) - peak_of(&b, DEPTH, PARTS);
        size_t nested = peak_of(&b, 2 * DEPTH, NESTED) - peak_of(&b, DEPTH, NESTED);
        tshi_check(r, parts == DEPTH * result, "%d more parts need %zu bytes, a result has %zu", DEPTH, parts, result);
        tshi_check(r, nested == DEPTH / GROUP * result, "%d more groups need %zu bytes, a result has %zu",
                   DEPTH / GROUP, nested, result);
        tshi_check(r, none >= 4 * parts, "%zu bytes without segments, %zu with", none, parts);
        size_t before = peak_of(&b, DEPTH, PARTS);
        b.offload = true;
        parts = peak_of(&b, 2 * DEPTH, PARTS);
        size_t half = peak_of(&b, DEPTH, PARTS);
        nested = peak_of(&b, 2 * DEPTH, NESTED) - peak_of(&b, DEPTH, NESTED);
        tshi_check(r, parts == half && nested == 0,
                   "%zu bytes for twice the parts in place of %zu, %zu more for groups", parts, half, nested);
        tshi_check(r, half < before, "%zu bytes with results in host memory, %zu without", half, before);
        tear_down(&b);
    }
}

Test(recompute, memory_grows_by_results_alone) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, memory, NULL));
}

/* --- several backwards -------------------------------------------------------------------------------------------- */

/* Two losses over one chain, whose calls the first backward keeps. */
static void two_losses(const bench *b, segments how, bits *out) {
    tsh_world_seed(b->r->world, 5);
    zero(b);
    tsh_tensor *x = chain(b, GROUP, how), *first = loss_of(b, x), *second = loss_of(b, tsh_scale(b->tape, x, 3));
    tshi_check_ok(b->r, tsh_backward_with(b->tape, first, &(tsh_backward_config){.retain_graph = true}));
    size_t held = tsh_device_stats(tsh_world_device(b->r->world)).bytes_in_use;
    tshi_check_ok(b->r, tsh_backward_with(b->tape, second, &(tsh_backward_config){.retain_graph = true}));
    tshi_check(b->r, tsh_device_stats(tsh_world_device(b->r->world)).bytes_in_use == held,
               "what runs again twice is kept");
    tshi_check_ok(b->r, tsh_backward(b->tape, second));
    copy_bits(b, second, out);
    tshi_check_ok(b->r, tsh_tape_reset(b->tape));
}

static void several(tshi_rank *r, void *arg) {
    (void)arg;
    bits wanted, got;
    bench b = set_up(r, TSH_FLOAT64, false);
    two_losses(&b, NONE, &wanted);
    two_losses(&b, PARTS, &got);
    check_bits(&b, &got, &wanted, "segments");
    two_losses(&b, NESTED, &got);
    check_bits(&b, &got, &wanted, "nested segments");
    b.offload = true;
    two_losses(&b, PARTS, &got);
    check_bits(&b, &got, &wanted, "offloaded segments");
    two_losses(&b, NESTED, &got);
    check_bits(&b, &got, &wanted, "offloaded nested segments");
    tear_down(&b);
}

Test(recompute, several_backwards_run_a_segment_each_time) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, several, NULL));
}

/* Two results of one segment, of which the program has retained one until the segment's end; each leads to a loss. */
static tsh_tensor *result_of(const bench *b, bool segment, tsh_tensor **other) {
    tsh_mark start = tsh_tape_mark(b->tape);
    tsh_tensor *up = tsh_matmul(b->tape, b->leaf[0], b->leaf[1]);
    tsh_tensor *left = tsh_gelu(b->tape, up), *right = tsh_exp(b->tape, tsh_silu(b->tape, b->leaf[2]));
    *other = tsh_tensor_retain(right);
    if (segment) left = end_segment(b, start, left);
    tshi_check(b->r, !segment || (tsh_tensor_data(right) && !tsh_tensor_data(up)), "what a segment keeps");
    return left;
}

static void results(tshi_rank *r, void *arg) {
    bits got[2];
    (void)arg;
    bench b = set_up(r, TSH_FLOAT64, false);
    for (int segment = 0; segment < 2; segment++) {
        tsh_tensor *right, *left = result_of(&b, segment, &right);
        zero(&b);
        tsh_tensor *first = loss_of(&b, right), *second = loss_of(&b, left);
        tshi_check_ok(r, tsh_backward(b.tape, first));
        tshi_check_ok(r, tsh_backward(b.tape, second));
        tsh_tensor_release(right);
        copy_bits(&b, second, &got[segment]);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    check_bits(&b, &got[1], &got[0], "two results");
    tear_down(&b);
}

Test(recompute, a_retained_result_leads_to_a_loss_of_its_own) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, results, NULL));
}

/* --- transitions that others share -------------------------------------------------------------------------------- */

/* What a segment has gathered is wanted once more after it: it is gathered again, and its gradient is reduced once. */
static void shared_transition(tshi_rank *r, void *arg) {
    (void)arg;
    bits got[2];
    bench b = set_up(r, TSH_FLOAT64, true);
    for (int segment = 0; segment < 2; segment++) {
        zero(&b);
        tsh_group_reset_stats(b.group);
        tsh_mark start = tsh_tape_mark(b.tape);
        tsh_tensor *h = tsh_gelu(b.tape, tsh_matmul(b.tape, b.leaf[0], b.leaf[1]));
        if (segment) h = end_segment(&b, start, h);
        h = tsh_mul(b.tape, h, tsh_matmul(b.tape, b.leaf[0], b.leaf[1]));
        tsh_tensor *loss = loss_of(&b, h);
        tshi_check_ok(r, tsh_backward(b.tape, loss));
        tsh_communication_stats stats = tsh_group_stats(b.group);
        int gathers = r->size == 1 ? 0 : 1 + segment, sums = r->size > 1;
        tshi_check(r, (int)stats.calls[TSH_COLLECTIVE_ALL_GATHER] == gathers, "%d gathers",
                   (int)stats.calls[TSH_COLLECTIVE_ALL_GATHER]);
        tshi_check(r, (int)stats.calls[TSH_COLLECTIVE_REDUCE_SCATTER] == sums, "%d sums",
                   (int)stats.calls[TSH_COLLECTIVE_REDUCE_SCATTER]);
        copy_bits(&b, loss, &got[segment]);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    check_bits(&b, &got[1], &got[0], "a shared transition");
    tear_down(&b);
}

Test(recompute, a_transition_that_is_wanted_after_its_segment_is_made_again_once) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, shared_transition, NULL));
}

/* A segment with an exchange to another mesh, which ranks of both run again. */
static void exchange(tshi_rank *r, void *arg) {
    (void)arg;
    bits got[2];
    tsh_mesh *other = NULL;
    bench b = set_up(r, TSH_FLOAT64, false);
    int last = r->size - 1;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, &last, 1, "one=1", &other));
    for (int segment = 0; segment < 2; segment++) {
        zero(&b);
        tsh_mark start = tsh_tape_mark(b.tape);
        tsh_tensor *h = tsh_exp(b.tape, tsh_scale(b.tape, b.leaf[0], 0.5));
        h = tsh_silu(b.tape, tsh_redistribute(b.tape, tsh_scale(b.tape, h, 2), other, NULL));
        h = tsh_redistribute(b.tape, tsh_mul(b.tape, h, h), tsh_world_mesh(r->world), NULL);
        h = tsh_add(b.tape, h, h);
        if (segment) h = end_segment(&b, start, h);
        tsh_tensor *loss = loss_of(&b, h);
        tshi_check_ok(r, tsh_backward(b.tape, loss));
        copy_bits(&b, loss, &got[segment]);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    check_bits(&b, &got[1], &got[0], "an exchange");
    tear_down(&b);
    tsh_mesh_destroy(other);
}

Test(recompute, exchanges_between_meshes_run_again_on_the_ranks_of_both) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, exchange, NULL));
}

/* --- indices, evaluation, and what is refused --------------------------------------------------------------------- */

static void largest(tshi_rank *r, void *arg) {
    (void)arg;
    bits got[2];
    bench b = set_up(r, TSH_FLOAT64, true);
    for (int segment = 0; segment < 2; segment++) {
        tsh_tensor *indices = NULL;
        zero(&b);
        tsh_mark outer = tsh_tape_mark(b.tape);
        tsh_mark start = tsh_tape_mark(b.tape);
        tsh_tensor *h = tsh_topk(b.tape, tsh_exp(b.tape, b.leaf[1]), 2, 0, &indices);
        h = tsh_exp(b.tape, tsh_full(b.tape, h));
        if (segment) h = end_segment(&b, start, h);
        h = tsh_mul(b.tape, h, tsh_silu(b.tape, h));
        if (segment) h = end_segment(&b, outer, h);
        tsh_tensor *loss = loss_of(&b, h);
        tshi_check_ok(r, tsh_backward(b.tape, loss));
        copy_bits(&b, loss, &got[segment]);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    check_bits(&b, &got[1], &got[0], "the largest elements");
    tear_down(&b);
}

Test(recompute, the_largest_elements_are_found_again) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, largest, NULL));
}

static void evaluation(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r, TSH_FLOAT64, false);
    tsh_device *device = tsh_world_device(r->world);
    double loss[2];
    size_t peak[2];
    tsh_tape_set_recording(b.tape, false);
    for (int deep = 0; deep < 2; deep++) {
        tsh_device_reset_peak(device);
        tsh_tensor *x = chain(&b, deep ? 12 : 4, PARTS);
        peak[deep] = tsh_device_stats(device).bytes_peak;
        loss[deep] = tsh_tensor_item(loss_of(&b, x));
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    size_t results = 8 * ((tsh_tensor_local_nbytes(b.leaf[0]) + 63) / 64 * 64);
    tshi_check(r, peak[1] == peak[0] + results && loss[1] > loss[0], "%zu bytes, then %zu", peak[0], peak[1]);
    tear_down(&b);
}

Test(recompute, evaluation_frees_the_inside_of_parts) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, evaluation, NULL));
}

static void refusals(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r, TSH_FLOAT64, false);
    tsh_tensor *inside = NULL, *y = NULL;
    for (int k = 0; k < 3; k++) {
        const char *words = k == 0 ? "was freed by backward, or by a segment" : "inside a segment that has ended";
        tsh_mark start = tsh_tape_mark(b.tape);
        inside = tsh_gelu(b.tape, b.leaf[0]);
        tsh_mark later = tsh_tape_mark(b.tape);
        y = tsh_tape_recompute_since(b.tape, start, tsh_mul(b.tape, inside, inside));
        tshi_check(r, y && tsh_tape_status(b.tape) == TSH_OK, "%s", tsh_tape_message(b.tape));
        later.step += k == 2;
        y = k == 0 ? tsh_exp(b.tape, inside) : tsh_tape_recompute_since(b.tape, later, tsh_exp(b.tape, y));
        tshi_check(r, !y && strstr(tsh_tape_message(b.tape), words), "%s", tsh_tape_message(b.tape));
        tsh_tape_reset(b.tape);
    }
    tear_down(&b);
}

Test(recompute, the_inside_of_a_segment_is_gone_and_cannot_begin_another) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, refusals, NULL));
}

/* --- offloading --------------------------------------------------------------------------------------------------- */

/* Input x of a segment is read by the program, and used again after it; `kept` is the program's. */
static tsh_tensor *used_again(const bench *b, bool segment) {
    char before[ROWS * COLS * sizeof(double)];
    tsh_tensor *x = tsh_exp(b->tape, b->leaf[0]), *kept = tsh_tensor_retain(tsh_silu(b->tape, b->leaf[1]));
    size_t bytes = tsh_tensor_local_nbytes(x);
    memcpy(before, tsh_tensor_data(x), bytes);
    tsh_mark start = tsh_tape_mark(b->tape);
    tsh_tensor *y = tsh_gelu(b->tape, tsh_matmul(b->tape, tsh_add(b->tape, x, b->leaf[3]), kept));
    if (segment) y = end_segment(b, start, y);
    bool left = bytes > 0 && segment;
    tshi_check(b->r, tshi_tensor_is_loaded(x) != left && tshi_tensor_is_loaded(kept), "an input");
    tshi_check(b->r, memcmp(before, tsh_tensor_data(x), bytes) == 0, "an input that the program reads");
    start = tsh_tape_mark(b->tape);
    y = tsh_add(b->tape, x, tsh_matmul(b->tape, y, b->leaf[2]));
    if (segment) y = end_segment(b, start, y);
    y = tsh_add(b->tape, y, tsh_silu(b->tape, x)); /* y is a term of a sum: it is reduced */
    tsh_tensor_release(kept);
    return loss_of(b, y);
}

/* The result of one segment is the input of the next, whose backward comes later than that of a loss between them. */
static tsh_tensor *loss_between(const bench *b, bool segment, bool norm, tsh_tensor **first) {
    tsh_mark start = tsh_tape_mark(b->tape);
    tsh_tensor *x = tsh_silu(b->tape, b->leaf[0]);
    x = norm ? tsh_rms_norm(b->tape, x, b->leaf[3], 1e-5) : tsh_softmax(b->tape, x, 1);
    if (segment) x = end_segment(b, start, x);
    *first = tsh_full(b->tape, tsh_sum(b->tape, x, TSH_ALL_DIMS));
    start = tsh_tape_mark(b->tape);
    tsh_tensor *y = tsh_scale(b->tape, x, 3);
    if (segment) y = end_segment(b, start, y);
    return loss_of(b, y);
}

static void offloading(tshi_rank *r, void *arg) {
    (void)arg;
    for (int k = 0; k < 6 && !r->failed; k++) {
        bits got[2];
        bench b = set_up(r, TSH_FLOAT64, k % 2);
        b.offload = true;
        for (int segment = 0; segment < 2; segment++) {
            tsh_tensor *first = NULL;
            zero(&b);
            tsh_tensor *loss = k < 2 ? used_again(&b, segment) : loss_between(&b, segment, k < 4, &first);
            tsh_backward_config keep = {.retain_graph = true};
            if (first) tshi_check_ok(r, tsh_backward_with(b.tape, first, &keep));
            tshi_check_ok(r, tsh_backward(b.tape, loss));
            copy_bits(&b, loss, &got[segment]);
            tshi_check_ok(r, tsh_tape_reset(b.tape));
        }
        check_bits(&b, &got[1], &got[0], k < 2 ? "an input that is used again" : "a loss between segments");
        tear_down(&b);
    }
}

Test(recompute, an_offloaded_input_comes_back_wherever_it_is_used) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, offloading, NULL));
}

Test(recompute, a_trace_changes_no_offloaded_value) {
    const char *folder = tshi_test_folder(0);
    setenv("TSHARD_TRACE", folder, 1);
    cr_assert_str_empty(tshi_test_run(2, gradients, NULL));
    tshi_test_remove(folder);
}

/* A dry run takes no host memory, and has the peak of a run. */
Test(recompute, a_dry_run_counts_offloaded_values) {
    const tsh_tensor_config config = {.ndim = 1, .shape = {(int64_t)1 << 38}}; /* a terabyte */
    size_t peak[3];
    tsh_world *world = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *leaf = NULL;
    setenv("TSHARD_BACKEND", "plan", 1);
    cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tape_create(world, &tape), TSH_OK);
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &config, &leaf), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_require_grad(leaf, true), TSH_OK);
    for (int run = 0; run < 3; run++) { /* the gradient stays from the first run on */
        tsh_tensor *x = leaf;
        tsh_device_reset_peak(tsh_world_device(world));
        for (int i = 0; i < (run == 1 ? 4 : 8); i++) {
            tsh_mark start = tsh_tape_mark(tape);
            x = tsh_mul(tape, tsh_exp(tape, x), x);
            x = tsh_tape_recompute_since_with(tape, start, x, &(tsh_recompute_config){.offload = true});
        }
        cr_assert_eq(tsh_backward(tape, tsh_sum(tape, x, TSH_ALL_DIMS)), TSH_OK, "%s", tsh_tape_message(tape));
        cr_assert_eq(tsh_tape_reset(tape), TSH_OK);
        peak[run] = tsh_device_stats(tsh_world_device(world)).bytes_peak;
    }
    cr_assert_eq(peak[2], peak[1], "%zu bytes, then %zu", peak[1], peak[2]);
    tsh_tensor_release(leaf);
    tsh_tape_destroy(tape);
    tsh_world_destroy(world);
}

/* A step that ends before backward, by a failure or without one, leaves no memory. */
static void no_backward(tshi_rank *r, void *arg) {
    (void)arg;
    bits wanted, got;
    bench b = set_up(r, TSH_FLOAT64, false);
    step(&b, GROUP, PARTS, &wanted);
    b.offload = true;
    for (int fails = 0; fails < 2; fails++) {
        tsh_tensor *x = chain(&b, GROUP, PARTS);
        tshi_check(r, x, "%s", tsh_tape_message(b.tape));
        if (fails) tshi_check(r, !tsh_mul(b.tape, x, b.leaf[2]), "shapes that do not fit");
        tsh_tape_reset(b.tape);
        step(&b, GROUP, PARTS, &got);
        check_bits(&b, &got, &wanted, "the next step");
    }
    tear_down(&b);
}

Test(recompute, a_step_without_backward_gives_host_memory_back) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, no_backward, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* The ids of the last rank become wrong before backward: its second run fails, and all ranks know why. */
static void fails_again(tshi_rank *r, void *arg) {
    (void)arg;
    bits wanted, got;
    bench b = set_up(r, TSH_FLOAT64, false);
    const tsh_tensor_config rows = {TSH_INT64, 1, {3}, {TSH_LOCAL}};
    const int64_t good[3] = {0, 2, 1}, bad[3] = {0, 2, ROWS};
    tsh_tensor *ids = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &rows, &ids));
    step(&b, GROUP, PARTS, &wanted);
    tshi_check_ok(r, tsh_tensor_write(ids, good, 3));
    zero(&b);
    tsh_tensor *x = chain(&b, 1, PARTS);
    tsh_mark start = tsh_tape_mark(b.tape);
    tsh_tensor *h = tsh_exp(b.tape, tsh_lookup(b.tape, x, ids, -1));
    h = end_segment(&b, start, h);
    tsh_tensor *loss = loss_of(&b, h);
    tshi_check(r, loss, "%s", tsh_tape_message(b.tape));
    if (r->rank == r->size - 1) memcpy(tsh_tensor_data(ids), bad, sizeof bad); /* a call that writes would be seen */
    tsh_status status = tsh_backward(b.tape, loss);
    bool mine = r->rank == r->size - 1;
    tshi_check(r, status == (mine ? TSH_ERR_RANGE : TSH_ERR_PEER), "%s", tsh_tape_message(b.tape));
    tshi_check(r, strstr(tsh_tape_message(b.tape), "lookup, run again: id 7 at index 2"), "%s",
               tsh_tape_message(b.tape));
    tshi_check_ok(r, tsh_tape_reset(b.tape));
    step(&b, GROUP, PARTS, &got);
    check_bits(&b, &got, &wanted, "the step after a failure");
    tsh_tensor_release(ids);
    tear_down(&b);
}

Test(recompute, a_failure_of_the_second_run_reaches_every_rank) {
    if (tshi_test_device() == TSH_CUDA) return; /* a GPU reports wrong ids after the call */
    cr_assert_str_empty(tshi_test_run_each(1, 3, fails_again, NULL));
}
