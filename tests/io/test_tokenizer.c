/* Tokenizers against the ids and texts of the `tokenizers` package (tests/data/tokenizers), id by id, in files that
 * have parts the golden ones lack, and with files and texts that are wrong. */
#include "support/files.h"
#include "support/gguf.h"
#include "tshard/tokenizer.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER TSHARD_TEST_DATA "/tokenizers/"

static const char *const names[] = {"gpt2", "llama3", "qwen2", "llama2", "mistral", "bert"};
enum { NAMES = sizeof names / sizeof *names };

#define TOKENIZER_TEST(name, ...)                                                                                      \
    Test(tokenizer, name, .timeout = 120, .init = enter, .fini = tshi_test_leave, ##__VA_ARGS__)

/* Without PCRE2 or utf8proc there is one thing to test. */
static bool is_built(void) {
    tsh_tokenizer *t = NULL;
    tsh_status status = tsh_tokenizer_load(FOLDER "gpt2", &t);
    tsh_tokenizer_destroy(t);
    return status != TSH_ERR_UNSUPPORTED;
}

static void enter(void) {
    tshi_test_enter();
    if (!is_built()) cr_skip_test("this build has no tokenizers (Debian: libpcre2-dev libutf8proc-dev)");
}

static tsh_tokenizer *load(const char *path) {
    tsh_tokenizer *t = NULL;
    cr_assert_eq(tsh_tokenizer_load(path, &t), TSH_OK, "%s", tsh_error_message());
    return t;
}

static json_t *cases_of(const char *name, const char *file) {
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, FOLDER "%s/%s.json", name, file);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    cr_assert(json_is_array(json) && json_array_size(json) > 20, "%s: %s", path, error.text);
    return json;
}

static int64_t *ids_of(const json_t *json, int64_t *count) {
    int64_t *ids = calloc(json_array_size(json) + 1, sizeof *ids);
    *count = (int64_t)json_array_size(json);
    for (int64_t i = 0; i < *count; i++) ids[i] = json_integer_value(json_array_get(json, (size_t)i));
    return ids;
}

/* --- golden cases ------------------------------------------------------------------------------------------------- */

static void check_ids(tsh_tokenizer *t, const char *name, const json_t *text, const json_t *wanted, bool special) {
    const int64_t *ids;
    int64_t count, wanted_count, *expected = ids_of(wanted, &wanted_count);
    const char *bytes = json_string_value(text);
    cr_assert_eq(tsh_tokenizer_encode(t, bytes, json_string_length(text), special, &ids, &count), TSH_OK, "%s",
                 tsh_error_message());
    for (int64_t i = 0; i < count && i < wanted_count; i++)
        cr_assert_eq(ids[i], expected[i], "%s: '%s', id %lld: %lld, %lld wanted", name, bytes, (long long)i,
                     (long long)ids[i], (long long)expected[i]);
    cr_assert_eq(count, wanted_count, "%s: '%s': %lld ids, %lld wanted", name, bytes, (long long)count,
                 (long long)wanted_count);
    free(expected);
}

TOKENIZER_TEST(ids_equal_those_of_the_tokenizers_package) {
    for (int n = 0; n < NAMES; n++) {
        char path[512];
        size_t i;
        json_t *cases = cases_of(names[n], "cases"), *one;
        snprintf(path, sizeof path, FOLDER "%s", names[n]);
        tsh_tokenizer *t = load(path);
        for (int round = 0; round < 2; round++) { /* the second one finds its words among those that are kept */
            json_array_foreach(cases, i, one) {
                const json_t *text = json_object_get(one, "text");
                check_ids(t, names[n], text, json_object_get(one, "ids"), true);
                check_ids(t, names[n], text, json_object_get(one, "ids_no_special"), false);
            }
        }
        tsh_tokenizer_destroy(t);
        json_decref(cases);
    }
}

static void check_text(tsh_tokenizer *t, const char *name, const json_t *list, const json_t *wanted, bool special) {
    const char *text;
    size_t bytes;
    int64_t count, *ids = ids_of(list, &count);
    cr_assert_eq(tsh_tokenizer_decode(t, ids, count, special, &text, &bytes), TSH_OK, "%s", tsh_error_message());
    cr_assert(bytes == json_string_length(wanted) && memcmp(text, json_string_value(wanted), bytes) == 0,
              "%s: '%s', '%s' wanted", name, text, json_string_value(wanted));
    cr_assert_eq(text[bytes], 0);
    free(ids);
}

