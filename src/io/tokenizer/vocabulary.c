/* The hash tables of tokenizers. */
#include "io/tokenizer/vocabulary.h"

#include <stdlib.h>

uint64_t tshi_hash_bytes(const char *text, size_t length) {
    uint64_t hash = length * UINT64_C(0x9e3779b97f4a7c15), word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    word = 0;
    if (length & 4) {
        uint32_t half;
        memcpy(&half, text, 4);
        word = half;
        text += 4;
    }
    for (size_t i = 0; i < (length & 3); i++) word = word << 8 | (unsigned char)text[i];
    hash = (hash ^ word ^ (uint64_t)length << 56) * UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 29;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static const char *entry_text(const tshi_vocabulary *v, const tshi_token *entry) {
    return v->text.data + entry->start;
}

/* The slot of a token, or the empty one where it would be. */
static uint32_t slot_of(const tshi_vocabulary *v, const char *text, size_t length) {
    uint32_t slot = (uint32_t)tshi_hash_bytes(text, length) & v->mask;
    for (; v->slots[slot] >= 0; slot = (slot + 1) & v->mask) {
        const tshi_token *entry = &v->entries[v->slots[slot]];
        if (entry->length == length && (length == 0 || memcmp(entry_text(v, entry), text, length) == 0)) break;
    }
    return slot;
}

/* Twice as many slots, at least. */
static tsh_status widen(tshi_vocabulary *v) {
    uint32_t slots = v->slots ? 2 * (v->mask + 1) : 1024;
    int32_t *wide = tshi_calloc(v->allocator, slots, sizeof *wide);
    if (!wide) return TSH_ERR_MEMORY;
    tshi_free(v->allocator, v->slots);
    memset(wide, 0xff, slots * sizeof *wide);
    v->slots = wide;
    v->mask = slots - 1;
    for (int i = 0; i < v->count; i++) {
        const tshi_token *entry = &v->entries[i];
        wide[slot_of(v, entry_text(v, entry), entry->length)] = i;
    }
    return TSH_OK;
}

static tsh_status set_entry_of(tshi_vocabulary *v, int32_t id, int32_t entry) {
    int before = v->room;
    tsh_status status = tshi_grow(v->allocator, (void **)&v->of_id, &v->room, id + 1, sizeof *v->of_id);
    if (status != TSH_OK) return status;
    for (int i = before; i < v->room; i++) v->of_id[i] = -1;
    v->of_id[id] = entry;
    if (id >= v->size) v->size = id + 1;
    return TSH_OK;
}

tsh_status tshi_vocabulary_add(tshi_vocabulary *v, const char *text, size_t length, int32_t id) {
    tsh_status status = TSH_OK;
    if (!v->slots || (uint32_t)v->count * 2 > v->mask) status = widen(v);
    if (status == TSH_OK)
        status = tshi_grow(v->allocator, (void **)&v->entries, &v->capacity, v->count + 1, sizeof *v->entries);
    if (status != TSH_OK) return status;
    uint32_t slot = slot_of(v, text, length);
    if (v->slots[slot] >= 0) {
        v->entries[v->slots[slot]].id = id;
        return set_entry_of(v, id, v->slots[slot]);
    }
    size_t start = v->text.length;
    tshi_bytes_add(&v->text, text, length);
    tshi_bytes_add(&v->text, "", 1);
    if (v->text.failed) return TSH_ERR_MEMORY;
    v->entries[v->count] = (tshi_token){.start = start, .length = length, .id = id};
    v->slots[slot] = v->count++;
    return set_entry_of(v, id, v->count - 1);
}

int32_t tshi_vocabulary_find(const tshi_vocabulary *v, const char *text, size_t length) {
    if (!v->slots) return -1;
    int32_t entry = v->slots[slot_of(v, text, length)];
    return entry < 0 ? -1 : v->entries[entry].id;
}

const char *tshi_vocabulary_text(const tshi_vocabulary *v, int64_t id, size_t *length) {
    int32_t entry = id >= 0 && id < v->size ? v->of_id[id] : -1;
    if (entry < 0) return NULL;
    *length = v->entries[entry].length;
    return entry_text(v, &v->entries[entry]);
}

void tshi_vocabulary_free(tshi_vocabulary *v) {
    if (!v->allocator) return;
    tshi_bytes_free(&v->text);
    tshi_free(v->allocator, v->entries);
    tshi_free(v->allocator, v->slots);
    tshi_free(v->allocator, v->of_id);
}

/* --- merges ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_merges_create(tshi_merges *merges, size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    merges->slots = tshi_calloc(merges->allocator, slots, sizeof *merges->slots);
    if (!merges->slots) return TSH_ERR_MEMORY;
    for (size_t i = 0; i < slots; i++) merges->slots[i].pair = UINT64_MAX;
    merges->mask = slots - 1;
    return TSH_OK;
}

void tshi_merges_add(tshi_merges *merges, int32_t left, int32_t right, int32_t rank, int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = pair * UINT64_C(0x9e3779b97f4a7c15) >> 32 & merges->mask;
    while (merges->slots[i].pair != UINT64_MAX && merges->slots[i].pair != pair) i = (i + 1) & merges->mask;
    merges->slots[i] = (tshi_merge){.pair = pair, .rank = rank, .id = id};
    merges->count++;
}

void tshi_merges_free(tshi_merges *merges) {
    if (merges->slots) tshi_free(merges->allocator, merges->slots);
}

/* --- words -------------------------------------------------------------------------------------------------------- */

enum { WORD_SLOTS = 1 << 17, MAX_WORDS = WORD_SLOTS / 4 * 3, MAX_KEYS = 1 << 21, MAX_NUMBERS = 1 << 20 };

const int32_t *tshi_words_find(const tshi_words *words, const char *text, size_t length, uint64_t hash, int *count) {
    if (!words->slots || length > TSHI_MAX_WORD_BYTES) return NULL;
    for (size_t i = hash & (WORD_SLOTS - 1); words->slots[i].used; i = (i + 1) & (WORD_SLOTS - 1)) {
        const tshi_word *word = &words->slots[i];
        if (word->hash != hash || word->length != length || memcmp(words->keys + word->key, text, length) != 0)
            continue;
        *count = word->count;
        return words->numbers + word->ids;
    }
    return NULL;
}

static bool open_words(tshi_words *words) {
    if (words->slots) return true;
    words->keys = tshi_calloc(words->allocator, MAX_KEYS, 1);
    words->numbers = tshi_calloc(words->allocator, MAX_NUMBERS, sizeof *words->numbers);
    if (words->keys && words->numbers) words->slots = tshi_calloc(words->allocator, WORD_SLOTS, sizeof *words->slots);
    if (!words->slots) tshi_words_free(words);
    return words->slots != NULL;
}

static void forget(tshi_words *words) {
    memset(words->slots, 0, WORD_SLOTS * sizeof *words->slots);
    words->key_count = words->number_count = 0;
    words->count = 0;
}

void tshi_words_keep(tshi_words *words, const char *text, size_t length, uint64_t hash, const int64_t *ids,
                     int64_t count) {
    if (length > TSHI_MAX_WORD_BYTES || count > 4 * TSHI_MAX_WORD_BYTES || !open_words(words)) return;
    if (words->count == MAX_WORDS || words->key_count + length > MAX_KEYS ||
        words->number_count + (size_t)count > MAX_NUMBERS)
        forget(words);
    size_t i = hash & (WORD_SLOTS - 1);
    while (words->slots[i].used) i = (i + 1) & (WORD_SLOTS - 1);
    words->slots[i] = (tshi_word){.hash = hash,
                                  .key = (uint32_t)words->key_count,
                                  .ids = (uint32_t)words->number_count,
                                  .length = (uint16_t)length,
                                  .count = (uint16_t)count,
                                  .used = 1};
    if (length) memcpy(words->keys + words->key_count, text, length);
    for (int64_t k = 0; k < count; k++) words->numbers[words->number_count++] = (int32_t)ids[k];
    words->key_count += length;
    words->count++;
}

void tshi_words_free(tshi_words *words) {
    if (!words->allocator) return;
    tshi_free(words->allocator, words->slots);
    tshi_free(words->allocator, words->keys);
    tshi_free(words->allocator, words->numbers);
    *words = (tshi_words){.allocator = words->allocator};
}
