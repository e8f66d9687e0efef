/* config.json of a model: what is read, and what is refused in words. */
#include "support/files.h"
#include "transformer/config.h"

#include <criterion/criterion.h>
#include <string.h>

static char words[MODEL_WORDS];

static model_config read_model(const char *name) {
    char folder[512];
    model_config config;
    snprintf(folder, sizeof folder, TSHARD_TEST_DATA "/models/%s", name);
    cr_assert(model_config_read(folder, &config, words), "%s: %s", name, words);
    return config;
}

Test(config, reads_each_family, .timeout = 120) {
    model_config gpt2 = read_model("gpt2-uneven"), llama = read_model("llama"), tied = read_model("llama-tied"),
                 qwen2 = read_model("qwen2"), bert = read_model("bert");
    cr_assert(gpt2.family == MODEL_GPT2 && gpt2.vocabulary == 101 && gpt2.positions == 24 && gpt2.layers == 2);
    cr_assert(gpt2.width == 35 && gpt2.inner == 140 && gpt2.heads == 7 && gpt2.kv_heads == 7 && gpt2.head_dim == 5);
    cr_assert(gpt2.activation == TSH_ACTIVATION_GELU_TANH && gpt2.norm_eps == 1e-5 && gpt2.tied && gpt2.qkv_bias);
    cr_assert(gpt2.output_bias && gpt2.mlp_bias && gpt2.rope_theta == 0);
    cr_assert(llama.family == MODEL_LLAMA && llama.vocabulary == 103 && llama.width == 48 && llama.inner == 88);
    cr_assert(llama.heads == 6 && llama.kv_heads == 2 && llama.head_dim == 8 && llama.positions == 32 && !llama.tied);
    cr_assert(llama.rope_theta == 10000 && llama.activation == TSH_ACTIVATION_SILU && !llama.qkv_bias);
    cr_assert(tied.tied && tied.kv_heads == 5 && tied.norm_eps == 1e-6);
    cr_assert(qwen2.family == MODEL_QWEN2 && qwen2.qkv_bias && !qwen2.output_bias && qwen2.tied && qwen2.head_dim == 8);
    cr_assert(bert.family == MODEL_BERT && bert.token_types == 2 && bert.activation == TSH_ACTIVATION_GELU);
    cr_assert(bert.norm_eps == 1e-12 && bert.qkv_bias && bert.output_bias && bert.mlp_bias && bert.positions == 20);
}

Test(config, reads_which_blocks_have_experts, .timeout = 120) {
    model_config qwen3 = read_model("qwen3"), mixtral = read_model("mixtral"), moe = read_model("qwen3-moe");
    cr_assert(qwen3.family == MODEL_QWEN3 && qwen3.qk_norm && !qwen3.qkv_bias && qwen3.experts == 0);
    cr_assert(!qwen3.has_experts[0] && qwen3.head_dim == 10 && qwen3.tied);
    cr_assert(mixtral.family == MODEL_MIXTRAL && mixtral.experts == 5 && mixtral.top_k == 2 && mixtral.renormalize);
    cr_assert(mixtral.expert_inner == 28 && mixtral.has_experts[0] && mixtral.has_experts[1] && !mixtral.qk_norm);
    cr_assert(moe.family == MODEL_QWEN3_MOE && moe.experts == 6 && moe.top_k == 3 && moe.expert_inner == 18);
    cr_assert(moe.has_experts[0] && !moe.has_experts[1] && moe.has_experts[2] && moe.inner == 44 && moe.qk_norm);
}

#define LLAMA                                                                                                          \
    "\"model_type\": \"llama\", \"vocab_size\": 10, \"max_position_embeddings\": 8, \"num_hidden_layers\": 1, "        \
    "\"intermediate_size\": 8, "
#define SIZES "\"hidden_size\": 8, \"num_attention_heads\": 2"

Test(config, reads_both_spellings_of_theta_and_missing_keys, .timeout = 120) {
    model_config c;
    tshi_test_enter();
    tshi_test_write_text("config.json", "{" LLAMA SIZES ", \"rope_theta\": 5e5, \"rope_scaling\": null}");
    cr_assert(model_config_read(tshi_test_path(""), &c, words), "%s", words);
    cr_assert(c.rope_theta == 5e5 && c.kv_heads == 2 && c.head_dim == 4 && !c.tied && c.norm_eps == 1e-6);
    tshi_test_write_text("config.json", "{" LLAMA SIZES ", \"rope_theta\": 3, \"rope_parameters\": {\"rope_theta\": 7},"
                                        " \"head_dim\": 6, \"num_key_value_heads\": 1, \"attention_bias\": true}");
    cr_assert(model_config_read(tshi_test_path(""), &c, words), "%s", words);
    cr_assert(c.rope_theta == 7 && c.kv_heads == 1 && c.head_dim == 6 && c.qkv_bias && c.output_bias);
    tshi_test_leave();
}