TOKENIZER_TEST(texts_equal_those_of_the_tokenizers_package) {
    for (int n = 0; n < NAMES; n++) {
        char path[512];
        size_t i;
        json_t *cases = cases_of(names[n], "cases"), *more = cases_of(names[n], "decode_cases"), *one;
        snprintf(path, sizeof path, FOLDER "%s/tokenizer.json", names[n]);
        tsh_tokenizer *t = load(path);
        json_array_foreach(cases, i, one)
            check_text(t, names[n], json_object_get(one, "ids"), json_object_get(one, "decoded"), false);
        json_array_foreach(more, i, one) {
            check_text(t, names[n], json_object_get(one, "ids"), json_object_get(one, "decoded"), false);
            check_text(t, names[n], json_object_get(one, "ids"), json_object_get(one, "decoded_special"), true);
        }
        tsh_tokenizer_destroy(t);
        json_decref(cases);
        json_decref(more);
    }
}

/* --- GGUF files --------------------------------------------------------------------------------------------------- */

/* The texts of a tokenizer's ids, in memory of the JSON, and the types of its tokens as GGUF numbers them. */
typedef struct token_list {
    const char *text[2048];
    uint32_t type[2048];
    uint64_t count;
} token_list;

static void set_token(token_list *list, json_int_t id, const char *text, uint32_t type) {
    cr_assert(id >= 0 && id < 2048);
    list->text[id] = text;
    list->type[id] = type;
    if ((uint64_t)id >= list->count) list->count = (uint64_t)id + 1;
}

static void list_tokens(const json_t *json, token_list *out) {
    const char *name;
    json_t *value;
    size_t i;
    memset(out, 0, sizeof *out);
    json_object_foreach(json_object_get(json_object_get(json, "model"), "vocab"), name, value)
        set_token(out, json_integer_value(value), name, name[0] == '<' && name[1] == '0' ? 6 : 1);
    json_array_foreach(json_object_get(json, "added_tokens"), i, value) set_token(
        out, json_integer_value(json_object_get(value, "id")), json_string_value(json_object_get(value, "content")),
        json_is_true(json_object_get(value, "special")) ? 3 : 4);
}

/* Both halves of a merge, joined by `between`. */
static void join_merge(const json_t *merge, const char *between, char out[256]) {
    const char *whole = json_string_value(merge);
    if (!whole) {
        snprintf(out, 256, "%s%s%s", json_string_value(json_array_get(merge, 0)), between,
                 json_string_value(json_array_get(merge, 1)));
    } else {
        const char *blank = strchr(whole, ' ');
        snprintf(out, 256, "%.*s%s%s", (int)(blank - whole), whole, between, blank + 1);
    }
}

static void add_merges(tshi_test_gguf *b, const json_t *merges) {
    char text[256];
    size_t i;
    const json_t *merge;
    tshi_test_gguf_key_array(b, "tokenizer.ggml.merges", 8, json_array_size(merges));
    json_array_foreach((json_t *)merges, i, merge) {
        join_merge(merge, " ", text);
        tshi_test_gguf_string(b, text);
    }
}

/* SentencePiece's scores: minus the rank of the merge that makes a token. */
static void add_scores(tshi_test_gguf *b, const token_list *list, const json_t *merges) {
    char text[256];
    size_t i;
    const json_t *merge;
    tshi_test_gguf_key_array(b, "tokenizer.ggml.scores", 6, list->count);
    for (uint64_t id = 0; id < list->count; id++) {
        float score = -1e6f;
        json_array_foreach((json_t *)merges, i, merge) {
            join_merge(merge, "", text);
            if (list->text[id] && strcmp(text, list->text[id]) == 0) score = -(float)i;
        }
        tshi_test_gguf_add(b, &score, sizeof score);
    }
}

