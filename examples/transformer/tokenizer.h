/* The tokenizer of a model's folder: the library's, or a vocabulary whose tokens are characters or bytes. */
#ifndef TRANSFORMER_TOKENIZER_H
#define TRANSFORMER_TOKENIZER_H

#include "config.h"

typedef struct tokenizer tokenizer;

enum { TOKEN_BYTES = 4 }; /* of a token's text in a vocabulary of characters or bytes, at most */

/* Loads the tokenizer of a GGUF file with tsh_tokenizer_load; for a folder reads FOLDER/tokenizer.json, or a plain
 * object of tokens and ids in FOLDER/vocab.json. If every token is a UTF-8 character, a byte (written as "<0x0A>" or,
 * with a ByteLevel pre-tokenizer, as GPT-2's letter for it) or a special token in angle or square brackets, texts are
 * split into these tokens here; otherwise tsh_tokenizer_load loads the file. False, with words, if there is no such
 * file or neither is possible. */
bool tokenizer_open(const char *folder, tokenizer **out, char words[MODEL_WORDS]);
void tokenizer_close(tokenizer *t);
/* The ids of a text; the caller frees *ids. False, with words, for a character that is no token. */
bool tokenizer_encode(const tokenizer *t, const char *text, int64_t **ids, int64_t *count, char words[MODEL_WORDS]);
/* The text of ids [count], without special tokens and ids that have no token; the caller frees it. NULL without
 * memory. */
char *tokenizer_text(const tokenizer *t, const int64_t *ids, int64_t count, size_t *length);
/* The library's tokenizer, whose streams give a text token by token; NULL if the tokens are characters or bytes. */
tsh_tokenizer *tokenizer_library(const tokenizer *t);

/* The ids of a text like "1,2,3" or "1 2 3"; false, with words, if one is not a number or not a token of the model, or
 * if there are none. The caller frees *ids. */
bool ids_parse(const char *text, int64_t vocabulary, int64_t **ids, int64_t *count, char words[MODEL_WORDS]);

typedef struct id_line {
    int64_t *ids, count;
} id_line;
/* The ids of a text, or, without a tokenizer, those that the text lists (ids_parse); false, with words, also for a
 * token past the model's vocabulary. The caller frees line->ids, after a failure too. */
bool id_line_read(const tokenizer *t, const char *text, int64_t vocabulary, id_line *line, char words[MODEL_WORDS]);
typedef struct id_lines {
    id_line *items;
    int64_t count, longest; /* lines; ids of the longest */
} id_lines;
/* The lines of a file, each as by id_line_read; id_lines_free frees them, after a failure too. Collective over the
 * world. */
bool id_lines_read(tsh_world *world, const char *path, const tokenizer *t, int64_t vocabulary, id_lines *out,
                   char words[MODEL_WORDS]);
void id_lines_free(id_lines *lines);
/* ids [count, tokens], each line filled up with zeros; lengths [count]. */
void id_lines_fill(const id_line *lines, int64_t count, int64_t tokens, int64_t *ids, int64_t *lengths);

#endif
