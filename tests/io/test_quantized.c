/* Linear layers and embeddings whose weights stay quantized, from files made of ggml's own groups (tests/data/quant),
 * against products in float64 of the values that ggml gives for these groups: in every split, at any number of ranks. */
#include "io/gguf/gguf.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/gguf.h"
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 20 };

/* A file of the folder, and the format of its weights that is tested. */
typedef struct golden {
    const char *file;
    tshi_quant format;
    int64_t out, in;
    unsigned char *groups;
    float *values, *a;     /* [out, in]; [3, in] */
    double *y, *y_rounded; /* [3, out]: a W^T with these values, and with a rounded as ggml rounds it */
    const char *axes;      /* of the mesh; NULL: the world's */
} golden;

static void *read_tensor(tshi_safetensors *file, const char *format, const char *word) {
    char name[64];
    tsh_box box = {0};
    snprintf(name, sizeof name, format, word);
    const tshi_safetensors_entry *e = tshi_safetensors_find(file, name);
    if (!e) abort();
    memcpy(box.length, e->shape, sizeof box.length);
    void *all = malloc((size_t)e->bytes);
    if (!all || tshi_safetensors_read_box(file, e, &box, all) != TSH_OK) abort();
    return all;
}

static golden open_golden(const char *name, tshi_quant format) {
    char path[512];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file = NULL;
    const char *word = format == TSHI_Q8_0 ? "q8_0" : "q4_0";
    golden g = {.file = name, .format = format};
    snprintf(path, sizeof path, TSHARD_TEST_DATA "/quant/%s.safetensors", name);
    if (tshi_safetensors_open(&allocator, path, &file) != TSH_OK) abort();
    const tshi_safetensors_entry *x = tshi_safetensors_find(file, "x");
    g.out = x->shape[0];
    g.in = x->shape[1];
    g.groups = read_tensor(file, "%s", word);
    g.values = read_tensor(file, "%s.values", word);
    g.a = read_tensor(file, "%s", "a");
    g.y = read_tensor(file, "y.%s", word);
    g.y_rounded = read_tensor(file, "y8.%s", word);
    tshi_safetensors_close(file);
    return g;
}

static void close_golden(golden *g) {
    free(g->groups);
    free(g->values);
    free(g->a);
    free(g->y);
    free(g->y_rounded);
}

/* The file's weight is "w.weight", beside a bias of zeros if there is one. */
static void write_weight(const golden *g) {
    const tshi_quant_format *format = tshi_quant_format_of(g->format);
    const uint64_t bytes = (uint64_t)(g->out * g->in / 32) * format->bytes, at = (bytes + 31) / 32 * 32;
    tshi_test_gguf b = {0};
    tshi_test_gguf_begin(&b, 3, 2, 0);
    tshi_test_gguf_tensor(&b, "w.weight", 2, (uint64_t[]){(uint64_t)g->in, (uint64_t)g->out},
                          g->format == TSHI_Q8_0 ? 8 : 2, 0);
    tshi_test_gguf_tensor(&b, "w.bias", 1, (uint64_t[]){(uint64_t)g->out}, 0, at);
    tshi_test_gguf_align(&b, 32);
    tshi_test_gguf_add(&b, g->groups, bytes);
    tshi_test_gguf_align(&b, 32);
    for (int64_t i = 0; i < g->out; i++) tshi_test_gguf_add(&b, &(float){(float)i}, 4);
    tshi_test_gguf_write(&b, tshi_test_path("w.gguf"));
}

/* A layer that has loaded the file; its list is destroyed. */
static tsh_linear *load_layer(tshi_rank *r, const tsh_mesh *mesh, const golden *g, tsh_sharding shard, bool bias,
                              tsh_dtype dtype, bool keep) {
    tsh_linear *layer = NULL;
    tsh_parameters *list = NULL;
    tsh_linear_config config = {.in_features = g->in,
                                .out_features = g->out,
                                .shard = shard,
                                .gather_output = shard == TSH_COLUMN,
                                .bias = bias,
                                .dtype = dtype};
    const tsh_load_options options = {.keep_quantized = keep, .allow_unexpected = true};
    tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(mesh, g->axes ? "model" : "world"), &config, &layer));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(layer, list, "w"));
    tshi_check_ok(r, tsh_load(list, tshi_test_path("w.gguf"), &options));
    if (keep) tshi_check_ok(r, tsh_load(list, tshi_test_path("w.gguf"), &options)); /* over the groups */
    tsh_parameters_destroy(list);
    return layer;
}

