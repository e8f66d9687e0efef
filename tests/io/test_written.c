/* Every call that writes a tensor's elements, between a forward and its backward, and between two steps of an optimizer
 * that keeps the bits that the tensor's dtype loses. */
#include "support/files.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(written, .timeout = 120);

enum { ROWS = 3, COLS = 2, ALL = ROWS * COLS };

/* What the writers write. */
static const double three[ALL] = {3, 3, 3, 3, 3, 3};
static const uint16_t three_16[ALL] = {0x4040, 0x4040, 0x4040, 0x4040, 0x4040, 0x4040}; /* bfloat16 */

typedef struct bench {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_group *group;
    tsh_tape *tape;
    tsh_parameters *list; /* has w as "w" */
    tsh_tensor *w;        /* [ROWS, COLS] */
    tsh_optimizer *optimizer;
    const char *folder; /* a checkpoint of w and a file of it, all 3 */
} bench;

static const void *three_of(const bench *b) {
    return tsh_tensor_dtype(b->w) == TSH_BFLOAT16 ? (const void *)three_16 : three;
}

static tsh_status write_boxes(void *user, const tsh_box *box, void *values) {
    const bench *b = user;
    size_t n = (size_t)(box->length[0] * box->length[1]);
    memcpy(values, three_of(b), n * (tsh_tensor_dtype(b->w) == TSH_BFLOAT16 ? 2 : 8));
    return TSH_OK;
}

static tsh_status by_write(bench *b) {
    return tsh_tensor_write(b->w, three_of(b), tsh_tensor_local_numel(b->w));
}
static tsh_status by_write_whole(bench *b) {
    return tsh_tensor_write_whole(b->w, three_of(b));
}
static tsh_status by_write_boxes(bench *b) {
    return tsh_tensor_write_boxes(b->w, write_boxes, b);
}
static tsh_status by_fill(bench *b) {
    return tsh_tensor_fill(b->w, 3);
}
static tsh_status by_init(bench *b) {
    return tsh_tensor_init(b->w, &(tsh_init){.kind = TSH_INIT_CONSTANT, .a = 3});
}
static tsh_status by_scatter_whole(bench *b) {
    return tsh_tensor_scatter_whole(b->w, 0, three_of(b));
}
static tsh_status by_write_parts(bench *b) {
    tsh_box box = {{0}, {0, COLS}};
    tsh_split(ROWS, b->r->size, b->r->rank, &box.start[0], &box.length[0]);
    return tsh_tensor_write_parts(b->w, b->group, &box, three_of(b));
}
static tsh_status by_load(bench *b) {
    char path[512];
    snprintf(path, sizeof path, "%s/w.safetensors", b->folder);
    return tsh_load(b->list, path, NULL);
}
static tsh_status by_checkpoint(bench *b) {
    return tsh_checkpoint_load(b->folder, &(tsh_checkpoint){.parameters = b->list});
}
/* A collective writes a tensor that has the values; it takes the place of w in `out`. */
static tsh_tensor *threes(bench *b) {
    tsh_tensor *t = NULL;
    tshi_check_ok(b->r, tsh_tensor_clone(b->w, &t));
    tshi_check_ok(b->r, tsh_tensor_fill(t, 3));
    return t;
}
static tsh_status by_all_reduce(bench *b) {
    return tsh_all_reduce(b->group, b->w, TSH_REDUCE_MAX);
}
static tsh_status by_broadcast(bench *b) {
    return tsh_broadcast(b->group, b->w, b->r->size - 1);
}
static tsh_status by_all_to_all(bench *b) {
    tsh_tensor *t = threes(b);
    const int64_t counts[] = {b->r->size == 1 ? ALL : ALL / 2, ALL / 2};
    tsh_status status = tsh_all_to_all(b->group, t, counts, b->w, counts);
    tsh_tensor_release(t);
    return status;
}
static tsh_status by_async(bench *b) {
    tsh_work *work = NULL;
    tsh_status status = tsh_broadcast_async(b->group, b->w, 0, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}
static tsh_status by_list(bench *b) {
    tsh_tensor *t = threes(b), *other = threes(b), *outs[2] = {b->w, other};
    tsh_status status = tsh_all_gather_list(b->group, t, outs);
    tsh_tensor_release(other);
    tsh_tensor_release(t);
    return status;
}
static tsh_status by_recv(bench *b) {
    tsh_tensor *t = threes(b);
    tsh_work *work[2] = {NULL};
    int peer = 1 - b->r->rank;
    if (b->r->size == 1) {
        tsh_tensor_release(t);
        return by_fill(b);
    }
    tsh_status status = tsh_send_async(b->group, t, peer, &work[0]);
    if (status == TSH_OK) status = tsh_recv_async(b->group, b->w, peer, &work[1]);
    for (int i = 0; i < 2; i++) {
        if (status == TSH_OK) status = tsh_work_wait(work[i]);
        tsh_work_release(work[i]);
    }
    tsh_tensor_release(t);
    return status;
}
static tsh_status by_data_parallel(bench *b) {
    tsh_data_parallel *dp = NULL;
    tsh_tape *tape = NULL;
    tsh_status status = tsh_tape_create(b->r->world, &tape);
    if (status == TSH_OK) status = tsh_data_parallel_create(tape, b->list, b->group, NULL, &dp);
    tsh_data_parallel_destroy(dp);
    tsh_tape_destroy(tape);
    return status;
}

static const struct {
    const char *name;
    tsh_status (*write)(bench *b);
    bool keeps; /* the values that are there already */
} writers[] = {
    {"write", by_write, false},
    {"write_whole", by_write_whole, false},
    {"write_boxes", by_write_boxes, false},
    {"fill", by_fill, false},
    {"init", by_init, false},
    {"scatter_whole", by_scatter_whole, false},
    {"write_parts", by_write_parts, false},
    {"load", by_load, false},
    {"checkpoint_load", by_checkpoint, false},
    {"all_reduce", by_all_reduce, true},
    {"broadcast", by_broadcast, true},
    {"all_to_all", by_all_to_all, false},
    {"broadcast_async", by_async, true},
    {"all_gather_list", by_list, false},
    {"recv", by_recv, false},
    {"data_parallel_create", by_data_parallel, true},
};
enum { WRITERS = sizeof writers / sizeof writers[0] };

static void open_bench(tshi_rank *r, tsh_dtype dtype, const char *folder, bench *b) {
    const double ones[ALL] = {1, 1, 1, 1, 1, 1};
    char path[512];
    *b = (bench){.r = r, .folder = folder};
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &b->mesh));
    b->group = tsh_mesh_group(b->mesh, "ranks");
    tshi_check_ok(r, tsh_tape_create(r->world, &b->tape));
    b->w = tshi_test_leaf(r, b->mesh, &(tsh_tensor_config){.dtype = dtype, .ndim = 2, .shape = {ROWS, COLS}}, three);
    tshi_check_ok(r, tsh_parameters_create(r->world, &b->list));
    tshi_check_ok(r, tsh_parameters_add(b->list, "w", b->w));
    snprintf(path, sizeof path, "%s/w.safetensors", folder);
    tshi_check_ok(r, tsh_save(b->list, path, NULL));
    tshi_check_ok(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = b->list}));
    tshi_check_ok(r, tsh_tensor_fill(b->w, ones[0]));
}

