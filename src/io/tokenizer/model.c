/* The ids of words: from the cache of words that have been encoded before, or by the model. */
#include "io/tokenizer/tokenizer.h"

static tsh_status add_unknown(tsh_tokenizer *t) {
    if (t->model.unknown >= 0) return tshi_ids_add(t, t->model.unknown);
    return tshi_fail(TSH_ERR_IO, "a word has no tokens, and the tokenizer has no unk_token in its vocabulary");
}

/* Finds the longest token at the start of the rest of a word. *used: its length in bytes, 0 without such a token. */
static int32_t longest_token(tshi_token_model *m, const char *text, size_t length, bool first, size_t *used) {
    tshi_bytes *name = &m->spelled;
    tshi_bytes_clear(name);
    if (!first) tshi_bytes_add(name, m->prefix.data, m->prefix.length);
    size_t before = name->length;
    tshi_bytes_add(name, text, length);
    for (*used = length; *used && !name->failed; *used = tshi_utf8_before(text, *used)) {
        int32_t id = tshi_vocabulary_find(&m->vocabulary, name->data, before + *used);
        if (id >= 0) return id;
    }
    *used = 0;
    return -1;
}

static tsh_status encode_wordpiece(tsh_tokenizer *t, const char *text, size_t length) {
    tshi_token_model *m = &t->model;
    int before = t->ids.count;
    int64_t characters = 0;
    tsh_status status = TSH_OK;
    for (size_t at = 0; at < length; at += tshi_utf8_length(text[at])) characters++;
    if (characters > m->longest_word) return add_unknown(t);
    for (size_t at = 0, used; status == TSH_OK && at < length; at += used) {
        int32_t id = longest_token(m, text + at, length - at, at == 0, &used);
        if (m->spelled.failed) return TSH_ERR_MEMORY;
        if (id < 0) {
            t->ids.count = before;
            return add_unknown(t);
        }
        status = tshi_ids_add(t, id);
    }
    return status;
}

static tsh_status encode_anew(tsh_tokenizer *t, const char *text, size_t length) {
    tshi_token_model *m = &t->model;
    if (m->kind == TSHI_MODEL_WORDPIECE) return encode_wordpiece(t, text, length);
    if (!m->letters) return tshi_bpe_encode(t, text, length);
    tshi_bytes_clear(&m->spelled);
    tshi_text_letters(text, length, &m->spelled);
    return m->spelled.failed ? TSH_ERR_MEMORY : tshi_bpe_encode(t, m->spelled.data, m->spelled.length);
}

static tsh_status encode_word(tsh_tokenizer *t, const char *text, size_t length) {
    tshi_words *words = &t->model.words;
    tsh_status status = TSH_OK;
    int count = 0, before = t->ids.count;
    if (length > TSHI_MAX_WORD_BYTES) return encode_anew(t, text, length);
    uint64_t hash = tshi_hash_bytes(text, length);
    const int32_t *ids = tshi_words_find(words, text, length, hash, &count);
    if (!ids) {
        status = encode_anew(t, text, length);
        if (status == TSH_OK) tshi_words_keep(words, text, length, hash, t->ids.items + before, t->ids.count - before);
        return status;
    }
    status = tshi_grow(&t->allocator, (void **)&t->ids.items, &t->ids.capacity, before + count, sizeof *t->ids.items);
    if (status != TSH_OK) return status;
    for (int i = 0; i < count; i++) t->ids.items[before + i] = ids[i];
    t->ids.count += count;
    return TSH_OK;
}

/* The next place behind `at` where the cut's text begins, and not right behind another one. */
static size_t next_cut(const tshi_bytes *cut, const char *text, size_t length, size_t at) {
    size_t n = cut->length;
    while (length - at >= n && memcmp(text + at, cut->data, n) == 0) at += n;
    for (const char *place; (place = memchr(text + at, cut->data[0], length - at)) != NULL;) {
        at = (size_t)(place - text);
        if (length - at >= n && memcmp(place, cut->data, n) == 0) return at;
        at++;
    }
    return length;
}

tsh_status tshi_model_encode(tsh_tokenizer *t, const char *text, size_t length) {
    const tshi_bytes *cut = &t->model.cut;
    tsh_status status = TSH_OK;
    if (cut->length == 0) return length ? encode_word(t, text, length) : TSH_OK;
    for (size_t at = 0, end; status == TSH_OK && at < length; at = end) {
        end = next_cut(cut, text, length, at);
        status = encode_word(t, text + at, end - at);
    }
    return status;
}
