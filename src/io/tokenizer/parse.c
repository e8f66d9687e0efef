/* Parses a tokenizer.json, and prepares what encoding needs. */
#include "io/tokenizer/parse.h"

/* True if a word can be cut before each run of this text: if no token has it after another character, no merge spans
 * such a place. */
static bool cuts(const tshi_vocabulary *v, const char *text, size_t length) {
    if (tshi_vocabulary_find(v, text, length) < 0) return false;
    for (int i = 0; i < v->count; i++) {
        const char *token = v->text.data + v->entries[i].start;
        size_t left = v->entries[i].length, at = 0;
        while (left - at >= length && memcmp(token + at, text, length) == 0) at += length;
        if (at < left && memmem(token + at, left - at, text, length)) return false;
    }
    return true;
}

static tsh_status prepare(tsh_tokenizer *t) {
    tshi_token_model *m = &t->model;
    tshi_text_steps *s = &t->splitters;
    static const char blank[] = "\xe2\x96\x81";
    tshi_added_sort(&t->plain);
    tshi_added_sort(&t->normalized);
    bool bpe = m->kind == TSHI_MODEL_BPE;
    if (bpe && s->count && s->items[s->count - 1].kind == TSHI_STEP_LETTERS) {
        m->letters = true; /* of those words alone that are not known */
        s->count--;
    }
    if (bpe && !m->letters && !m->ignore_merges && m->prefix.length + m->suffix.length == 0 &&
        cuts(&m->vocabulary, blank, strlen(blank)))
        tshi_bytes_add(&m->cut, blank, strlen(blank));
    return m->cut.failed ? TSH_ERR_MEMORY : TSH_OK;
}

static tsh_status parse_all(const tshi_parse *p, const json_t *json) {
    tsh_status status = tshi_parse_model(p, json_object_get(json, "model"));
    if (status == TSH_OK) status = tshi_parse_normalizer(p, json_object_get(json, "normalizer"));
    if (status == TSH_OK) status = tshi_parse_added(p, json_object_get(json, "added_tokens"));
    if (status == TSH_OK) status = tshi_parse_splitter(p, json_object_get(json, "pre_tokenizer"));
    if (status == TSH_OK) status = tshi_parse_template(p, json_object_get(json, "post_processor"));
    if (status == TSH_OK) status = tshi_parse_decoder(p, json_object_get(json, "decoder"));
    return status;
}

tsh_status tshi_tokenizer_parse(tsh_tokenizer *t, const char *path, const char *text, size_t bytes) {
    json_error_t error;
    const tshi_parse p = {.tokenizer = t, .path = path};
    json_t *json = json_loadb(text, bytes, JSON_ALLOW_NUL, &error);
    if (!json) return tshi_fail(TSH_ERR_IO, "%.220s: line %d is not JSON: %.160s", path, error.line, error.text);
    tsh_status status = json_is_object(json) ? parse_all(&p, json) : tshi_parse_refuse(&p, "the file", "a JSON object");
    json_decref(json);
    return status == TSH_OK ? prepare(t) : status;
}
