/* generate and embed as their users run them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/base.h"
#include "support/files.h"
#include "support/shell.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(generate, .init = tshi_test_enter, .fini = tshi_test_leave);
TestSuite(embed, .init = tshi_test_enter, .fini = tshi_test_leave);

#define RUN    TSHARD_BIN_DIR "/tshard-run --no-prefix -n "
#define MODELS TSHARD_TEST_DATA "/models/"

static char *output;

/* Runs a shell command line; what it prints on stdout comes back, and on stderr too when it fails. */
static const char *run(int *code, const char *format, ...) {
    char command[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    cr_assert(length > 0 && length < (int)sizeof command);
    const char *errors = tshi_test_path("errors");
    output = tshi_test_shell(code, "(%s) 2> %s; code=$?; [ $code = 0 ] || cat %s; exit $code", command, errors, errors);
    return output;
}

/* A tensor of a model's expected.safetensors; numbers of 8 bytes each. */
static int64_t read_expected(const char *model, const char *name, void *out, int64_t most) {
    char path[512];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file = NULL;
    snprintf(path, sizeof path, MODELS "%s/expected.safetensors", model);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_OK, "%s", tsh_error_message());
    const tshi_safetensors_entry *e = tshi_safetensors_find(file, name);
    cr_assert_not_null(e);
    tsh_box box = {0};
    int64_t count = 1;
    for (int d = 0; d < e->ndim; d++) count *= box.length[d] = e->shape[d];
    cr_assert_leq(count, most);
    cr_assert_eq(tshi_safetensors_read_box(file, e, &box, out), TSH_OK);
    tshi_safetensors_close(file);
    return count;
}

static void list_ids(const int64_t *ids, int64_t count, char *text) {
    for (int64_t i = 0; i < count; i++) text += sprintf(text, "%s%lld", i ? "," : "", (long long)ids[i]);
}

/* --- generate ----------------------------------------------------------------------------------------------------- */

/* The model's own prompt, and the ids that transformers generates. */
static void continues(const char *model, int ranks, const char *dtype) {
    int64_t prompt[64], wanted[64];
    char prompt_text[512], wanted_text[512];
    int code;
    list_ids(prompt, read_expected(model, "prompt", prompt, 64), prompt_text);
    int64_t count = read_expected(model, "generated", wanted, 64);
    list_ids(wanted, count, wanted_text);
    run(&code,
        RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS "%s --prompt-ids %s --tokens %lld --dtype %s --ignore-eos",
        ranks, model, prompt_text, (long long)count, dtype);
    cr_assert_eq(code, 0, "%s", output);
    size_t length = strlen(wanted_text);
    cr_assert(strstr(output, wanted_text) == output && output[length] == '\n', "%s on %d ranks: %s, %s wanted", model,
              ranks, output, wanted_text);
}

Test(generate, continues_a_prompt_as_transformers_does, .timeout = 300) {
    static const char *const models[] = {"gpt2", "gpt2-uneven", "llama", "llama-tied", "llama3", "qwen2"};
    for (int i = 0; i < 6; i++) {
        continues(models[i], 1, "float32");
        for (int ranks = 2; ranks <= 4; ranks++) continues(models[i], ranks, "float64");
    }
    continues("gpt2-uneven", 7, "float64");
    continues("llama", 7, "float64");
}

/* The ids of float64 arithmetic on the file's weights, the first `most` of them. */
static void continues_file(const char *model, const char *type, int ranks, const char *dtype, int64_t most) {
    int64_t prompt[128], wanted[64];
    char name[64], folder[64], prompt_text[512], wanted_text[512];
    int code;
    snprintf(folder, sizeof folder, "../gguf/%s", model);
    snprintf(name, sizeof name, "generated.%s", type);
    list_ids(prompt, read_expected(folder, "prompt", prompt, 128), prompt_text);
    int64_t count = read_expected(folder, name, wanted, 64);
    count = count < most ? count : most;
    list_ids(wanted, count, wanted_text);
    run(&code,
        RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS
            "%s/%s-%s.gguf --prompt-ids %s --tokens %lld %s --ignore-eos",
        ranks, folder, model, type, prompt_text, (long long)count, dtype);
    cr_assert_eq(code, 0, "%s", output);
    size_t length = strlen(wanted_text);
    cr_assert(strncmp(output, wanted_text, length) == 0 && output[length] == '\n', "%s-%s on %d ranks: %s, %s wanted",
              model, type, ranks, output, wanted_text);
}

