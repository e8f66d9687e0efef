/* Any bytes, read as a tokenizer.json, a text and ids: no byte beyond an end is read, nothing leaks, and of an accepted
 * file the ids are tokens', the same when words are found among those that are kept, and texts are UTF-8, also from a
 * stream. The first byte is the length of the text, which comes before the file. */
#include "io/tokenizer/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void require_utf8(const char *text, size_t length) {
    require(tshi_utf8_valid(text, length) == length && text[length] == '\0');
}

/* Each id by itself, in a stream. */
static void stream(tsh_tokenizer *t, const int64_t *ids, int64_t count) {
    tsh_text_stream *s = NULL;
    const char *text;
    size_t length;
    require(tsh_text_stream_create(t, count % 2, &s) == TSH_OK);
    for (int64_t i = 0; i < count; i++) {
        if (tsh_text_stream_add(s, ids[i], &text, &length) == TSH_OK) require_utf8(text, length);
    }
    if (tsh_text_stream_end(s, &text, &length) == TSH_OK) require_utf8(text, length);
    tsh_text_stream_destroy(s);
}

static void use(tsh_tokenizer *t, const char *text, size_t length) {
    const int64_t *ids;
    int64_t count, before, *kept;
    const char *made;
    size_t made_length;
    if (tsh_tokenizer_encode(t, text, length, true, &ids, &count) != TSH_OK) return;
    kept = malloc((size_t)count * sizeof *kept + 1);
    require(kept != NULL);
    memcpy(kept, ids, (size_t)count * sizeof *kept);
    before = count;
    require(tsh_tokenizer_encode(t, text, length, true, &ids, &count) == TSH_OK && count == before);
    require(memcmp(kept, ids, (size_t)count * sizeof *kept) == 0);
    for (int64_t i = 0; i < count; i++) require(ids[i] >= 0 && ids[i] < TSHI_TOKEN_IDS);
    if (tsh_tokenizer_decode(t, kept, count, count % 2, &made, &made_length) == TSH_OK) require_utf8(made, made_length);
    stream(t, kept, count);
    free(kept);
}

/* Ids from the text's bytes, in any order. */
static void decode_any(tsh_tokenizer *t, const uint8_t *bytes, size_t length) {
    int64_t ids[256];
    const char *made;
    size_t made_length;
    for (size_t i = 0; i < length; i++) ids[i] = bytes[i] % 64;
    if (tsh_tokenizer_decode(t, ids, (int64_t)length, true, &made, &made_length) == TSH_OK)
        require_utf8(made, made_length);
    stream(t, ids, (int64_t)length);
}

/* Parses as tsh_tokenizer_load does, but from memory. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tsh_tokenizer *t = NULL;
    if (size < 1 || size - 1 < data[0]) return 0;
    size_t length = data[0], bytes = size - 1 - length;
    /* Memory of exactly these sizes, so that a read of one byte more is noticed. */
    char *text = malloc(length ? length : 1), *json = malloc(bytes ? bytes : 1);
    require(text && json);
    memcpy(text, data + 1, length);
    memcpy(json, data + 1 + length, bytes);
    if (tshi_tokenizer_create("fuzzed", json, bytes, &t) == TSH_OK) {
        use(t, text, length);
        decode_any(t, data + 1, length);
        tsh_tokenizer_id(t, "a");
        tsh_tokenizer_size(t);
    }
    tsh_tokenizer_destroy(t);
    free(text);
    free(json);
    return 0;
}