static void close_bench(bench *b) {
    tsh_optimizer_destroy(b->optimizer);
    tsh_parameters_destroy(b->list);
    tsh_tensor_release(b->w);
    tsh_tape_destroy(b->tape);
    tsh_mesh_destroy(b->mesh);
}

/* Ranks that have done what comes before a failure. */
static atomic_int *done;
static int rounds;

/* The tape's backward from the loss is refused, and the next step goes well. */
static void check_refused(tshi_rank *r, const char *what, tsh_tape *tape, tsh_tensor *loss) {
    tshi_check(r, loss != NULL, "%s: %s", what, tsh_tape_message(tape));
    atomic_fetch_add(done, 1); /* a failure ends the calls that peers are in */
    tshi_test_await(r, done, ++rounds * r->size);
    tsh_status status = tsh_backward(tape, loss);
    tshi_check(r, status == TSH_ERR_STATE && strstr(tsh_tape_message(tape), "was written to after the call"),
               "%s: %s, %s", what, tsh_status_name(status), tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
}

static tsh_tensor *square_sum(bench *b) {
    return tsh_sum(b->tape, tsh_mul(b->tape, b->w, b->w), TSH_ALL_DIMS);
}

static void before_backward(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_FLOAT64, folder, &b);
    for (int i = 0; i < WRITERS && !r->failed; i++) {
        tsh_tensor *loss = square_sum(&b);
        tshi_check(r, writers[i].write(&b) == TSH_OK, "%s: %s", writers[i].name, tsh_error_message());
        check_refused(r, writers[i].name, b.tape, loss);
        for (int e = 0; e < ALL && !writers[i].keeps; e++)
            tshi_check(r, tshi_test_element(b.w, e) == 3, "%s: element %d is %g", writers[i].name, e,
                       tshi_test_element(b.w, e));
    }
    tshi_check_ok(r, tsh_backward(b.tape, square_sum(&b)));
    close_bench(&b);
}

