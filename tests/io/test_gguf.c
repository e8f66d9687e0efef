/* GGUF files: the golden ones (tests/data/gguf) against the Hugging Face folders that they were made of, boxes of them
 * at any number of ranks, files made here byte by byte, and files that the format forbids. */
#include "io/gguf/gguf.h"
#include "io/load.h"
#include "support/files.h"
#include "support/gguf.h"
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER TSHARD_TEST_DATA "/gguf/"
#define GGUF_TEST(name, ...)                                                                                           \
    Test(gguf, name, .timeout = 120, .init = tshi_test_enter, .fini = tshi_test_leave, ##__VA_ARGS__)

static tshi_gguf *open_file(const char *path) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_gguf *file = NULL;
    cr_assert_eq(tshi_gguf_open(&allocator, path, &file), TSH_OK, "%s", tsh_error_message());
    return file;
}

static tsh_box whole_of(const tshi_safetensors_entry *e) {
    tsh_box box = {0};
    memcpy(box.length, e->shape, sizeof box.length);
    return box;
}

/* All elements, which the caller frees. */
static void *read_all(tshi_gguf *file, const tshi_gguf_tensor *t) {
    tsh_box box = whole_of(&t->entry);
    void *all = calloc((size_t)tshi_box_numel(t->entry.ndim, &box) + 1, tsh_dtype_size(t->entry.dtype));
    cr_assert(all && tshi_gguf_read_box(file, t, &box, all) == TSH_OK, "%s", tsh_error_message());
    return all;
}

/* --- the golden files --------------------------------------------------------------------------------------------- */

/* Each weight of the folder, quantized with its rows in the file's order and dequantized; norms are not. */
static void want_values(const tshi_gguf_tensor *t, const float *x, float *wanted) {
    int64_t rows = t->entry.ndim == 2 ? t->entry.shape[0] : 1, cols = t->entry.shape[t->entry.ndim - 1];
    unsigned char group[64];
    memcpy(wanted, x, (size_t)(rows * cols) * sizeof *x);
    for (int64_t i = 0; t->format && i < rows * cols; i += t->format->weights) {
        t->format->quantize(1, x + i, group);
        t->format->dequantize(1, group, wanted + i);
    }
}

static void check_tensors(const char *model, const char *type) {
    char path[512];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *folder = NULL;
    snprintf(path, sizeof path, FOLDER "%s/model.safetensors", model);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &folder), TSH_OK);
    snprintf(path, sizeof path, FOLDER "%s/%s-%s.gguf", model, model, type);
    tshi_gguf *file = open_file(path);
    cr_assert_eq(file->count, folder->count + (strcmp(model, "llama3") == 0));
    for (int i = 0; i < folder->count; i++) {
        const tshi_safetensors_entry *e = &folder->entries[i];
        const tshi_gguf_tensor *t = tshi_gguf_tensor_of(file, e->name);
        cr_assert(t && t->entry.ndim == e->ndim && memcmp(t->entry.shape, e->shape, sizeof e->shape) == 0, "%s",
                  e->name);
        tsh_box box = whole_of(e);
        size_t n = (size_t)tshi_box_numel(e->ndim, &box);
        float *x = calloc(n, sizeof *x), *wanted = calloc(n, sizeof *wanted), *made = read_all(file, t);
        cr_assert(x && wanted && tshi_safetensors_read_box(folder, e, &box, x) == TSH_OK);
        want_values(t, x, wanted);
        cr_assert(memcmp(made, wanted, n * sizeof *made) == 0, "%s of %s", e->name, path);
        free(x);
        free(wanted);
        free(made);
    }
    tshi_gguf_close(file);
    tshi_safetensors_close(folder);
}

