/* The kernels whose cost is memory: how many bytes of each family a rank reads and writes a second, by the bytes of a
 * call. The planned device counts them, so that a plan's bytes are those that were measured. */
#include "calibrate.h"
#include "device/plan/plan.h"
#include "device/record.h"

#include <string.h>

enum { COLS = 256, OPERANDS = 4, MOST_ROWS = 16384 };

/* What a call works on: [rows, COLS] arrays, of which the last two are of the sums' type, as optimizers' states and
 * what is converted, and small ones. */
typedef struct operands {
    tsh_dtype dtype;
    int64_t rows, n;
    void *at[OPERANDS];
    void *of_rows[3]; /* statistics, four a row */
    void *of_cols[3];
    int64_t *ids;    /* [rows], each below COLS and no larger than its index: a table of `rows` rows has them all */
    double *squares; /* of a large norm */
} operands;

typedef void kernel_run(tsh_device *device, const operands *o);

static void run_copy(tsh_device *device, const operands *o) {
    device->ops->copy.within(device, (size_t)o->n * tsh_dtype_size(o->dtype), o->at[0], o->at[1]);
}

static void run_strided(tsh_device *device, const operands *o) {
    size_t row = COLS * tsh_dtype_size(o->dtype);
    device->ops->copy.strided(device, o->rows, row / 2, o->at[0], row, o->at[1], row / 2);
}

/* Heads before tokens, as attention's operands are permuted. */
static void run_permute(tsh_device *device, const operands *o) {
    const tshi_permutation p = {
        .piece = COLS / 4 * tsh_dtype_size(o->dtype), .ndim = 2, .size = {4, o->rows}, .stride = {1, 4}};
    device->ops->copy.permute(device, &p, o->at[0], o->at[1]);
}

static void run_zero(tsh_device *device, const operands *o) {
    device->ops->copy.zero(device, (size_t)o->n * tsh_dtype_size(o->dtype), o->at[0]);
}

static void run_fill(tsh_device *device, const operands *o) {
    device->ops->copy.fill(device, o->dtype, o->n, 0.5, o->at[0]);
}

static void run_convert(tsh_device *device, const operands *o) {
    tsh_dtype to = o->dtype == TSH_FLOAT32 ? TSH_BFLOAT16 : TSH_FLOAT32;
    device->ops->copy.convert(device, o->n, o->dtype, o->at[0], to, o->at[2]);
}

static void run_unary(tsh_device *device, const operands *o) {
    device->ops->elementwise[o->dtype].unary(device, TSHI_GELU_ERF, NULL, o->n, o->at[0], o->at[1]);
}

static void run_unary_backward(tsh_device *device, const operands *o) {
    device->ops->elementwise[o->dtype].unary_backward(device, TSHI_GELU_ERF, NULL, o->n, o->at[0], o->at[1], 0,
                                                      o->at[2]);
}

static void run_axpby(tsh_device *device, const operands *o) {
    device->ops->elementwise[o->dtype].axpby(device, o->n, 1, o->at[0], 1, o->at[1], o->at[1]);
}

static void run_mul(tsh_device *device, const operands *o) {
    device->ops->elementwise[o->dtype].mul(device, o->n, o->at[0], o->at[1], 0, o->at[2]);
}

static void run_binary(tsh_device *device, const operands *o) {
    const tshi_broadcast flat = {.runs = 1, .n = {o->n}, .x = {1}, .y = {1}};
    device->ops->elementwise[o->dtype].binary(device, TSHI_ADD, &flat, o->at[0], o->at[1], o->at[2]);
}

static void run_bias(tsh_device *device, const operands *o) {
    device->ops->elementwise[o->dtype].bias(device, o->rows, COLS, o->at[0], o->of_cols[0], o->at[1]);
}

static void run_bias_backward(tsh_device *device, const operands *o) {
    device->ops->sum[o->dtype].bias_backward(device, o->rows, COLS, o->at[0], o->of_cols[0]);
}

static void run_sum(tsh_device *device, const operands *o) {
    device->ops->sum[o->dtype].over_dim(device, o->rows, COLS, 1, 1, o->at[0], o->at[1]);
}