/* The GGUF file of a tokenizer.json: model "gpt2" with the words `pre`, or "llama". */
static void write_gguf(const json_t *json, const char *pre, int begin) {
    static token_list list;
    const json_t *merges = json_object_get(json_object_get(json, "model"), "merges");
    tshi_test_gguf b = {0};
    list_tokens(json, &list);
    tshi_test_gguf_begin(&b, 3, 0, pre ? 5 : 4);
    tshi_test_gguf_key_text(&b, "tokenizer.ggml.model", pre ? "gpt2" : "llama");
    if (pre) tshi_test_gguf_key_text(&b, "tokenizer.ggml.pre", pre);
    tshi_test_gguf_key_array(&b, "tokenizer.ggml.tokens", 8, list.count);
    for (uint64_t id = 0; id < list.count; id++) tshi_test_gguf_string(&b, list.text[id] ? list.text[id] : "");
    tshi_test_gguf_key_array(&b, "tokenizer.ggml.token_type", 5, list.count);
    for (uint64_t id = 0; id < list.count; id++) tshi_test_gguf_number(&b, list.type[id], 4);
    if (pre)
        add_merges(&b, merges);
    else
        add_scores(&b, &list, merges);
    b.at[16]++; /* one key more */
    tshi_test_gguf_key_u32(&b, "tokenizer.ggml.bos_token_id", (uint32_t)begin);
    tshi_test_gguf_write(&b, tshi_test_path("t.gguf"));
}

/* The golden cases, by GGUF files that say the same as the tokenizer.json. */
TOKENIZER_TEST(gguf_files_say_the_same) {
    static const struct {
        const char *name, *pre;
        int begin;
    } all[] = {{"gpt2", "gpt-2", 0}, {"llama3", "llama-bpe", 1204}, {"qwen2", "qwen2", 0}, {"llama2", NULL, 1}};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        char path[512];
        size_t i;
        json_t *cases = cases_of(all[n].name, "cases"), *more = cases_of(all[n].name, "decode_cases"), *one;
        snprintf(path, sizeof path, FOLDER "%s/tokenizer.json", all[n].name);
        json_t *json = json_load_file(path, 0, NULL);
        write_gguf(json, all[n].pre, all[n].begin);
        tsh_tokenizer *t = load(tshi_test_path("t.gguf"));
        json_array_foreach(cases, i, one) {
            const json_t *text = json_object_get(one, "text");
            check_ids(t, all[n].name, text, json_object_get(one, "ids"), true);
            check_ids(t, all[n].name, text, json_object_get(one, "ids_no_special"), false);
        }
        json_array_foreach(more, i, one)
            check_text(t, all[n].name, json_object_get(one, "ids"), json_object_get(one, "decoded"), false);
        tsh_tokenizer_destroy(t);
        json_decref(cases);
        json_decref(more);
        json_decref(json);
    }
}

/* A file that has no tokenizer, one whose words are unknown, and one with a whole tokenizer.json. */
TOKENIZER_TEST(gguf_files_without_a_known_tokenizer_are_refused) {
    tsh_tokenizer *t = NULL;
    tshi_test_gguf b = {0};
    char text[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 7}, \"merges\": []}}";
    cr_assert_eq(tsh_tokenizer_load(TSHARD_TEST_DATA "/gguf/llama/llama-f32.gguf", &t), TSH_ERR_UNSUPPORTED);
    cr_assert(strstr(tsh_error_message(), "tokenizer.ggml.model is 'no_vocab'"), "%s", tsh_error_message());
    json_t *json = json_load_file(FOLDER "gpt2/tokenizer.json", 0, NULL);
    write_gguf(json, "poem", 0);
    json_decref(json);
    cr_assert_eq(tsh_tokenizer_load(tshi_test_path("t.gguf"), &t), TSH_ERR_UNSUPPORTED);
    cr_assert(strstr(tsh_error_message(), "tokenizer.ggml.pre is 'poem'"), "%s", tsh_error_message());
    tshi_test_gguf_begin(&b, 3, 0, 1);
    tshi_test_gguf_key_text(&b, "tokenizer.huggingface.json", text);
    tshi_test_gguf_write(&b, tshi_test_path("t.gguf"));
    t = load(tshi_test_path("t.gguf"));
    cr_assert_eq(tsh_tokenizer_id(t, "a"), 7);
    tsh_tokenizer_destroy(t);
    tshi_test_gguf_begin(&b, 3, 0, 2);
    tshi_test_gguf_key_text(&b, "tokenizer.ggml.model", "llama");
    tshi_test_gguf_key_array(&b, "tokenizer.ggml.tokens", 8, 1);
    tshi_test_gguf_string(&b, "\xff");
    tshi_test_gguf_write(&b, tshi_test_path("t.gguf"));
    cr_assert_eq(tsh_tokenizer_load(tshi_test_path("t.gguf"), &t), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "token 0 is not UTF-8"), "%s", tsh_error_message());
}