GGUF_TEST(tensors_are_those_of_the_folder) {
    static const char *const files[][2] = {
        {"llama", "f32"}, {"llama", "q8_0"}, {"llama", "q4_0"}, {"llama3", "f32"}, {"llama3", "q8_0"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) check_tensors(files[i][0], files[i][1]);
}

/* Boxes that cut groups and heads, of each tensor. */
static void check_boxes(const char *path) {
    tshi_gguf *file = open_file(path);
    for (int i = 0; i < file->count; i++) {
        const tshi_gguf_tensor *t = &file->tensors[i];
        size_t size = tsh_dtype_size(t->entry.dtype);
        int64_t rows = t->entry.ndim == 2 ? t->entry.shape[0] : 1, cols = t->entry.shape[t->entry.ndim - 1];
        char *all = read_all(file, t), *part = malloc((size_t)(rows * cols) * size);
        cr_assert_not_null(part);
        for (unsigned k = 0; k < 60; k++) {
            int64_t r0 = k * 7 % rows, c0 = k * 13 % cols, h = k * 11 % (rows - r0) + 1, w = k * 29 % (cols - c0) + 1;
            tsh_box box = t->entry.ndim == 2 ? (tsh_box){{r0, c0}, {h, w}} : (tsh_box){{c0}, {w}};
            cr_assert_eq(tshi_gguf_read_box(file, t, &box, part), TSH_OK, "%s", tsh_error_message());
            for (int64_t r = 0; r < (t->entry.ndim == 2 ? h : 1); r++)
                cr_assert(memcmp(part + (size_t)(r * w) * size, all + (size_t)((r0 + r) * cols + c0) * size,
                                 (size_t)w * size) == 0,
                          "%s of %s, rows %lld + %lld, columns %lld + %lld", t->name, path, (long long)r0, (long long)h,
                          (long long)c0, (long long)w);
        }
        free(all);
        free(part);
    }
    tshi_gguf_close(file);
}

GGUF_TEST(boxes_are_parts_of_the_whole) {
    check_boxes(FOLDER "llama/llama-f16.gguf");
    check_boxes(FOLDER "llama/llama-q8_0.gguf");
    check_boxes(FOLDER "llama/llama-q4_0.gguf");
    check_boxes(FOLDER "llama-k/llama-k-q4_k_m.gguf");
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

typedef struct loaded {
    const char *name;
    int64_t rows, cols;
    tsh_layout layout;
    uint64_t most; /* bytes of all ranks' boxes, of the tensor in the file */
} loaded;

/* Loads one parameter of the q8_0 file, and compares it with the whole tensor. */
static void load_one(tshi_rank *r, const loaded *l) {
    const char *path = FOLDER "llama/llama-q8_0.gguf";
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tsh_parameters *list = NULL;
    tsh_tensor *t = NULL;
    tshi_gguf *file = NULL;
    uint64_t read, header;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {l->rows, l->cols}, .layout = {l->layout}};
    static float whole[101 * 64];
    static double wanted[101 * 64];
    tshi_check_ok(r, tshi_gguf_open(&allocator, path, &file));
    header = file->bytes_read;
    tsh_box all = {.length = {l->rows, l->cols}};
    tshi_check_ok(r, tshi_gguf_read_box(file, tshi_gguf_tensor_of(file, l->name), &all, whole));
    for (int64_t i = 0; i < l->rows * l->cols; i++) wanted[i] = (double)whole[i];
    tshi_gguf_close(file);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_parameters_add(list, l->name, t));
    tshi_check_ok(r, tshi_load(list, path, &(tsh_load_options){.allow_unexpected = true}, &read));
    tshi_test_same(r, l->name, t, wanted, 0);
    /* Whole groups of 34 bytes for 32 weights, with short gaps; of a part of a head, all of its rows. */
    uint64_t mine = (uint64_t)tsh_tensor_local_numel(t) / 32 * 34;
    tshi_check(r, read - header <= l->most && read - header >= mine, "%s: %llu bytes of %llu", l->name,
               (unsigned long long)(read - header), (unsigned long long)l->most);
    tsh_parameters_destroy(list);
    tsh_tensor_release(t);
}

static void load_all(tshi_rank *r, void *arg) {
    uint64_t p = (uint64_t)r->size;
    (void)arg;
    const loaded all[] = {
        {"lm_head.weight", 101, 64, TSH_SHARD(0), (101 + p - 1) / p * 68},
        {"model.layers.1.mlp.down_proj.weight", 64, 96, TSH_SHARD(1), 64 * 102},
        {"model.layers.0.self_attn.q_proj.weight", 64, 64, TSH_SHARD_UNITS(0, 4, 0), (4 + p - 1) / p * 16 * 68},
        {"model.layers.0.self_attn.k_proj.weight", 32, 64, TSH_SHARD(0), (32 + p - 1) / p * 68 + 2 * 16 * 68},
        {"model.layers.1.self_attn.o_proj.weight", 64, 64, TSH_REPLICATED, 64 * 68},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) load_one(r, &all[i]);
}

