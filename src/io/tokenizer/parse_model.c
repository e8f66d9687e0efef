/* Parses the model of a tokenizer.json: its vocabulary and merges. */
#include "io/tokenizer/parse.h"

static tsh_status parse_vocabulary(const tshi_parse *p, const json_t *json) {
    const char *name;
    json_t *value;
    tshi_vocabulary *vocabulary = &p->tokenizer->model.vocabulary;
    if (!json_is_object(json)) return tshi_parse_refuse(p, "the model's vocab", "an object of tokens and ids");
    json_object_foreach((json_t *)json, name, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= TSHI_TOKEN_IDS)
            return tshi_fail(TSH_ERR_IO, "%.220s: the id of token '%.60s' is not from 0 to 16777215", p->path, name);
        tsh_status status = tshi_vocabulary_add(vocabulary, name, strlen(name), (int32_t)id);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

/* --- merges ------------------------------------------------------------------------------------------------------- */

/* The halves of a merge: "left right" or ["left", "right"]. */
typedef struct halves {
    const char *left, *right;
    size_t left_length, right_length;
} halves;

static bool read_halves(const json_t *json, halves *out) {
    *out = (halves){.left = json_string_value(json)};
    if (out->left) {
        const char *blank = strchr(out->left, ' ');
        if (!blank || strchr(blank + 1, ' ')) return false;
        out->right = blank + 1;
        out->left_length = (size_t)(blank - out->left);
    } else {
        out->left = json_string_value(json_array_get(json, 0));
        out->right = json_string_value(json_array_get(json, 1));
        if (json_array_size(json) != 2 || !out->left || !out->right) return false;
        out->left_length = strlen(out->left);
    }
    out->right_length = strlen(out->right);
    return true;
}

static tsh_status refuse_merge(const tshi_parse *p, const halves *h, size_t rank, const char *which) {
    return tshi_fail(TSH_ERR_IO, "%.220s: merge %zu, '%.60s' and '%.60s', has %s that is not in the vocabulary",
                     p->path, rank, h->left, h->right, which);
}

static tsh_status add_merge(const tshi_parse *p, const halves *h, size_t rank, tshi_bytes *joined) {
    tshi_token_model *m = &p->tokenizer->model;
    size_t prefix = m->prefix.length;
    int32_t left = tshi_vocabulary_find(&m->vocabulary, h->left, h->left_length);
    int32_t right = tshi_vocabulary_find(&m->vocabulary, h->right, h->right_length);
    if (left < 0 || right < 0) return refuse_merge(p, h, rank, "a half");
    if (prefix > h->right_length) return refuse_merge(p, h, rank, "a right half without the prefix, a token");
    tshi_bytes_clear(joined);
    tshi_bytes_add(joined, h->left, h->left_length);
    tshi_bytes_add(joined, h->right + prefix, h->right_length - prefix);
    if (joined->failed) return TSH_ERR_MEMORY;
    int32_t id = tshi_vocabulary_find(&m->vocabulary, joined->data, joined->length);
    if (id < 0) return refuse_merge(p, h, rank, "a result");
    tshi_merges_add(&m->merges, left, right, (int32_t)rank, id);
    return TSH_OK;
}

static tsh_status parse_merges(const tshi_parse *p, const json_t *json) {
    size_t rank;
    const json_t *merge;
    tshi_bytes joined = {.allocator = &p->tokenizer->allocator};
    if (!json_is_array(json)) return tshi_parse_refuse(p, "the model's merges", "an array");
    tsh_status status = tshi_merges_create(&p->tokenizer->model.merges, json_array_size(json));
    json_array_foreach((json_t *)json, rank, merge) {
        halves h;
        if (status != TSH_OK) break;
        if (read_halves(merge, &h))
            status = add_merge(p, &h, rank, &joined);
        else
            status = tshi_fail(TSH_ERR_IO, "%.220s: merge %zu is not two tokens", p->path, rank);
    }
    tshi_bytes_free(&joined);
    return status;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

/* Looks up the token that stands for unknown text. */
static void set_unknown(tshi_token_model *m, const json_t *json) {
    const char *unknown = tshi_parse_text(json, "unk_token");
    if (unknown) m->unknown = tshi_vocabulary_find(&m->vocabulary, unknown, strlen(unknown));
}

static tsh_status set_affixes(const tshi_parse *p, const json_t *json) {
    tshi_token_model *m = &p->tokenizer->model;
    const char *prefix = tshi_parse_text(json, "continuing_subword_prefix");
    const char *suffix = tshi_parse_text(json, "end_of_word_suffix");
    if (!prefix) prefix = m->kind == TSHI_MODEL_WORDPIECE ? "##" : "";
    tsh_status status = tshi_parse_copy(&m->prefix, prefix);
    if (status == TSH_OK) status = tshi_parse_copy(&m->suffix, suffix ? suffix : "");
    if (status == TSH_OK && (m->prefix.length > 32 || m->suffix.length > 32))
        status = tshi_parse_refuse(p, "the model's prefix or suffix", "at most 32 bytes long");
    return status;
}

static tsh_status parse_bpe(const tshi_parse *p, const json_t *json) {
    tshi_token_model *m = &p->tokenizer->model;
    const json_t *dropout = json_object_get(json, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) > 0)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: the model has dropout, which is not built in; null is", p->path);
    m->fuse_unknown = tshi_parse_truth(json, "fuse_unk", false);
    m->byte_fallback = tshi_parse_truth(json, "byte_fallback", false);
    m->ignore_merges = tshi_parse_truth(json, "ignore_merges", false);
    for (int i = 0; i < 256; i++) {
        static const char digits[] = "0123456789ABCDEF";
        const char name[] = {'<', '0', 'x', digits[i >> 4], digits[i & 15], '>'};
        m->bytes[i] = tshi_vocabulary_find(&m->vocabulary, name, sizeof name);
    }
    return parse_merges(p, json_object_get(json, "merges"));
}

static tsh_status parse_wordpiece(const tshi_parse *p, const json_t *json) {
    const json_t *most = json_object_get(json, "max_input_chars_per_word");
    p->tokenizer->model.longest_word = json_is_integer(most) ? json_integer_value(most) : 100;
    return TSH_OK;
}

tsh_status tshi_parse_model(const tshi_parse *p, const json_t *json) {
    tshi_token_model *m = &p->tokenizer->model;
    const char *type = tshi_parse_text(json, "type");
    if (!json_is_object(json)) return tshi_parse_refuse(p, "the model", "an object");
    if (!type) type = json_object_get(json, "merges") ? "BPE" : NULL; /* of files before version 0.9 */
    bool bpe = type && strcmp(type, "BPE") == 0;
    if (!bpe && !(type && strcmp(type, "WordPiece") == 0))
        return tshi_parse_unknown(p, "model", type, "BPE and WordPiece are");
    m->kind = bpe ? TSHI_MODEL_BPE : TSHI_MODEL_WORDPIECE;
    tsh_status status = parse_vocabulary(p, json_object_get(json, "vocab"));
    if (status == TSH_OK) status = set_affixes(p, json);
    if (status != TSH_OK) return status;
    set_unknown(m, json);
    return bpe ? parse_bpe(p, json) : parse_wordpiece(p, json);
}