/* --- id by id ----------------------------------------------------------------------------------------------------- */

/* True for whole characters. */
static bool is_utf8(const char *text, size_t bytes) {
    json_t *json = json_stringn(text, bytes);
    json_decref(json);
    return json != NULL;
}

/* What a stream gives for ids, in whole characters; how many calls gave some is returned. */
static int stream_ids(tsh_tokenizer *t, const int64_t *ids, int64_t count, char *out, size_t size) {
    tsh_text_stream *stream = NULL;
    int given = 0;
    size_t length = 0;
    cr_assert_eq(tsh_text_stream_create(t, false, &stream), TSH_OK);
    for (int64_t i = 0; i <= count; i++) {
        const char *text;
        size_t bytes;
        tsh_status status =
            i < count ? tsh_text_stream_add(stream, ids[i], &text, &bytes) : tsh_text_stream_end(stream, &text, &bytes);
        cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
        cr_assert(is_utf8(text, bytes), "half a character");
        cr_assert_lt(length + bytes, size);
        memcpy(out + length, text, bytes);
        length += bytes;
        given += bytes > 0;
    }
    out[length] = 0;
    tsh_text_stream_destroy(stream);
    return given;
}

TOKENIZER_TEST(a_stream_gives_whole_characters_and_together_the_text) {
    static char out[1 << 20];
    for (int n = 0; n < NAMES; n++) {
        char path[512];
        size_t i;
        int given = 0;
        json_t *cases = cases_of(names[n], "cases"), *more = cases_of(names[n], "decode_cases"), *one;
        snprintf(path, sizeof path, FOLDER "%s", names[n]);
        tsh_tokenizer *t = load(path);
        for (int k = 0; k < 2; k++) {
            json_array_foreach(k ? more : cases, i, one) {
                int64_t count, *ids = ids_of(json_object_get(one, "ids"), &count);
                const char *wanted = json_string_value(json_object_get(one, "decoded"));
                given += stream_ids(t, ids, count, out, sizeof out);
                /* A byte token that makes a character is given before one that breaks the run of both comes. */
                bool broken = tsh_tokenizer_id(t, "<0x0A>") >= 0 && strstr(wanted, "\xef\xbf\xbd");
                if (!broken) cr_assert_str_eq(out, wanted, "%s", names[n]);
                free(ids);
            }
        }
        cr_assert_gt(given, 500, "texts come when they are complete");
        tsh_tokenizer_destroy(t);
        json_decref(cases);
        json_decref(more);
    }
}

/* Tokens of single bytes: nothing comes before a character's last byte. */
TOKENIZER_TEST(a_stream_waits_for_the_end_of_a_character) {
    const char *text;
    tsh_text_stream *stream = NULL;
    tsh_tokenizer *t = load(FOLDER "llama2");
    const int64_t euro[] = {tsh_tokenizer_id(t, "<0xE2>"), tsh_tokenizer_id(t, "<0x82>"),
                            tsh_tokenizer_id(t, "<0xAC>")};
    cr_assert_eq(tsh_text_stream_create(t, false, &stream), TSH_OK);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(tsh_text_stream_add(stream, euro[i % 3], &text, NULL), TSH_OK);
        cr_assert_str_eq(text, i % 3 == 2 ? "\u20ac" : "");
    }
    cr_assert_eq(tsh_text_stream_add(stream, euro[0], &text, NULL), TSH_OK);
    cr_assert_str_eq(text, "");
    cr_assert_eq(tsh_text_stream_add(stream, -1, &text, NULL), TSH_ERR_RANGE);
    cr_assert_eq(tsh_text_stream_end(stream, &text, NULL), TSH_OK);
    tsh_text_stream_destroy(stream);
    /* Many bytes that make no character: they come, and the stream goes on. */
    cr_assert_eq(tsh_text_stream_create(t, false, &stream), TSH_OK);
    size_t bytes, all = 0;
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(tsh_text_stream_add(stream, euro[1], &text, &bytes), TSH_OK);
        all += bytes;
    }
    cr_assert(all >= 3 * 990 && all <= 3 * 1000, "%zu bytes", all);
    tsh_text_stream_destroy(stream);
    tsh_tokenizer_destroy(t);
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

