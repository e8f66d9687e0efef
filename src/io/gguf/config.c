/* Builds a config.json from the keys of a GGUF file. */
#include "io/gguf/gguf.h"
#include "tshard/io.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A configuration that is being built. `status` keeps the first failure. */
typedef struct config {
    tshi_gguf *file;
    char architecture[32];
    json_t *json;
    tsh_status status;
} config;

static void set_key_name(const config *c, const char *name, char key[128]) {
    snprintf(key, 128, "%s.%s", c->architecture, name);
}

static bool has_integer(const config *c, const char *name, int64_t *out) {
    char key[128];
    set_key_name(c, name, key);
    return tshi_gguf_integer_of(c->file, key, out);
}

static int64_t want_integer(config *c, const char *name) {
    int64_t value = 0;
    if (has_integer(c, name, &value) || c->status != TSH_OK) return value;
    c->status = tshi_fail(TSH_ERR_IO, "%.220s: has no whole number '%s.%s'", c->file->path, c->architecture, name);
    return 0;
}

/* The decimal number with the fewest digits that is this float32, as its author wrote it. */
static double shortest(double value) {
    char text[64];
    float narrow = (float)value;
    if ((double)narrow < value || (double)narrow > value) return value;
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (memcmp(&(float){strtof(text, NULL)}, &narrow, sizeof narrow) == 0) return strtod(text, NULL);
    }
    return value;
}

static bool has_number(const config *c, const char *name, double *out) {
    char key[128];
    set_key_name(c, name, key);
    if (!tshi_gguf_number_of(c->file, key, out)) return false;
    *out = shortest(*out);
    return true;
}

static void set(json_t *json, config *c, const char *key, json_t *value) {
    if (json_object_set_new(json, key, value) != 0 && c->status == TSH_OK)
        c->status = tshi_fail(TSH_ERR_MEMORY, "%.220s: no memory for a configuration", c->file->path);
}

static tsh_status refuse(const config *c, const char *what) {
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: %s", c->file->path, what);
}

/* --- rotary positions --------------------------------------------------------------------------------------------- */

/* Llama 3's scaling, always with these factors. */
#define LOW_FACTOR  1.0
#define HIGH_FACTOR 4.0

typedef struct scaling {
    double theta, factor;
    int64_t pairs, original;
    const float *divisors; /* of the pairs' frequencies */
} scaling;

static double positions_of_turn(const scaling *s, int64_t pair) {
    return 2 * acos(-1.0) * pow(s->theta, (double)pair / (double)s->pairs);
}

/* How far between slow (0) and fast (1) a pair is by its divisor. */
static double speed_of(const scaling *s, int64_t pair) {
    return (1 / (double)s->divisors[pair] - 1 / s->factor) / (1 - 1 / s->factor);
}

/* The divisor of a pair by the formula. */
static double divisor_of(const scaling *s, int64_t pair) {
    double turns = (double)s->original / positions_of_turn(s, pair);
    double speed = (turns - LOW_FACTOR) / (HIGH_FACTOR - LOW_FACTOR);
    speed = speed < 0 ? 0 : speed > 1 ? 1 : speed;
    return 1 / ((1 - speed) / s->factor + speed);
}

/* Finds the number of positions that the divisors follow from. A pair between fast and slow tells it exactly; without
 * one, it is the smallest number for which the last fast pair is fast. */
static bool find_original(scaling *s) {
    double positions = 0;
    for (int64_t i = 0; i < s->pairs; i++) s->factor = fmax(s->factor, (double)s->divisors[i]);
    if (!(s->factor > 1 && s->factor < 1e6)) return false;
    for (int64_t i = 0; i < s->pairs; i++) {
        double speed = speed_of(s, i);
        if (speed > 1 - 1e-6) positions = HIGH_FACTOR * positions_of_turn(s, i);
        if (speed < 1e-6 || speed > 1 - 1e-6) continue;
        positions = positions_of_turn(s, i) * (LOW_FACTOR + speed * (HIGH_FACTOR - LOW_FACTOR));
        break;
    }
    if (!(positions >= 1 && positions < 1e12)) return false;
    s->original = (int64_t)llround(positions);
    for (int64_t i = 0; i < s->pairs; i++) {
        double wanted = divisor_of(s, i);
        if (!(fabs((double)s->divisors[i] - wanted) <= 1e-4 * wanted)) return false;
    }
    return true;
}

