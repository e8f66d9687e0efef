/* Tokens and their ids, merges, and words that have been encoded before: three hash tables with open addressing. */
#ifndef TSHI_TOKENIZER_VOCABULARY_H
#define TSHI_TOKENIZER_VOCABULARY_H

#include "io/tokenizer/text.h"

/* An id is less than this: a malformed file cannot ask for much memory. */
#define TSHI_TOKEN_IDS (1 << 24)

/* A token in the text of all. */
typedef struct tshi_token {
    size_t start, length;
    int32_t id; /* -1: no token has this id */
} tshi_token;

typedef struct tshi_vocabulary {
    const tsh_allocator *allocator;
    tshi_bytes text;     /* all tokens, one behind the other, each with a zero at its end */
    tshi_token *entries; /* [count] */
    int count, capacity;
    int32_t *slots; /* [mask + 1]: an entry, or -1 */
    uint32_t mask;
    int32_t *of_id; /* [size]: the entry of an id, or -1 */
    int size, room;
} tshi_vocabulary;

uint64_t tshi_hash_bytes(const char *text, size_t length);

/* Adds a token. An id that has a token keeps both names, and decodes to the new one. */
tsh_status tshi_vocabulary_add(tshi_vocabulary *vocabulary, const char *text, size_t length, int32_t id);
/* -1 if there is no such token. */
int32_t tshi_vocabulary_find(const tshi_vocabulary *vocabulary, const char *text, size_t length);
/* The text of an id, with a zero at its end; NULL if no token has it. */
const char *tshi_vocabulary_text(const tshi_vocabulary *vocabulary, int64_t id, size_t *length);
void tshi_vocabulary_free(tshi_vocabulary *vocabulary);

/* What two neighbours become; those of the lowest rank first. */
typedef struct tshi_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: an empty slot */
    int32_t rank, id;
} tshi_merge;
#define TSHI_NO_RANK INT32_MAX

typedef struct tshi_merges {
    const tsh_allocator *allocator;
    tshi_merge *slots; /* [mask + 1] */
    uint64_t mask;
    int count;
} tshi_merges;

/* Room for `count` merges. */
tsh_status tshi_merges_create(tshi_merges *merges, size_t count);
/* Adds a merge; of the same pair the last one counts. */
void tshi_merges_add(tshi_merges *merges, int32_t left, int32_t right, int32_t rank, int32_t id);
/* The rank of a pair, and what it becomes; TSHI_NO_RANK if it is not merged. */
static inline int32_t tshi_merges_find(const tshi_merges *merges, int32_t left, int32_t right, int32_t *id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, hash = pair * UINT64_C(0x9e3779b97f4a7c15);
    if (!merges->slots) return TSHI_NO_RANK;
    for (uint64_t i = hash >> 32 & merges->mask;; i = (i + 1) & merges->mask) {
        const tshi_merge *m = &merges->slots[i];
        if (m->pair == pair) {
            *id = m->id;
            return m->rank;
        }
        if (m->pair == UINT64_MAX) return TSHI_NO_RANK;
    }
}
void tshi_merges_free(tshi_merges *merges);

/* Words and their ids. It forgets all words when it is full. */
#define TSHI_MAX_WORD_BYTES 64
typedef struct tshi_word {
    uint64_t hash;
    uint32_t key, ids;            /* where they begin in keys and in numbers */
    uint16_t length, count, used; /* bytes, ids; 0: an empty slot */
} tshi_word;
typedef struct tshi_words {
    const tsh_allocator *allocator;
    tshi_word *slots; /* NULL before the first word */
    char *keys;
    int32_t *numbers;
    size_t key_count, number_count;
    int count;
} tshi_words;

/* The word's ids, or NULL. */
const int32_t *tshi_words_find(const tshi_words *words, const char *text, size_t length, uint64_t hash, int *count);
/* Keeps a word of at most TSHI_MAX_WORD_BYTES bytes with its ids; without memory it keeps none. */
void tshi_words_keep(tshi_words *words, const char *text, size_t length, uint64_t hash, const int64_t *ids,
                     int64_t count);
void tshi_words_free(tshi_words *words);

#endif
