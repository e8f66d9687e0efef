/* Attention by cuDNN: what it computes is what the device's own kernels compute, and a call that it does not take is
 * theirs. */
#include "cuda/standin_device.h"
#include "standin/cudnn.h"
#include "support/lines.h"

TestSuite(cuda_cudnn, .timeout = 120);

/* A device whose attention is cuDNN's, or its own. */
static tsh_device *open_with(const char *cudnn) {
    setenv("TSHARD_CUDNN", cudnn, 1);
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cuda(NULL, 0, &device), TSH_OK, "%s", tsh_error_message());
    return device;
}

static tsh_device *start(void) {
    standin_reset();
    standin_cudnn_version(0);
    standin_lazy(true);
    standin_protect(true);
    return open_with("1");
}

static uint64_t all_runs(void) {
    return standin_cudnn_runs(STANDIN_FORWARD) + standin_cudnn_runs(STANDIN_BACKWARD) +
           standin_cudnn_runs(STANDIN_BACKWARD_REPEATS);
}

static tshi_attention small(void) {
    return (tshi_attention){.batch = 2,
                            .queries = 5,
                            .keys = 5,
                            .capacity = 5,
                            .heads = 4,
                            .kv_heads = 4,
                            .dim = 16,
                            .sharers = 1,
                            .scale = 0.4,
                            .heads_whole = 4};
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

typedef enum role { Q, K, V, DY, Y, DQ, DK, DV, STATS, DELTA, ROLES } role;

typedef struct tensors {
    tsh_device *device; /* whose memory it is */
    tsh_dtype dtype;
    int64_t n[ROLES];
    void *data[ROLES];
} tensors;

static tsh_dtype dtype_of(const tensors *t, int i) {
    return i >= STATS ? TSH_FLOAT32 : t->dtype;
}

static tensors make(tsh_device *device, tsh_dtype dtype, const tshi_attention *a) {
    int64_t queries = a->batch * a->queries * a->heads * a->dim, keys = a->batch * a->capacity * a->kv_heads * a->dim;
    int64_t rows = a->batch * a->heads * a->queries;
    tensors t = {device, dtype, {queries, keys, keys, queries, queries, queries, keys, keys, rows, rows}, {NULL}};
    for (int i = 0; i < ROLES; i++) {
        double *x = malloc((size_t)t.n[i] * sizeof *x);
        for (int64_t j = 0; j < t.n[i]; j++) x[j] = sin((double)(j * (i + 3) % 101) * 0.7 + i);
        t.data[i] = put_numbers(device, dtype_of(&t, i), t.n[i], x, 0);
        free(x);
    }
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    return t;
}

static void drop(tensors *t) {
    for (int i = 0; i < ROLES; i++) t->device->ops->memory.release(t->device, t->data[i]);
}

static void forward(tsh_device *device, const tshi_attention *a, tensors *t, bool keeps) {
    device->ops->attention[t->dtype].forward(device, a, t->data[Q], t->data[K], t->data[V], t->data[Y],
                                             keeps ? t->data[STATS] : NULL, NULL);
}

static void backward(tsh_device *device, const tshi_attention *a, tensors *t, const tshi_attention_grads *g) {
    device->ops->attention[t->dtype].backward(device, a, t->data[Q], t->data[K], t->data[V], t->data[Y], t->data[STATS],
                                              t->data[DY], g, t->data[DELTA]);
}

static tshi_attention_grads gradients(const tensors *t, double beta) {
    return (tshi_attention_grads){t->data[DQ], t->data[DK], t->data[DV], beta, beta, beta};
}

static void expect_alike(const tensors *got, const tensors *wanted, int from, int to, const char *what) {
    double unit = got->dtype == TSH_BFLOAT16 ? 0x1p-8 : 0x1p-11;
    for (int i = from; i <= to; i++) {
        double *g = malloc((size_t)got->n[i] * sizeof *g), *w = malloc((size_t)got->n[i] * sizeof *w);
        get_numbers(got->device, dtype_of(got, i), got->n[i], got->data[i], g);
        get_numbers(wanted->device, dtype_of(got, i), got->n[i], wanted->data[i], w);
        for (int64_t j = 0; j < got->n[i]; j++)
            cr_assert_leq(fabs(g[j] - w[j]), 8 * unit * (fabs(w[j]) + 2), "%s, tensor %d, element %d: %g, not %g", what,
                          i, (int)j, g[j], w[j]);
        free(g);
        free(w);
    }
}

/* --- what it takes ------------------------------------------------------------------------------------------------ */

static const struct shape {
    int64_t batch, queries, keys, heads, kv_heads, dim, sharers, shift;
    bool causal;
} shapes[] = {
    {2, 5, 5, 3, 3, 16, 1, 0, false}, {1, 7, 7, 2, 2, 8, 1, 0, true},   {2, 3, 9, 2, 2, 24, 1, 0, true},
    {1, 9, 4, 2, 2, 8, 1, 0, false},  {2, 6, 6, 6, 2, 16, 3, 0, true},  {1, 4, 6, 4, 1, 8, 4, 0, false},
    {1, 4, 6, 2, 1, 8, 4, 1, true},   {1, 3, 3, 1, 1, 256, 1, 0, true},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static tshi_attention attention_of(const struct shape *s) {
    tshi_attention a = small();
    a.batch = s->batch;
    a.queries = s->queries;
    a.keys = a.capacity = s->keys;
    a.heads = s->heads;
    a.kv_heads = s->kv_heads;
    a.dim = s->dim;
    a.sharers = s->sharers;
    a.shift = s->shift;
    a.causal = s->causal;
    return a;
}

/* Forward on `first`, backward on `second`, against the device's own kernels. */
static void check_shape(tsh_device *first, tsh_device *second, tsh_device *own, const tshi_attention *a,
                        tsh_dtype dtype, double beta) {
    tensors t = make(own, dtype, a), w = make(own, dtype, a);
    tshi_attention_grads g = gradients(&t, beta), h = gradients(&w, beta);
    forward(first, a, &t, true);
    cr_assert_eq(first->ops->synchronize(first), TSH_OK);
    backward(second, a, &t, &g);
    cr_assert_eq(second->ops->synchronize(second), TSH_OK);
    forward(own, a, &w, true);
    backward(own, a, &w, &h);
    expect_alike(&t, &w, Y, STATS, "cuDNN");
    drop(&t);
    drop(&w);
}

static void check_shapes(bool forwards, bool backwards, bool repeats) {
    tsh_device *device = start(), *own = open_with("0");
    for (size_t i = 0; i < SHAPES; i++) {
        tshi_attention a = attention_of(&shapes[i]);
        a.repeats = repeats;
        uint64_t before = all_runs();
        check_shape(forwards ? device : own, backwards ? device : own, own, &a, i % 2 ? TSH_FLOAT16 : TSH_BFLOAT16,
                    i % 3 == 2);
        cr_assert_eq(all_runs() - before, (uint64_t)forwards + backwards, "shape %d: %d runs", (int)i,
                     (int)(all_runs() - before));
    }
    tshi_device_destroy(own);
    close_device(device);
}

Test(cuda_cudnn, computes_what_the_kernels_do) {
    check_shapes(true, true, false);
    cr_assert_eq(standin_cudnn_runs(STANDIN_BACKWARD), SHAPES);
}

Test(cuda_cudnn, repeats_its_gradients_without_sums_in_memory) {
    check_shapes(true, true, true);
    cr_assert_eq(standin_cudnn_runs(STANDIN_BACKWARD_REPEATS), SHAPES);
}

Test(cuda_cudnn, leaves_statistics_that_the_kernels_read) {
    check_shapes(true, false, false);
}

Test(cuda_cudnn, reads_statistics_that_the_kernels_left) {
    check_shapes(false, true, false);
}

/* A gradient that nobody wants is computed aside. */
Test(cuda_cudnn, leaves_gradients_out) {
    tshi_attention a = small();
    tsh_device *device = start();
    tensors t = make(device, TSH_BFLOAT16, &a), w = make(device, TSH_BFLOAT16, &a);
    tshi_attention_grads whole = gradients(&w, 0), part = {NULL, t.data[DK], NULL, 0, 0, 0};
    forward(device, &a, &t, true);
    backward(device, &a, &t, &part);
    forward(device, &a, &w, true);
    backward(device, &a, &w, &whole);
    expect_alike(&t, &w, DK, DK, "one gradient alone");
    cr_assert_eq(standin_cudnn_runs(STANDIN_BACKWARD), 2);
    drop(&t);
    drop(&w);
    close_device(device);
}

/* --- what it does not take ---------------------------------------------------------------------------------------- */

static void expect_own(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const char *what) {
    uint64_t before = all_runs();
    tensors t = make(device, dtype, a);
    tshi_attention_grads g = gradients(&t, 0);
    forward(device, a, &t, true);
    backward(device, a, &t, &g);
    cr_assert_eq(device->ops->check(device), TSH_OK, "%s: %s", what, tsh_error_message());
    cr_assert_eq(all_runs(), before, "cuDNN takes %s", what);
    drop(&t);
}

static tshi_attention with(int64_t queries, int64_t keys, int64_t dim) {
    tshi_attention a = small();
    a.queries = queries;
    a.keys = a.capacity = keys;
    a.dim = dim;
    return a;
}

Test(cuda_cudnn, leaves_other_calls_to_the_kernels) {
    tsh_device *device = start();
    tshi_attention a = small();
    const int64_t lengths[2] = {3, 5};
    void *on_device = get(device, sizeof lengths);
    expect_own(device, TSH_FLOAT32, &a, "float32");
    expect_own(device, TSH_FLOAT64, &a, "float64");
    a.dropout = 0.5;
    expect_own(device, TSH_BFLOAT16, &a, "dropout");
    a = small();
    a.capacity = 8;
    expect_own(device, TSH_BFLOAT16, &a, "a cache");
    a = small();
    a.kv_heads = 2;
    a.sharers = 3;
    a.shift = 1;
    expect_own(device, TSH_BFLOAT16, &a, "heads that begin in the middle of a group");
    cr_assert_eq(standin_calls("cudnnCreate"), 0, "cuDNN is opened for calls that it does not take");
    a = small();
    device->ops->copy.from_host(device, sizeof lengths, lengths, on_device);
    a.lengths = on_device;
    expect_own(device, TSH_BFLOAT16, &a, "lengths");
    device->ops->memory.release(device, on_device);
    a = with(1, 5, 16);
    expect_own(device, TSH_BFLOAT16, &a, "one query");
    a = with(5, 5, 12);
    expect_own(device, TSH_BFLOAT16, &a, "heads of 12");
    a = with(5, 5, 264);
    expect_own(device, TSH_BFLOAT16, &a, "heads of 264");
    a = with(6, 5, 16);
    a.causal = true;
    expect_own(device, TSH_BFLOAT16, &a, "queries that see nothing");
    close_device(device);
}

Test(cuda_cudnn, leaves_misaligned_tensors_to_the_kernels) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_FLOAT16, &a);
    t.data[Y] = (char *)t.data[Y] + 2;
    a.batch = 1;
    forward(device, &a, &t, true);
    t.data[Y] = (char *)t.data[Y] - 2;
    cr_assert_eq(all_runs(), 0);
    drop(&t);
    close_device(device);
}