TOKENIZER_TEST(knows_the_ids_of_its_tokens) {
    tsh_tokenizer *t = load(FOLDER "gpt2");
    cr_assert_eq(tsh_tokenizer_size(t), 1001);
    cr_assert_eq(tsh_tokenizer_id(t, "<|endoftext|>"), 1000);
    cr_assert_eq(tsh_tokenizer_id(t, "!"), 0);
    cr_assert_eq(tsh_tokenizer_id(t, "no such token"), -1);
    cr_assert_eq(tsh_tokenizer_id(t, NULL), -1);
    cr_assert_eq(tsh_tokenizer_id(NULL, "!"), -1);
    cr_assert_eq(tsh_tokenizer_size(NULL), 0);
    tsh_tokenizer_destroy(t);
    tsh_tokenizer_destroy(NULL);
    tsh_text_stream_destroy(NULL);
}

/* --- what the golden files lack ----------------------------------------------------------------------------------- */

/* A tokenizer of letters, as a file with these parts. */
static tsh_tokenizer *letters(const char *parts) {
    char text[4096];
    snprintf(
        text, sizeof text,
        "{%s \"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"merges\": [[\"a\", \"b\"], \"ab c\"], \"vocab\": "
        "{\"?\": 0, \"a\": 1, \"b\": 2, \"c\": 3, \"ab\": 4, \"abc\": 5, \" \": 6, \"1\": 7, \"2\": 8, \".\": 9, "
        "\"\u00e9\": 10, \"e\": 11, \"X\": 12}}}",
        parts);
    tshi_test_write_text("tokenizer.json", text);
    return load(tshi_test_path("tokenizer.json"));
}