static void in_a_folder(tshi_rank_fn *fn) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *folder = tshi_test_folder(0);
        done = tshi_test_shared(sizeof *done);
        cr_assert_str_empty(tshi_test_run(ranks, fn, (void *)(uintptr_t)folder));
        tshi_test_remove(folder);
    }
}

Test(written, what_is_written_before_backward_is_refused) {
    in_a_folder(before_backward);
}

/* One step of SGD with a gradient of ones and a learning rate that a value in bfloat16 does not show. */
static void step(bench *b) {
    tshi_check_ok(b->r, tsh_backward(b->tape, tsh_sum(b->tape, b->w, TSH_ALL_DIMS)));
    tshi_check_ok(b->r, tsh_optimizer_step(b->optimizer));
    tsh_optimizer_zero_grad(b->optimizer);
    tshi_check_ok(b->r, tsh_tape_reset(b->tape));
}

static void check_all(bench *b, const char *what, double wanted) {
    for (int e = 0; e < ALL; e++)
        tshi_check(b->r, tshi_test_element(b->w, e) == wanted, "%s: element %d is %g, not %g", what, e,
                   tshi_test_element(b->w, e), wanted);
}

static void make_sgd(bench *b) {
    const tsh_sgd_config sgd = {.lr = 1.0 / 512, .low_bits = TSH_MASTER_WEIGHTS};
    tsh_optimizer_destroy(b->optimizer);
    b->optimizer = NULL;
    tshi_check_ok(b->r, tsh_sgd_create(b->list, &sgd, &b->optimizer));
}

static void between_steps(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_BFLOAT16, folder, &b);
    for (int i = 0; i < WRITERS && !r->failed; i++) {
        tshi_check_ok(r, tsh_tensor_fill(b.w, writers[i].keeps ? 3 : 1));
        make_sgd(&b);
        step(&b);
        tshi_check(r, writers[i].write(&b) == TSH_OK, "%s: %s", writers[i].name, tsh_error_message());
        step(&b);
        check_all(&b, writers[i].name, 3);
        for (int more = 0; more < 7; more++) step(&b);
        check_all(&b, "eight steps of 1/512", 3 - 1.0 / 64);
    }
    close_bench(&b);
}

Test(written, master_weights_begin_anew_from_what_is_written) {
    in_a_folder(between_steps);
}

/* A checkpoint that is saved after such a write has what is written, also in what the parameter is rounded from. */
static void saved_between(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_BFLOAT16, folder, &b);
    make_sgd(&b);
    step(&b);
    tshi_check_ok(r, tsh_tensor_fill(b.w, 3));
    tsh_checkpoint all = {.parameters = b.list, .optimizer = b.optimizer, .step = 1};
    tshi_check_ok(r, tsh_checkpoint_save(folder, &all));
    tshi_check_ok(r, tsh_tensor_fill(b.w, 7));
    tshi_check_ok(r, tsh_checkpoint_load(folder, &all));
    for (int i = 0; i < 5; i++) step(&b); /* 3 - 5 / 512, which is nearer to 3 - 8 / 512 than to 3 */
    check_all(&b, "five steps of 1/512 after a load", 3 - 1.0 / 64);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &all));
    tshi_check_ok(r, tsh_checkpoint_load(folder, &all));
    for (int i = 0; i < 8; i++) step(&b); /* 3 - 13 / 512: loaded master weights keep the bits of the first five */
    check_all(&b, "eight more", 3 - 2.0 / 64);
    close_bench(&b);
}

Test(written, checkpoints_have_master_weights_of_what_is_written) {
    in_a_folder(saved_between);
}

/* --- steps between forward and backward --------------------------------------------------------------------------- */

static tsh_tensor *loss_of(bench *b, tsh_linear *const *layers, tsh_tensor *x) {
    tsh_tensor *y = tsh_linear_forward(b->tape, layers[0], x);
    y = tsh_linear_forward(b->tape, layers[1], tsh_mul(b->tape, y, y));
    return tsh_sum(b->tape, tsh_mul(b->tape, y, y), TSH_ALL_DIMS);
}

