#include "text.h"
#include "shared_file.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* --- token files -------------------------------------------------------------------------------------------------- */

/* llm.c's files begin with 256 32-bit numbers: MAGIC, a version, how many ids there are. */
enum { MAGIC = 20240520, MAGIC_32 = 20240801, HEADER_BYTES = 1024 };

static bool map_file(const char *path, text *out, char *why, size_t size) {
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool regular = fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
    if (regular && s.st_size > 0) {
        void *mapped = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED) *out = (text){.mapped = mapped, .mapped_bytes = (size_t)s.st_size};
    }
    if (!out->mapped) {
        const char *reason = fd >= 0 && !regular ? "it is no file" : regular && s.st_size == 0 ? "it is empty" : NULL;
        snprintf(why, size, "cannot be mapped: %s", reason ? reason : strerror(errno));
    }
    if (fd >= 0) close(fd);
    return out->mapped != NULL;
}

/* Where the ids begin, in bytes; -1 with the reason for a file of other numbers. */
static int64_t ids_begin(const text *t, char *why, size_t size) {
    int32_t head[3] = {0};
    if (t->mapped_bytes >= HEADER_BYTES) memcpy(head, t->mapped, sizeof head);
    if (head[0] == MAGIC_32) {
        snprintf(why, size, "has ids of 32 bits; ids of 16 bits are wanted");
    } else if (t->mapped_bytes % 2 != 0) {
        snprintf(why, size, "has %zu bytes, and ids of 16 bits make an even number", t->mapped_bytes);
    } else if (head[0] == MAGIC && (size_t)HEADER_BYTES + 2 * (size_t)(uint32_t)head[2] != t->mapped_bytes) {
        snprintf(why, size, "has %zu bytes, and its header says %u ids", t->mapped_bytes, (unsigned)head[2]);
    } else {
        return head[0] == MAGIC ? HEADER_BYTES : 0;
    }
    return -1;
}

static bool find_ids(text *t, int64_t context, char *why, size_t size) {
    int64_t begin = ids_begin(t, why, size);
    if (begin < 0) return false;
    t->ids = (const uint16_t *)(const void *)((const char *)t->mapped + begin);
    t->length = ((int64_t)t->mapped_bytes - begin) / 2;
    for (int64_t i = 0; i < t->length; i++) t->vocabulary = t->ids[i] >= t->vocabulary ? t->ids[i] + 1 : t->vocabulary;
    if (t->length > context) return true;
    snprintf(why, size, "has %lld ids, and a context of %lld wants at least %lld", (long long)t->length,
             (long long)context, (long long)context + 1);
    return false;
}

bool tokens_read(const char *program, tsh_world *world, const char *path, int64_t context, text *out) {
    char why[256] = "";
    *out = (text){0};
    if (map_file(path, out, why, sizeof why) && find_ids(out, context, why, sizeof why)) return true;
    fprintf(stderr, "%s: rank %d: %s %s\n", program, tsh_world_rank(world), path, why);
    text_free(out);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------------ */

void text_free(text *t) {
    if (t->mapped) munmap(t->mapped, t->mapped_bytes);
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
