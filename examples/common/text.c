#include "text.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TSHARD_SOURCES comes from CMake: the checkout that this was built from, or the folder that tshard is installed in,
 * which has the headers alone. */
static const char *const source_patterns[] = {"/include/tshard/*.h", "/src/*/*.[ch]", "/src/*/*/*.[ch]",
                                              "/src/*/*/*/*.[ch]"};

/* More than any text that a model of this size can learn from: an endless file must not fill the memory. */
enum { LONGEST_TEXT = 256 << 20 };

/* Room for so many bytes more. It doubles: a large text is not copied with each chunk of it. */
static bool make_room(text *t, size_t n) {
    size_t wanted = (size_t)t->length + n, room = t->room ? t->room : 65536;
    if (wanted <= t->room) return true;
    while (room < wanted) room *= 2;
    unsigned char *grown = realloc(t->symbols, room);
    if (!grown) return false;
    t->symbols = grown;
    t->room = room;
    return true;
}

/* Append the file to the bytes read so far. False with errno set. */
static bool append_file(const char *path, text *t) {
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    unsigned char chunk[65536];
    size_t n;
    errno = 0;
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0 && t->length <= LONGEST_TEXT) {
        if (!make_room(t, n)) break;
        memcpy(t->symbols + t->length, chunk, n);
        t->length += (int64_t)n;
    }
    int error = t->length > LONGEST_TEXT ? EFBIG : n > 0 ? ENOMEM : ferror(file) ? errno : 0;
    fclose(file);
    errno = error;
    return error == 0;
}

/* glob sorts, so every build of one checkout learns the same text. */
static bool append_sources(text *t) {
    for (size_t i = 0; i < sizeof source_patterns / sizeof *source_patterns; i++) {
        char pattern[4096];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%s%s", TSHARD_SOURCES, source_patterns[i]);
        int code = glob(pattern, 0, NULL, &found);
        if (code == GLOB_NOMATCH) continue;
        if (code != 0) return false;
        bool good = true;
        for (size_t f = 0; good && f < found.gl_pathc; f++) good = append_file(found.gl_pathv[f], t);
        globfree(&found);
        if (!good) return false;
    }
    return t->length > 0;
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

bool text_read(const char *program, const char *path, int64_t context, int rank, text *out) {
    *out = (text){0};
    char why[256] = "";
    if (path && !append_file(path, out)) {
        snprintf(why, sizeof why, "cannot be read: %s", strerror(errno));
    } else if (!path && !append_sources(out)) {
        snprintf(why, sizeof why, "has no sources of tshard to learn from (any more); --text FILE names a text");
    } else if (out->length == 0) {
        snprintf(why, sizeof why, "is empty");
    } else if (out->length <= context) {
        snprintf(why, sizeof why, "is %lld bytes long, and a context of %lld wants at least %lld",
                 (long long)out->length, (long long)context, (long long)context + 1);
    }
    if (!why[0]) {
        number_symbols(out);
        return true;
    }
    /* By every rank: the file may be another one there, as /dev/stdin is. */
    fprintf(stderr, "%s: rank %d: %s %s\n", program, rank, path ? path : TSHARD_SOURCES, why);
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