Test(config, reads_both_spellings_of_scaled_positions, .timeout = 120) {
    model_config c;
    tshi_test_enter();
    tshi_test_write_text("config.json",
                         "{" LLAMA SIZES ", \"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", "
                         "\"factor\": 2.5}}");
    cr_assert(model_config_read(tshi_test_path(""), &c, words), "%s", words);
    cr_assert(c.rope_theta == 5e5 && c.rope_scaling.factor == 2.5 && c.rope_scaling.original_positions == 0);
    tshi_test_write_text("config.json", "{" LLAMA SIZES ", \"rope_parameters\": {\"rope_type\": \"llama3\", "
                                        "\"rope_theta\": 7, \"factor\": 8, \"low_freq_factor\": 1.5, "
                                        "\"high_freq_factor\": 3, \"original_max_position_embeddings\": 64}}");
    cr_assert(model_config_read(tshi_test_path(""), &c, words), "%s", words);
    cr_assert(c.rope_theta == 7 && c.rope_scaling.factor == 8 && c.rope_scaling.low_freq_factor == 1.5);
    cr_assert(c.rope_scaling.high_freq_factor == 3 && c.rope_scaling.original_positions == 64);
    tshi_test_leave();
}

Test(config, says_what_is_wrong_and_what_would_do, .timeout = 120) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"{" LLAMA SIZES, "line 1"},
        {"[1]", "is no JSON object"},
        {"{}", "\"model_type\" is missing; a transformer model has one of gpt2, llama, qwen2, qwen3, mixtral, "
               "qwen3_moe, bert there"},
        {"{\"model_type\": \"mamba\"}", "\"model_type\" is \"mamba\"; a transformer model has one of gpt2"},
        {"{\"model_type\": 3}", "\"model_type\" is 3;"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 10}",
         "\"n_positions\" is missing; a gpt2 model has a whole number from 1 to 2147483648 there"},
        {"{" LLAMA "\"hidden_size\": 8}", "\"num_attention_heads\" is missing"},
        {"{" LLAMA "\"hidden_size\": 8.5, \"num_attention_heads\": 2}", "\"hidden_size\" is 8.5; a llama model has"},
        {"{" LLAMA "\"hidden_size\": 0, \"num_attention_heads\": 2}", "\"hidden_size\" is 0;"},
        {"{" LLAMA "\"hidden_size\": -8, \"num_attention_heads\": 2}", "\"hidden_size\" is -8;"},
        {"{" LLAMA "\"hidden_size\": 99999999999, \"num_attention_heads\": 2}", "\"hidden_size\" is 99999999999;"},
        {"{" LLAMA "\"hidden_size\": {\"a\": 1}, \"num_attention_heads\": 2}", "\"hidden_size\" is {\"a\":1};"},
        {"{" LLAMA SIZES ", \"hidden_act\": \"mish\"}", "\"hidden_act\" is \"mish\"; a llama model has one of gelu,"},
        {"{" LLAMA SIZES ", \"rms_norm_eps\": 0}", "\"rms_norm_eps\" is 0; a llama model has a number above 0"},
        {"{" LLAMA SIZES ", \"tie_word_embeddings\": 1}", "\"tie_word_embeddings\" is 1;"},
        {"{" LLAMA SIZES ", \"num_key_value_heads\": 3}", "2 heads share 3 KV heads"},
        {"{" LLAMA "\"hidden_size\": 8, \"num_attention_heads\": 3}", "8 features are split over 3 heads"},
        {"{" LLAMA SIZES ", \"head_dim\": 5}", "a head has 5 features"},
        {"{" LLAMA SIZES ", \"rope_theta\": \"many\"}", "\"rope_theta\" is \"many\""},
        {"{" LLAMA SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
         "\"original_max_position_embeddings\" is missing; a llama model has a whole number"},
        {"{" LLAMA SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 8}}",
         "\"high_freq_factor\" is 4, \"low_freq_factor\" 4; the first has to be the larger one"},
        {"{" LLAMA SIZES ", \"rope_scaling\": {\"type\": \"linear\"}}", "\"factor\" is missing; a llama model has"},
        {"{" LLAMA SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}}", "\"factor\" is -1"},
        {"{" LLAMA SIZES ", \"rope_scaling\": {\"type\": 3}}", "\"rope_type\" is 3"},
        {"{" LLAMA SIZES ", \"rope_scaling\": 3}", "\"rope_scaling\" is 3"},
        {"{" LLAMA SIZES ", \"rope_parameters\": {\"rope_type\": \"yarn\"}}",
         "\"rope_type\" is yarn; this program supports only \"default\", \"linear\" and \"llama3\""},
        {"{" LLAMA SIZES ", \"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"yarn\"}}",
         "\"rope_type\" is yarn"},
        {"{" LLAMA SIZES ", \"partial_rotary_factor\": 0.5}",
         "\"partial_rotary_factor\" is 0.5; this program supports only 1"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_positions\": 8, \"n_layer\": 1000000, \"n_embd\": 8, "
         "\"n_head\": 2}",
         "1000000 layers; at most 10000"},
        {"{" LLAMA SIZES ", \"use_sliding_window\": true}",
         "\"use_sliding_window\" is true; this program supports only false"},
    };
    model_config c;
    tshi_test_enter();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tshi_test_write_text("config.json", wrong[i].text);
        cr_assert(!model_config_read(tshi_test_path(""), &c, words), "read %s", wrong[i].text);
        cr_assert(strstr(words, "/config.json: ") && strstr(words, wrong[i].words), "\"%s\", \"%s\" wanted", words,
                  wrong[i].words);
    }
    tshi_test_leave();
    cr_assert(!model_config_read("/nonexistent", &c, words));
    cr_assert(strstr(words, "No such file") && strstr(words, "a folder with config.json and model.safetensors"), "%s",
              words);
}