/* By an optimizer of all parameters, and by one of some. */
static void sharded_step(tshi_rank *r, void *arg) {
    const double values[4 * COLS] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)arg;
    for (int level = 0; level <= 3 && !r->failed; level++) {
        bench b = {.r = r};
        tsh_linear *layers[2] = {NULL};
        tsh_data_parallel *dp = NULL;
        tsh_optimizer *second = NULL;
        tsh_parameters *other = NULL;
        tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &b.mesh));
        tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
        tshi_check_ok(r, tsh_parameters_create(r->world, &b.list));
        tshi_check_ok(r, tsh_parameters_create(r->world, &other));
        for (int i = 0; i < 2; i++) {
            const tsh_linear_config config = {.in_features = COLS, .out_features = COLS, .bias = true};
            tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(b.mesh, "model"), &config, &layers[i]));
            tshi_check_ok(r, tsh_linear_register(layers[i], b.list, i ? "second" : "first"));
        }
        tshi_check_ok(r, tsh_linear_register(layers[1], other, "second"));
        const tsh_data_parallel_config config = {.level = (tsh_zero_level)level};
        tshi_check_ok(r, tsh_data_parallel_create(b.tape, b.list, tsh_mesh_group(b.mesh, "data"), &config, &dp));
        const tsh_sgd_config sgd = {.lr = 0.125};
        tshi_check_ok(r, tsh_sgd_create(b.list, &sgd, &b.optimizer));
        tshi_check_ok(r, tsh_sgd_create(other, &sgd, &second));
        tsh_tensor_config data = {.ndim = 2, .shape = {4, COLS}, .layout = {TSH_SHARD(0)}};
        tsh_tensor *x = tshi_test_tensor(r, b.mesh, &data, values);
        for (int i = 0; i < 2 && !r->failed; i++) {
            tshi_check_ok(r, tsh_backward(b.tape, loss_of(&b, layers, x)));
            tshi_check_ok(r, tsh_tape_reset(b.tape));
            tsh_tensor *loss = loss_of(&b, layers, x);
            tshi_check_ok(r, tsh_optimizer_step(i ? second : b.optimizer));
            check_refused(r, "a step", b.tape, loss);
            tsh_optimizer_zero_grad(b.optimizer);
        }
        tsh_tensor_release(x);
        tsh_optimizer_destroy(second);
        tsh_optimizer_destroy(b.optimizer);
        tsh_data_parallel_destroy(dp);
        tsh_parameters_destroy(b.list);
        tsh_parameters_destroy(other);
        for (int i = 0; i < 2; i++) tsh_linear_destroy(layers[i]);
        tsh_tape_destroy(b.tape);
        tsh_mesh_destroy(b.mesh);
    }
}

Test(written, a_step_before_backward_is_refused_at_every_level) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        done = tshi_test_shared(sizeof *done);
        cr_assert_str_empty(tshi_test_run(ranks, sharded_step, NULL));
    }
}

/* What a slice is written to between two calls of a step, the second takes. */
static void sharded_write(tshi_rank *r, void *arg) {
    const double one[COLS] = {1, 1};
    bench b = {.r = r};
    tsh_linear *layer = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &b.mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &b.list));
    const tsh_linear_config linear = {.in_features = COLS, .out_features = 1};
    tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(b.mesh, "model"), &linear, &layer));
    tshi_check_ok(r, tsh_linear_register(layer, b.list, "layer"));
    const tsh_data_parallel_config config = {.level = TSH_ZERO_PARAMETERS};
    tshi_check_ok(r, tsh_data_parallel_create(b.tape, b.list, tsh_mesh_group(b.mesh, "data"), &config, &dp));
    tsh_tensor *x = tshi_test_tensor(r, b.mesh, &(tsh_tensor_config){.ndim = 2, .shape = {1, COLS}}, one);
    for (int i = 1; i <= 3; i++) {
        tshi_check_ok(r, tsh_tensor_fill(tsh_linear_weight(layer), i));
        tsh_tensor *y = tsh_linear_forward(b.tape, layer, x);
        tshi_check(r, y && tshi_test_element(y, 0) == 2 * i, "%g for %d", y ? tshi_test_element(y, 0) : -1, 2 * i);
    }
    tsh_tensor_release(x);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(b.list);
    tsh_linear_destroy(layer);
    tsh_tape_destroy(b.tape);
    tsh_mesh_destroy(b.mesh);
}

Test(written, a_slice_that_is_written_is_gathered_anew) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, sharded_write, NULL));
}