static void add_llama3(config *c, json_t *rope, const tshi_gguf_tensor *t, double theta) {
    tsh_box box = {.length = {t->entry.shape[0]}};
    float *divisors = NULL;
    scaling s = {.theta = theta, .pairs = t->entry.shape[0]};
    if (t->entry.ndim != 1 || t->entry.dtype != TSH_FLOAT32 || s.pairs < 1 || s.pairs > 1 << 16) {
        c->status = refuse(c, TSHI_GGUF_ROPE " is not one dim of F32");
        return;
    }
    s.divisors = divisors = tshi_calloc(&c->file->allocator, (size_t)s.pairs, sizeof *divisors);
    c->status = divisors ? tshi_gguf_read_box(c->file, t, &box, divisors) : TSH_ERR_MEMORY;
    if (c->status == TSH_OK && !find_original(&s))
        c->status = refuse(c, TSHI_GGUF_ROPE " does not scale the frequencies as Llama 3 does");
    tshi_free(&c->file->allocator, divisors);
    set(rope, c, "rope_type", json_string("llama3"));
    set(rope, c, "factor", json_real(s.factor));
    set(rope, c, "low_freq_factor", json_real(LOW_FACTOR));
    set(rope, c, "high_freq_factor", json_real(HIGH_FACTOR));
    set(rope, c, "original_max_position_embeddings", json_integer(s.original));
}

static void add_rope(config *c) {
    char key[128], type[32] = "none";
    double theta = 10000, factor = 1;
    json_t *rope = json_object();
    const tshi_gguf_tensor *divisors = tshi_gguf_tensor_of(c->file, TSHI_GGUF_ROPE);
    has_number(c, "rope.freq_base", &theta);
    set_key_name(c, "rope.scaling.type", key);
    tshi_gguf_text_of(c->file, key, type, sizeof type);
    if (!has_number(c, "rope.scaling.factor", &factor)) has_number(c, "rope.scale_linear", &factor);
    set(rope, c, "rope_theta", json_real(theta));
    if (divisors) {
        add_llama3(c, rope, divisors, theta);
    } else if (strcmp(type, "linear") == 0) {
        set(rope, c, "rope_type", json_string("linear"));
        set(rope, c, "factor", json_real(factor));
    } else {
        set(rope, c, "rope_type", json_string(strcmp(type, "none") == 0 ? "default" : type));
    }
    set(c->json, c, "rope_parameters", rope);
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static void add_sizes(config *c) {
    int64_t width = want_integer(c, "embedding_length"), heads = want_integer(c, "attention.head_count");
    int64_t kv_heads = heads, head_dim = heads > 0 ? width / heads : 0, turned, vocabulary = 0;
    has_integer(c, "attention.head_count_kv", &kv_heads);
    has_integer(c, "attention.key_length", &head_dim);
    const tshi_gguf_tensor *words = tshi_gguf_tensor_of(c->file, "model.embed_tokens.weight");
    if (words && words->entry.ndim == 2)
        vocabulary = words->entry.shape[0];
    else if (c->status == TSH_OK)
        c->status = tshi_fail(TSH_ERR_IO, "%.220s: has no matrix token_embd.weight", c->file->path);
    set(c->json, c, "vocab_size", json_integer(vocabulary));
    set(c->json, c, "max_position_embeddings", json_integer(want_integer(c, "context_length")));
    set(c->json, c, "num_hidden_layers", json_integer(want_integer(c, "block_count")));
    set(c->json, c, "hidden_size", json_integer(width));
    set(c->json, c, "intermediate_size", json_integer(want_integer(c, "feed_forward_length")));
    set(c->json, c, "num_attention_heads", json_integer(heads));
    set(c->json, c, "num_key_value_heads", json_integer(kv_heads));
    set(c->json, c, "head_dim", json_integer(head_dim));
    if (has_integer(c, "rope.dimension_count", &turned) && turned != head_dim && head_dim > 0)
        set(c->json, c, "partial_rotary_factor", json_real((double)turned / (double)head_dim));
}

static bool has_tensor(const config *c, const char *name) {
    return tshi_gguf_tensor_of(c->file, name) != NULL;
}

static void add_features(config *c) {
    double eps = 1e-6;
    int64_t experts = 0;
    if (!has_number(c, "attention.layer_norm_rms_epsilon", &eps) && c->status == TSH_OK)
        c->status = tshi_fail(TSH_ERR_IO, "%.220s: has no number '%s.attention.layer_norm_rms_epsilon'", c->file->path,
                              c->architecture);
    if (has_integer(c, "expert_count", &experts) && experts > 0 && c->status == TSH_OK)
        c->status = refuse(c, "has experts, which are not read from GGUF files");
    set(c->json, c, "hidden_act", json_string("silu"));
    set(c->json, c, "rms_norm_eps", json_real(eps));
    set(c->json, c, "tie_word_embeddings", json_boolean(!has_tensor(c, "lm_head.weight")));
    if (strcmp(c->architecture, "llama") == 0)
        set(c->json, c, "attention_bias", json_boolean(has_tensor(c, "model.layers.0.self_attn.q_proj.bias")));
    set(c->json, c, "mlp_bias", json_boolean(has_tensor(c, "model.layers.0.mlp.up_proj.bias")));
}

/* A text ends with the end token, or the end of a turn. */
static void add_ends(config *c) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    int64_t id, first = -1;
    json_t *ends = json_array();
    for (int i = 0; i < 2; i++) {
        if (!tshi_gguf_integer_of(c->file, keys[i], &id) || id < 0 || id == first) continue;
        json_array_append_new(ends, json_integer(id));
        first = id;
    }
    set(c->json, c, "eos_token_id", ends);
    if (tshi_gguf_integer_of(c->file, "tokenizer.ggml.bos_token_id", &id))
        set(c->json, c, "bos_token_id", json_integer(id));
}

