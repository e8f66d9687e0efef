#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The file being read. `words` keeps the first failure; later reads return harmless values. */
typedef struct reader {
    const json_t *json;
    const char *path, *type; /* type: model_type */
    char *words;
    bool failed;
} reader;

static void fail(reader *r, const char *format, ...) TSH_PRINTF(2, 3);
static void fail(reader *r, const char *format, ...) {
    if (r->failed) return;
    int used = snprintf(r->words, MODEL_WORDS, "%s: ", r->path);
    va_list arguments;
    va_start(arguments, format);
    if (used >= 0 && used < MODEL_WORDS) vsnprintf(r->words + used, MODEL_WORDS - (size_t)used, format, arguments);
    va_end(arguments);
    r->failed = true;
}

/* --- values of keys ----------------------------------------------------------------------------------------------- */

/* The value of a key, or NULL for one that is missing or null. */
static const json_t *value_of(const reader *r, const char *key) {
    const json_t *value = json_object_get(r->json, key);
    return json_is_null(value) ? NULL : value;
}

static void fail_value(reader *r, const char *key, const json_t *found, const char *wanted) {
    char text[64] = "";
    if (found) json_dumpb(found, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    fail(r, "\"%s\" is %s; a %s model has %s there", key, found ? text : "missing", r->type, wanted);
}

/* A size; the key may be missing if `otherwise` is not 0. */
static int64_t size_of(reader *r, const char *key, int64_t otherwise) {
    static const int64_t most = (int64_t)1 << 31;
    const json_t *value = value_of(r, key);
    if (!value && otherwise) return otherwise;
    if (json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= most)
        return json_integer_value(value);
    fail_value(r, key, value, "a whole number from 1 to 2147483648");
    return 1;
}

static double number_of(reader *r, const char *key, double otherwise) {
    const json_t *value = value_of(r, key);
    if (!value) return otherwise;
    double number = json_number_value(value);
    if (json_is_number(value) && isfinite(number) && number > 0) return number;
    fail_value(r, key, value, "a number above 0");
    return otherwise;
}

static bool flag_of(reader *r, const char *key, bool otherwise) {
    const json_t *value = value_of(r, key);
    if (!value) return otherwise;
    if (!json_is_boolean(value)) fail_value(r, key, value, "true or false");
    return json_is_true(value);
}

/* The models here support only the value `wanted` of this flag, which is also that of a missing key. */
static void want_flag(reader *r, const char *key, bool wanted) {
    if (flag_of(r, key, wanted) != wanted)
        fail(r, "\"%s\" is %s; this program supports only %s", key, wanted ? "false" : "true",
             wanted ? "true" : "false");
}

static void want_word(reader *r, const json_t *value, const char *key, const char *wanted) {
    if (!value || json_is_null(value)) return;
    if (!json_is_string(value) || strcmp(json_string_value(value), wanted) != 0) {
        fail(r, "\"%s\" is %s; this program supports only \"%s\"", key,
             json_is_string(value) ? json_string_value(value) : "no word", wanted);
    }
}

static tsh_activation activation_of(reader *r, const char *key, const char *otherwise) {
    static const struct {
        const char *name;
        tsh_activation activation;
    } known[] = {{"gelu", TSH_ACTIVATION_GELU},           {"gelu_new", TSH_ACTIVATION_GELU_TANH},
                 {"gelu_fast", TSH_ACTIVATION_GELU_TANH}, {"gelu_pytorch_tanh", TSH_ACTIVATION_GELU_TANH},
                 {"relu", TSH_ACTIVATION_RELU},           {"silu", TSH_ACTIVATION_SILU},
                 {"swish", TSH_ACTIVATION_SILU}};
    const json_t *value = value_of(r, key);
    const char *name = value ? json_string_value(value) : otherwise;
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) == 0) return known[i].activation;
    }
    fail_value(r, key, value, "one of gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu, silu, swish");
    return TSH_ACTIVATION_GELU;
}