GGUF_TEST(each_rank_reads_its_groups) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, load_all, NULL));
}

/* --- files made here ---------------------------------------------------------------------------------------------- */

/* One tensor `name` [2, 4] of float32, 0 to 7, behind `keys` keys that are in `middle`. */
static void write_small(const tshi_test_gguf *middle, uint64_t keys, const char *name) {
    tshi_test_gguf b = {0};
    tshi_test_gguf_begin(&b, 3, 1, keys);
    tshi_test_gguf_add(&b, middle->at, middle->count);
    tshi_test_gguf_tensor(&b, name, 2, (uint64_t[]){4, 2}, 0, 0);
    tshi_test_gguf_align(&b, 32);
    for (int i = 0; i < 8; i++) tshi_test_gguf_add(&b, &(float){(float)i}, 4);
    tshi_test_gguf_write(&b, tshi_test_path("m.gguf"));
}

GGUF_TEST(reads_keys_of_every_type) {
    tshi_test_gguf b = {0};
    int64_t integer;
    double number;
    char text[8];
    tshi_gguf_text item;
    tshi_test_gguf_key_u32(&b, "u32", 4000000000u);
    tshi_test_gguf_key_text(&b, "text", "seven c");
    tshi_test_gguf_key_bool(&b, "bool", true);
    tshi_test_gguf_key_array(&b, "texts", 8, 2);
    tshi_test_gguf_string(&b, "");
    tshi_test_gguf_string(&b, "b");
    tshi_test_gguf_key_array(&b, "bytes", 1, 2);
    tshi_test_gguf_number(&b, 0xfe01, 2);
    tshi_test_gguf_key_array(&b, "halves", 3, 1);
    tshi_test_gguf_number(&b, 0x8000, 2);
    tshi_test_gguf_key_array(&b, "doubles", 12, 1);
    tshi_test_gguf_add(&b, &(double){0.1}, 8);
    write_small(&b, 7, "t");
    free(b.at);
    tshi_gguf *file = open_file(tshi_test_path("m.gguf"));
    cr_assert(tshi_gguf_integer_of(file, "u32", &integer) && integer == 4000000000);
    cr_assert(tshi_gguf_number_of(file, "u32", &number) && number == 4e9);
    cr_assert(tshi_gguf_text_of(file, "text", text, sizeof text) && strcmp(text, "seven c") == 0);
    cr_assert_not(tshi_gguf_text_of(file, "text", text, 7));
    cr_assert_not(tshi_gguf_text_of(file, "texts", text, sizeof text));
    cr_assert_not(tshi_gguf_integer_of(file, "text", &integer) || tshi_gguf_integer_of(file, "none", &integer));
    cr_assert(tshi_gguf_flag_of(file, "bool", false) && !tshi_gguf_flag_of(file, "none", false));
    tshi_gguf_value v = *tshi_gguf_find(file, "texts");
    cr_assert(tshi_gguf_next_text(&v, &item) && item.length == 0);
    cr_assert(tshi_gguf_next_text(&v, &item) && item.length == 1 && item.at[0] == 'b');
    cr_assert_not(tshi_gguf_next_text(&v, &item));
    v = *tshi_gguf_find(file, "bytes");
    cr_assert(tshi_gguf_next_integer(&v, &integer) && integer == 1);
    cr_assert(tshi_gguf_next_integer(&v, &integer) && integer == -2);
    cr_assert_not(tshi_gguf_next_integer(&v, &integer));
    v = *tshi_gguf_find(file, "halves");
    cr_assert(tshi_gguf_next_integer(&v, &integer) && integer == -32768);
    v = *tshi_gguf_find(file, "doubles");
    cr_assert(tshi_gguf_next_number(&v, &number) && number == 0.1);
    tshi_gguf_close(file);
}

/* A header longer than what is read of it at first. */
GGUF_TEST(reads_long_headers) {
    tshi_test_gguf b = {0};
    tshi_test_gguf_key_array(&b, "numbers", 4, 1000000);
    for (uint64_t i = 0; i < 1000000; i++) tshi_test_gguf_number(&b, i, 4);
    write_small(&b, 1, "t");
    free(b.at);
    tshi_gguf *file = open_file(tshi_test_path("m.gguf"));
    float *t = read_all(file, tshi_gguf_tensor_of(file, "t"));
    cr_assert(t[0] == 0 && t[7] == 7 && file->tensors[0].entry.shape[0] == 2 && file->tensors[0].entry.shape[1] == 4);
    free(t);
    tshi_gguf_close(file);
}

