/* Tokenizers whose tokens are characters or bytes: the vocabulary of a tokenizer.json without merges. */
#ifndef TRANSFORMER_TOKENIZER_H
#define TRANSFORMER_TOKENIZER_H

#include "config.h"

typedef struct tokenizer tokenizer;

enum { TOKEN_BYTES = 4 }; /* of a token's text, at most */

/* Reads FOLDER/tokenizer.json, or a plain object of tokens and ids in FOLDER/vocab.json. Tokens are characters in
 * UTF-8, bytes written as "<0x0A>" or, where the pre-tokenizer is a ByteLevel, as GPT-2's letters for them, or special
 * ones in angle or square brackets. False, with words, if there is no such file or its tokens are longer. */
bool tokenizer_open(const char *folder, tokenizer **out, char words[MODEL_WORDS]);
void tokenizer_close(tokenizer *t);
/* The ids of a text; the caller frees *ids. False, with words, for a character that is no token. */
bool tokenizer_encode(const tokenizer *t, const char *text, int64_t **ids, int64_t *count, char words[MODEL_WORDS]);
/* The bytes of a token; none for a special token and for an id without a token. */
const char *tokenizer_decode(const tokenizer *t, int64_t id, size_t *length);

/* The ids of a text like "1,2,3" or "1 2 3"; false, with words, if one is not a number or not a token of the model, or
 * if there are none. The caller frees *ids. */
bool ids_parse(const char *text, int64_t vocabulary, int64_t **ids, int64_t *count, char words[MODEL_WORDS]);

/* The ids of the lines of a file, which id_lines_free frees, after a failure too. Collective over the world. */
typedef struct id_line {
    int64_t *ids, count;
} id_line;
typedef struct id_lines {
    id_line *items;
    int64_t count, longest; /* lines; ids of the longest */
} id_lines;
bool id_lines_read(tsh_world *world, const char *path, int64_t vocabulary, id_lines *out, char words[MODEL_WORDS]);
void id_lines_free(id_lines *lines);
/* ids [count, tokens], each line filled up with zeros; lengths [count]. */
void id_lines_fill(const id_line *lines, int64_t count, int64_t tokens, int64_t *ids, int64_t *lengths);

#endif
