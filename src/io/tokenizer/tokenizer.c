/* Loading and destroying tokenizers, and looking up their tokens. */
#include "io/tokenizer/tokenizer.h"

#include "io/file.h"
#include "io/gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_FILE_BYTES ((uint64_t)256 << 20)

/* --- loading ------------------------------------------------------------------------------------------------------ */

static void set_allocators(tsh_tokenizer *t) {
    const tsh_allocator *a = &t->allocator;
    t->model.unknown = -1;
    t->model.vocabulary.allocator = t->model.vocabulary.text.allocator = a;
    t->added.allocator = t->added.text.allocator = a;
    t->model.merges.allocator = t->model.words.allocator = a;
    t->model.prefix.allocator = t->model.suffix.allocator = t->model.cut.allocator = t->model.spelled.allocator = a;
    t->texts[0].bytes.allocator = t->texts[1].bytes.allocator = t->codes.allocator = t->text.allocator = a;
}

/* The path of the file: itself, or the one in the folder. */
static const char *file_of(const char *path, char *room, size_t size) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return path;
    int length = snprintf(room, size, "%s/tokenizer.json", path);
    return length > 0 && (size_t)length < size ? room : path;
}

tsh_status tshi_tokenizer_create(const char *path, const char *json, size_t bytes, tsh_tokenizer **out) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tsh_tokenizer *t = tshi_calloc(&allocator, 1, sizeof *t);
    *out = NULL;
    if (!t) return TSH_ERR_MEMORY;
    t->allocator = allocator;
    set_allocators(t);
    tsh_status status = tshi_tokenizer_parse(t, path, json, bytes);
    if (status == TSH_OK)
        *out = t;
    else
        tsh_tokenizer_destroy(t);
    return status;
}

static tsh_status load_from_gguf(const tsh_allocator *allocator, const char *path, tsh_tokenizer **out) {
    tshi_gguf *file;
    char *json = NULL;
    tsh_status status = tshi_gguf_open(allocator, path, &file);
    if (status != TSH_OK) return status;
    status = tshi_gguf_tokenizer(file, &json);
    if (status == TSH_OK) status = tshi_tokenizer_create(path, json, strlen(json), out);
    tshi_gguf_close(file);
    free(json);
    return status;
}

tsh_status tsh_tokenizer_load(const char *path, tsh_tokenizer **out) {
    char room[4096], *json = NULL;
    size_t bytes = 0;
    if (out) *out = NULL;
    if (!path || !out) return tshi_fail(TSH_ERR_ARGUMENT, "tsh_tokenizer_load: %s is NULL", path ? "out" : "path");
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    const char *file = file_of(path, room, sizeof room);
    if (tshi_gguf_is(file)) return load_from_gguf(&allocator, file, out);
    tsh_status status = tshi_file_load(&allocator, file, "a tokenizer", MAX_FILE_BYTES, &json, &bytes);
    if (status == TSH_OK) status = tshi_tokenizer_create(file, json, bytes, out);
    tshi_free(&allocator, json);
    return status;
}

/* --- destroying --------------------------------------------------------------------------------------------------- */

static void free_steps(tshi_text_steps *steps) {
    for (int i = 0; i < TSHI_MAX_STEPS; i++) {
        tshi_pattern_free(steps->items[i].pattern);
        tshi_bytes_free(&steps->items[i].content);
        tshi_bytes_free(&steps->items[i].made);
    }
}

static void free_set(const tsh_allocator *allocator, tshi_added_set *set) {
    for (int i = 0; i < set->count; i++) tshi_bytes_free(&set->items[i].content);
    tshi_free(allocator, set->items);
}

static void free_model(const tsh_allocator *allocator, tshi_token_model *m) {
    tshi_vocabulary_free(&m->vocabulary);
    tshi_merges_free(&m->merges);
    tshi_words_free(&m->words);
    tshi_bytes_free(&m->prefix);
    tshi_bytes_free(&m->suffix);
    tshi_bytes_free(&m->cut);
    tshi_bytes_free(&m->spelled);
    tshi_free(allocator, m->symbols);
    tshi_free(allocator, m->heap);
}

void tsh_tokenizer_destroy(tsh_tokenizer *t) {
    if (!t) return;
    const tsh_allocator allocator = t->allocator;
    free_steps(&t->normalizers);
    free_steps(&t->splitters);
    free_steps(&t->decoders);
    free_model(&allocator, &t->model);
    free_set(&allocator, &t->plain);
    free_set(&allocator, &t->normalized);
    tshi_vocabulary_free(&t->added);
    tshi_free(&allocator, t->special);
    tshi_free(&allocator, t->template);
    tshi_free(&allocator, t->ids.items);
    for (int i = 0; i < 2; i++) {
        tshi_bytes_free(&t->texts[i].bytes);
        tshi_free(&allocator, t->texts[i].ends);
    }
    tshi_bytes_free(&t->codes);
    tshi_bytes_free(&t->text);
    tshi_free(&allocator, t);
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

int64_t tsh_tokenizer_size(const tsh_tokenizer *tokenizer) {
    if (!tokenizer) return 0;
    int added = tokenizer->added.size, own = tokenizer->model.vocabulary.size;
    return added > own ? added : own;
}

int64_t tsh_tokenizer_id(const tsh_tokenizer *tokenizer, const char *token) {
    if (!tokenizer || !token) return -1;
    int32_t id = tshi_vocabulary_find(&tokenizer->added, token, strlen(token));
    return id >= 0 ? id : tshi_vocabulary_find(&tokenizer->model.vocabulary, token, strlen(token));
}