tsh_status tshi_gguf_config(tshi_gguf *file, char **json) {
    config c = {.file = file, .json = json_object()};
    *json = NULL;
    tshi_gguf_text_of(file, "general.architecture", c.architecture, sizeof c.architecture);
    bool llama = strcmp(c.architecture, "llama") == 0;
    if (!llama && strcmp(c.architecture, "qwen2") != 0) {
        c.status = tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: its architecture is '%s'; llama and qwen2 are supported",
                             file->path, c.architecture);
    } else {
        set(c.json, &c, "model_type", json_string(c.architecture));
        add_sizes(&c);
        add_features(&c);
        if (c.status == TSH_OK) add_rope(&c);
        add_ends(&c);
    }
    if (c.status == TSH_OK) *json = json_dumps(c.json, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(c.json);
    if (c.status == TSH_OK && !*json)
        return tshi_fail(TSH_ERR_MEMORY, "%.220s: no memory for a configuration", file->path);
    return c.status;
}

tsh_status tsh_gguf_config(const char *path, char *json, size_t size) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_gguf *file;
    char *text = NULL;
    if (json && size) json[0] = '\0';
    if (!path || !json) return tshi_fail(TSH_ERR_ARGUMENT, "gguf_config: %s is NULL", path ? "json" : "path");
    tsh_status status = tshi_gguf_open(&allocator, path, &file);
    if (status != TSH_OK) return status;
    status = tshi_gguf_config(file, &text);
    if (status == TSH_OK && strlen(text) >= size)
        status = tshi_fail(TSH_ERR_ARGUMENT, "gguf_config: the text needs %zu bytes, and there are %zu",
                           strlen(text) + 1, size);
    if (status == TSH_OK) memcpy(json, text, strlen(text) + 1);
    tshi_gguf_close(file);
    free(text);
    return status;
}

/* --- other keys --------------------------------------------------------------------------------------------------- */

static tsh_status copy_text(const tshi_gguf *file, const char *key, char *text, size_t size) {
    const tshi_gguf_value *value = tshi_gguf_find(file, key);
    if (!value) return TSH_OK;
    tshi_gguf_value left = *value;
    tshi_gguf_text found;
    if (value->array || !tshi_gguf_next_text(&left, &found) || memchr(found.at, 0, found.length))
        return tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' is not a text", file->path, key);
    if (found.length >= size)
        return tshi_fail(TSH_ERR_ARGUMENT, "gguf_text: the text needs %zu bytes, and there are %zu", found.length + 1,
                         size);
    memcpy(text, found.at, found.length);
    text[found.length] = '\0';
    return TSH_OK;
}

tsh_status tsh_gguf_text(const char *path, const char *key, char *text, size_t size) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_gguf *file;
    if (text && size) text[0] = '\0';
    if (!path || !key || !text || !size)
        return tshi_fail(TSH_ERR_ARGUMENT, "gguf_text: a path, a key and memory for the text are required");
    tsh_status status = tshi_gguf_open(&allocator, path, &file);
    if (status != TSH_OK) return status;
    status = copy_text(file, key, text, size);
    tshi_gguf_close(file);
    return status;
}