Test(cuda_cudnn, is_turned_off) {
    tsh_device *device = start(), *own = open_with("0");
    tshi_attention a = small();
    expect_own(own, TSH_BFLOAT16, &a, "what is turned off");
    cr_assert_eq(standin_calls("dlopen"), 2, "each device opens cuBLASLt alone");
    tshi_device_destroy(own);
    close_device(device);
}

/* --- the library -------------------------------------------------------------------------------------------------- */

Test(cuda_cudnn, is_looked_for_once) {
    tsh_device *device = start();
    tshi_attention a = small();
    standin_lack("cudnnBackendExecute");
    expect_own(device, TSH_BFLOAT16, &a, "a library that lacks a function");
    uint64_t opened = standin_calls("dlopen");
    standin_lack(NULL);
    expect_own(device, TSH_BFLOAT16, &a, "a library that was missing");
    cr_assert_eq(standin_calls("dlopen"), opened);
    close_device(device);
}

Test(cuda_cudnn, wants_a_version_that_pads_keys_itself) {
    tsh_device *device = start();
    tshi_attention a = small();
    standin_cudnn_version(91500);
    expect_own(device, TSH_BFLOAT16, &a, "version 9.15.0");
    close_device(device);
}

Test(cuda_cudnn, is_described_once_used) {
    tsh_device *device = start();
    tshi_attention a = small();
    char text[256];
    device->ops->describe(device, text, sizeof text);
    cr_assert_null(strstr(text, "cuDNN"), "%s", text);
    tensors t = make(device, TSH_BFLOAT16, &a);
    forward(device, &a, &t, true);
    device->ops->describe(device, text, sizeof text);
    cr_assert_not_null(strstr(text, ", cuDNN 9.19.0"), "%s", text);
    drop(&t);
    close_device(device);
}

