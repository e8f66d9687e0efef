#include "shared_file.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool id_line_read(const tokenizer *t, const char *text, int64_t vocabulary, id_line *line, char words[MODEL_WORDS]) {
    bool good = t ? tokenizer_encode(t, text, &line->ids, &line->count, words)
                  : ids_parse(text, vocabulary, &line->ids, &line->count, words);
    for (int64_t i = 0; good && i < line->count; i++) {
        if (line->ids[i] < vocabulary) continue;
        snprintf(words, MODEL_WORDS, "its token %lld is past the vocabulary: the model has the ids 0 to %lld",
                 (long long)line->ids[i], (long long)vocabulary - 1);
        return false;
    }
    return good;
}

static bool add_line(const char *path, const char *text, const tokenizer *t, int64_t vocabulary, id_lines *out,
                     char words[MODEL_WORDS]) {
    char why[MODEL_WORDS] = "no memory for its ids";
    id_line line = {0}, *grown = realloc(out->items, (size_t)(out->count + 1) * sizeof *grown);
    if (grown) out->items = grown;
    bool good = grown && id_line_read(t, text, vocabulary, &line, why);
    if (grown) out->items[out->count++] = line;
    if (good && line.count > out->longest) out->longest = line.count;
    if (!good) snprintf(words, MODEL_WORDS, "%.1000s:%lld: %.1000s", path, (long long)out->count, why);
    return good;
}

bool id_lines_read(tsh_world *world, const char *path, const tokenizer *t, int64_t vocabulary, id_lines *out,
                   char words[MODEL_WORDS]) {
    const char *wanted = t ? "lines of text" : "lines of token ids";
    shared_file file = {0};
    char why[256];
    bool good = shared_file_read(world, path, &file, why, sizeof why);
    *out = (id_lines){0};
    if (!good) snprintf(words, MODEL_WORDS, "%.1000s: %s", path, why);
    if (good && file.length == 0) {
        snprintf(words, MODEL_WORDS, "%.1000s is empty; %s are wanted", path, wanted);
        good = false;
    }
    if (good && memchr(file.bytes, '\0', (size_t)file.length)) {
        snprintf(words, MODEL_WORDS, "%.1000s has a zero byte, so it is not a text; %s are wanted", path, wanted);
        good = false;
    }
    for (char *line = file.bytes, *end; good && line < file.bytes + file.length; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = '\0';
        good = add_line(path, line, t, vocabulary, out, words);
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