/* Other architectures keep their names and the order of their rows. */
GGUF_TEST(other_models_keep_their_names) {
    static const char *const architectures[] = {"mamba", "qwen2", "llama"};
    for (int i = 0; i < 3; i++) {
        tshi_test_gguf b = {0};
        tshi_test_gguf_key_text(&b, "general.architecture", architectures[i]);
        tshi_test_gguf_key_u32(&b, "llama.attention.head_count", 1);
        write_small(&b, 2, "blk.31.attn_q.weight");
        free(b.at);
        tshi_gguf *file = open_file(tshi_test_path("m.gguf"));
        cr_assert_str_eq(file->tensors[0].name,
                         i == 0 ? "blk.31.attn_q.weight" : "model.layers.31.self_attn.q_proj.weight");
        cr_assert_eq(file->tensors[0].head, i == 2 ? 2 : 0);
        tshi_gguf_close(file);
    }
}

/* --- malformed files ---------------------------------------------------------------------------------------------- */

static void refused(const char *path, tsh_status status, const char *words) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_gguf *file = (void *)1;
    cr_assert_eq(tshi_gguf_open(&allocator, path, &file), status, "'%s' wanted, not '%s'", words, tsh_error_message());
    cr_assert_null(file);
    cr_assert(strstr(tsh_error_message(), words) && strstr(tsh_error_message(), path), "'%s' wanted, not '%s'", words,
              tsh_error_message());
}

/* Writes the bytes, and expects this. */
static void refused_bytes(tshi_test_gguf *b, tsh_status status, const char *words) {
    char path[256];
    snprintf(path, sizeof path, "%s", tshi_test_path("bad.gguf"));
    tshi_test_gguf_write(b, path);
    refused(path, status, words);
}

GGUF_TEST(malformed_headers_are_refused) {
    tshi_test_gguf b = {0};
    refused_bytes(&b, TSH_ERR_IO, "it ends within its header");
    tshi_test_gguf_add(&b, "GGUX                    ", 24);
    refused_bytes(&b, TSH_ERR_IO, "does not begin with 'GGUF'");
    tshi_test_gguf_begin(&b, 2, 0, 0);
    refused_bytes(&b, TSH_ERR_UNSUPPORTED, "version 2; only version 3");
    tshi_test_gguf_begin(&b, 3, 0, UINT64_MAX);
    refused_bytes(&b, TSH_ERR_IO, "more than 4096 keys");
    tshi_test_gguf_begin(&b, 3, UINT64_MAX, 0);
    refused_bytes(&b, TSH_ERR_IO, "more than a million tensors");
    tshi_test_gguf_begin(&b, 3, 0, 1);
    tshi_test_gguf_number(&b, UINT64_MAX, 8);
    refused_bytes(&b, TSH_ERR_IO, "it ends within its header");
    tshi_test_gguf_begin(&b, 3, 0, 1);
    tshi_test_gguf_key_array(&b, "nested", 9, 1);
    refused_bytes(&b, TSH_ERR_IO, "the key 'nested' has a value of the type 9 in an array");
    tshi_test_gguf_begin(&b, 3, 0, 1);
    tshi_test_gguf_key_array(&b, "huge", 12, UINT64_MAX / 4);
    refused_bytes(&b, TSH_ERR_IO, "an array has more bytes than a file can hold");
    tshi_test_gguf_begin(&b, 3, 0, 2);
    tshi_test_gguf_key_u32(&b, "k", 1);
    tshi_test_gguf_key_u32(&b, "k", 1);
    refused_bytes(&b, TSH_ERR_IO, "a key occurs twice");
    tshi_test_gguf_begin(&b, 3, 0, 1);
    tshi_test_gguf_key_u32(&b, "general.alignment", 24);
    refused_bytes(&b, TSH_ERR_IO, "general.alignment is not a power of two");
}

