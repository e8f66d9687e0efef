/* The keys of a GGUF file, from config.json, tokenizer.json and the chat template. */
#include "tool.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- bytes -------------------------------------------------------------------------------------------------------- */

void header_add(header *h, const void *bytes, size_t count) {
    if (h->count + count > h->capacity) {
        size_t capacity = 2 * (h->count + count) + 4096;
        unsigned char *grown = realloc(h->bytes, capacity);
        h->failed = h->failed || !grown;
        if (!grown) return;
        h->bytes = grown;
        h->capacity = capacity;
    }
    if (count) memcpy(h->bytes + h->count, bytes, count);
    h->count += count;
}

void header_number(header *h, uint64_t value, unsigned bytes) {
    unsigned char little[8];
    for (unsigned i = 0; i < bytes; i++) little[i] = (unsigned char)(value >> (8 * i) & 0xff);
    header_add(h, little, bytes);
}

void header_string(header *h, const char *text, size_t length) {
    header_number(h, length, 8);
    header_add(h, text, length);
}

/* Numbers of the types of values. */
enum { U32 = 4, F32 = 6, TEXT = 8 };

static void begin_key(header *h, const char *key, uint32_t type) {
    header_string(h, key, strlen(key));
    header_number(h, type, 4);
    h->keys++;
}

void header_u32(header *h, const char *key, int64_t value) {
    begin_key(h, key, U32);
    header_number(h, (uint64_t)value, 4);
}

void header_float(header *h, const char *key, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    begin_key(h, key, F32);
    header_number(h, bits, 4);
}

void header_text(header *h, const char *key, const char *text, size_t length) {
    begin_key(h, key, TEXT);
    header_string(h, text, length);
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* `status` keeps the first failure. */
typedef struct reader {
    const char *path;
    const json_t *json;
    tsh_status status;
} reader;

static int64_t whole_number(reader *r, const char *key, int64_t otherwise) {
    const json_t *value = json_object_get(r->json, key);
    if ((!value || json_is_null(value)) && otherwise >= 0) return otherwise;
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (number >= 0 && number <= INT32_MAX) return number;
    if (r->status == TSH_OK)
        r->status = tshi_fail(TSH_ERR_IO, "%.220s: \"%s\" is no whole number up to 2147483647", r->path, key);
    return 1;
}

static double number_of(const json_t *json, const char *key, double otherwise) {
    const json_t *value = json_object_get(json, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static void add_number(header *h, const model *m, const char *name, int64_t value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->architecture, name);
    header_u32(h, key, value);
}

static void add_float(header *h, const model *m, const char *name, double value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->architecture, name);
    header_float(h, key, value);
}

/* Llama 3's divisors of frequencies: between fast pairs, with 1, and slow ones, with the factor, the frequency changes
 * with the number of turns over the training's positions. */
static void set_divisors(reader *r, const json_t *rope, double theta, int64_t dims, model *m) {
    double factor = number_of(rope, "factor", 8), low = number_of(rope, "low_freq_factor", 1);
    double high = number_of(rope, "high_freq_factor", 4);
    double positions = number_of(rope, "original_max_position_embeddings", 8192);
    if (low < 1 || low > 1 || high < 4 || high > 4 || dims / 2 > MODEL_PAIRS) {
        r->status = tshi_fail(TSH_ERR_UNSUPPORTED,
                              "%.220s: \"low_freq_factor\" and \"high_freq_factor\" are not 1 and 4", r->path);
        return;
    }
    m->pairs = dims / 2;
    for (int64_t i = 0; i < m->pairs; i++) {
        double turns = positions / (2 * acos(-1.0) * pow(theta, 2 * (double)i / (double)dims));
        double speed = fmin(fmax((turns - low) / (high - low), 0), 1);
        m->divisors[i] = (float)(1 / ((1 - speed) / factor + speed));
    }
}

static void add_rope(reader *r, model *m, int64_t dims, header *h) {
    const json_t *rope = json_object_get(r->json, "rope_scaling");
    char key[96];
    if (!json_is_object(rope)) rope = json_object_get(r->json, "rope_parameters");
    double theta = number_of(rope, "rope_theta", number_of(r->json, "rope_theta", 10000));
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) type = json_string_value(json_object_get(rope, "type"));
    add_float(h, m, "rope.freq_base", theta);
    add_number(h, m, "rope.dimension_count", dims);
    if (type && strcmp(type, "llama3") == 0) {
        set_divisors(r, rope, theta, dims, m);
    } else if (type && strcmp(type, "linear") == 0) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", m->architecture);
        header_text(h, key, type, strlen(type));
        add_float(h, m, "rope.scaling.factor", number_of(rope, "factor", 1));
    } else if (type && strcmp(type, "default") != 0 && r->status == TSH_OK) {
        r->status =
            tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: \"rope_type\" is %.40s; default, linear and llama3 can be written",
                      r->path, type);
    }
}