/* "default", "linear" or "llama3". */
static void read_scaling(reader *r, const char *type, model_config *c) {
    tsh_rotary_scaling *s = &c->rope_scaling;
    if (strcmp(type, "default") == 0) return;
    if (strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0) {
        fail(r, "\"rope_type\" is %s; this program supports only \"default\", \"linear\" and \"llama3\"", type);
        return;
    }
    s->factor = number_of(r, "factor", 0);
    if (s->factor <= 0) fail_value(r, "factor", NULL, "a number above 0");
    if (strcmp(type, "linear") == 0) return;
    s->low_freq_factor = number_of(r, "low_freq_factor", 1);
    s->high_freq_factor = number_of(r, "high_freq_factor", 4);
    s->original_positions = size_of(r, "original_max_position_embeddings", 0);
    if (s->high_freq_factor <= s->low_freq_factor)
        fail(r, "\"high_freq_factor\" is %g, \"low_freq_factor\" %g; the first has to be the larger one",
             s->high_freq_factor, s->low_freq_factor);
}

static void want_whole_heads(reader *r) {
    double part = number_of(r, "partial_rotary_factor", 1);
    if (part < 1 || part > 1)
        fail(r, "\"partial_rotary_factor\" is %g; this program supports only 1, the rotation of all features of a head",
             part);
}

/* transformers 5 writes {"rope_parameters": {"rope_theta": t, "rope_type": "default", ...}}, versions before it
 * "rope_theta" and, for positions beyond the training's, "rope_scaling" with a "rope_type" or "type". Of both it takes
 * the latter. */
