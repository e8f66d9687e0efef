#define _POSIX_C_SOURCE 200809L
#include "tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add_line(const char *path, const char *text, int64_t vocabulary, id_lines *out, char words[MODEL_WORDS]) {
    char why[MODEL_WORDS] = "no memory for its ids";
    id_line line = {0}, *grown = realloc(out->items, (size_t)(out->count + 1) * sizeof *grown);
    if (grown) out->items = grown;
    bool good = grown && ids_parse(text, vocabulary, &line.ids, &line.count, why);
    if (grown) out->items[out->count++] = line;
    if (good && line.count > out->longest) out->longest = line.count;
    if (!good) snprintf(words, MODEL_WORDS, "%.1000s:%lld: %.1000s", path, (long long)out->count, why);
    return good;
}

bool id_lines_read(const char *path, int64_t vocabulary, id_lines *out, char words[MODEL_WORDS]) {
    char *text = NULL;
    size_t room = 0;
    bool good = true;
    *out = (id_lines){0};
    FILE *file = fopen(path, "r");
    while (file && good && getline(&text, &room, file) >= 0) good = add_line(path, text, vocabulary, out, words);
    if (!file || ferror(file)) {
        snprintf(words, MODEL_WORDS, "%.1000s: %s", path, strerror(errno));
        good = false;
    } else if (good && out->count == 0) {
        snprintf(words, MODEL_WORDS, "%.1000s is empty; lines of token ids are wanted", path);
        good = false;
    }
    free(text);
    if (file) fclose(file);
    return good;
}

void id_lines_free(id_lines *lines) {
    for (int64_t i = 0; i < lines->count; i++) free(lines->items[i].ids);
    free(lines->items);
    *lines = (id_lines){0};
}

void id_lines_fill(const id_line *lines, int64_t count, int64_t tokens, int64_t *ids, int64_t *lengths) {
    memset(ids, 0, (size_t)(count * tokens) * sizeof *ids);
    for (int64_t b = 0; b < count; b++) {
        memcpy(ids + b * tokens, lines[b].ids, (size_t)lines[b].count * sizeof *ids);
        lengths[b] = lines[b].count;
    }
}
