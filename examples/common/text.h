/* A text as numbers, and random numbers: for the programs that learn from texts. */
#ifndef EXAMPLES_TEXT_H
#define EXAMPLES_TEXT_H

#include "tshard/tshard.h"

/* A text as numbers: each distinct byte is a symbol, in the order of their codes; or the ids of a token file. */
typedef struct text {
    unsigned char *symbols; /* NULL: a token file */
    const uint16_t *ids;    /* in the mapped file */
    int64_t length;
    int64_t vocabulary;
    unsigned char letter[256]; /* the byte that a symbol stands for */
    void *mapped;
    size_t mapped_bytes;
} text;

static inline int64_t text_symbol(const text *t, int64_t i) {
    return t->symbols ? t->symbols[i] : t->ids[i];
}

/* The file, or with NULL the project's C sources one after another; longer than `context`. False after printing why to
 * stderr, in the program's name. Collective over the world. */
bool text_read(const char *program, tsh_world *world, const char *path, int64_t context, text *out);
/* Reads a file of 16-bit little-endian ids, as nanoGPT writes it, or with llm.c's header. Each rank maps the file, so
 * every machine needs a copy, and it may be larger than memory. The vocabulary is the largest id + 1. Everything else
 * as in text_read. */
bool tokens_read(const char *program, tsh_world *world, const char *path, int64_t context, text *out);
void text_free(text *t);

/* The random number with this index, which depends only on seed and index. */
uint64_t random_bits(uint64_t seed, uint64_t index);

#endif