/* Every call of cuDNN refuses once: the results are right, and nothing is left. */
static bool refuse(const char *name, uint64_t nth) {
    tsh_device *device = start(), *own = open_with("0");
    tshi_attention a = small();
    a.causal = true;
    a.keys = a.capacity = 7;
    standin_fail(name, nth, 3000);
    check_shape(device, device, own, &a, TSH_BFLOAT16, 1);
    bool failed = standin_failed() != NULL;
    cr_assert_eq(device->ops->check(device), TSH_OK, "%s %d: %s", name, (int)nth, tsh_error_message());
    tshi_device_destroy(own);
    close_device(device);
    return failed;
}

Test(cuda_cudnn, is_replaced_where_it_refuses) {
    static const char *const names[] = {"cudnnCreate",
                                        "cudnnSetStream",
                                        "cudnnBackendCreateDescriptor",
                                        "cudnnBackendSetAttribute",
                                        "cudnnBackendGetAttribute",
                                        "cudnnBackendFinalize",
                                        "cudnnBackendExecute"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t nth = 1;
        while (refuse(names[i], nth)) nth++;
        cr_assert_gt(nth, 1, "%s is never called", names[i]);
    }
}

Test(cuda_cudnn, reports_a_run_that_fails) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_BFLOAT16, &a);
    standin_fail("cudnnBackendExecute", 1, 5000);
    forward(device, &a, &t, true);
    cr_assert_eq(device->ops->check(device), TSH_ERR_SYSTEM);
    cr_assert_not_null(strstr(tsh_error_message(), "cudnnBackendExecute: another status of cuDNN (5000)"), "%s",
                       tsh_error_message());
    drop(&t);
    close_device(device);
}

