/* Builds a tokenizer.json from the tokenizer in a GGUF file's keys. */
#include "io/gguf/gguf.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The types of tokens. */
enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4 };

/* The regular expressions that split a text into words, by the name in tokenizer.ggml.pre. */
typedef struct word_cuts {
    const char *name, *pattern; /* NULL: GPT-2's */
    bool ignore_merges, begins, nfc;
} word_cuts;

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define OTHERS  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const word_cuts cuts[] = {
    {"gpt-2", NULL, false, false, false},
    {"llama-bpe", ENDINGS "\\p{N}{1,3}" OTHERS, true, true, false},
    {"llama3", ENDINGS "\\p{N}{1,3}" OTHERS, true, true, false},
    {"llama-v3", ENDINGS "\\p{N}{1,3}" OTHERS, true, true, false},
    {"qwen2", ENDINGS "\\p{N}" OTHERS, false, false, true},
};

static tsh_status refuse(const tshi_gguf *file, const char *what) {
    return tshi_fail(TSH_ERR_IO, "%.220s: %s", file->path, what);
}

static tsh_status no_memory(const tshi_gguf *file) {
    return tshi_fail(TSH_ERR_MEMORY, "%.220s: no memory for a tokenizer", file->path);
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

/* The vocabulary, its added tokens, and for each id its text, in memory of the file. */
typedef struct tokens {
    int64_t count;
    tshi_gguf_text *items;
    json_t *vocabulary, *added;
    char *room; /* for the longest of them */
} tokens;

static tsh_status add_special(const tshi_gguf *file, tokens *t, int64_t id, int64_t type) {
    if (type != TOKEN_UNKNOWN && type != TOKEN_CONTROL && type != TOKEN_USER) return TSH_OK;
    json_t *token = json_pack("{s:I, s:s%, s:b, s:b}", "id", (json_int_t)id, "content", t->items[id].at,
                              t->items[id].length, "special", type != TOKEN_USER, "normalized", 0);
    return json_array_append_new(t->added, token) == 0 ? TSH_OK : no_memory(file);
}

/* If several ids have the same text, the vocabulary has the first of them. */
static tsh_status add_token(const tshi_gguf *file, tokens *t, int64_t id, int64_t type) {
    const tshi_gguf_text *text = &t->items[id];
    json_t *name = json_stringn(text->at, text->length);
    if (!name || memchr(text->at, 0, text->length)) {
        json_decref(name);
        return tshi_fail(TSH_ERR_IO, "%.220s: token %lld is not UTF-8, or has a zero", file->path, (long long)id);
    }
    const char *key = json_string_value(name);
    bool taken = json_object_get(t->vocabulary, key) || (type == TOKEN_USER && text->length == 0);
    int failed = taken ? 0 : json_object_set_new(t->vocabulary, key, json_integer(id));
    json_decref(name);
    return failed ? no_memory(file) : add_special(file, t, id, type);
}

static tsh_status read_tokens(const tshi_gguf *file, tokens *t) {
    const tshi_gguf_value *texts = tshi_gguf_find(file, "tokenizer.ggml.tokens");
    const tshi_gguf_value *types = tshi_gguf_find(file, "tokenizer.ggml.token_type");
    if (!texts || !texts->array || texts->type != TSHI_GGUF_TEXT || texts->count > 1 << 24)
        return refuse(file, "has no list of texts tokenizer.ggml.tokens, of at most 16777216");
    tshi_gguf_value left = *texts, left_types = types ? *types : (tshi_gguf_value){.count = 0};
    size_t longest = 0;
    t->count = (int64_t)texts->count;
    t->items = tshi_calloc(&file->allocator, (size_t)t->count + 1, sizeof *t->items);
    t->vocabulary = json_object();
    t->added = json_array();
    tsh_status status = t->items && t->vocabulary && t->added ? TSH_OK : no_memory(file);
    for (int64_t id = 0; status == TSH_OK && id < t->count; id++) {
        int64_t type = 1;
        tshi_gguf_next_integer(&left_types, &type);
        if (!tshi_gguf_next_text(&left, &t->items[id])) return refuse(file, "tokenizer.ggml.tokens ends early");
        longest = t->items[id].length > longest ? t->items[id].length : longest;
        status = add_token(file, t, id, type);
    }
    if (status == TSH_OK) t->room = tshi_calloc(&file->allocator, longest + 1, 1);
    return status == TSH_OK && !t->room ? TSH_ERR_MEMORY : status;
}

/* --- merges ------------------------------------------------------------------------------------------------------- */

/* Merges as texts "left right". */
static tsh_status read_merges(const tshi_gguf *file, json_t *merges) {
    const tshi_gguf_value *value = tshi_gguf_find(file, "tokenizer.ggml.merges");
    tshi_gguf_value left = value ? *value : (tshi_gguf_value){.count = 0};
    tshi_gguf_text text;
    if (!value) return refuse(file, "has no tokenizer.ggml.merges");
    while (tshi_gguf_next_text(&left, &text)) {
        json_t *merge = json_stringn(text.at, text.length);
        if (json_array_append_new(merges, merge) != 0) return refuse(file, "a merge is not UTF-8");
    }
    return TSH_OK;
}

/* A pair of tokens that make a token. */
typedef struct pair {
    double score; /* of the token that they make */
    json_int_t left, right;
    uint32_t cut; /* the length of the left one, in bytes */
    uint32_t made;
} pair;

enum { MAX_PAIRED = 4096 }; /* bytes of a token whose pairs are looked for: the time is their square */

typedef struct pairs {
    pair *items;
    int count, capacity;
} pairs;

/* SentencePiece joins the pair whose token has the highest score. */
static int by_score(const void *left, const void *right) {
    const pair *a = left, *b = right;
    if (a->score < b->score || a->score > b->score) return a->score > b->score ? -1 : 1;
    if (a->made != b->made) return a->made < b->made ? -1 : 1;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    return a->right < b->right ? -1 : a->right > b->right;
}

/* The id of a text; NULL for none. */
static const json_t *find_token(const tokens *t, const char *text, size_t length) {
    memcpy(t->room, text, length);
    t->room[length] = '\0';
    return json_object_get(t->vocabulary, t->room);
}

static tsh_status add_pairs(const tshi_gguf *file, const tokens *t, int64_t id, double score, pairs *out) {
    const tshi_gguf_text *text = &t->items[id];
    for (size_t cut = 1; cut < text->length; cut++) {
        const json_t *left = find_token(t, text->at, cut);
        const json_t *right = left ? find_token(t, text->at + cut, text->length - cut) : NULL;
        if (!right) continue;
        tsh_status status =
            tshi_grow(&file->allocator, (void **)&out->items, &out->capacity, out->count + 1, sizeof *out->items);
        if (status != TSH_OK) return status;
        out->items[out->count++] = (pair){.score = score,
                                          .left = json_integer_value(left),
                                          .right = json_integer_value(right),
                                          .cut = (uint32_t)cut,
                                          .made = (uint32_t)id};
    }
    return TSH_OK;
}

/* All pairs of tokens that make a token, by its score. */
static tsh_status make_merges(const tshi_gguf *file, const tokens *t, json_t *merges) {
    const tshi_gguf_value *scores = tshi_gguf_find(file, "tokenizer.ggml.scores");
    tshi_gguf_value left = scores ? *scores : (tshi_gguf_value){.count = 0};
    tsh_status status = scores ? TSH_OK : refuse(file, "has no tokenizer.ggml.scores");
    pairs all = {0};
    for (int64_t id = 0; status == TSH_OK && id < t->count; id++) {
        double score = 0;
        if (!tshi_gguf_next_number(&left, &score)) status = refuse(file, "tokenizer.ggml.scores ends early");
        if (status == TSH_OK && !isfinite(score)) status = refuse(file, "a score of a token is not finite");
        if (status == TSH_OK && t->items[id].length > MAX_PAIRED)
            status = refuse(file, "a token has more than 4096 bytes");
        if (status == TSH_OK) status = add_pairs(file, t, id, score, &all);
    }
    if (all.count) qsort(all.items, (size_t)all.count, sizeof *all.items, by_score);
    for (int i = 0; status == TSH_OK && i < all.count; i++) {
        const pair *p = &all.items[i];
        const tshi_gguf_text *text = &t->items[p->made];
        json_t *merge = json_pack("[s%, s%]", text->at, (size_t)p->cut, text->at + p->cut, text->length - p->cut);
        if (json_array_append_new(merges, merge) != 0) status = no_memory(file);
    }
    tshi_free(&file->allocator, all.items);
    return status;
}

/* --- the parts of a tokenizer.json -------------------------------------------------------------------------------- */

/* The tokens before and after a text. */
static json_t *template_of(const tshi_gguf *file, const tokens *t, bool begins) {
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"};
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"};
    json_t *pieces = json_array(), *special = json_object();
    int64_t id;
    for (int i = 0; i < 2; i++) {
        if (i == 1) json_array_append_new(pieces, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
        if (!tshi_gguf_flag_of(file, flags[i], i == 0 && begins) || !tshi_gguf_integer_of(file, ids[i], &id)) continue;
        if (id < 0 || id >= t->count) continue;
        const char *name = i == 0 ? "begin" : "end";
        json_array_append_new(pieces, json_pack("{s:{s:s}}", "SpecialToken", "id", name));
        json_object_set_new(special, name, json_pack("{s:[I]}", "ids", (json_int_t)id));
    }
    return json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", pieces, "special_tokens", special);
}

static json_t *byte_level(bool cuts_words) {
    return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", cuts_words);
}

static json_t *splitter_of(const word_cuts *c) {
    if (!c->pattern) return byte_level(true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", c->pattern, "behavior", "Isolated", "invert", 0, byte_level(false));
}

static tsh_status find_cuts(const tshi_gguf *file, const word_cuts **out) {
    char name[64] = "gpt-2";
    tshi_gguf_text_of(file, "tokenizer.ggml.pre", name, sizeof name);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        *out = &cuts[i];
        if (strcmp(name, cuts[i].name) == 0) return TSH_OK;
    }
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "%.220s: tokenizer.ggml.pre is '%s', which is not built in; gpt-2, llama-bpe and qwen2 are",
                     file->path, name);
}

/* Byte-level BPE. */
static tsh_status make_bytes(const tshi_gguf *file, const tokens *t, json_t **out) {
    const word_cuts *c;
    json_t *merges = json_array();
    tsh_status status = find_cuts(file, &c);
    if (status == TSH_OK) status = read_merges(file, merges);
    if (status == TSH_OK)
        *out =
            json_pack("{s:{s:s, s:O, s:O, s:b}, s:O, s:o, s:o, s:o, s:o}", "model", "type", "BPE", "vocab",
                      t->vocabulary, "merges", merges, "ignore_merges", c->ignore_merges, "added_tokens", t->added,
                      "normalizer", c->nfc ? json_pack("{s:s}", "type", "NFC") : json_null(), "pre_tokenizer",
                      splitter_of(c), "post_processor", template_of(file, t, c->begins), "decoder", byte_level(false));
    json_decref(merges);
    return status;
}

#define BLANK "\xe2\x96\x81"

/* What SentencePiece does to a text: each space becomes a BLANK, and one BLANK is put before the text. */
static json_t *normalizer_of(bool leads) {
    json_t *replace = json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", BLANK);
    json_t *steps = json_array();
    if (leads) json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", BLANK));
    json_array_append_new(steps, replace);
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *decoder_of(bool leads) {
    json_t *steps = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String", BLANK,
                              "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (leads)
        json_array_append_new(
            steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

/* SentencePiece's BPE, with byte tokens for characters that are no token. */
static tsh_status make_pieces(const tshi_gguf *file, const tokens *t, json_t **out) {
    json_t *merges = json_array(), *unknown = json_null();
    bool leads = tshi_gguf_flag_of(file, "tokenizer.ggml.add_space_prefix", true);
    int64_t id = 0;
    tshi_gguf_integer_of(file, "tokenizer.ggml.unknown_token_id", &id);
    if (id >= 0 && id < t->count) unknown = json_stringn(t->items[id].at, t->items[id].length);
    tsh_status status = make_merges(file, t, merges);
    if (status == TSH_OK)
        *out = json_pack("{s:{s:s, s:O, s:O, s:O, s:b, s:b}, s:O, s:o, s:n, s:o, s:o}", "model", "type", "BPE", "vocab",
                         t->vocabulary, "merges", merges, "unk_token", unknown, "fuse_unk", 1, "byte_fallback", 1,
                         "added_tokens", t->added, "normalizer", normalizer_of(leads), "pre_tokenizer",
                         "post_processor", template_of(file, t, true), "decoder", decoder_of(leads));
    json_decref(unknown);
    json_decref(merges);
    return status;
}

/* A tokenizer.json that the file contains whole. */
static char *whole_text(const tshi_gguf *file) {
    const tshi_gguf_value *value = tshi_gguf_find(file, "tokenizer.huggingface.json");
    tshi_gguf_value left = value ? *value : (tshi_gguf_value){.count = 0};
    tshi_gguf_text text;
    return tshi_gguf_next_text(&left, &text) ? strndup(text.at, text.length) : NULL;
}

tsh_status tshi_gguf_tokenizer(const tshi_gguf *file, char **json) {
    char model[64] = "";
    tokens t = {0};
    json_t *made = NULL;
    *json = whole_text(file);
    if (*json) return TSH_OK;
    tshi_gguf_text_of(file, "tokenizer.ggml.model", model, sizeof model);
    bool bytes = strcmp(model, "gpt2") == 0, pieces = strcmp(model, "llama") == 0;
    if (!bytes && !pieces)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: tokenizer.ggml.model is '%s'; gpt2 and llama are built in",
                         file->path, model);
    tsh_status status = read_tokens(file, &t);
    if (status == TSH_OK) status = bytes ? make_bytes(file, &t, &made) : make_pieces(file, &t, &made);
    if (made) *json = json_dumps(made, JSON_COMPACT);
    if (status == TSH_OK && !*json) status = no_memory(file);
    json_decref(made);
    json_decref(t.vocabulary);
    json_decref(t.added);
    tshi_free(&file->allocator, t.items);
    tshi_free(&file->allocator, t.room);
    return status;
}