/* A file of one tensor, with 64 bytes of data. */
static void refused_tensor(const char *name, int ndim, const uint64_t *dims, uint32_t type, uint64_t offset,
                           tsh_status status, const char *words) {
    tshi_test_gguf b = {0};
    tshi_test_gguf_begin(&b, 3, 1, 0);
    tshi_test_gguf_tensor(&b, name, ndim, dims, type, offset);
    tshi_test_gguf_align(&b, 32);
    for (int i = 0; i < 8; i++) tshi_test_gguf_number(&b, 0, 8);
    refused_bytes(&b, status, words);
}

GGUF_TEST(malformed_tensors_are_refused) {
    static const uint64_t one[] = {16}, groups[] = {48, 1}, many[] = {1u << 31, 1u << 31, 1u << 31},
                          big[] = {UINT64_MAX, 1, 1, 1, 1};
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    refused_tensor("t", 1, one, 99, 0, TSH_ERR_UNSUPPORTED, "tensor 't' has the type 99; F64,");
    refused_tensor("t", 2, groups, 8, 0, TSH_ERR_IO,
                   "'t' has rows of 48 weights, which are not whole groups of 32 (Q8_0)");
    refused_tensor("t", 0, NULL, 2, 0, TSH_ERR_IO, "which are not whole groups of 32 (Q4_0)");
    refused_tensor("t", 3, many, 0, 0, TSH_ERR_IO, "'t' has more elements than a file can hold");
    refused_tensor("t", 1, big, 0, 0, TSH_ERR_IO, "'t' has a dim of more than 2^63");
    refused_tensor("t", 5, big, 0, 0, TSH_ERR_IO, "'t' has more than 4 dims");
    refused_tensor("t", 1, one, 0, 16, TSH_ERR_IO, "'t' is not aligned");
    refused_tensor("t", 1, one, 0, 32, TSH_ERR_IO, "is truncated: tensor 't' ends past");
    refused_tensor("t", 1, one, 0, UINT64_MAX - 31, TSH_ERR_IO, "is truncated: tensor 't' ends past");
    refused_tensor(name, 1, one, 0, 0, TSH_ERR_IO, "the name of a tensor");
}

GGUF_TEST(tensors_that_collide_are_refused) {
    for (int same = 0; same < 2; same++) {
        tshi_test_gguf b = {0};
        tshi_test_gguf_begin(&b, 3, 2, 0);
        tshi_test_gguf_tensor(&b, "a", 1, (uint64_t[]){8}, 0, same ? 32 : 0);
        tshi_test_gguf_tensor(&b, same ? "a" : "b", 1, (uint64_t[]){8}, 0, 0);
        tshi_test_gguf_align(&b, 32);
        for (int i = 0; i < 8; i++) tshi_test_gguf_number(&b, 0, 8);
        refused_bytes(&b, TSH_ERR_IO, same ? "'a' occurs twice" : "overlaps another tensor");
    }
}

/* Each beginning of a golden file. */
GGUF_TEST(truncated_files_are_refused) {
    static char bytes[13856];
    char path[256];
    FILE *f = fopen(FOLDER "llama3/llama3-q8_0.gguf", "rb");
    cr_assert(f && fread(bytes, 1, sizeof bytes, f) == sizeof bytes);
    fclose(f);
    snprintf(path, sizeof path, "%s", tshi_test_path("cut.gguf"));
    for (size_t length = 0; length < sizeof bytes; length += length < 1400 ? 1 : 97) {
        tsh_allocator allocator = tshi_allocator_resolve(NULL);
        tshi_gguf *file = NULL;
        tshi_test_write_text("cut.gguf", "");
        f = fopen(path, "wb");
        cr_assert(f && fwrite(bytes, 1, length, f) == length && fclose(f) == 0);
        cr_assert_eq(tshi_gguf_open(&allocator, path, &file), TSH_ERR_IO, "%zu bytes", length);
        cr_assert(strstr(tsh_error_message(), "is truncated"), "%zu bytes: %s", length, tsh_error_message());
    }
}

/* --- configurations ----------------------------------------------------------------------------------------------- */