/* --- the log ------------------------------------------------------------------------------------------------------ */

static int count_of(const char *text, const char *words) {
    int count = 0;
    for (; (text = strstr(text, words)); text += strlen(words)) count++;
    return count;
}

/* Calls of two shapes, forward and backward, are the kernels', and the lines in the log are `count` that say why.
 * Before each a call of that name, if any, is made to fail. */
static void expect_lines(tsh_device *device, const char *failing, int count, const char *words) {
    tshi_lines lines = {""};
    const tsh_log_sink log = {tshi_keep_line, &lines};
    char beginning[32];
    device->log = &log;
    for (int64_t queries = 5; queries < 7; queries++) {
        tshi_attention a = with(queries, 7, 16);
        tensors t = make(device, TSH_BFLOAT16, &a);
        tshi_attention_grads g = gradients(&t, 0);
        if (failing) standin_fail(failing, 1, 3000);
        forward(device, &a, &t, true);
        if (failing) standin_fail(failing, 1, 3000);
        backward(device, &a, &t, &g);
        drop(&t);
    }
    standin_fail(NULL, 0, 0);
    device->log = NULL;
    cr_assert_eq(all_runs(), 0, "cuDNN runs");
    snprintf(beginning, sizeof beginning, "%d attention", (int)TSH_LOG_INFO);
    cr_assert_eq(count_of(lines.text, "\n"), count, "%s", lines.text);
    cr_assert_eq(count_of(lines.text, beginning), count, "%s", lines.text);
    cr_assert_eq(count_of(lines.text, words), count, "%s", lines.text);
    close_device(device);
}

Test(cuda_cudnn, says_once_that_it_is_too_old) {
    tsh_device *device = start();
    standin_cudnn_version(91500);
    expect_lines(device, NULL, 1, "attention does not go to cuDNN: cuDNN 91500 is older than 91501");
}

Test(cuda_cudnn, says_once_that_it_lacks_a_function) {
    tsh_device *device = start();
    standin_lack("cudnnBackendExecute");
    expect_lines(device, NULL, 1, "attention does not go to cuDNN: ");
}

/* Forward and backward have plans of their own, and a line each. */
Test(cuda_cudnn, says_once_a_direction_why_there_is_no_plan) {
    expect_lines(start(), "cudnnBackendFinalize", 2,
                 "ward of 2 x 5 queries, 7 keys, 4 heads (4 of keys) of 16, bfloat16, and of other shapes refused for "
                 "the same reason, does not go to cuDNN: CUDNN_STATUS_NOT_SUPPORTED (3000): the stand-in says no");
}

Test(cuda_cudnn, says_once_that_a_workspace_is_too_large) {
    tsh_device *device = start();
    standin_cudnn_workspace(((int64_t)1 << 30) + 1);
    expect_lines(device, NULL, 1, "does not go to cuDNN: its plan wants a workspace of 1073741825 bytes");
}

