/* Maps the names of tensors, and the order of their rows, from GGUF files to Hugging Face's folders. */
#include "io/gguf/gguf.h"

#include <stdio.h>
#include <string.h>

typedef struct name_pair {
    const char *gguf, *folder; /* a '*' is the number of a block */
    const char *heads;         /* the key whose number of heads Llama's rows are permuted by, or NULL */
} name_pair;

/* Llama and Qwen2. Before ".weight" and ".bias". */
static const name_pair pairs[] = {
    {"token_embd", "model.embed_tokens", NULL},
    {"output_norm", "model.norm", NULL},
    {"output", "lm_head", NULL},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", NULL},
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", "attention.head_count"},
    {"blk.*.attn_k", "model.layers.*.self_attn.k_proj", "attention.head_count_kv"},
    {"blk.*.attn_v", "model.layers.*.self_attn.v_proj", NULL},
    {"blk.*.attn_output", "model.layers.*.self_attn.o_proj", NULL},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", NULL},
    {"blk.*.ffn_gate", "model.layers.*.mlp.gate_proj", NULL},
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", NULL},
    {"blk.*.ffn_down", "model.layers.*.mlp.down_proj", NULL},
};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };

/* True when the name is the pattern with digits for its '*', followed by ".weight" or ".bias". */
static bool matches(const char *pattern, const char *name, const char **digits, int *count, const char **suffix) {
    const char *star = strchr(pattern, '*'), *end = star ? star : pattern + strlen(pattern);
    size_t before = (size_t)(end - pattern);
    if (strncmp(name, pattern, before) != 0) return false;
    *digits = name + before;
    *count = star ? (int)strspn(*digits, "0123456789") : 0;
    const char *rest = *digits + *count, *after = star ? star + 1 : "";
    if ((star && *count == 0) || strncmp(rest, after, strlen(after)) != 0) return false;
    *suffix = rest + strlen(after);
    return strcmp(*suffix, ".weight") == 0 || strcmp(*suffix, ".bias") == 0;
}

static void fill_in(const char *pattern, const char *digits, int count, const char *suffix, char out[TSHI_GGUF_NAME]) {
    const char *star = strchr(pattern, '*');
    int before = (int)(star ? (size_t)(star - pattern) : strlen(pattern));
    snprintf(out, TSHI_GGUF_NAME, "%.*s%.*s%s%s", before, pattern, count, digits, star ? star + 1 : "", suffix);
}

static bool is_known(const char *architecture) {
    return strcmp(architecture, "llama") == 0 || strcmp(architecture, "qwen2") == 0;
}

bool tshi_gguf_name_of(const char *architecture, const char *name, char out[TSHI_GGUF_NAME], const char **heads) {
    const char *digits, *suffix;
    int count;
    for (int i = 0; is_known(architecture) && strlen(name) < TSHI_GGUF_NAME && i < PAIRS; i++) {
        if (!matches(pairs[i].folder, name, &digits, &count, &suffix)) continue;
        fill_in(pairs[i].gguf, digits, count, suffix, out);
        *heads = strcmp(architecture, "llama") == 0 ? pairs[i].heads : NULL;
        return true;
    }
    return false;
}

/* Finds the rows of a head. */
static tsh_status set_head(const tshi_gguf *file, const char *architecture, const char *heads, tshi_gguf_tensor *t) {
    char key[128];
    int64_t count = 0, rows = t->entry.ndim ? t->entry.shape[0] : 0;
    snprintf(key, sizeof key, "%s.%s", architecture, heads);
    if (!tshi_gguf_integer_of(file, key, &count)) {
        snprintf(key, sizeof key, "%s.attention.head_count", architecture); /* also that of KV heads */
        tshi_gguf_integer_of(file, key, &count);
    }
    if (count < 1 || rows % count != 0 || rows / count % 2 != 0)
        return tshi_fail(TSH_ERR_IO,
                         "%.220s: tensor '%.100s' has %lld rows and %lld heads; each head needs an even number of rows",
                         file->path, t->name, (long long)rows, (long long)count);
    t->head = rows / count;
    return TSH_OK;
}

tsh_status tshi_gguf_rename(tshi_gguf *file) {
    char architecture[64] = "", name[TSHI_GGUF_NAME];
    const char *digits, *suffix;
    int length;
    tshi_gguf_text_of(file, "general.architecture", architecture, sizeof architecture);
    bool permuted = strcmp(architecture, "llama") == 0;
    for (int t = 0; is_known(architecture) && t < file->count; t++) {
        for (int i = 0; i < PAIRS; i++) {
            tshi_gguf_tensor *tensor = &file->tensors[t];
            if (!matches(pairs[i].gguf, tensor->name, &digits, &length, &suffix)) continue;
            fill_in(pairs[i].folder, digits, length, suffix, name);
            memcpy(tensor->name, name, sizeof name);
            tsh_status status =
                permuted && pairs[i].heads ? set_head(file, architecture, pairs[i].heads, tensor) : TSH_OK;
            if (status != TSH_OK) return status;
            break;
        }
    }
    return TSH_OK;
}