GGUF_TEST(makes_a_configuration) {
    char text[2000];
    cr_assert_eq(tsh_gguf_config(FOLDER "llama/llama-q4_0.gguf", text, sizeof text), TSH_OK, "%s", tsh_error_message());
    static const char *const parts[] = {"\"model_type\": \"llama\"",     "\"hidden_size\": 64",
                                        "\"vocab_size\": 101",           "\"num_key_value_heads\": 2",
                                        "\"rms_norm_eps\": 1e-5",        "\"rope_type\": \"default\"",
                                        "\"tie_word_embeddings\": false"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_assert(strstr(text, parts[i]), "%s: %s", parts[i], text);
    cr_assert_eq(tsh_gguf_config(FOLDER "llama3/llama3-f32.gguf", text, sizeof text), TSH_OK);
    static const char *const scaled[] = {"\"rope_type\": \"llama3\"", "\"factor\": 8.0",
                                         "\"original_max_position_embeddings\": 64", "\"tie_word_embeddings\": true"};
    for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++)
        cr_assert(strstr(text, scaled[i]), "%s: %s", scaled[i], text);
    cr_assert_eq(tsh_gguf_config(FOLDER "llama/llama-q4_0.gguf", text, 100), TSH_ERR_ARGUMENT);
    cr_assert(text[0] == '\0' && strstr(tsh_error_message(), "the text needs"), "%s", tsh_error_message());
    tshi_test_gguf none = {0};
    write_small(&none, 0, "t");
    cr_assert_eq(tsh_gguf_config(tshi_test_path("m.gguf"), text, sizeof text), TSH_ERR_UNSUPPORTED);
    cr_assert(strstr(tsh_error_message(), "its architecture is ''"), "%s", tsh_error_message());
    tshi_test_gguf_key_text(&none, "general.architecture", "qwen2");
    write_small(&none, 1, "t");
    free(none.at);
    cr_assert_eq(tsh_gguf_config(tshi_test_path("m.gguf"), text, sizeof text), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "has no whole number 'qwen2.embedding_length'"), "%s", tsh_error_message());
}

GGUF_TEST(gives_the_text_of_a_key) {
    char text[16] = "before";
    tshi_test_gguf keys = {0};
    tshi_test_gguf_key_text(&keys, "words", "a template");
    tshi_test_gguf_key_u32(&keys, "number", 1);
    tshi_test_gguf_key_text(&keys, "long", "sixteen bytes, 16");
    write_small(&keys, 3, "t");
    free(keys.at);
    const char *path = tshi_test_path("m.gguf");
    cr_assert_eq(tsh_gguf_text(path, "words", text, sizeof text), TSH_OK, "%s", tsh_error_message());
    cr_assert_str_eq(text, "a template");
    cr_assert_eq(tsh_gguf_text(path, "word", text, sizeof text), TSH_OK, "%s", tsh_error_message());
    cr_assert_str_empty(text);
    cr_assert_eq(tsh_gguf_text(path, "number", text, sizeof text), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "'number' is not a text"), "%s", tsh_error_message());
    strcpy(text, "before");
    cr_assert_eq(tsh_gguf_text(path, "long", text, sizeof text), TSH_ERR_ARGUMENT);
    cr_assert(text[0] == '\0' && strstr(tsh_error_message(), "needs 18 bytes"), "%s", tsh_error_message());
}

/* The base of rotary positions is 10000 where a file does not say it, as older ones do. */
GGUF_TEST(without_a_rotary_base_it_is_10000) {
    static const char *const keys[] = {"llama.embedding_length",    "llama.attention.head_count",
                                       "llama.context_length",      "llama.block_count",
                                       "llama.feed_forward_length", "llama.attention.layer_norm_rms_epsilon"};
    char text[2000];
    double number = 3;
    int64_t integer = 4;
    tshi_test_gguf b = {0};
    tshi_test_gguf_key_text(&b, "general.architecture", "llama");
    tshi_test_gguf_key_text(&b, "llama.rope.scaling.type", "linear");
    for (int i = 0; i < 6; i++) tshi_test_gguf_key_u32(&b, keys[i], 2);
    write_small(&b, 8, "token_embd.weight");
    free(b.at);
    cr_assert_eq(tsh_gguf_config(tshi_test_path("m.gguf"), text, sizeof text), TSH_OK, "%s", tsh_error_message());
    cr_assert(strstr(text, "\"rope_theta\": 10000.0") && strstr(text, "\"factor\": 1.0"), "%s", text);
    tshi_gguf *file = open_file(tshi_test_path("m.gguf"));
    cr_assert(!tshi_gguf_number_of(file, "none", &number) && number == 3);
    cr_assert(!tshi_gguf_integer_of(file, "none", &integer) && integer == 4);
    tshi_gguf_close(file);
}