Test(generate, continues_a_prompt_with_a_gguf_file, .timeout = 300) {
    static const char *const files[][2] = {{"llama", "f32"},  {"llama", "f16"},      {"llama", "q8_0"},
                                           {"llama", "q4_0"}, {"llama-k", "q4_k_m"}, {"llama3", "f32"},
                                           {"llama3", "q8_0"}};
    for (int i = 0; i < 7; i++) {
        continues_file(files[i][0], files[i][1], 1, "--dtype float32", 64);
        for (int ranks = 1 + i % 2; ranks <= 3; ranks++)
            continues_file(files[i][0], files[i][1], ranks, "--dtype float64", 64);
    }
}

/* Without --dtype weights stay quantized: the words are those of the values up to the eighth of q8_0, where two words
 * are almost as likely, and the weights' bytes are the file's. */
Test(generate, keeps_quantized_weights, .timeout = 300) {
    static const struct {
        const char *type;
        double bytes; /* of the weights but the embeddings: for 32, 34 or 18 bytes; norms are float32 */
    } files[] = {{"q8_0", 67904. * 34 / 32 + 5 * 64 * 4}, {"q4_0", 61440. * 18 / 32 + 6464. * 34 / 32 + 5 * 64 * 4}};
    for (int i = 0; i < 2; i++) {
        for (int ranks = 1; ranks <= 5; ranks += 2) continues_file("llama", files[i].type, ranks, "", i == 0 ? 7 : 64);
        int code;
        run(&code,
            TSHARD_BIN_DIR "/generate --model " MODELS "../gguf/llama/llama-%s.gguf --prompt-ids 1 --tokens 2 --json",
            files[i].type);
        const char *bytes = strstr(output, "\"weight_bytes\": ");
        cr_assert(code == 0 && bytes, "%d: %s", code, output);
        cr_assert(fabs(atof(bytes + 16) - files[i].bytes) <= 0.02 * files[i].bytes, "%s, %.0f wanted", bytes,
                  files[i].bytes);
    }
}

/* A token after each prefix of two sequences: the likeliest by PEFT's logits of the merged model. */
Test(generate, continues_with_an_adapter_as_peft_does, .timeout = 300) {
    enum { SEQUENCES = 2, TOKENS = 9, WORDS = 103 };
    static double logits[SEQUENCES * TOKENS * WORDS];
    int64_t ids[SEQUENCES * TOKENS];
    char prompts[1024] = "", wanted[256] = "", file[256];
    int code;
    read_expected("../adapters/llama-lora", "ids", ids, SEQUENCES * TOKENS);
    read_expected("../adapters/llama-lora", "merged_logits", logits, SEQUENCES * TOKENS * WORDS);
    for (int i = 0; i < SEQUENCES * TOKENS; i++) {
        int best = 0;
        for (int w = 0; w < WORDS; w++) best = logits[i * WORDS + w] > logits[i * WORDS + best] ? w : best;
        list_ids(ids + i / TOKENS * TOKENS, i % TOKENS + 1, prompts + strlen(prompts));
        strcat(prompts, "\n");
        sprintf(wanted + strlen(wanted), "%d\n", best);
    }
    tshi_test_write_text("prompts", prompts);
    snprintf(file, sizeof file, "%s", tshi_test_path("prompts"));
    for (int ranks = 1; ranks <= 4; ranks++) {
        run(&code,
            RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS "llama --adapter " MODELS
                "../adapters/llama-lora --prompts %s --tokens 1 --dtype float64",
            ranks, file);
        cr_assert(code == 0 && strcmp(output, wanted) == 0, "%d ranks: %s, %s wanted", ranks, output, wanted);
    }
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompts %s --tokens 1 --dtype float64", file);
    cr_assert(code == 0 && strcmp(output, wanted) != 0, "the adapter changes nothing: %s", output);
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama --adapter " MODELS "llama --prompt-ids 1 --tokens 2");
    cr_assert(code == 1 && strstr(output, "adapter_config.json"), "%d: %s", code, output);
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama-tied --adapter " MODELS
                              "../adapters/llama-lora --prompt-ids 1 --tokens 2");
    cr_assert(code == 1 && strstr(output, "lora_"), "%d: %s", code, output);
}

