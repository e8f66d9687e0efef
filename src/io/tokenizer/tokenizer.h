/* A tokenizer in memory: steps that change and split texts, a model that turns words into ids, and steps that turn
 * tokens into texts. */
#ifndef TSHI_TOKENIZER_TOKENIZER_H
#define TSHI_TOKENIZER_TOKENIZER_H

#include "io/tokenizer/pattern.h"
#include "io/tokenizer/vocabulary.h"
#include "tshard/tokenizer.h"

#define TSHI_MAX_STEPS 32 /* of one kind, in one file */

/* --- steps -------------------------------------------------------------------------------------------------------- */

typedef enum tshi_step_kind {
    /* normalizers, and those pre-tokenizers that change the text */
    TSHI_STEP_FORM,
    TSHI_STEP_LOWER,
    TSHI_STEP_DROP,    /* the characters of a class */
    TSHI_STEP_CLEAN,   /* BERT's: control characters out, white space becomes blanks */
    TSHI_STEP_SPREAD,  /* the characters of a class get blanks around them */
    TSHI_STEP_STRIP,   /* white space at the ends */
    TSHI_STEP_REPLACE, /* all matches of the pattern by the content */
    TSHI_STEP_PREPEND, /* the content, to a text that is not empty */
    TSHI_STEP_LEAD,    /* the content, to a text that does not begin with it */
    TSHI_STEP_LETTERS, /* bytes become letters */
    /* pre-tokenizers that split */
    TSHI_STEP_SPLIT,       /* at matches of the pattern */
    TSHI_STEP_SPLIT_CLASS, /* at the characters of a class */
    /* decoders */
    TSHI_STEP_DECODE_REPLACE,
    TSHI_STEP_DECODE_LETTERS,
    TSHI_STEP_DECODE_BYTES, /* tokens like <0x0A> */
    TSHI_STEP_DECODE_FUSE,
    TSHI_STEP_DECODE_STRIP,
    TSHI_STEP_DECODE_WORDPIECE,
    TSHI_STEP_DECODE_METASPACE,
    TSHI_STEP_DECODE_SUFFIX
} tshi_step_kind;

/* What becomes of a match that a text is split at. */
typedef enum tshi_behavior {
    TSHI_REMOVED,
    TSHI_ISOLATED,
    TSHI_MERGED_WITH_PREVIOUS,
    TSHI_MERGED_WITH_NEXT,
    TSHI_CONTIGUOUS
} tshi_behavior;

typedef struct tshi_text_step {
    tshi_step_kind kind;
    tshi_form form;
    tshi_class members;
    tshi_pattern *pattern;
    tshi_bytes content; /* what is added, or a prefix, a suffix, the character to strip */
    tshi_behavior behavior;
    bool invert;
    bool first_only;     /* LEAD: only at the beginning of the whole text */
    bool left, right;    /* STRIP */
    bool cleanup;        /* DECODE_WORDPIECE */
    bool keeps_first;    /* DECODE_METASPACE: a blank at the beginning, too */
    int64_t start, stop; /* DECODE_STRIP: at most so many of the content at each end */
    tshi_bytes made;     /* scratch: the text that the step has made */
} tshi_text_step;

typedef struct tshi_text_steps {
    tshi_text_step items[TSHI_MAX_STEPS];
    int count;
} tshi_text_steps;

/* Changes a text by a step of the first kinds: *text and *length become those of what it has made, in the step's
 * memory. `first`: the text begins where the whole text does. TSH_ERR_IO, _MEMORY. */
tsh_status tshi_step_change(tshi_text_step *step, tshi_bytes *codes, bool first, const char **text, size_t *length);

/* --- added tokens ------------------------------------------------------------------------------------------------- */

/* A token that is found in a text before its words are. */
typedef struct tshi_added {
    tshi_bytes content;
    int32_t id;
    int next; /* the next one with the same first byte, no longer than this one; -1: none */
    bool single_word, lstrip, rstrip, special;
} tshi_added;

/* Added tokens that are found in texts as they are, or in normalized ones. */
typedef struct tshi_added_set {
    tshi_added *items;
    int count, capacity;
    int first[256]; /* the longest with this first byte; -1: none */
    int bytes;      /* different first bytes */
    char byte;      /* one of them */
} tshi_added_set;

/* A piece of a text: an added token, or text up to it. */
typedef struct tshi_added_piece {
    size_t start, end;
    int32_t id; /* -1: text */
} tshi_added_piece;