static void run_sum_backward(tsh_device *device, const operands *o) {
    device->ops->sum[o->dtype].over_dim_backward(device, o->rows, COLS, 1, 1, o->at[0], o->at[1]);
}

static void run_squares(tsh_device *device, const operands *o) {
    device->ops->sum[o->dtype].squares(device, o->n, o->at[0], o->of_rows[0]);
}

static void run_softmax_max(tsh_device *device, const operands *o) {
    device->ops->softmax[o->dtype].max(device, o->rows, COLS, 1, o->at[0], o->of_rows[0]);
}

static void run_softmax_sum(tsh_device *device, const operands *o) {
    device->ops->softmax[o->dtype].sum(device, o->rows, COLS, 1, o->at[0], o->of_rows[0], o->of_rows[1]);
}

static void run_softmax(tsh_device *device, const operands *o) {
    device->ops->softmax[o->dtype].forward(device, false, o->rows, COLS, 1, o->at[0], o->of_rows[0], o->of_rows[1],
                                           o->at[1]);
}

static void run_softmax_dot(tsh_device *device, const operands *o) {
    device->ops->softmax[o->dtype].dot(device, false, o->rows, COLS, 1, o->at[0], o->at[1], o->of_rows[0]);
}

static void run_softmax_backward(tsh_device *device, const operands *o) {
    device->ops->softmax[o->dtype].backward(device, false, o->rows, COLS, 1, o->at[0], o->at[1], o->of_rows[0],
                                            o->at[2]);
}

static tshi_classes classes_of(const operands *o) {
    return (tshi_classes){.rows = o->rows, .n = COLS, .classes = COLS, .ignore_index = -100};
}

static void run_loss_sums(tsh_device *device, const operands *o) {
    const tshi_classes c = classes_of(o);
    device->ops->cross_entropy[o->dtype].sums(device, &c, o->at[0], o->ids, o->of_rows[0], o->of_rows[1]);
}

static void run_loss(tsh_device *device, const operands *o) {
    const tshi_classes c = classes_of(o);
    device->ops->cross_entropy[o->dtype].loss(device, &c, o->ids, o->of_rows[1], o->of_rows[0]);
}

static void run_loss_backward(tsh_device *device, const operands *o) {
    const tshi_classes c = classes_of(o);
    device->ops->cross_entropy[o->dtype].backward(device, &c, o->at[0], o->ids, o->of_rows[0], o->of_rows[1],
                                                  o->of_rows[2], 0, NULL, 0, o->at[1]);
}

static void run_embedding(tsh_device *device, const operands *o) {
    device->ops->embedding[o->dtype].forward(device, o->rows, o->ids, 0, o->rows, COLS, o->at[0], o->at[1]);
}

static void run_embedding_backward(tsh_device *device, const operands *o) {
    device->ops->embedding[o->dtype].backward(device, o->rows, o->ids, 0, o->rows, COLS, -1, o->at[1], o->at[0]);
}

static void run_norm(tsh_device *device, const operands *o) {
    device->ops->norm[o->dtype].forward(device, false, o->rows, COLS, 1e-5, o->at[0], o->of_cols[0], o->of_cols[1],
                                        o->at[1], o->of_rows[0], o->of_rows[1]);
}

static void run_norm_backward(tsh_device *device, const operands *o) {
    device->ops->norm[o->dtype].backward(device, false, o->rows, COLS, o->at[0], o->of_cols[0], o->of_rows[0],
                                         o->of_rows[1], o->at[1], 0, o->at[2], o->of_cols[1], o->of_cols[2]);
}

static void run_rotary(tsh_device *device, const operands *o) {
    const tshi_rotary r = {
        .batch = 1, .tokens = o->rows, .heads = COLS / 64, .dim = 64, .dims = 64, .theta = 1e4, .positions = o->ids};
    device->ops->attention[o->dtype].rotary(device, &r, false, o->at[0], 0, o->at[1]);
}

static tshi_block block_of(const operands *o) {
    return (tshi_block){.outer = 1, .n = o->n, .inner = 1, .global_n = o->n};
}

static void run_dropout(tsh_device *device, const operands *o) {
    const tshi_block block = block_of(o);
    device->ops->random[o->dtype].dropout(device, &block, 1, 2, 0.1, o->at[0], 0, o->at[1]);
}