/* llama3's 36,11,16,36,11,4 goes up to 16 by its config.json, up to 11 by a generation_config.json beside it. */
Test(generate, stops_at_the_token_that_ends_a_text, .timeout = 120) {
    int64_t prompt[64];
    char ids[512];
    int code;
    char folder[256];
    snprintf(folder, sizeof folder, "%s", tshi_test_path("m"));
    list_ids(prompt, read_expected("llama3", "prompt", prompt, 64), ids);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        run(&code, RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS "llama3 --prompt-ids %s --tokens 6", ranks,
            ids);
        cr_assert(code == 0 && strcmp(output, "36,11,16\n") == 0, "%d: %s", code, output);
    }
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama3 --prompt-ids %s --tokens 2 --json", ids);
    cr_assert(code == 0 && strstr(output, "{\"ids\": [36, 11], "), "%s", output);
    run(&code,
        "cp -r " MODELS "llama3 %s && chmod -R u+w %s && echo '{\"eos_token_id\": 11}' > %s/generation_config.json",
        folder, folder, folder);
    cr_assert_eq(code, 0, "%s", output);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids %s --tokens 6", folder, ids);
    cr_assert(code == 0 && strcmp(output, "36,11\n") == 0, "%d: %s", code, output);
    run(&code,
        "echo '{\"eos_token_id\": \"end\"}' > %s/generation_config.json; " TSHARD_BIN_DIR
        "/generate --model %s --prompt-ids 1 --tokens 6",
        folder, folder);
    cr_assert(code == 1 &&
                  strstr(output, "generation_config.json: \"eos_token_id\" is \"end\"; a llama model has a token's"),
              "%d: %s", code, output);
}

/* Prompts of 1 to 9 tokens at once, one of which ends a text before the others do. */
Test(generate, continues_the_prompts_of_a_file_as_it_does_each_alone, .timeout = 300) {
    static const char *const models[] = {"gpt2-uneven", "llama3", "qwen2"};
    char prompts[4][512] = {"5,6,7", "9", "1,2,3,4,5,6,7,8,9", ""}, wanted[4096];
    char file[256];
    int64_t prompt[64];
    int code;
    list_ids(prompt, read_expected("llama3", "prompt", prompt, 64), prompts[3]);
    snprintf(wanted, sizeof wanted, "%s\n%s\n%s\n%s\n", prompts[0], prompts[1], prompts[2], prompts[3]);
    tshi_test_write_text("prompts", wanted);
    snprintf(file, sizeof file, "%s", tshi_test_path("prompts"));
    for (int i = 0; i < 3; i++) {
        wanted[0] = '\0';
        for (int b = 0; b < 4; b++) {
            run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "%s --prompt-ids %s --tokens 4 --dtype float64",
                models[i], prompts[b]);
            cr_assert_eq(code, 0, "%s", output);
            strcat(wanted, output);
        }
        if (i == 1) cr_assert(strstr(wanted, "\n36,11,16\n"), "a text has an end: %s", wanted);
        for (int ranks = 1; ranks <= 4; ranks++) {
            run(&code,
                RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS "%s --prompts %s --tokens 4 --dtype float64",
                ranks, models[i], file);
            cr_assert(code == 0 && strcmp(output, wanted) == 0, "%s on %d ranks: %s, %s wanted", models[i], ranks,
                      output, wanted);
        }
    }
    run(&code, RUN "2 " TSHARD_BIN_DIR "/generate --model " MODELS "llama --random-weights --prompt-tokens 5 --batch 3 "
                   "--tokens 4 --repeat 3 --json");
    cr_assert(code == 0 && strncmp(output, "{\"ids\": [[", 10) == 0 && strstr(output, "]], \"ranks\": 2") &&
                  strstr(output, "\"prompt_tokens\": 15,") && strstr(output, "\"allocations\": 0}"),
              "%d: %s", code, output);
}