/* To be called when all tokens are in the set, before the first look-up. */
void tshi_added_sort(tshi_added_set *set);
/* The first added token of a text at or after `at`; its `start` is not before `after`. False if there is none. */
bool tshi_added_next(const tshi_added_set *set, const char *text, size_t length, size_t after, size_t *at,
                     tshi_added_piece *out);

/* --- the tokenizer ------------------------------------------------------------------------------------------------ */

typedef enum tshi_model_kind { TSHI_MODEL_BPE, TSHI_MODEL_WORDPIECE } tshi_model_kind;

/* A symbol of a word while its neighbours are merged. */
typedef struct tshi_symbol {
    int32_t id, rank, merged; /* of it and its right neighbour: the rank, and what they become */
    int previous, next;       /* in a long word; -1: none */
} tshi_symbol;

/* Two neighbours of a long word. */
typedef struct tshi_merge_candidate {
    int32_t rank, merged;
    int place;
} tshi_merge_candidate;

typedef struct tshi_token_model {
    tshi_model_kind kind;
    tshi_vocabulary vocabulary;
    tshi_merges merges;
    tshi_bytes prefix, suffix; /* of symbols that continue a word, and of its last one */
    int32_t unknown;           /* -1: none */
    int32_t bytes[256];        /* of <0x00> to <0xFF>; -1: none */
    bool fuse_unknown, byte_fallback, ignore_merges;
    int64_t longest_word; /* WordPiece: of more characters a word is unknown */
    bool letters;         /* words come as bytes, and are encoded as letters */
    tshi_bytes cut;       /* a word that has this text is cut before it: no merge spans it; empty: none */
    tshi_words words;
    tshi_bytes spelled; /* scratch: a word as letters */
    tshi_symbol *symbols;
    tshi_merge_candidate *heap;
    int symbol_room, heap_room;
} tshi_token_model;

typedef struct tshi_ids {
    int64_t *items;
    int count, capacity;
} tshi_ids;

/* Tokens while they are decoded: one behind the other. */
typedef struct tshi_texts {
    tshi_bytes bytes;
    size_t *ends;
    int count, capacity;
} tshi_texts;

struct tsh_tokenizer {
    tsh_allocator allocator;
    tshi_text_steps normalizers, splitters, decoders;
    bool decodes; /* the file has a decoder */
    tshi_token_model model;
    tshi_added_set plain, normalized;
    tshi_vocabulary added; /* the added tokens of both sets, which ids are decoded by */
    bool *special;         /* [added.size]: the id is one of a special token */
    int special_room;
    int32_t *template; /* ids around the text's, whose place is -1; NULL: none */
    int template_count, template_room;
    tshi_ids ids; /* that were encoded last */
    tshi_texts texts[2];
    tshi_bytes codes, text; /* scratch; the text that was decoded last */
};

/* Adds an id to the tokenizer's. */
static inline tsh_status tshi_ids_add(tsh_tokenizer *t, int32_t id) {
    tsh_status status =
        tshi_grow(&t->allocator, (void **)&t->ids.items, &t->ids.capacity, t->ids.count + 1, sizeof *t->ids.items);
    if (status == TSH_OK) t->ids.items[t->ids.count++] = id;
    return status;
}

/* Adds the ids of a word. */
tsh_status tshi_model_encode(tsh_tokenizer *t, const char *text, size_t length);
/* Adds the ids of a word in a byte-pair encoding, as symbols and merges give them. */
tsh_status tshi_bpe_encode(tsh_tokenizer *t, const char *text, size_t length);

/* The file's contents become the tokenizer's, which was empty. Messages begin with the path. */
tsh_status tshi_tokenizer_parse(tsh_tokenizer *t, const char *path, const char *json, size_t bytes);

/* A tokenizer of a file's contents, as tsh_tokenizer_load. */
tsh_status tshi_tokenizer_create(const char *path, const char *json, size_t bytes, tsh_tokenizer **out);

/* The token of an id; NULL if it has none, or a special one that is not wanted. */
const char *tshi_tokenizer_token(const tsh_tokenizer *t, int64_t id, bool special, size_t *length);
/* t->text becomes the text of ids [count]. */
tsh_status tshi_tokenizer_decode(tsh_tokenizer *t, const int64_t *ids, int64_t count, bool special);

#endif