/* What the layer gives for the first `rows` of the golden a's, over and over; y [rows, out]. */
static void forward(tshi_rank *r, const tsh_mesh *mesh, const golden *g, tsh_linear *layer, tsh_dtype dtype,
                    int64_t rows, double *y) {
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, g->in}};
    double *values = calloc((size_t)(rows * g->in), sizeof *values);
    for (int64_t i = 0; i < rows * g->in; i++) values[i] = (double)g->a[i % (3 * g->in)];
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tape_set_recording(tape, false);
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &x));
    tshi_check_ok(r, tsh_tensor_write_whole(x, values));
    tsh_tensor *out = tsh_cast(tape, tsh_linear_forward(tape, layer, tsh_cast(tape, x, dtype)), TSH_FLOAT64);
    if (tshi_check(r, out, "%s", tsh_tape_message(tape))) tshi_check_ok(r, tsh_tensor_read_whole(out, y));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    free(values);
}

/* The error that quantized activations and sums in float32 may have. */
static double bound_of(const golden *g, int64_t row, int64_t col, double *terms) {
    double bound = 0;
    *terms = 0;
    for (int64_t k = 0; k < g->in; k += 32) {
        double most = 0, sizes = 0;
        for (int64_t i = k; i < k + 32; i++) {
            most = fmax(most, fabs((double)g->a[row * g->in + i]));
            sizes += fabs((double)g->values[col * g->in + i]);
            *terms += fabs((double)g->a[row * g->in + i] * (double)g->values[col * g->in + i]);
        }
        bound += most / 225 * sizes;
    }
    return bound;
}

static void check_output(tshi_rank *r, const golden *g, const char *what, int64_t rows, bool bias, const double *y) {
    for (int64_t i = 0; i < rows * g->out; i++) {
        int64_t row = i / g->out % 3, col = i % g->out, at = row * g->out + col;
        double terms, bound = bound_of(g, row, col, &terms), made = y[i] - (bias ? (double)col : 0);
        double rounding = (terms + (bias ? (double)g->out : 0)) * FLT_EPSILON * 16;
        tshi_check(r, fabs(made - g->y[at]) <= (rows <= 8 ? bound : 0) + rounding, "%s, %s: %g, %g wanted", g->file,
                   what, made, g->y[at]);
        tshi_check(r, rows > 8 || fabs(made - g->y_rounded[at]) <= rounding, "%s, %s: %g, ggml has %g", g->file, what,
                   made, g->y_rounded[at]);
    }
}

/* The rank's part of the weight: whole rows, or whole groups of each row. */
static void check_part(tshi_rank *r, const golden *g, tsh_sharding shard, const tsh_tensor *weight) {
    const int64_t bytes = (int64_t)tshi_quant_format_of(g->format)->bytes;
    int64_t rows = g->out, groups = g->in / 32, start;
    const tshi_parts parts = tshi_axis_parts(&weight->mesh->axis[0]);
    if (shard == TSH_COLUMN) tshi_parts_split(parts, g->out, r->rank, &start, &rows);
    if (shard == TSH_ROW) tshi_parts_split(parts, groups, r->rank, &start, &groups);
    tshi_check(r, tsh_tensor_dtype(weight) == TSH_UINT8, "the weight has been widened");
    tshi_check(r, tsh_tensor_local_numel(weight) == rows * groups * bytes, "%lld bytes, %lld wanted",
               (long long)tsh_tensor_local_numel(weight), (long long)(rows * groups * bytes));
}

