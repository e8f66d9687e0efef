#include "shared_file.h"
#include "tokenizer.h"

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

bool id_lines_read(tsh_world *world, const char *path, int64_t vocabulary, id_lines *out, char words[MODEL_WORDS]) {
    shared_file file = {0};
    char why[256];
    bool good = shared_file_read(world, path, &file, why, sizeof why);
    *out = (id_lines){0};
    if (!good) snprintf(words, MODEL_WORDS, "%.1000s: %s", path, why);
    if (good && file.length == 0) {
        snprintf(words, MODEL_WORDS, "%.1000s is empty; lines of token ids are wanted", path);
        good = false;
    }
    if (good && memchr(file.bytes, '\0', (size_t)file.length)) {
        snprintf(words, MODEL_WORDS, "%.1000s has a byte 0, and is no text; lines of token ids are wanted", path);
        good = false;
    }
    for (char *line = file.bytes, *end; good && line < file.bytes + file.length; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = '\0';
        good = add_line(path, line, vocabulary, out, words);
    }
    free(file.bytes);
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
