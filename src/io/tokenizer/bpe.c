/* Byte-pair encoding of a word: its characters become symbols, and adjacent symbols are merged, the pair of the lowest
 * rank first, and of equal ranks the leftmost first, until no pair can be merged. */
#include "io/tokenizer/tokenizer.h"

/* Up to this many symbols, a linear search for the lowest rank is faster than a heap. */
#define SHORT_WORD 48

/* --- symbols ------------------------------------------------------------------------------------------------------ */

static tsh_status add_symbol(tsh_tokenizer *t, int32_t id, int *count) {
    tshi_token_model *m = &t->model;
    tsh_status status = tshi_grow(&t->allocator, (void **)&m->symbols, &m->symbol_room, *count + 1, sizeof *m->symbols);
    if (status == TSH_OK) m->symbols[(*count)++] = (tshi_symbol){.id = id, .rank = TSHI_NO_RANK};
    return status;
}

/* The id of the character [text, text + n), with the prefix or the suffix that its place asks for. */
static int32_t id_of_character(const tshi_token_model *m, const char *text, size_t n, bool first, bool last) {
    char name[128];
    size_t before = first ? 0 : m->prefix.length, after = last ? m->suffix.length : 0;
    if (before + after == 0) return tshi_vocabulary_find(&m->vocabulary, text, n);
    if (before + n + after > sizeof name) return -1;
    if (before) memcpy(name, m->prefix.data, before);
    memcpy(name + before, text, n);
    if (after) memcpy(name + before + n, m->suffix.data, after);
    return tshi_vocabulary_find(&m->vocabulary, name, before + n + after);
}

static bool has_bytes(const tshi_token_model *m, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (m->bytes[(unsigned char)text[i]] < 0) return false;
    }
    return true;
}

/* The symbols of a word. An unknown character is added when the next known one is, or at the end: unknown ones that
 * follow each other can be one symbol. */
static tsh_status spell(tsh_tokenizer *t, const char *text, size_t length, int *count) {
    tshi_token_model *m = &t->model;
    tsh_status status = TSH_OK;
    bool unknown = false;
    for (size_t at = 0, n; status == TSH_OK && at < length; at += n) {
        n = tshi_utf8_length(text[at]);
        int32_t id = id_of_character(m, text + at, n, at == 0, at + n == length);
        if (id < 0 && m->byte_fallback && has_bytes(m, text + at, n)) {
            for (size_t i = 0; status == TSH_OK && i < n; i++)
                status = add_symbol(t, m->bytes[(unsigned char)text[at + i]], count);
            continue;
        }
        if (unknown && (id >= 0 || !m->fuse_unknown)) status = add_symbol(t, m->unknown, count);
        unknown = id < 0 && m->unknown >= 0;
        if (status == TSH_OK && id >= 0) status = add_symbol(t, id, count);
    }
    return status == TSH_OK && unknown ? add_symbol(t, m->unknown, count) : status;
}

/* --- short words -------------------------------------------------------------------------------------------------- */

static void rank_pair(const tshi_token_model *m, tshi_symbol *left, const tshi_symbol *right) {
    left->rank = right ? tshi_merges_find(&m->merges, left->id, right->id, &left->merged) : TSHI_NO_RANK;
}

/* Returns how many symbols are left. */
static int merge_short(tshi_token_model *m, int count) {
    tshi_symbol *s = m->symbols;
    for (int i = 0; i < count; i++) rank_pair(m, &s[i], i + 1 < count ? &s[i + 1] : NULL);
    for (;;) {
        int best = -1;
        int32_t lowest = TSHI_NO_RANK;
        for (int i = 0; i < count; i++) {
            if (s[i].rank >= lowest) continue;
            lowest = s[i].rank;
            best = i;
        }
        if (best < 0) return count;
        s[best].id = s[best].merged;
        count--;
        memmove(&s[best + 1], &s[best + 2], (size_t)(count - best - 1) * sizeof *s);
        rank_pair(m, &s[best], best + 1 < count ? &s[best + 1] : NULL);
        if (best > 0) rank_pair(m, &s[best - 1], &s[best]);
    }
}

/* --- long words --------------------------------------------------------------------------------------------------- */

static bool before(const tshi_merge_candidate *a, const tshi_merge_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

/* Adds the pair that begins at this place, if it can be merged. */
static tsh_status push_candidate(tsh_tokenizer *t, int place, int *count) {
    tshi_token_model *m = &t->model;
    tshi_symbol *s = &m->symbols[place];
    if (s->next < 0) return TSH_OK;
    rank_pair(m, s, &m->symbols[s->next]);
    if (s->rank == TSHI_NO_RANK) return TSH_OK;
    tsh_status status = tshi_grow(&t->allocator, (void **)&m->heap, &m->heap_room, *count + 1, sizeof *m->heap);
    if (status != TSH_OK) return status;
    const tshi_merge_candidate added = {.rank = s->rank, .merged = s->merged, .place = place};
    int i = (*count)++;
    for (; i > 0 && before(&added, &m->heap[(i - 1) / 2]); i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = added;
    return TSH_OK;
}

static tshi_merge_candidate pop_candidate(tshi_merge_candidate *heap, int *count) {
    const tshi_merge_candidate top = heap[0], last = heap[--*count];
    int i = 0;
    for (int child = 1; child < *count; child = 2 * i + 1) {
        if (child + 1 < *count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* The right symbol of a merged pair has the id -1 from then on. */
static tsh_status merge_long(tsh_tokenizer *t, int count) {
    tshi_symbol *s = t->model.symbols;
    tsh_status status = TSH_OK;
    int candidates = 0;
    for (int i = 0; i < count; i++) {
        s[i].previous = i - 1;
        s[i].next = i + 1 < count ? i + 1 : -1;
    }
    for (int i = 0; status == TSH_OK && i < count; i++) status = push_candidate(t, i, &candidates);
    while (status == TSH_OK && candidates > 0) {
        tshi_merge_candidate c = pop_candidate(t->model.heap, &candidates);
        tshi_symbol *left = &s[c.place];
        if (left->id < 0 || left->next < 0 || left->rank != c.rank) continue;
        tshi_symbol *right = &s[left->next];
        left->id = c.merged;
        left->rank = TSHI_NO_RANK;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s[left->next].previous = c.place;
        if (left->previous >= 0) {
            s[left->previous].rank = TSHI_NO_RANK;
            status = push_candidate(t, left->previous, &candidates);
        }
        if (status == TSH_OK) status = push_candidate(t, c.place, &candidates);
    }
    return status;
}

tsh_status tshi_bpe_encode(tsh_tokenizer *t, const char *text, size_t length) {
    tshi_token_model *m = &t->model;
    int count = 0;
    int32_t whole = m->ignore_merges ? tshi_vocabulary_find(&m->vocabulary, text, length) : -1;
    if (whole >= 0) return tshi_ids_add(t, whole);
    if (length > INT32_MAX / 2)
        return tshi_fail(TSH_ERR_OVERFLOW, "a word of %zu bytes; at most 2^30 are allowed", length);
    tsh_status status = spell(t, text, length, &count);
    if (status == TSH_OK && count > SHORT_WORD)
        status = merge_long(t, count);
    else if (status == TSH_OK)
        count = merge_short(m, count);
    for (int i = 0; status == TSH_OK && i < count; i++) {
        if (m->symbols[i].id >= 0) status = tshi_ids_add(t, m->symbols[i].id);
    }
    return status;
}