static void products(tshi_rank *r, void *arg) {
    static const char *const names[] = {"dense", "row", "column"};
    static const int64_t rows[] = {1, 3, 8, MOST_ROWS};
    const golden *g = arg;
    tsh_mesh *own = NULL;
    if (g->axes && !tshi_check_ok(r, tsh_mesh_create(r->world, g->axes, &own))) return;
    const tsh_mesh *mesh = own ? own : tsh_world_mesh(r->world);
    double *one = calloc((size_t)(MOST_ROWS * g->out), sizeof *one),
           *y = calloc((size_t)(MOST_ROWS * g->out), sizeof *y);
    for (int i = 0; i < 4; i++) {
        for (int shard = TSH_DENSE; shard <= TSH_COLUMN; shard++) {
            bool bias = i % 2 == 0;
            tsh_linear *layer = load_layer(r, mesh, g, (tsh_sharding)shard, bias, TSH_FLOAT32, true);
            check_part(r, g, (tsh_sharding)shard, tsh_linear_weight(layer));
            forward(r, mesh, g, layer, TSH_FLOAT32, rows[i], y);
            check_output(r, g, names[shard], rows[i], bias, y);
            if (shard == TSH_DENSE) memcpy(one, y, (size_t)(rows[i] * g->out) * sizeof *y);
            if (shard == TSH_COLUMN && rows[i] <= 8)
                tshi_check(r, memcmp(one, y, (size_t)(rows[i] * g->out) * sizeof *y) == 0,
                           "%s: a column has other bits where ranks split the columns", g->file);
            tsh_linear_destroy(layer);
        }
    }
    free(one);
    free(y);
    tsh_mesh_destroy(own);
}

Test(quantized_weights, products_are_those_of_the_values, .timeout = 120, .init = tshi_test_enter,
     .fini = tshi_test_leave) {
    static const char *const files[] = {"1x32", "7x160", "13x416"};
    for (int f = 0; f < 3; f++) {
        for (int q = 0; q < 2; q++) {
            golden g = open_golden(files[f], q ? TSHI_Q4_0 : TSHI_Q8_0);
            write_weight(&g);
            cr_assert_str_empty(tshi_test_run_each(1, 5, products, &g));
            close_golden(&g);
        }
    }
}

/* By these weights the bytes of 13 groups of Q4_0 are cut at whole groups without units, and the features are not. */
Test(quantized_weights, whole_groups_go_to_ranks_by_weight, .timeout = 120, .init = tshi_test_enter,
     .fini = tshi_test_leave) {
    for (int q = 0; q < 2; q++) {
        golden g = open_golden("13x416", q ? TSHI_Q4_0 : TSHI_Q8_0);
        g.axes = "model=17:20";
        write_weight(&g);
        cr_assert_str_empty(tshi_test_run(2, products, &g));
        close_golden(&g);
    }
}

/* Other dtypes of x, whose own rounding is coarser. */
static void in_dtypes(tshi_rank *r, void *arg) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    static const tsh_dtype dtypes[] = {TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    static const double rounding[] = {0, 0x1p-8, 0x1p-11};
    const golden *g = arg;
    double y[3 * 13], terms;
    for (int d = 0; d < 3; d++) {
        tsh_linear *layer = load_layer(r, mesh, g, TSH_ROW, false, dtypes[d], true);
        forward(r, mesh, g, layer, dtypes[d], 3, y);
        for (int64_t i = 0; i < 3 * g->out; i++) {
            double bound = bound_of(g, i / g->out, i % g->out, &terms);
            tshi_check(r, fabs(y[i] - g->y[i]) <= bound + terms * (1e-5 + 3 * rounding[d]), "%s: %g, %g wanted",
                       tsh_dtype_name(dtypes[d]), y[i], g->y[i]);
        }
        tsh_linear_destroy(layer);
    }
}

/* What a quantized weight cannot do says so, and a layer that does not ask for groups has floats. */
static void refusals(tshi_rank *r, void *arg) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const golden *g = arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    float *floats = calloc((size_t)(g->out * g->in), sizeof *floats);
    tsh_linear *layer = load_layer(r, mesh, g, TSH_ROW, true, TSH_FLOAT64, false);
    tshi_check(r, tsh_tensor_dtype(tsh_linear_weight(layer)) == TSH_FLOAT64, "quantized without being asked");
    tsh_linear_destroy(layer);
    layer = load_layer(r, mesh, g, TSH_COLUMN, false, TSH_FLOAT32, true);
    tsh_tensor_config config = {.ndim = 2, .shape = {2, g->in}};
    tshi_check_status(r, tsh_linear_load(layer, floats, NULL), TSH_ERR_STATE, "quantized");
    tshi_check_status(r, tsh_linear_adapt(layer, &(tsh_lora_config){.rank = 1}, NULL, NULL), TSH_ERR_STATE,
                      "quantized");
    tshi_check_status(r, tsh_tensor_require_grad(tsh_linear_weight(layer), true), TSH_ERR_DTYPE, "uint8");
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &x));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check(r,
               !tsh_linear_forward(tape, layer, x) && tsh_tape_status(tape) == TSH_ERR_STATE &&
                   strstr(tsh_tape_message(tape), "gradient"),
               "%s", tsh_tape_message(tape));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_linear_destroy(layer);
    free(floats);
}