static void encodes(tsh_tokenizer *t, const char *text, int count, const int64_t *wanted) {
    const int64_t *ids;
    int64_t found;
    cr_assert_eq(tsh_tokenizer_encode(t, text, strlen(text), true, &ids, &found), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(found, count, "'%s': %lld ids", text, (long long)found);
    for (int i = 0; i < count; i++) cr_assert_eq(ids[i], wanted[i], "'%s', id %d: %lld", text, i, (long long)ids[i]);
}

#define ENCODES(t, text, ...)                                                                                          \
    encodes(t, text, (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

TOKENIZER_TEST(splits_and_normalizes_as_the_file_says) {
    tsh_tokenizer *t = letters("");
    ENCODES(t, "abcab", 5, 4);
    ENCODES(t, "a!!b", 1, 0, 0, 2);
    tsh_tokenizer_destroy(t);
    t = letters("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"b\"}, \"behavior\": "
                "\"MergedWithNext\", \"invert\": false},");
    ENCODES(t, "abcabb", 1, 2, 3, 1, 2, 2);
    tsh_tokenizer_destroy(t);
    t = letters("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"b+\"}, \"behavior\": "
                "\"MergedWithPrevious\", \"invert\": false},");
    ENCODES(t, "abcabb", 4, 3, 4, 2);
    tsh_tokenizer_destroy(t);
    t = letters("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"WhitespaceSplit\"}, "
                "{\"type\": \"Digits\", \"individual_digits\": true}, {\"type\": \"Punctuation\"}]},");
    ENCODES(t, " ab  12c.ab", 4, 7, 8, 3, 9, 4);
    tsh_tokenizer_destroy(t);
    t = letters(
        "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}, {\"type\": \"NFD\"}, "
        "{\"type\": \"StripAccents\"}, {\"type\": \"Strip\"}, {\"type\": \"Replace\", \"pattern\": {\"Regex\": "
        "\" +\"}, \"content\": \"1\"}]},");
    ENCODES(t, "  AB   C\u00c9 ", 4, 7, 3, 11);
    tsh_tokenizer_destroy(t);
}

TOKENIZER_TEST(finds_added_tokens_as_the_file_says) {
    tsh_tokenizer *t =
        letters("\"added_tokens\": [{\"id\": 20, \"content\": \"bc\", \"single_word\": true, \"normalized\": "
                "false}, {\"id\": 21, \"content\": \"<x>\", \"lstrip\": true, \"rstrip\": true, \"special\": "
                "true}, {\"id\": 22, \"content\": \"<x>y\"}, {\"id\": 23, \"content\": \"E\", \"normalized\": "
                "true}], \"normalizer\": {\"type\": \"Lowercase\"},");
    ENCODES(t, "bc abc", 20, 6, 5);
    ENCODES(t, "bcbc", 2, 3, 2, 3);
    ENCODES(t, "a <x> b", 1, 21, 2);
    ENCODES(t, "a <X>y b", 1, 6, 22, 6, 2);
    ENCODES(t, "aeE", 1, 23, 23);
    cr_assert_eq(tsh_tokenizer_size(t), 24);
    tsh_tokenizer_destroy(t);
    /* A token that the model has keeps the model's id. */
    t = letters("\"added_tokens\": [{\"id\": 30, \"content\": \"c\"}],");
    ENCODES(t, "abc", 4, 3);
    cr_assert_eq(tsh_tokenizer_size(t), 13);
    tsh_tokenizer_destroy(t);
}

/* One word of many symbols is merged through a heap. */
TOKENIZER_TEST(merges_long_words_in_the_order_of_ranks) {
    enum { TIMES = 50000 };
    char *text = malloc(3 * TIMES + 1);
    const int64_t *ids;
    int64_t count;
    tsh_tokenizer *t = letters("");
    for (int i = 0; i < TIMES; i++) memcpy(text + 3 * i, "abc", 3);
    cr_assert_eq(tsh_tokenizer_encode(t, text, 3 * TIMES, true, &ids, &count), TSH_OK);
    cr_assert_eq(count, TIMES);
    for (int i = 0; i < TIMES; i++) cr_assert_eq(ids[i], 5);
    free(text);
    tsh_tokenizer_destroy(t);
}

/* --- what is wrong ------------------------------------------------------------------------------------------------ */

static void refuses_file(const char *text, tsh_status wanted, const char *words) {
    tsh_tokenizer *t = (tsh_tokenizer *)text;
    tshi_test_write_text("tokenizer.json", text);
    cr_assert_eq(tsh_tokenizer_load(tshi_test_path("tokenizer.json"), &t), wanted, "%s", text);
    cr_assert_null(t);
    cr_assert(strstr(tsh_error_message(), words), "%s: '%s'", text, tsh_error_message());
    cr_assert(strstr(tsh_error_message(), "tokenizer.json: "), "%s", tsh_error_message());
}

TOKENIZER_TEST(says_what_is_wrong_with_a_file) {
    refuses_file("", TSH_ERR_IO, "is not JSON");
    refuses_file("{\"model\": {\n", TSH_ERR_IO, "line 2 is not JSON");
    refuses_file("[]", TSH_ERR_IO, "the file is not a JSON object");
    refuses_file("{}", TSH_ERR_IO, "the model is not an object");
    refuses_file("{\"model\": {}}", TSH_ERR_IO, "model has no type");
    refuses_file("{\"model\": {\"type\": \"Unigram\"}}", TSH_ERR_UNSUPPORTED,
                 "the model is 'Unigram', which is not built in; BPE and WordPiece are");
    refuses_file("{\"model\": {\"type\": \"BPE\"}}", TSH_ERR_IO, "the model's vocab is not an object");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", TSH_ERR_IO, "merges is not an array");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}", TSH_ERR_IO,
                 "the id of token 'a' is not from 0 to 16777215");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999999}, \"merges\": []}}", TSH_ERR_IO,
                 "the id of token 'a'");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}", TSH_ERR_IO,
                 "merge 0, 'a b' and 'b', has a half that is not in the vocabulary");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", TSH_ERR_IO,
                 "has a result that is not in the vocabulary");
    refuses_file("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", TSH_ERR_IO,
                 "merge 0 is not two tokens");
}

