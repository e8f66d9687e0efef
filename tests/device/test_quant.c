/* Quantized weights against those of ggml's own code (tests/data/quant): the weights of groups bit by bit, and the
 * groups of weights byte by byte. */
#include "device/quant.h"
#include "io/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tshi_safetensors *open_file(const char *name) {
    char path[512];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file = NULL;
    snprintf(path, sizeof path, TSHARD_TEST_DATA "/quant/%s.safetensors", name);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_OK, "%s", tsh_error_message());
    return file;
}

/* The bytes of a tensor, which the caller frees; NULL without such a tensor. */
static void *read_all(tshi_safetensors *file, const char *name, size_t *bytes) {
    const tshi_safetensors_entry *e = tshi_safetensors_find(file, name);
    tsh_box box = {0};
    if (!e) return NULL;
    for (int d = 0; d < e->ndim; d++) box.length[d] = e->shape[d];
    void *all = malloc(*bytes = (size_t)e->bytes);
    cr_assert(all && tshi_safetensors_read_box(file, e, &box, all) == TSH_OK);
    return all;
}

static void check(tshi_safetensors *file, const char *file_name, const char *word, tshi_quant quant) {
    const tshi_quant_format *format = tshi_quant_format_of(quant);
    char values_name[64];
    size_t bytes, values_bytes, x_bytes;
    snprintf(values_name, sizeof values_name, "%s.values", word);
    unsigned char *groups = read_all(file, word, &bytes);
    if (!groups) return;
    float *values = read_all(file, values_name, &values_bytes), *x = read_all(file, "x", &x_bytes);
    cr_assert_not_null(values);
    int64_t count = (int64_t)(bytes / format->bytes);
    cr_assert_eq((size_t)count * format->bytes, bytes);
    cr_assert_eq((size_t)(count * format->weights) * sizeof(float), values_bytes);
    float *made = malloc(values_bytes);
    unsigned char *again = malloc(bytes);
    cr_assert(made && again && x && x_bytes == values_bytes);
    format->dequantize(count, groups, made);
    for (int64_t i = 0; i < count * format->weights; i++)
        cr_assert(memcmp(&made[i], &values[i], sizeof *made) == 0, "%s, %s[%d]: %a, %a wanted", file_name, word, (int)i,
                  (double)made[i], (double)values[i]);
    if (format->quantize) {
        format->quantize(count, x, again);
        for (size_t i = 0; i < bytes; i++)
            cr_assert_eq(again[i], groups[i], "%s, %s: byte %zu of group %zu is %d, %d wanted", file_name, word,
                         i % format->bytes, i / format->bytes, again[i], groups[i]);
    }
    free(groups);
    free(values);
    free(x);
    free(made);
    free(again);
}

Test(quant, equals_ggml, .timeout = 60) {
    static const char *const files[] = {"1x32", "3x96", "7x160", "13x416", "edges", "k_3x256", "k_5x768"};
    static const char *const words[] = {"q4_0", "q8_0", "q4_k", "q5_k", "q6_k"};
    int found = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        tshi_safetensors *file = open_file(files[f]);
        for (int q = 0; q < TSHI_QUANTS; q++) {
            found += tshi_safetensors_find(file, words[q]) != NULL;
            check(file, files[f], words[q], (tshi_quant)q);
        }
        tshi_safetensors_close(file);
    }
    cr_assert_eq(found, 5 * 2 + 2 * 3);
}
