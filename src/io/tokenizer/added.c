/* Finds added tokens in a text: the one that begins first, and of several that begin at the same place, the longest. */
#include "io/tokenizer/tokenizer.h"

#include <stdlib.h>

static int longest_first(const void *left, const void *right) {
    const tshi_added *a = left, *b = right;
    if (a->content.length != b->content.length) return a->content.length > b->content.length ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

void tshi_added_sort(tshi_added_set *set) {
    int last[256];
    for (int i = 0; i < 256; i++) set->first[i] = last[i] = -1;
    set->bytes = 0;
    if (set->count) qsort(set->items, (size_t)set->count, sizeof *set->items, longest_first);
    for (int i = 0; i < set->count; i++) {
        unsigned char byte = (unsigned char)set->items[i].content.data[0];
        set->items[i].next = -1;
        if (last[byte] < 0) {
            set->first[byte] = i;
            set->byte = (char)byte;
            set->bytes++;
        } else {
            set->items[last[byte]].next = i;
        }
        last[byte] = i;
    }
}

/* The longest token that begins here, or NULL. */
static const tshi_added *token_here(const tshi_added_set *set, const char *text, size_t left) {
    for (int i = set->first[(unsigned char)text[0]]; i >= 0; i = set->items[i].next) {
        const tshi_bytes *content = &set->items[i].content;
        if (content->length <= left && memcmp(content->data, text, content->length) == 0) return &set->items[i];
    }
    return NULL;
}

/* The next place whose byte begins some token; `length` if there is none. */
static size_t next_start(const tshi_added_set *set, const char *text, size_t length, size_t at) {
    if (set->bytes == 1) {
        const char *place = memchr(text + at, set->byte, length - at);
        return place ? (size_t)(place - text) : length;
    }
    while (at < length && set->first[(unsigned char)text[at]] < 0) at++;
    return at;
}

static bool is_word_before(const char *text, size_t at) {
    if (at == 0) return false;
    size_t before = tshi_utf8_before(text, at);
    return tshi_class_has(TSHI_CLASS_WORD, tshi_utf8_next(text, &before));
}

static bool is_word_at(const char *text, size_t length, size_t at) {
    return at < length && tshi_class_has(TSHI_CLASS_WORD, tshi_utf8_next(text, &at));
}

/* The piece of a token, with the white space around it that the token absorbs. */
static tshi_added_piece piece_of(const tshi_added *token, const char *text, size_t length, size_t after, size_t start) {
    tshi_added_piece piece = {.start = start, .end = start + token->content.length, .id = token->id};
    while (token->lstrip && piece.start > after) {
        size_t before = tshi_utf8_before(text, piece.start), at = before;
        if (!tshi_class_has(TSHI_CLASS_SPACE, tshi_utf8_next(text, &at))) break;
        piece.start = before;
    }
    while (token->rstrip && piece.end < length) {
        size_t at = piece.end;
        if (!tshi_class_has(TSHI_CLASS_SPACE, tshi_utf8_next(text, &at))) break;
        piece.end = at;
    }
    return piece;
}

bool tshi_added_next(const tshi_added_set *set, const char *text, size_t length, size_t after, size_t *at,
                     tshi_added_piece *out) {
    if (set->count == 0) return false;
    while ((*at = next_start(set, text, length, *at)) < length) {
        size_t start = *at;
        const tshi_added *token = token_here(set, text + start, length - start);
        *at = start + (token ? token->content.length : 1);
        if (!token) continue;
        if (token->single_word && (is_word_before(text, start) || is_word_at(text, length, *at))) continue;
        *out = piece_of(token, text, length, after, start);
        if (*at < out->end) *at = out->end;
        return true;
    }
    return false;
}