#define WITH(part) "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, " part "}"

TOKENIZER_TEST(says_which_step_of_a_file_is_wrong) {
    refuses_file(WITH("\"normalizer\": {\"type\": \"Precompiled\"}"), TSH_ERR_UNSUPPORTED,
                 "the normalizer is 'Precompiled', which is not built in");
    refuses_file(WITH("\"normalizer\": {\"type\": \"Sequence\"}"), TSH_ERR_IO, "'normalizers' is not an array");
    refuses_file(WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": "
                      "\"Isolated\"}"),
                 TSH_ERR_IO, "the regular expression '(' is malformed");
    refuses_file(WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": "
                      "\"Isolated\"}"),
                 TSH_ERR_UNSUPPORTED, "a class in a class");
    refuses_file(WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}"),
                 TSH_ERR_IO, "the pattern of a Split is not a String or a Regex");
    refuses_file(WITH("\"decoder\": {\"type\": \"CTC\"}"), TSH_ERR_UNSUPPORTED, "the decoder is 'CTC'");
    refuses_file(WITH("\"decoder\": {}"), TSH_ERR_IO, "decoder has no type");
    refuses_file(WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                      "\"x\"}}]}"),
                 TSH_ERR_IO, "a SpecialToken of the template is not in special_tokens");
    refuses_file(WITH("\"added_tokens\": [{\"id\": -3, \"content\": \"x\"}]"), TSH_ERR_IO, "the id of an added token");
    tsh_tokenizer *t = NULL;
    cr_assert_eq(tsh_tokenizer_load("/nowhere", &t), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "/nowhere"));
}

TOKENIZER_TEST(says_what_is_wrong_with_a_text_and_with_ids) {
    static const char *const broken[] = {"a\xff",         "a\xc3",     "a\xe2\x82",
                                         "a\xed\xa0\x80", "a\xc0\xaf", "a\xf5\x80\x80\x80"};
    const int64_t *ids;
    int64_t count;
    const char *text;
    tsh_tokenizer *t = load(FOLDER "qwen2");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        cr_assert_eq(tsh_tokenizer_encode(t, broken[i], strlen(broken[i]), true, &ids, &count), TSH_ERR_ARGUMENT);
        cr_assert(strstr(tsh_error_message(), "the text is not UTF-8: no character begins with byte 0x") &&
                      strstr(tsh_error_message(), " at 1"),
                  "%s", tsh_error_message());
        cr_assert(ids == NULL && count == 0);
    }
    cr_assert_eq(tsh_tokenizer_encode(t, NULL, 3, true, &ids, &count), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_tokenizer_encode(NULL, "a", 1, true, &ids, &count), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_tokenizer_encode(t, NULL, 0, true, &ids, &count), TSH_OK);
    cr_assert(ids && count == 0);
    cr_assert_eq(tsh_tokenizer_decode(t, (int64_t[]){0, -1}, 2, true, &text, NULL), TSH_ERR_RANGE);
    cr_assert(strstr(tsh_error_message(), "id -1 at place 1 is negative"), "%s", tsh_error_message());
    cr_assert_eq(tsh_tokenizer_decode(t, NULL, 1, true, &text, NULL), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_tokenizer_decode(t, NULL, 0, true, &text, NULL), TSH_OK);
    cr_assert_str_eq(text, "");
    cr_assert_eq(tsh_tokenizer_decode(t, (int64_t[]){123456789, INT64_MAX}, 2, true, &text, NULL), TSH_OK);
    cr_assert_str_eq(text, "");
    tsh_tokenizer_destroy(t);
}

Test(tokenizer, a_build_without_the_libraries_names_them, .timeout = 120) {
    tsh_tokenizer *t = NULL;
    if (is_built()) cr_skip_test("this build has tokenizers");
    cr_assert_eq(tsh_tokenizer_load(FOLDER "gpt2", &t), TSH_ERR_UNSUPPORTED);
    cr_assert(strstr(tsh_error_message(), "libpcre2-dev and libutf8proc-dev"), "%s", tsh_error_message());
}