Test(cuda_cudnn, says_once_that_a_run_is_refused) {
    expect_lines(start(), "cudnnBackendExecute", 1, "does not go to cuDNN: CUDNN_STATUS_NOT_SUPPORTED");
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

Test(cuda_cudnn, plans_a_shape_once) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_BFLOAT16, &a);
    for (int i = 0; i < 3; i++) forward(device, &a, &t, true);
    uint64_t made = standin_calls("cudnnBackendCreateDescriptor");
    forward(device, &a, &t, true);
    cr_assert_eq(standin_cudnn_runs(STANDIN_FORWARD), 0, "work is queued late");
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(standin_cudnn_runs(STANDIN_FORWARD), 4);
    cr_assert_eq(standin_calls("cudnnBackendCreateDescriptor") - made, 1, "a run makes its list of pointers");
    drop(&t);
    close_device(device);
}

/* Graphs that were captured before may still launch its kernels. */
Test(cuda_cudnn, keeps_a_plan_that_has_run_where_a_later_run_is_refused) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_BFLOAT16, &a);
    forward(device, &a, &t, true);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    char text[4096];
    int live = standin_live(text, sizeof text);
    standin_fail("cudnnBackendExecute", 1, 3000);
    forward(device, &a, &t, true);
    cr_assert_not_null(standin_failed());
    standin_fail(NULL, 0, 0);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(standin_live(text, sizeof text), live, "the plan is destroyed: %s", text);
    forward(device, &a, &t, true);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(standin_cudnn_runs(STANDIN_FORWARD), 1, "the kernels compute what has been refused");
    drop(&t);
    close_device(device);
}

/* A prompt's shape does not return, and a plan takes longer than it. */
Test(cuda_cudnn, plans_an_evaluation_when_its_shape_returns) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_BFLOAT16, &a);
    forward(device, &a, &t, false);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(all_runs(), 0);
    forward(device, &a, &t, false);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(all_runs(), 1);
    drop(&t);
    close_device(device);
}

Test(cuda_cudnn, plans_so_many_shapes) {
    enum { MOST = 256 };
    tsh_device *device = start();
    tshi_attention a = with(MOST + 3, 2, 8);
    a.batch = a.heads = a.kv_heads = 1;
    tensors t = make(device, TSH_BFLOAT16, &a);
    for (int times = 0; times < 2; times++)
        for (a.queries = 2; a.queries < MOST + 4; a.queries++) forward(device, &a, &t, true);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(all_runs(), 2 * MOST);
    drop(&t);
    close_device(device);
}

/* A backward that repeats its results wants a matrix of scores: too large a one is the kernels'. */
Test(cuda_cudnn, takes_no_more_workspace_than_a_gigabyte) {
    tsh_device *device = start();
    tshi_attention a = with(5, 5, 8);
    tensors t = make(device, TSH_BFLOAT16, &a);
    tshi_attention_grads g = gradients(&t, 0);
    forward(device, &a, &t, true);
    backward(device, &a, &t, &g);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(standin_cudnn_runs(STANDIN_BACKWARD), 1);
    standin_cudnn_workspace(((int64_t)1 << 30) + 1);
    a.queries--;
    forward(device, &a, &t, true);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(standin_cudnn_runs(STANDIN_FORWARD), 1);
    standin_cudnn_workspace(0);
    drop(&t);
    close_device(device);
}

/* --- captured ----------------------------------------------------------------------------------------------------- */

Test(cuda_cudnn, is_captured) {
    tsh_device *device = start();
    tshi_attention a = small();
    tensors t = make(device, TSH_BFLOAT16, &a), w = make(device, TSH_BFLOAT16, &a);
    tshi_attention_grads g = gradients(&t, 0), h = gradients(&w, 0);
    tsh_graph *graph = NULL;
    forward(device, &a, &w, true);
    backward(device, &a, &w, &h);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(device->ops->graph->capture_begin(device), TSH_OK, "%s", tsh_error_message());
    forward(device, &a, &t, true);
    backward(device, &a, &t, &g);
    cr_assert_eq(device->ops->graph->capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(all_runs(), 2);
    for (int i = 0; i < 2; i++) cr_assert_eq(device->ops->graph->launch(graph), TSH_OK);
    cr_assert_eq(device->ops->synchronize(device), TSH_OK);
    cr_assert_eq(all_runs(), 6);
    expect_alike(&t, &w, Y, STATS, "a graph");
    device->ops->graph->destroy(graph);
    drop(&t);
    drop(&w);
    close_device(device);
}