static void add_model(reader *r, model *m, header *h) {
    const char *type = json_string_value(json_object_get(r->json, "model_type"));
    if (!type || (strcmp(type, "llama") != 0 && strcmp(type, "qwen2") != 0)) {
        r->status = tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: \"model_type\" is %.40s; llama and qwen2 can be written",
                              r->path, type ? type : "missing");
        return;
    }
    snprintf(m->architecture, sizeof m->architecture, "%s", type);
    int64_t width = whole_number(r, "hidden_size", -1);
    m->heads = whole_number(r, "num_attention_heads", -1);
    m->kv_heads = whole_number(r, "num_key_value_heads", m->heads);
    int64_t dims = whole_number(r, "head_dim", m->heads > 0 ? width / m->heads : 1);
    m->tied = json_is_true(json_object_get(r->json, "tie_word_embeddings"));
    header_text(h, "general.architecture", type, strlen(type));
    add_number(h, m, "context_length", whole_number(r, "max_position_embeddings", -1));
    add_number(h, m, "embedding_length", width);
    add_number(h, m, "block_count", whole_number(r, "num_hidden_layers", -1));
    add_number(h, m, "feed_forward_length", whole_number(r, "intermediate_size", -1));
    add_number(h, m, "attention.head_count", m->heads);
    add_number(h, m, "attention.head_count_kv", m->kv_heads);
    if (m->heads > 0 && dims != width / m->heads) {
        add_number(h, m, "attention.key_length", dims);
        add_number(h, m, "attention.value_length", dims);
    }
    add_float(h, m, "attention.layer_norm_rms_epsilon", number_of(r->json, "rms_norm_eps", 1e-6));
    add_number(h, m, "vocab_size", whole_number(r, "vocab_size", -1));
    add_rope(r, m, dims, h);
}

/* A token, or the first of a list. */
static void add_token(const reader *r, const char *name, const char *key, header *h) {
    const json_t *value = json_object_get(r->json, name);
    if (json_is_array(value)) value = json_array_get(value, 0);
    if (json_is_integer(value) && json_integer_value(value) >= 0) header_u32(h, key, json_integer_value(value));
}

/* A file of text, NULL without one; for free(). */
static char *read_text(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f);
        text = size >= 0 ? malloc((size_t)size + 1) : NULL;
        rewind(f);
        *length = text ? fread(text, 1, (size_t)size, f) : 0;
    }
    fclose(f);
    return text;
}

static void add_template(const char *folder, header *h) {
    char path[4096];
    size_t length = 0;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *json = json_load_file(path, 0, NULL);
    const json_t *found = json_object_get(json, "chat_template");
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    char *text = json_is_string(found) ? NULL : read_text(path, &length);
    if (json_is_string(found))
        header_text(h, "tokenizer.chat_template", json_string_value(found), json_string_length(found));
    if (text) header_text(h, "tokenizer.chat_template", text, length);
    free(text);
    json_decref(json);
}

tsh_status model_read(const char *folder, model *out, header *h) {
    char path[4096];
    json_error_t error;
    size_t length;
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    reader r = {.path = path, .json = json};
    *out = (model){.tied = false};
    if (!json) return tshi_fail(TSH_ERR_IO, "%.220s: %s", path, error.text);
    add_model(&r, out, h);
    add_token(&r, "bos_token_id", "tokenizer.ggml.bos_token_id", h);
    add_token(&r, "eos_token_id", "tokenizer.ggml.eos_token_id", h);
    json_decref(json);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    char *text = read_text(path, &length);
    header_text(h, "tokenizer.ggml.model", "no_vocab", strlen("no_vocab"));
    if (text) header_text(h, "tokenizer.huggingface.json", text, length);
    free(text);
    add_template(folder, h);
    header_u32(h, "general.quantization_version", 2);
    return r.status;
}