Test(quantized_weights, activations_of_any_dtype_and_refusals, .timeout = 120, .init = tshi_test_enter,
     .fini = tshi_test_leave) {
    golden g = open_golden("13x416", TSHI_Q8_0);
    write_weight(&g);
    cr_assert_str_empty(tshi_test_run_each(1, 3, in_dtypes, &g));
    cr_assert_str_empty(tshi_test_run(1, refusals, &g));
    close_golden(&g);
}

/* --- embeddings --------------------------------------------------------------------------------------------------- */

static tsh_embedding *load_table(tshi_rank *r, const tsh_mesh *mesh, const golden *g, tsh_sharding shard,
                                 tsh_dtype dtype) {
    tsh_embedding *layer = NULL;
    tsh_parameters *list = NULL;
    const tsh_embedding_config config = {.num_embeddings = g->out,
                                         .embedding_dim = g->in,
                                         .shard = shard,
                                         .gather_output = shard == TSH_COLUMN,
                                         .dtype = dtype};
    const tsh_load_options options = {.keep_quantized = true, .allow_unexpected = true};
    tshi_check_ok(r, tsh_embedding_create(tsh_mesh_group(mesh, g->axes ? "model" : "world"), &config, &layer));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_register(layer, list, "w"));
    tshi_check_ok(r, tsh_load(list, tshi_test_path("w.gguf"), &options));
    tsh_parameters_destroy(list);
    return layer;
}

/* Rows of the table, some of them twice: its values, rounded once to the dtype. */
static void look_up(tshi_rank *r, const tsh_mesh *mesh, const golden *g, tsh_embedding *layer, tsh_dtype dtype) {
    int64_t numbers[MOST_ROWS];
    tsh_tape *tape = NULL;
    tsh_tensor *ids = NULL, *stored = NULL;
    const tsh_tensor_config places = {.dtype = TSH_INT64, .ndim = 2, .shape = {2, MOST_ROWS / 2}},
                            rows = {.ndim = 3, .shape = {2, MOST_ROWS / 2, g->in}};
    float *values = calloc((size_t)(MOST_ROWS * g->in), sizeof *values);
    double *made = calloc((size_t)(MOST_ROWS * g->in), sizeof *made), *rounded = calloc((size_t)(MOST_ROWS * g->in), 8);
    for (int64_t i = 0; i < MOST_ROWS; i++) {
        numbers[i] = i * 7 % g->out;
        memcpy(values + i * g->in, g->values + numbers[i] * g->in, (size_t)g->in * sizeof *values);
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create(mesh, &places, &ids));
    tshi_check_ok(r, tsh_tensor_create(mesh, &rows, &stored));
    tshi_check_ok(r, tsh_tensor_write_whole(ids, numbers));
    tshi_check_ok(r, tsh_tensor_write_whole(stored, values));
    tsh_tensor *y = tsh_embedding_forward(tape, layer, ids), *floats = tsh_cast(tape, y, TSH_FLOAT64);
    tsh_tensor *wanted = tsh_cast(tape, tsh_cast(tape, stored, dtype), TSH_FLOAT64);
    if (tshi_check(r, floats && wanted, "%s", tsh_tape_message(tape))) {
        tshi_check(r, tsh_tensor_dtype(y) == dtype, "the rows are %s", tsh_dtype_name(tsh_tensor_dtype(y)));
        tshi_check_ok(r, tsh_tensor_read_whole(floats, made));
        tshi_check_ok(r, tsh_tensor_read_whole(wanted, rounded));
        tshi_check(r, memcmp(made, rounded, (size_t)(MOST_ROWS * g->in) * 8) == 0, "%s: other rows of %s", g->file,
                   tsh_dtype_name(dtype));
    }
    tsh_tensor_release(ids);
    tsh_tensor_release(stored);
    tsh_tape_destroy(tape);
    free(values);
    free(made);
    free(rounded);
}