static tshi_update update_of(const operands *o) {
    return (tshi_update){.n = o->n, .grad = o->at[0], .state = {o->at[2], o->at[3]}, .p = o->at[1]};
}

static void run_sgd(tsh_device *device, const operands *o) {
    const tshi_sgd settings = {.lr = 1e-6, .momentum = 0.9};
    const tshi_update update = update_of(o);
    device->ops->optimizer[o->dtype].sgd(device, &settings, 1, &update);
}

static void run_adamw(tsh_device *device, const operands *o) {
    const tshi_adamw settings = {1e-6, 0.9, 0.999, 1e-8, 0.01, 3};
    const tshi_update update = update_of(o);
    device->ops->optimizer[o->dtype].adamw(device, &settings, 1, &update);
}

static void run_lion(tsh_device *device, const operands *o) {
    const tshi_lion settings = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.99};
    const tshi_update update = update_of(o);
    device->ops->optimizer[o->dtype].lion(device, &settings, 1, &update);
}

static void run_clip(tsh_device *device, const operands *o) {
    device->ops->optimizer[o->dtype].clip(device, o->n, o->squares, 1, 999.999, o->at[0]);
}

static kernel_run *const kernels[] = {
    run_copy,
    run_strided,
    run_permute,
    run_zero,
    run_fill,
    run_convert,
    run_unary,
    run_unary_backward,
    run_axpby,
    run_mul,
    run_binary,
    run_bias,
    run_bias_backward,
    run_sum,
    run_sum_backward,
    run_squares,
    run_softmax_max,
    run_softmax_sum,
    run_softmax,
    run_softmax_dot,
    run_softmax_backward,
    run_loss_sums,
    run_loss,
    run_loss_backward,
    run_embedding,
    run_embedding_backward,
    run_norm,
    run_norm_backward,
    run_rotary,
    run_dropout,
    run_sgd,
    run_adamw,
    run_lion,
    run_clip,
};
enum { KERNELS = (int)(sizeof kernels / sizeof *kernels) };

/* --- measuring ---------------------------------------------------------------------------------------------------- */

typedef struct repeated {
    calibration *c;
    kernel_run *run;
    operands o;
} repeated;

static void place_operands(calibration *c, operands *o) {
    size_t sum = tsh_dtype_size(tshi_dtype_sum(o->dtype)), small[6];
    const size_t bytes[OPERANDS] = {(size_t)o->n * tsh_dtype_size(o->dtype), (size_t)o->n * tsh_dtype_size(o->dtype),
                                    (size_t)o->n * sum, (size_t)o->n * sum};
    calibrate_place(c, OPERANDS, bytes, o->at);
    for (int i = 0; i < 3; i++) small[i] = (size_t)o->rows * 4 * sum;
    for (int i = 3; i < 6; i++) small[i] = COLS * sum;
    void *at[6];
    calibrate_place(c, 6, small, at);
    for (int i = 0; i < 3; i++) {
        o->of_rows[i] = at[i];
        o->of_cols[i] = at[3 + i];
    }
}

static int run_kernel(void *context, int calls) {
    repeated *r = context;
    for (int i = 0; i < calls; i++) {
        place_operands(r->c, &r->o);
        r->run(r->c->device, &r->o);
    }
    return (int)TSH_OK;
}

/* The call as a planned device records it: its family, dtype and bytes. */
static tsh_status count_call(calibration *c, kernel_run *run, operands *o, tshi_record_entry *out) {
    static tshi_planned planned;
    tshi_record *record = tshi_record_create(&c->device->allocator);
    tsh_device counts = {.ops = &planned.ops, .allocator = c->device->allocator, .record = record};
    if (!record) return TSH_ERR_MEMORY;
    record->heap_bytes = SIZE_MAX; /* all operands are tensors */
    tshi_dry_kernels(&planned, c->device->ops, c->device->ops);
    place_operands(c, o);
    run(&counts, o);
    *out = record->count == 1 ? record->entries[0] : (tshi_record_entry){.bytes = 0};
    tshi_record_destroy(record);
    return TSH_OK;
}