static void odd_ones(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_FLOAT64, folder, &b);
    const double id[3] = {0, 2, 0};
    tsh_tensor *ids =
        tshi_test_tensor(r, b.mesh, &(tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {3}}, id);
    const double one[COLS] = {1, 1};
    tsh_tensor *bias =
        tshi_test_leaf(r, b.mesh, &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 1, .shape = {COLS}}, one);
    /* Backward adds to the rows that ids name, and does not read the table. */
    tsh_tensor *loss = tsh_sum(b.tape, tsh_lookup(b.tape, b.w, ids, -1), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_tensor_fill(b.w, 2));
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    tshi_check_ok(r, tsh_tape_reset(b.tape));
    loss = tsh_sum(b.tape, tsh_lookup(b.tape, b.w, ids, -1), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_tensor_fill(ids, 1));
    check_refused(r, "ids", b.tape, loss);
    /* What runs again reads a bias, which backward does not. */
    tsh_mark mark = tsh_tape_mark(b.tape);
    tsh_tensor *y = tsh_bias(b.tape, b.w, bias);
    loss = tsh_tape_recompute_since(b.tape, mark, tsh_sum(b.tape, tsh_mul(b.tape, y, y), TSH_ALL_DIMS));
    tshi_check_ok(r, tsh_tensor_fill(bias, 5));
    check_refused(r, "a bias of a segment", b.tape, loss);
    /* A step of some rows. */
    tshi_check_ok(r, tsh_tensor_set_sparse_grad(b.w));
    tsh_tensor_zero_grad(b.w);
    make_sgd(&b);
    tshi_check_ok(r, tsh_backward(b.tape, tsh_sum(b.tape, tsh_lookup(b.tape, b.w, ids, -1), TSH_ALL_DIMS)));
    tshi_check(r, tsh_tensor_sparse_grad(b.w, NULL, NULL) != NULL, "the gradient is not sparse");
    loss = square_sum(&b);
    tshi_check_ok(r, tsh_optimizer_step(b.optimizer));
    check_refused(r, "a step of rows", b.tape, loss);
    tsh_tensor_release(bias);
    tsh_tensor_release(ids);
    close_bench(&b);
}

Test(written, ids_and_rows_and_what_runs_again_are_seen) {
    in_a_folder(odd_ones);
}

/* The first loss's backward steps the weight that the second loss's reads. */
static void two_losses(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_FLOAT64, folder, &b);
    make_sgd(&b);
    tshi_check_ok(r, tsh_optimizer_step_in_backward(b.optimizer, b.w));
    const double values[2 * COLS] = {1, 2, 3, 4};
    tsh_tensor *x =
        tshi_test_leaf(r, b.mesh, &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {2, COLS}}, values);
    tsh_tensor *loss[2];
    for (int i = 0; i < 2; i++) loss[i] = tsh_sum(b.tape, tsh_affine(b.tape, x, b.w, NULL), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward(b.tape, loss[0]));
    tshi_check(r, tshi_test_element(b.w, 0) != 1, "the first backward has not stepped the weight");
    check_refused(r, "a step in backward", b.tape, loss[1]);
    tsh_tensor_release(x);
    close_bench(&b);
}

Test(written, a_step_in_backward_before_another_backward_is_seen) {
    in_a_folder(two_losses);
}

/* A lookup with a bound scales rows of the table, which a call before it has read. */
static void bounded(tshi_rank *r, void *folder) {
    bench b;
    open_bench(r, TSH_FLOAT64, folder, &b);
    tsh_embedding *embedding = NULL;
    const tsh_embedding_config config = {
        .num_embeddings = ROWS, .embedding_dim = COLS, .max_norm = 1, .dtype = TSH_FLOAT64};
    const double id[1] = {1};
    tsh_tensor *ids =
        tshi_test_tensor(r, b.mesh, &(tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {1}}, id);
    tshi_check_ok(r, tsh_embedding_create(b.group, &config, &embedding));
    tsh_tensor *table = tsh_embedding_weight(embedding);
    tshi_check_ok(r, tsh_tensor_fill(table, 3));
    tsh_tensor *loss = tsh_sum(b.tape, tsh_mul(b.tape, table, table), TSH_ALL_DIMS);
    tshi_check(r, tsh_embedding_forward(b.tape, embedding, ids) != NULL, "%s", tsh_tape_message(b.tape));
    check_refused(r, "max_norm", b.tape, loss);
    tsh_embedding_destroy(embedding);
    tsh_tensor_release(ids);
    close_bench(&b);
}

Test(written, a_table_whose_rows_a_lookup_scales_is_seen) {
    in_a_folder(bounded);
}