static void read_rope(reader *r, model_config *c) {
    const char *key = value_of(r, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    const json_t *inner = value_of(r, key);
    reader parameters = *r;
    if (json_is_object(inner)) parameters.json = inner;
    if (inner && !json_is_object(inner)) fail_value(&parameters, key, inner, "an object");
    const json_t *type = value_of(&parameters, "rope_type");
    if (!type) type = value_of(&parameters, "type");
    if (type && !json_is_string(type)) fail_value(&parameters, "rope_type", type, "a word");
    if (json_is_object(inner) && json_is_string(type)) read_scaling(&parameters, json_string_value(type), c);
    want_whole_heads(r);
    want_whole_heads(&parameters);
    r->failed = r->failed || parameters.failed;
    bool within = json_object_get(parameters.json, "rope_theta") != NULL;
    c->rope_theta = number_of(within ? &parameters : r, "rope_theta", 10000);
    r->failed = r->failed || parameters.failed;
}

/* --- families ----------------------------------------------------------------------------------------------------- */

static void read_gpt2(reader *r, model_config *c) {
    c->vocabulary = size_of(r, "vocab_size", 0);
    c->positions = size_of(r, "n_positions", 0);
    c->layers = size_of(r, "n_layer", 0);
    c->width = size_of(r, "n_embd", 0);
    c->heads = c->kv_heads = size_of(r, "n_head", 0);
    c->inner = size_of(r, "n_inner", 4 * c->width);
    c->activation = activation_of(r, "activation_function", "gelu_new");
    c->norm_eps = number_of(r, "layer_norm_epsilon", 1e-5);
    c->tied = flag_of(r, "tie_word_embeddings", true);
    c->qkv_bias = c->output_bias = c->mlp_bias = true;
    want_flag(r, "scale_attn_weights", true);
    want_flag(r, "scale_attn_by_inverse_layer_idx", false);
    want_flag(r, "add_cross_attention", false);
}

/* The keys that Llama, Qwen2 and BERT have in common. */
static void read_common(reader *r, model_config *c) {
    c->vocabulary = size_of(r, "vocab_size", 0);
    c->positions = size_of(r, "max_position_embeddings", 0);
    c->layers = size_of(r, "num_hidden_layers", 0);
    c->width = size_of(r, "hidden_size", 0);
    c->inner = size_of(r, "intermediate_size", 0);
    c->heads = size_of(r, "num_attention_heads", 0);
}

static void read_llama(reader *r, model_config *c) {
    bool qwen2 = c->family == MODEL_QWEN2;
    read_common(r, c);
    c->kv_heads = size_of(r, "num_key_value_heads", c->heads);
    c->head_dim = value_of(r, "head_dim") ? size_of(r, "head_dim", 0) : 0;
    c->activation = activation_of(r, "hidden_act", "silu");
    c->norm_eps = number_of(r, "rms_norm_eps", 1e-6);
    read_rope(r, c);
    c->tied = flag_of(r, "tie_word_embeddings", false);
    c->output_bias = !qwen2 && flag_of(r, "attention_bias", false);
    c->qkv_bias = qwen2 || c->output_bias;
    c->mlp_bias = flag_of(r, "mlp_bias", false);
    want_flag(r, "use_sliding_window", false);
}

/* Which layers have experts: all of Mixtral's, and of Qwen3-MoE's each `decoder_sparse_step`-th, unless it is
 * listed. */
static void place_experts(reader *r, model_config *c) {
    int64_t step = size_of(r, "decoder_sparse_step", 1);
    const json_t *dense = value_of(r, "mlp_only_layers");
    for (int64_t i = 0; i < c->layers && i < MODEL_LAYERS; i++) c->has_experts[i] = (i + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        json_int_t layer = json_integer_value(json_array_get(dense, i));
        if (layer >= 0 && layer < MODEL_LAYERS) c->has_experts[layer] = false;
    }
}

static void read_experts(reader *r, model_config *c) {
    bool mixtral = c->family == MODEL_MIXTRAL;
    c->experts = size_of(r, value_of(r, "num_experts") ? "num_experts" : "num_local_experts", 0);
    c->top_k = size_of(r, "num_experts_per_tok", 0);
    c->expert_inner = mixtral ? c->inner : size_of(r, "moe_intermediate_size", 0);
    c->renormalize = mixtral || flag_of(r, "norm_topk_prob", false);
    want_word(r, value_of(r, "hidden_act"), "hidden_act", "silu");
    if (c->experts > MODEL_EXPERTS || c->top_k > c->experts)
        fail(r, "%lld of %lld experts for each token; at most %d experts are supported", (long long)c->top_k,
             (long long)c->experts, MODEL_EXPERTS);
    place_experts(r, c);
}

static void read_mixtral(reader *r, model_config *c) {
    read_llama(r, c);
    if (value_of(r, "sliding_window")) fail_value(r, "sliding_window", value_of(r, "sliding_window"), "null");
    read_experts(r, c);
}

static void read_qwen3(reader *r, model_config *c) {
    read_llama(r, c);
    c->qk_norm = true;
    if (c->family == MODEL_QWEN3_MOE) read_experts(r, c);
}

static void read_bert(reader *r, model_config *c) {
    read_common(r, c);
    c->kv_heads = c->heads;
    c->token_types = size_of(r, "type_vocab_size", 2);
    c->activation = activation_of(r, "hidden_act", "gelu");
    c->norm_eps = number_of(r, "layer_norm_eps", 1e-12);
    c->qkv_bias = c->output_bias = c->mlp_bias = true;
    want_flag(r, "is_decoder", false);
    want_flag(r, "add_cross_attention", false);
    want_word(r, value_of(r, "position_embedding_type"), "position_embedding_type", "absolute");
}

/* In the order of model_family. */
static const struct {
    const char *type;
    void (*read)(reader *r, model_config *c);
} families[] = {{"gpt2", read_gpt2},       {"llama", read_llama},     {"qwen2", read_llama}, {"qwen3", read_qwen3},
                {"mixtral", read_mixtral}, {"qwen3_moe", read_qwen3}, {"bert", read_bert}};

#define FAMILIES (sizeof families / sizeof *families)

const char *model_family_name(model_family family) {
    return families[family].type;
}

static bool find_family(reader *r, model_config *c) {
    r->type = "transformer";
    const json_t *value = value_of(r, "model_type");
    for (size_t i = 0; json_is_string(value) && i < FAMILIES; i++) {
        if (strcmp(json_string_value(value), families[i].type) != 0) continue;
        c->family = (model_family)i;
        r->type = families[i].type;
        return true;
    }
    fail_value(r, "model_type", value, "one of gpt2, llama, qwen2, qwen3, mixtral, qwen3_moe, bert");
    return false;
}

/* "eos_token_id" is a token or a list of tokens. */
static void read_ends(reader *r, model_config *c) {
    const json_t *value = value_of(r, "eos_token_id");
    size_t count = json_is_array(value) ? json_array_size(value) : value != NULL;
    bool good = count <= MODEL_ENDS;
    if (!value) return;
    for (size_t i = 0; good && i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        good = json_is_integer(id) && json_integer_value(id) >= 0;
        c->ends[i] = json_integer_value(id);
    }
    if (!good) fail_value(r, "eos_token_id", value, "a token's id or a list of up to 16");
    c->end_count = (int)count;
}

static void read_generation(const char *folder, reader *r, model_config *c) {
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    reader own = {.json = json, .path = path, .type = r->type, .words = r->words};
    bool missing = !json && json_error_code(&error) == json_error_cannot_open_file;
    if (!json && !missing) fail(&own, "line %d: %s", error.line, error.text);
    if (json_is_object(json)) read_ends(&own, c);
    r->failed = r->failed || own.failed;
    json_decref(json);
}

/* Refuses sizes that contradict each other, and numbers of layers for which no file has weights. */
static void check_sizes(reader *r, model_config *c) {
    long long width = c->width, heads = c->heads, kv_heads = c->kv_heads;
    if (c->layers > MODEL_LAYERS) fail(r, "%lld layers; at most %d are supported", (long long)c->layers, MODEL_LAYERS);
    if (heads % kv_heads != 0) {
        fail(r, "%lld heads share %lld KV heads; the number of heads has to be a multiple of that of KV heads", heads,
             kv_heads);
    } else if (!c->head_dim && width % heads != 0) {
        fail(r, "%lld features are split over %lld heads, which does not go without rest; \"head_dim\" is missing",
             width, heads);
    }
    if (!c->head_dim) c->head_dim = c->width / c->heads;
    if (c->rope_theta > 0 && c->head_dim % 2 != 0)
        fail(r, "a head has %lld features; rotary positions turn pairs of them, so that the number has to be even",
             (long long)c->head_dim);
}

/* The configuration in a GGUF file's keys; NULL after a failure. */
static json_t *read_gguf(reader *r) {
    char text[8192];
    json_error_t error;
    if (tsh_gguf_config(r->path, text, sizeof text) == TSH_OK) return json_loads(text, 0, &error);
    snprintf(r->words, MODEL_WORDS, "%s", tsh_error_message());
    r->failed = true;
    return NULL;
}

static json_t *read_config(reader *r) {
    json_error_t error;
    json_t *json = json_load_file(r->path, JSON_REJECT_DUPLICATES, &error);
    if (!json && error.line > 0)
        fail(r, "line %d: %s", error.line, error.text);
    else if (!json)
        fail(r, "%s; a folder with config.json and model.safetensors, or a GGUF file, is wanted", error.text);
    return json;
}

bool model_config_read(const char *folder, model_config *out, char words[MODEL_WORDS]) {
    char path[4096];
    struct stat info;
    bool file = stat(folder, &info) == 0 && S_ISREG(info.st_mode);
    *out = (model_config){0};
    snprintf(path, sizeof path, "%s%s", folder, file ? "" : "/config.json");
    reader r = {.path = path, .words = words};
    json_t *json = file ? read_gguf(&r) : read_config(&r);
    r.json = json;
    if (json && !json_is_object(json)) {
        fail(&r, "is no JSON object");
    } else if (json && find_family(&r, out)) {
        families[out->family].read(&r, out);
        check_sizes(&r, out);
        read_ends(&r, out);
        if (!r.failed) read_generation(folder, &r, out);
    }
    json_decref(json);
    return !r.failed;
}
