#include "text.h"
#include "shared_file.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TSHARD_SOURCES comes from CMake: the checkout that this was built from, or the folder that tshard is installed in,
 * which has only the headers. */
static const char *const source_patterns[] = {"/include/tshard/*.h", "/src/*/*.[ch]", "/src/*/*/*.[ch]",
                                              "/src/*/*/*/*.[ch]"};

/* glob sorts, so every build of one checkout learns the same text. */
static bool append_sources(shared_file *f, char *why, size_t size) {
    for (size_t p = 0; p < sizeof source_patterns / sizeof *source_patterns; p++) {
        char pattern[4096];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%s%s", TSHARD_SOURCES, source_patterns[p]);
        int code = glob(pattern, 0, NULL, &found);
        if (code == GLOB_NOMATCH) continue;
        if (code != 0) return false;
        bool good = true;
        for (size_t i = 0; good && i < found.gl_pathc; i++)
            good = shared_file_read(NULL, found.gl_pathv[i], f, why, size);
        globfree(&found);
        if (!good) return false;
    }
    return f->length > 0;
}

/* Bytes become symbols, numbered in the order of their codes. */
static void number_symbols(text *t) {
    unsigned char symbol[256] = {0};
    for (int64_t i = 0; i < t->length; i++) symbol[t->symbols[i]] = 1;
    for (int code = 0; code < 256; code++) {
        if (!symbol[code]) continue;
        symbol[code] = (unsigned char)t->vocabulary;
        t->letter[t->vocabulary++] = (unsigned char)code;
    }
    for (int64_t i = 0; i < t->length; i++) t->symbols[i] = symbol[t->symbols[i]];
}

bool text_read(const char *program, tsh_world *world, const char *path, int64_t context, text *out) {
    shared_file file = {0};
    char why[256] = "", reason[200];
    if (path && !shared_file_read(world, path, &file, reason, sizeof reason)) {
        snprintf(why, sizeof why, "cannot be read: %s", reason);
    } else if (!path && !append_sources(&file, reason, sizeof reason)) {
        snprintf(why, sizeof why, "has no sources of tshard to learn from (any more); --text FILE names a text");
    } else if (file.length == 0) {
        snprintf(why, sizeof why, "is empty");
    } else if (file.length <= context) {
        snprintf(why, sizeof why, "is %lld bytes long, and a context of %lld wants at least %lld",
                 (long long)file.length, (long long)context, (long long)context + 1);
    }
    *out = (text){.symbols = (unsigned char *)file.bytes, .length = file.length};
    if (!why[0]) {
        number_symbols(out);
        return true;
    }
    /* Every rank has read the sources itself; only rank 0 has read a file. */
    if (!path || tsh_world_rank(world) == 0) fprintf(stderr, "%s: %s %s\n", program, path ? path : TSHARD_SOURCES, why);
    text_free(out);
    return false;
}

void text_free(text *t) {
    free(t->symbols);
    *t = (text){0};
}

/* The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators"). */
static uint64_t scramble(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t random_bits(uint64_t seed, uint64_t index) {
    return scramble(scramble(seed + 0x9e3779b97f4a7c15u) + (index + 1) * 0x9e3779b97f4a7c15u);
}
