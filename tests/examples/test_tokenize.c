/* tokenize as its users run it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/shell.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM TSHARD_BIN_DIR "/tokenize"
#define MODEL   TSHARD_TEST_DATA "/tokenizers/gpt2"

static const char words[] = "Once upon a time, 3 caf\u00e9s and a \U0001f600.\n\nThe end";

static void write_text(const char *path, const char *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(text, 1, bytes, file) == bytes);
    cr_assert_eq(fclose(file), 0);
}

/* The file holds these ids and, behind them, `end`. */
static void holds(const char *path, const int64_t *ids, int64_t count, int64_t end) {
    uint16_t id;
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    for (int64_t i = 0; i <= count; i++) {
        cr_assert_eq(fread(&id, sizeof id, 1, file), 1);
        cr_assert_eq(id, i < count ? ids[i] : end, "id %lld", (long long)i);
    }
    cr_assert_eq(fread(&id, 1, 1, file), 0);
    fclose(file);
}

Test(tokenize, writes_the_ids_of_a_text, .timeout = 60) {
    char folder[] = "/tmp/tshard-tokenize-XXXXXX", text[64], out[64];
    int code;
    tsh_tokenizer *tokenizer = NULL;
    const int64_t *ids;
    int64_t count;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(text, sizeof text, "%s/text", folder);
    snprintf(out, sizeof out, "%s/ids", folder);
    write_text(text, words, sizeof words - 1);
    tsh_status status = tsh_tokenizer_load(MODEL, &tokenizer);
    const char *said = tshi_test_shell(&code, PROGRAM " --model " MODEL " --text %s --out %s", text, out);
    if (status == TSH_ERR_UNSUPPORTED) { /* a build without tokenizers */
        cr_assert(code == 1 && strstr(said, "libpcre2-dev"), "%d: %s", code, said);
    } else {
        cr_assert_eq(tsh_tokenizer_encode(tokenizer, words, sizeof words - 1, false, &ids, &count), TSH_OK);
        cr_assert(code == 0 && atoll(said) == count + 1, "%d: %s", code, said);
        holds(out, ids, count, tsh_tokenizer_id(tokenizer, "<|endoftext|>"));
        said = tshi_test_shell(&code, PROGRAM " --model " MODEL " --text %s --out %s --end none", text, out);
        cr_assert(code == 1 && strstr(said, "none: the tokenizer has no such token"), "%d: %s", code, said);
        said = tshi_test_shell(&code, PROGRAM " --model " MODEL " --text %s --out /dev/full", text);
        cr_assert(code == 1 && strstr(said, "No space left on device"), "%d: %s", code, said);
        write_text(text, "\xff", 1);
        said = tshi_test_shell(&code, PROGRAM " --model " MODEL " --text %s --out %s", text, out);
        cr_assert(code == 1 && strstr(said, "UTF-8"), "%d: %s", code, said);
    }
    tsh_tokenizer_destroy(tokenizer);
    snprintf(text, sizeof text, "rm -r %s", folder);
    cr_assert_eq(system(text), 0);
}

Test(tokenize, says_what_is_wrong, .timeout = 60) {
    int code;
    const char *said = tshi_test_shell(&code, PROGRAM " --model " MODEL);
    cr_assert(code == 2 && strstr(said, "--model, --text and --out are required"), "%d: %s", code, said);
    said = tshi_test_shell(&code, PROGRAM " --model /nonexistent --text a --out b");
    cr_assert_eq(code, 1, "%s", said);
}