static void project(tshi_rank *r, const tsh_mesh *mesh, const golden *g, tsh_embedding *layer, int64_t rows,
                    double *y) {
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    const tsh_tensor_config config = {.ndim = 2, .shape = {rows, g->in}};
    float *values = calloc((size_t)(rows * g->in), sizeof *values);
    for (int64_t i = 0; i < rows * g->in; i++) values[i] = g->a[i % (3 * g->in)];
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tape_set_recording(tape, false);
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &x));
    tshi_check_ok(r, tsh_tensor_write_whole(x, values));
    tsh_tensor *out = tsh_cast(tape, tsh_embedding_project(tape, layer, x), TSH_FLOAT64);
    if (tshi_check(r, out, "%s", tsh_tape_message(tape))) tshi_check_ok(r, tsh_tensor_read_whole(out, y));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    free(values);
}

static void tables(tshi_rank *r, void *arg) {
    static const char *const names[] = {"table", "features", "vocabulary"};
    /* A linear layer splits features by ROW, a table by COLUMN. */
    static const tsh_sharding of_tables[] = {[TSH_DENSE] = TSH_DENSE, [TSH_ROW] = TSH_COLUMN, [TSH_COLUMN] = TSH_ROW};
    static const int64_t rows[] = {1, 8, MOST_ROWS};
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    const golden *g = arg;
    tsh_mesh *own = NULL;
    if (g->axes && !tshi_check_ok(r, tsh_mesh_create(r->world, g->axes, &own))) return;
    const tsh_mesh *mesh = own ? own : tsh_world_mesh(r->world);
    double *y = calloc((size_t)(MOST_ROWS * g->out), sizeof *y);
    for (int shard = TSH_DENSE; shard <= TSH_COLUMN; shard++) {
        for (int d = 0; d < 4; d++) {
            tsh_embedding *layer = load_table(r, mesh, g, of_tables[shard], dtypes[d]);
            check_part(r, g, (tsh_sharding)shard, tsh_embedding_weight(layer));
            look_up(r, mesh, g, layer, dtypes[d]);
            for (int i = 0; d == 0 && i < 3; i++) {
                project(r, mesh, g, layer, rows[i], y);
                check_output(r, g, names[shard], rows[i], false, y);
            }
            tsh_embedding_destroy(layer);
        }
    }
    free(y);
    tsh_mesh_destroy(own);
}

/* What a quantized table cannot do says so; one whose rows are scaled in place is read as floats. */
static void table_refusals(tshi_rank *r, void *arg) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const golden *g = arg;
    tsh_parameters *list = NULL;
    const tsh_load_options options = {.keep_quantized = true, .allow_unexpected = true};
    tsh_embedding *layer = load_table(r, mesh, g, TSH_ROW, TSH_FLOAT32);
    const tsh_lora_config lora = {.rank = 1};
    tshi_check_status(r, tsh_embedding_load(layer, g->values), TSH_ERR_STATE, "quantized");
    tshi_check_status(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_LOOKUP, &lora, NULL, NULL), TSH_ERR_STATE,
                      "quantized");
    tshi_check_status(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_HEAD, &lora, NULL, NULL), TSH_ERR_STATE, "quantized");
    tsh_embedding_destroy(layer);
    const tsh_embedding_config config = {.num_embeddings = g->out, .embedding_dim = g->in, .max_norm = 1};
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world), &config, &layer));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_register(layer, list, "w"));
    tshi_check_ok(r, tsh_load(list, tshi_test_path("w.gguf"), &options));
    tshi_check(r, tsh_tensor_dtype(tsh_embedding_weight(layer)) == TSH_FLOAT32, "max_norm: quantized");
    tsh_parameters_destroy(list);
    tsh_embedding_destroy(layer);
}

Test(quantized_weights, tables_give_the_values_of_their_rows, .timeout = 120, .init = tshi_test_enter,
     .fini = tshi_test_leave) {
    for (int q = 0; q < 2; q++) {
        golden small = open_golden("7x160", q ? TSHI_Q4_0 : TSHI_Q8_0), g = open_golden("13x416", small.format);
        write_weight(&small);
        cr_assert_str_empty(tshi_test_run(3, tables, &small));
        write_weight(&g);
        cr_assert_str_empty(tshi_test_run_each(1, 5, tables, &g));
        cr_assert_str_empty(tshi_test_run(1, table_refusals, &g));
        g.axes = "model=17:20";
        cr_assert_str_empty(tshi_test_run(2, tables, &g));
        close_golden(&small);
        close_golden(&g);
    }
}
