/* tokenize: a text as a file of token ids, for train_gpt --tokens. One process does it. */
#include "command_line.h"
#include "shared_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tokenize --model DIR --text FILE --out FILE [options]\n"
    "\n"
    "Converts a text to token ids with the tokenizer.json of a Hugging Face folder, and writes them as 16-bit\n"
    "little-endian numbers: the format of nanoGPT's files, which train_gpt --tokens reads.\n"
    "\n"
    "  --model DIR   the folder, or its tokenizer.json\n"
    "  --text FILE   the text, in UTF-8, of at most 256 MiB\n"
    "  --out FILE    the file to write\n"
    "  --end TOKEN   the token to append after the text (<|endoftext|>, if the tokenizer has it)\n"
    "  --help        this text\n";

enum { MOST_ID = 65535 };

typedef struct settings {
    const char *model, *text, *out, *end;
} settings;

static int fail(const char *what, const char *why) {
    fprintf(stderr, "tokenize: %s%s%s\n", what, why ? ": " : "", why ? why : "");
    return EXIT_FAILURE;
}

static bool write_ids(FILE *to, const int64_t *ids, int64_t count) {
    bool good = true;
    for (int64_t i = 0; good && i < count; i++) {
        const unsigned char bytes[2] = {(unsigned char)(ids[i] & 255), (unsigned char)(ids[i] >> 8)};
        good = fwrite(bytes, 1, sizeof bytes, to) == sizeof bytes;
    }
    return good;
}

/* The id of the token that ends a text, or -1. *good: false after printing that the tokenizer lacks the token of
 * --end. */
static int64_t end_of_text(const settings *o, const tsh_tokenizer *tokenizer, bool *good) {
    int64_t end = tsh_tokenizer_id(tokenizer, o->end ? o->end : "<|endoftext|>");
    *good = end >= 0 || !o->end;
    if (!*good) fail(o->end, "the tokenizer has no such token");
    return end;
}

static int write_file(const settings *o, const int64_t *ids, int64_t count, int64_t end) {
    FILE *to = fopen(o->out, "wb");
    if (!to) return perror(o->out), EXIT_FAILURE;
    bool good = write_ids(to, ids, count) && (end < 0 || write_ids(to, &end, 1));
    good = fclose(to) == 0 && good;
    if (!good) return perror(o->out), EXIT_FAILURE;
    printf("%lld tokens\n", (long long)count + (end >= 0));
    return fflush(stdout) == 0 ? EXIT_SUCCESS : fail("not all of the output could be written", NULL);
}

static int encode(const settings *o, tsh_tokenizer *tokenizer, const shared_file *text) {
    const int64_t *ids = NULL;
    int64_t count = 0;
    bool good;
    char words[128];
    int64_t end = end_of_text(o, tokenizer, &good);
    if (!good) return EXIT_FAILURE;
    if (tsh_tokenizer_encode(tokenizer, text->bytes, (size_t)text->length, false, &ids, &count) != TSH_OK)
        return fail(o->text, tsh_error_message());
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] <= MOST_ID && end <= MOST_ID) continue;
        snprintf(words, sizeof words, "id %lld does not fit into 16 bits: the vocabulary must have at most %d tokens",
                 (long long)(end > MOST_ID ? end : ids[i]), MOST_ID + 1);
        return fail(o->text, words);
    }
    return write_file(o, ids, count, end);
}

static int run(const settings *o) {
    tsh_tokenizer *tokenizer = NULL;
    shared_file text = {0};
    char why[256];
    if (tsh_tokenizer_load(o->model, &tokenizer) != TSH_OK) return fail(o->model, tsh_error_message());
    int code =
        shared_file_read(NULL, o->text, &text, why, sizeof why) ? encode(o, tokenizer, &text) : fail(o->text, why);
    free(text.bytes);
    tsh_tokenizer_destroy(tokenizer);
    return code;
}

int main(int argc, char **argv) {
    settings o = {0};
    const option_row rows[] = {{"model", OPTION_PATH, &o.model, 0, 0},
                               {"text", OPTION_PATH, &o.text, 0, 0},
                               {"out", OPTION_PATH, &o.out, 0, 0},
                               {"end", OPTION_PATH, &o.end, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("tokenize", help, rows, argc, argv, true);
    if (code >= 0) return code;
    if (o.model && o.text && o.out) return run(&o);
    fail("--model, --text and --out are required", NULL);
    return 2;
}