/* A copy of bytes is the same kernel for every dtype. */
static bool is_measured(const calibration *c, const tshi_record_call *call) {
    bool found = false;
    for (int i = 0; i < c->m->count[MACHINE_KERNELS]; i++) {
        const machine_table *t = &c->m->table[MACHINE_KERNELS][i];
        found = found || (!strcmp(t->what, call->name) && !strcmp(t->dtype, tsh_dtype_name(call->dtype)) &&
                          t->working_set == (double)c->working_set);
    }
    return found;
}

static tsh_status measure_kernel(calibration *c, kernel_run *run, const operands *fixed) {
    static const int64_t row_counts[] = {16, 128, 1024, 4096, MOST_ROWS};
    int points = 5;
    repeated r = {c, run, *fixed};
    tshi_record_entry counted;
    while (points > 1 && row_counts[points - 1] * COLS > c->largest * c->largest) points--;
    r.o.rows = 1;
    r.o.n = COLS;
    tsh_status status = count_call(c, run, &r.o, &counted);
    if (status != TSH_OK || counted.bytes == 0 || is_measured(c, &counted.call)) return status;
    machine_table *t = machine_add_table(c->m, MACHINE_KERNELS, (const int[]){points, 1, 1});
    if (!t) return TSH_ERR_MEMORY;
    snprintf(t->what, sizeof t->what, "%s", counted.call.name);
    snprintf(t->dtype, sizeof t->dtype, "%s", tsh_dtype_name(counted.call.dtype));
    t->working_set = (double)c->working_set;
    for (int i = 0; i < points && status == TSH_OK; i++) {
        double seconds = 0;
        r.o.rows = row_counts[i];
        r.o.n = r.o.rows * COLS;
        status = count_call(c, run, &r.o, &counted);
        if (status == TSH_OK) status = calibrate_measure(c, run_kernel, &r, &seconds);
        t->at[0][i] = (double)counted.bytes;
        t->rate[i] = 1e-9 * (double)counted.bytes / seconds;
    }
    return status;
}

/* A table for all families that are not measured: copies, in table `first`. */
static tsh_status add_others(calibration *c, int first) {
    const int points[MACHINE_AXES] = {c->m->table[MACHINE_KERNELS][first].points[0], 1, 1};
    machine_table *t = machine_add_table(c->m, MACHINE_KERNELS, points);
    if (!t) return TSH_ERR_MEMORY;
    const machine_table *copies = &c->m->table[MACHINE_KERNELS][first];
    t->working_set = copies->working_set;
    memcpy(t->at, copies->at, sizeof t->at);
    memcpy(t->rate, copies->rate, (size_t)points[0] * sizeof *t->rate);
    return TSH_OK;
}

static tsh_status create(const calibration *c, tsh_dtype dtype, int64_t n, tsh_tensor **out) {
    const tsh_tensor_config config = {.dtype = dtype, .ndim = 1, .shape = {n}};
    return tsh_tensor_create(tsh_world_mesh(c->world), &config, out);
}

static tsh_status create_ids(const calibration *c, tsh_tensor **out) {
    int64_t ids[MOST_ROWS];
    for (int64_t i = 0; i < MOST_ROWS; i++) ids[i] = i * 7919 % (i < COLS ? i + 1 : COLS);
    tsh_status status = create(c, TSH_INT64, MOST_ROWS, out);
    return status == TSH_OK ? tsh_tensor_write(*out, ids, MOST_ROWS) : status;
}

tsh_status calibrate_kernels(calibration *c) {
    tsh_tensor *ids = NULL, *squares = NULL;
    int first = c->m->count[MACHINE_KERNELS];
    tsh_status status = create_ids(c, &ids);
    if (status == TSH_OK) status = create(c, TSH_FLOAT64, 1, &squares);
    if (status == TSH_OK) status = tsh_tensor_fill(squares, 1e6);
    for (const int *d = calibrate_dtypes; *d >= 0; d++) {
        operands o = {.dtype = (tsh_dtype)*d};
        for (int i = 0; i < KERNELS && status == TSH_OK && tshi_device_computes(c->device, o.dtype); i++) {
            o.ids = tsh_tensor_data(ids);
            o.squares = tsh_tensor_data(squares);
            status = measure_kernel(c, kernels[i], &o);
        }
    }
    if (status == TSH_OK) status = add_others(c, first);
    tsh_tensor_release(squares);
    tsh_tensor_release(ids);
    return status;
}