/* A pipe gives its bytes once, to the rank that reads it. */
Test(generate, takes_the_prompts_of_a_pipe_at_any_number_of_ranks, .timeout = 120) {
    char wanted[512] = "";
    int code;
    for (int ranks = 1; ranks <= 3; ranks++) {
        run(&code,
            "printf '1 2 3\\n4 5' | " RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS
            "llama --prompts /dev/stdin --tokens 3 --dtype float64",
            ranks);
        cr_assert_eq(code, 0, "%s", output);
        if (ranks == 1) strcpy(wanted, output);
        cr_assert_str_eq(output, wanted);
    }
    run(&code, RUN "3 " TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompts /dev/zero");
    cr_assert(code == 1 && strstr(output, "/dev/zero: File too large"), "%s", output);
    run(&code, ": | " RUN "3 " TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompts /dev/stdin");
    cr_assert(code == 1 && strstr(output, "/dev/stdin is empty"), "%s", output);
    run(&code, "printf '1 \\0 2' | " TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompts /dev/stdin");
    cr_assert(code == 1 && strstr(output, "/dev/stdin has a zero byte"), "%s", output);
}

/* What is printed must not get into a file that takes the descriptor's number. */
Test(generate, fails_where_its_output_has_nowhere_to_go, .timeout = 60) {
    int code;
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompt-ids 1 --tokens 2 >&-");
    cr_assert(code == 1 && strstr(output, "not all of the output could be written"), "%d: %s", code, output);
    run(&code, RUN "2 " TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompt-ids 1 --tokens 2 >&-");
    cr_assert(code == 1 && strstr(output, "tshard-run: cannot write the ranks' output to stdout"), "%d: %s", code,
              output);
}

/* The tokens of one to four ranks, which are the same. */
static void draws(const char *environment, const char *options, char tokens[512]) {
    int code;
    for (int ranks = 1; ranks <= 4; ranks++) {
        run(&code, "%s " RUN "%d " TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompt-ids 5,6,7 --tokens 20 %s",
            environment, ranks, options);
        cr_assert_eq(code, 0, "%s", output);
        if (ranks == 1) snprintf(tokens, 512, "%s", output);
        cr_assert_str_eq(output, tokens, "%s on %d ranks", options, ranks);
    }
}

Test(generate, draws_the_same_tokens_at_any_number_of_ranks, .timeout = 300) {
    static const char *const options[] = {
        "--dtype float64 --temperature 0.8 --seed 3", "--dtype float64 --temperature 1.5 --top-k 5 --seed 3",
        "--dtype float64 --temperature 1 --top-p 0.7 --seed 4", "--dtype float64 --temperature 1 --top-k 1"};
    char drawn[4][512];
    int code;
    for (int i = 0; i < 4; i++) draws("", options[i], drawn[i]);
    for (int i = 1; i < 4; i++) cr_assert_str_neq(drawn[i], drawn[0]);
    run(&code, TSHARD_BIN_DIR "/generate --model " MODELS "llama --prompt-ids 5,6,7 --tokens 20 --dtype float64");
    cr_assert_str_eq(output, drawn[3], "of one token the likeliest is drawn");
}

/* In 16 bits the sums over ranks are rounded, unless each rank makes all of them. */
Test(generate, draws_the_same_tokens_of_a_deterministic_world_in_16_bits, .timeout = 120) {
    char drawn[512];
    draws("TSHARD_DETERMINISTIC=1", "--dtype bfloat16 --temperature 1 --top-p 0.7 --seed 4", drawn);
}

Test(generate, says_in_json_how_fast_it_was, .timeout = 120) {
    int code, ranks;
    long long prompt, allocations;
    double prompt_rate, rate, bytes, read, stream;
    run(&code,
        RUN "2 " TSHARD_BIN_DIR "/generate --model " MODELS "llama --random-weights --prompt-tokens 9 --tokens 5 "
            "--repeat 3 --json");
    cr_assert_eq(code, 0, "%s", output);
    const char *end = strchr(output, ']');
    cr_assert(strncmp(output, "{\"ids\": [", 9) == 0 && end, "%s", output);
    int found = sscanf(end,
                       "], \"ranks\": %d, \"dtype\": \"float32\", \"prompt_tokens\": %lld, \"prompt_tokens_per_s\": "
                       "%lf, \"tokens_per_s\": %lf, \"weight_bytes\": %lf, \"weight_bytes_per_s\": %lf, "
                       "\"stream_bytes_per_s\": %lf, \"allocations\": %lld}",
                       &ranks, &prompt, &prompt_rate, &rate, &bytes, &read, &stream, &allocations);
    cr_assert_eq(found, 8, "%s", output);
    cr_assert_eq(allocations, 0, "the third repetition took new memory %lld times", allocations);
    cr_assert(ranks == 2 && prompt == 9 && prompt_rate > 0 && rate > 0 && stream > 1e8, "%s", output);
    /* Two blocks and the output layer; what both ranks hold, both read. */
    double weights = 2 * (48 * 48 * 2 + 48 * 16 * 2 + 48 * 88 * 3) + 103 * 48, norms = 2 * (2 * 48) + 48;
    cr_assert(bytes >= 4 * (weights + norms) && bytes <= 4 * (weights + 4 * norms), "%.0f bytes", bytes);
    cr_assert_lt(fabs(read - rate * bytes), 1e-2 * read);
}

#define COPY                                                                                                           \
    "cp " MODELS "llama/config.json " MODELS "llama/model.safetensors %s && chmod u+w %s/* && "                        \
    "sed -i 's/\"vocab_size\": 103/\"vocab_size\": 103/' %s/config.json"

/* Characters, bytes and a special token. */
Test(generate, takes_a_text_where_tokens_are_characters_or_bytes, .timeout = 120) {
    char tokens[8192] = "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"<pad>\": 0, \"\\u00e9\": 1";
    int code;
    char folder[64];
    snprintf(folder, sizeof folder, "%s", tshi_test_path("."));
    run(&code, COPY, folder, folder, folder);
    cr_assert_eq(code, 0, "%s", output);
    for (int i = 2; i < 103; i++) {
        if (i < 60) {
            sprintf(tokens + strlen(tokens), ", \"%c\": %d", 'A' + i - 2 == '\\' ? '~' : 'A' + i - 2, i);
        } else {
            sprintf(tokens + strlen(tokens), ", \"<0x%02X>\": %d", i < 80 ? i - 40 : i + 100, i);
        }
    }
    strcat(tokens, "}}}");
    tshi_test_write_text("tokenizer.json", tokens);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'A\u00e9B C' --tokens 12 --json", folder);
    cr_assert_eq(code, 0, "%s", output);
    char ids[512];
    cr_assert_eq(sscanf(output, "{\"ids\": [%511[^]]]", ids), 1, "%s", output);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids 2,1,3,72,4 --tokens 12 --json", folder);
    cr_assert(strstr(output, ids), "%s wanted: %s", ids, output);
    cr_assert(strstr(output, "\"text\": \""), "%s", output);
    /* Characters, and bytes between 0x80 and 0xff of which none makes one. */
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids 2 --temperature 9 --seed 1 --tokens 31 --json",
        folder);
    cr_assert(code == 0 && strstr(output, "\"text\": \""), "%s", output);
    tshi_test_write_text("out", output);
    run(&code, "iconv -f utf-8 -t utf-8 %s > /dev/null", tshi_test_path("out"));
    cr_assert_eq(code, 0, "no UTF-8");
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'A%%' --tokens 12", folder);
    cr_assert(code == 0, "%s", output);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'A\x7f' --tokens 12", folder);
    cr_assert(code == 1 && strstr(output, "tokenizer.json has no token for '\x7f'"), "%s", output);
    tshi_test_write_text("tokenizer.json", "{\"model\": {\"vocab\": {\"the\": 0, \"a\": 1}}}");
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt a", folder);
    cr_assert(code == 1 && strstr(output, "such as \"the\", are longer than a character; --prompt-ids takes"), "%s",
              output);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids 1 --tokens 2", folder);
    cr_assert_eq(code, 0, "%s", output);
}

/* Bytes as GPT-2's letters: '!' to '~' are their own, U+0100 is byte 0, U+0120 the blank, and U+0143 byte 0xad. */
Test(generate, takes_a_text_where_tokens_are_gpt2s_letters_for_bytes, .timeout = 120) {
    static const char *const head = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": %s}, "
                                    "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": "
                                    "{\"<|endoftext|>\": 0, \"\u00c3\": 1, \"\u00a9\": 2, \"\u0120\": 3, \"\u010a\": 4";
    char tokens[8192], folder[64], ids[512];
    int code;
    snprintf(folder, sizeof folder, "%s", tshi_test_path("."));
    run(&code, COPY, folder, folder, folder);
    cr_assert_eq(code, 0, "%s", output);
    for (int blank = 0; blank < 2; blank++) {
        sprintf(tokens, head, blank ? "true" : "false");
        for (int i = 5; i < 32; i++) sprintf(tokens + strlen(tokens), ", \"%c\": %d", 'A' + i - 5, i);
        tshi_test_write_text("tokenizer.json", strcat(tokens, "}}}"));
        run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'A\u00e9 B\nC' --tokens 5 --json", folder);
        cr_assert_eq(code, 0, "%s", output);
        cr_assert_eq(sscanf(output, "{\"ids\": [%511[^]]]", ids), 1, "%s", output);
        run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids %s5,1,2,3,6,4,7 --tokens 5 --json", folder,
            blank ? "3," : "");
        cr_assert(strstr(output, ids), "%s wanted: %s", ids, output);
    }
    run(&code, "sed -i 's/ByteLevel/Metaspace/; s/BPE/Unigram/' %s/tokenizer.json", folder);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt A", folder);
    cr_assert(code == 1 &&
                  strstr(output, "its pre_tokenizer is a Metaspace, which is not built in; --prompt-ids takes"),
              "%s", output);
}

/* Words of several characters: the library's tokenizer, whose text is printed as it comes. */
Test(generate, takes_a_text_where_tokens_are_words, .timeout = 120) {
    char folder[64], ids[512], words[2048] = "";
    tsh_tokenizer *t = NULL;
    const char *text;
    int code;
    int64_t list[64], count = 0;
    snprintf(folder, sizeof folder, "%s", tshi_test_path("."));
    run(&code, COPY, folder, folder, folder);
    cr_assert_eq(code, 0, "%s", output);
    char tokens[8192] = "{\"decoder\": {\"type\": \"WordPiece\"}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "
                        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[UNK]\": 0";
    for (int i = 1; i < 103; i++) sprintf(tokens + strlen(tokens), ", \"%sword%d\": %d", i % 3 ? "" : "##", i, i);
    tshi_test_write_text("tokenizer.json", strcat(tokens, "}}}"));
    if (tsh_tokenizer_load(folder, &t) == TSH_ERR_UNSUPPORTED) cr_skip_test("this build has no tokenizers");
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'word1 word5word6' --tokens 12 --json", folder);
    cr_assert(code == 0 && sscanf(output, "{\"ids\": [%511[^]]]", ids) == 1, "%s", output);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt-ids 1,5,6 --tokens 12 --json", folder);
    cr_assert(code == 0 && strstr(output, ids), "%s wanted: %s", ids, output);
    for (const char *p = ids; p; p = strchr(p, ',') ? strchr(p, ',') + 2 : NULL) list[count++] = atoi(p);
    cr_assert_eq(tsh_tokenizer_decode(t, list, count, false, &text, NULL), TSH_OK);
    for (int ranks = 1; ranks < 3; ranks++) {
        run(&code, RUN "%d " TSHARD_BIN_DIR "/generate --model %s --prompt 'word1 word5word6' --tokens 12 2>&1", ranks,
            folder);
        snprintf(words, sizeof words, "%s\n", text);
        cr_assert(code == 0 && strstr(output, words), "'%s' wanted: %s", words, output);
    }
    tsh_tokenizer_destroy(t);
    run(&code, "sed -i 's/\"##word102\": 102/\"##word102\": 2000/' %s/tokenizer.json", folder);
    run(&code, TSHARD_BIN_DIR "/generate --model %s --prompt 'word1word102' --tokens 2", folder);
    cr_assert(code == 1 && strstr(output, "--prompt: its token 2000 is past the vocabulary"), "%s", output);
}

static void refuses(int wanted_code, const char *words, const char *arguments) {
    int code;
    run(&code, RUN "2 " TSHARD_BIN_DIR "/%s", arguments);
    cr_assert_eq(code, wanted_code, "%s: exit code %d, %s", arguments, code, output);
    cr_assert(strstr(output, words), "%s: '%s' is not in: %s", arguments, words, output);
    /* Once by rank 0, and once by tshard-run, which ends with its last lines. */
    const char *second = strstr(strstr(output, words) + 1, words);
    cr_assert(!second || !strstr(second + 1, words), "%s: said too often: %s", arguments, output);
}

Test(generate, says_what_is_wrong_and_what_would_do, .timeout = 300) {
    refuses(2, "generate: --model DIR is missing", "generate --prompt-ids 1");
    refuses(2, "one of --prompt, --chat, --prompt-ids, --prompts and --prompt-tokens is wanted", "generate --model x");
    refuses(2, "one of --prompt, --chat, --prompt-ids", "generate --model x --prompt a --prompt-ids 1");
    refuses(2, "--batch wants --prompt-tokens", "generate --model x --prompt-ids 1 --batch 2");
    refuses(2, "--prompts wants a path, not ''", "generate --prompts ''");
    refuses(2, "--tokens wants a whole number, 1 to 1000000000, not '0'", "generate --tokens 0");
    refuses(2, "--tokens wants a whole number", "generate --tokens=+3");
    refuses(2, "--temperature wants a number, 0 to 1000, not 'nan'", "generate --temperature nan");
    refuses(2, "--top-p wants a number, 0 to 1, not '1.5'", "generate --top-p 1.5");
    refuses(2, "--dtype wants float32, float64, bfloat16 or float16, not 'int8'", "generate --dtype int8");
    refuses(2, "--seed wants a value", "generate --seed");
    refuses(2, "'--what' is no option (--help names them)", "generate --what");
    refuses(1, "No such file or directory; a folder with config.json", "generate --model /nowhere --prompt-ids 1");
    refuses(1, "a bert model has no next token; embed computes", "generate --model " MODELS "bert --prompt-ids 1");
    refuses(1, "--prompt-ids: id 103 is past the vocabulary: the model has the ids 0 to 102",
            "generate --model " MODELS "llama --prompt-ids 1,103");
    refuses(1, "--prompt-ids: '-1' is no id", "generate --model " MODELS "llama --prompt-ids 1,-1");
    refuses(1, "--prompt-ids: there is no id", "generate --model " MODELS "llama --prompt-ids ,");
    refuses(1, "--prompt-ids: there is no id before a comma", "generate --model " MODELS "llama --prompt-ids 1,,2");
    refuses(1, "/nowhere: No such file", "generate --model " MODELS "llama --prompts /nowhere");
    refuses(1, "a prompt of 40 tokens, and the model has 32 positions: at most 31",
            "generate --model " MODELS "llama --prompt-tokens 40");
    refuses(1, "a prompt of 1000000000 tokens, and the model has 32 positions: at most 31",
            "generate --model " MODELS "llama --prompt-tokens 1000000000 --batch 1000000");
    refuses(1, "a prompt of 4 tokens and 29 to generate, and the model has 32 positions: --tokens 28 would fill",
            "generate --model " MODELS "llama --prompt-tokens 4 --tokens 29");
    refuses(1, "has neither tokenizer.json nor vocab.json", "generate --model " MODELS "llama --prompt hello");
}

/* One rank of three is killed when it has computed for half a second: the others name it, and the job ends with its
 * signal. */
Test(generate, a_killed_rank_ends_the_job, .timeout = 120) {
    int code;
    run(&code, RUN
        "3 sh -c 'if [ $RANK = 1 ]; then " TSHARD_BIN_DIR "/generate \"$@\" & "
        "while test -e /proc/$! -a $(cut -d\" \" -f14 /proc/$!/stat) -lt 50; do sleep 0.02; done; kill -9 $!; wait $!; "
        "else exec " TSHARD_BIN_DIR "/generate \"$@\"; fi' generate --model " MODELS "llama --prompt-ids 1 "
        "--tokens 31 --repeat 1000000");
    cr_assert_eq(code, 128 + SIGKILL, "%d: %s", code, output);
    cr_assert(strstr(output, "generate: ") && strstr(output, "rank 1"), "%s", output);
}

/* --- embed -------------------------------------------------------------------------------------------------------- */

Test(embed, gives_the_vectors_of_transformers, .timeout = 120) {
    int64_t ids[64], mask[64];
    double wanted[128];
    char line[512];
    int code;
    cr_assert_eq(read_expected("bert", "ids", ids, 64), 30);
    cr_assert_eq(read_expected("bert", "mask", mask, 64), 30);
    cr_assert_eq(read_expected("bert", "pooled", wanted, 128), 96);
    char text[2048] = "";
    for (int b = 0; b < 3; b++) {
        int count = 0;
        while (count < 10 && mask[10 * b + count]) count++;
        list_ids(ids + 10 * b, count, line);
        sprintf(text + strlen(text), "%s\n", line);
    }
    tshi_test_write_text("ids", text);
    for (int ranks = 1; ranks <= 4; ranks++) {
        run(&code, RUN "%d " TSHARD_BIN_DIR "/embed --model " MODELS "bert --ids %s --batch %d --dtype %s", ranks,
            tshi_test_path("ids"), ranks == 2 ? 2 : 32, ranks == 3 ? "float64" : "float32");
        cr_assert_eq(code, 0, "%s", output);
        const char *p = output;
        for (int i = 0; i < 96; i++) {
            char *end;
            double got = strtod(p, &end);
            cr_assert(end != p && fabs(got - wanted[i]) <= 1e-5, "%d: %g, %g wanted", i, got, wanted[i]);
            cr_assert_eq(*end, i % 32 == 31 ? '\n' : ' ');
            p = end;
        }
    }
    char wanted_text[8192];
    run(&code, RUN "3 " TSHARD_BIN_DIR "/embed --model " MODELS "bert --ids %s", tshi_test_path("ids"));
    cr_assert_lt((size_t)snprintf(wanted_text, sizeof wanted_text, "%s", output), sizeof wanted_text);
    run(&code, "cat %s | " RUN "3 " TSHARD_BIN_DIR "/embed --model " MODELS "bert --ids /dev/stdin",
        tshi_test_path("ids"));
    cr_assert(code == 0 && strcmp(output, wanted_text) == 0, "%d: %s", code, output);
    run(&code, TSHARD_BIN_DIR "/embed --model " MODELS "bert --ids %s --json", tshi_test_path("ids"));
    cr_assert(code == 0 && strncmp(output, "{\"vectors\": [[", 14) == 0 && strstr(output, "]]}\n"), "%s", output);
}

/* Sentences give the vectors of their ids. */
Test(embed, tokenizes_sentences, .timeout = 120) {
    static const char tokenizer[] =
        "{\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, "
        "\"strip_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[CLS]\", "
        "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", "
        "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [1], "
        "\"tokens\": "
        "[\"[CLS]\"]}, \"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [2], \"tokens\": [\"[SEP]\"]}}}, \"added_tokens\": [], "
        "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, "
        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", "
        "\"max_input_chars_per_word\": 100, \"vocab\": {\"[UNK]\": 0, \"[CLS]\": 1, \"[SEP]\": 2, \"a\": 3, \"rank\": "
        "4, "
        "\"##s\": 5, \"adds\": 6, \"vocabulary\": 95}}}";
    char wanted[4096];
    int code;
    run(&code, "mkdir %s && ln -s " MODELS "bert/*.json " MODELS "bert/*.safetensors %s", tshi_test_path("model"),
        tshi_test_path("model"));
    cr_assert_eq(code, 0, "%s", output);
    tshi_test_write_text("model/tokenizer.json", tokenizer);
    tshi_test_write_text("sentences", "A rank\nRanks adds\n\n");
    tshi_test_write_text("ids", "1 3 4 2\n1 4 5 6 2\n1 2\n");
    run(&code, RUN "2 " TSHARD_BIN_DIR "/embed --model " MODELS "bert --ids %s", tshi_test_path("ids"));
    cr_assert_lt((size_t)snprintf(wanted, sizeof wanted, "%s", output), sizeof wanted);
    run(&code, RUN "2 " TSHARD_BIN_DIR "/embed --model %s --text %s", tshi_test_path("model"),
        tshi_test_path("sentences"));
    if (code && strstr(output, "PCRE2")) return; /* a build without tokenizers says so */
    cr_assert(code == 0 && strcmp(output, wanted) == 0, "%s, %s wanted", output, wanted);
    tshi_test_write_text("sentences", "a\nvocabulary\n");
    run(&code, TSHARD_BIN_DIR "/embed --model %s --text %s 2>&1", tshi_test_path("model"), tshi_test_path("sentences"));
    cr_assert(code == 1 && strstr(output, "sentences:2: its token 95 is past the vocabulary"), "%d: %s", code, output);
}

Test(embed, says_what_is_wrong_and_what_would_do, .timeout = 120) {
    char arguments[512];
    refuses(2, "embed: --model DIR is missing", "embed --ids x");
    refuses(2, "embed: --text FILE or --ids FILE is missing", "embed --model x");
    refuses(2, "embed: --text and --ids exclude each other", "embed --model x --text y --ids z");
    refuses(1, "is a gpt2 model; generate runs it, and embed takes bert", "embed --model " MODELS "gpt2 --ids x");
    refuses(1, "/nowhere: No such file", "embed --model " MODELS "bert --ids /nowhere");
    snprintf(arguments, sizeof arguments, "embed --model " MODELS "bert --ids %s", tshi_test_path("ids"));
    tshi_test_write_text("ids", "");
    refuses(1, "is empty; lines of token ids are wanted", arguments);
    tshi_test_write_text("ids", "1 2 3\n4 91\n");
    refuses(1, "ids:2: id 91 is past the vocabulary: the model has the ids 0 to 90", arguments);
    tshi_test_write_text("ids", "1 2 3\n\n4\n");
    refuses(1, "ids:2: there is no id", arguments);
    tshi_test_write_text("ids", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21\n");
    refuses(1, "ids:1: 21 tokens, and the model has 20 positions", arguments);
}
