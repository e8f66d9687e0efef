/* generate --chat: each answer is the one to the whole conversation, in the format of the model's chat template. */
#include "support/files.h"
#include "support/shell.h"
#include "tshard/tokenizer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS TSHARD_TEST_DATA "/models/"
#define RUN    TSHARD_BIN_DIR "/tshard-run --no-prefix -n "

static char folder[128];
static const char *const marks[] = {"<",     "|",   ">",    "[",         "]",      "/",      "_",  "im",
                                    "start", "end", "user", "assistant", "system", "header", "id", "eot",
                                    "begin", "of",  "text", "INST",      "SYS",    "s"};

/* The model with a tokenizer of words and of the marks of templates. */
static void set_up(void) {
    char tokens[8192] = "{\"decoder\": {\"type\": \"WordPiece\"}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "
                        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[UNK]\": 0";
    int code, n = sizeof marks / sizeof *marks;
    tshi_test_enter();
    snprintf(folder, sizeof folder, "%s", tshi_test_path("."));
    tshi_test_shell(&code,
                    "cp " MODELS "llama/*.json " MODELS "llama/*.safetensors %s && "
                    "sed -i 's/\"max_position_embeddings\": 32/\"max_position_embeddings\": 512/' %s/config.json",
                    folder, folder);
    for (int i = 1; i < 103; i++)
        sprintf(tokens + strlen(tokens), i <= n ? ", \"%s\": %d" : ", \"%sword%d\": %d", i <= n ? marks[i - 1] : "", i,
                i);
    tshi_test_write_text("tokenizer.json", strcat(tokens, "}}}"));
}

TestSuite(chat, .init = set_up, .fini = tshi_test_leave);

static bool has_tokenizers(void) {
    tsh_tokenizer *t = NULL;
    tsh_status status = tsh_tokenizer_load(folder, &t);
    tsh_tokenizer_destroy(t);
    return status != TSH_ERR_UNSUPPORTED;
}

static void write_template(const char *words) {
    char text[512];
    snprintf(text, sizeof text, "{\"chat_template\": \"{%% for m in messages %%}%s{{ m }}\"}", words);
    tshi_test_write_text("tokenizer_config.json", text);
}

/* The answer to a text, without the newline. */
static void continue_text(const char *text, char *out, size_t size) {
    int code;
    tshi_test_write_text("prompt", text);
    const char *said = tshi_test_shell(&code,
                                       TSHARD_BIN_DIR "/generate --model %s --tokens 6 --prompt \"$(cat %s)\" "
                                                      "2> /dev/null",
                                       folder, tshi_test_path("prompt"));
    cr_assert_eq(code, 0, "%s", said);
    cr_assert_lt((size_t)snprintf(out, size, "%s", said), size);
    out[strcspn(out, "\n")] = '\0';
}

/* A template's marks around what is said: the system first, then the user, the answer, and the user again. */
static void check(const char *mark, const char *first, const char *between, const char *end, const char *second) {
    char text[1024], answers[2][256], wanted[600];
    int code;
    write_template(mark);
    snprintf(text, sizeof text, "%sword30 word31%s", first, between);
    continue_text(text, answers[0], sizeof answers[0]);
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%s%s%sword40%s", answers[0], end, second, between);
    continue_text(text, answers[1], sizeof answers[1]);
    snprintf(wanted, sizeof wanted, "%s\n%s\n", answers[0], answers[1]);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        const char *said = tshi_test_shell(&code,
                                           "printf 'word30 word31\\n\\nword40\\n' | " RUN "%d " TSHARD_BIN_DIR
                                           "/generate --model %s --chat --system word50 --tokens 6 2> /dev/null",
                                           ranks, folder);
        cr_assert(code == 0 && strcmp(said, wanted) == 0, "%s: exit code %d, %s, %s wanted", mark, code, said, wanted);
    }
}

Test(chat, answers_as_the_templates_write_conversations, .timeout = 300) {
    if (!has_tokenizers()) cr_skip_test("this build has no tokenizers");
    check("<|im_start|>", "<|im_start|>system\nword50<|im_end|>\n<|im_start|>user\n",
          "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n", "<|im_start|>user\n");
    check("<|start_header_id|>",
          "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nword50<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\n",
          "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>",
          "<|start_header_id|>user<|end_header_id|>\n\n");
    check("[INST] <<SYS>>", "<s>[INST] <<SYS>>\nword50\n<</SYS>>\n\n", " [/INST] ", " </s>", "<s>[INST] ");
    check("[INST]", "<s>[INST] word50\n\n", " [/INST]", "</s>", "[INST] ");
    check("<|user|>", "<|system|>\nword50</s>\n<|user|>\n", "</s>\n<|assistant|>\n", "</s>\n", "<|user|>\n");
    check("<|user|><|end|>", "<|system|>\nword50<|end|>\n<|user|>\n", "<|end|>\n<|assistant|>\n", "<|end|>\n",
          "<|user|>\n");
}

/* A GGUF file has the template among its keys, and its own weights, of 16 bits: the answer is again that to the text. */
Test(chat, answers_with_the_template_of_a_gguf_file, .timeout = 120) {
    char wanted[256], said[256];
    int code;
    if (!has_tokenizers()) cr_skip_test("this build has no tokenizers");
    for (int named = 0; named < 2; named++) {
        if (named) write_template("<|im_start|>");
        tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-quantize %s %s/m.gguf --type q8_0", folder, folder);
        cr_assert_eq(code, 0);
        const char *words = tshi_test_shell(
            &code, "echo word30 | " TSHARD_BIN_DIR "/generate --model %s/m.gguf --chat --tokens 6 2>&1", folder);
        cr_assert(named || strstr(words, "m.gguf has no tokenizer.chat_template"), "%s", words);
        cr_assert_lt((size_t)snprintf(said, sizeof said, "%.200s", words), sizeof said);
    }
    said[strcspn(said, "\n")] = '\0';
    strcat(folder, "/m.gguf");
    continue_text("<|im_start|>user\nword30<|im_end|>\n<|im_start|>assistant\n", wanted, sizeof wanted);
    cr_assert(wanted[0] && strcmp(said, wanted) == 0, "'%s', '%s' wanted", said, wanted);
}

static void refuses(int wanted, const char *words, const char *arguments) {
    int code;
    const char *said =
        tshi_test_shell(&code, "echo word30 | " TSHARD_BIN_DIR "/generate --model %s %s 2>&1", folder, arguments);
    cr_assert(code == wanted && strstr(said, words), "%s: exit code %d, %s", arguments, code, said);
}

Test(chat, says_which_options_contradict_it, .timeout = 120) {
    refuses(2, "--system wants --chat", "--prompt a --system b");
    refuses(2, "--chat excludes --repeat and --json", "--chat --json");
}

Test(chat, says_what_is_missing, .timeout = 120) {
    if (!has_tokenizers()) cr_skip_test("this build has no tokenizers");
    refuses(1, "has no chat template, neither in tokenizer_config.json nor in chat_template.jinja", "--chat");
    write_template("USER:");
    refuses(1, "its chat template is none of ChatML, Llama 2, Llama 3", "--chat");
    tshi_test_write_text("tokenizer_config.json", "{}");
    tshi_test_write_text("chat_template.jinja", "<|im_start|>");
    refuses(0, "", "--chat --tokens 2");
}
