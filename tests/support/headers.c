#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/headers.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A header's text; the test ends without it. */
static char *read_header(const char *name) {
    char path[512];
    static char text[1 << 17];
    snprintf(path, sizeof path, "%s/include/tshard/%s", TSHARD_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (!file || size == 0 || size == sizeof text - 1) {
        fprintf(stderr, "test support: %s cannot be read\n", path);
        abort();
    }
    fclose(file);
    text[size] = '\0';
    return text;
}

static int look_through(const char *text, bool (*lists)(const char *name), char *words, size_t size) {
    int declared = 0;
    for (const char *at = text; (at = strstr(at, "\nTSH_API ")) != NULL; declared++) {
        char name[64];
        at += strlen("\nTSH_API ");
        const char *end = strchr(at, '('), *start = end;
        while (start > at && start[-1] != ' ' && start[-1] != '*') start--;
        snprintf(name, sizeof name, "%.*s", (int)(end - start), start);
        size_t used = strlen(words);
        if (!lists(name)) snprintf(words + used, size - used, "%s%s", used ? " " : "", name);
    }
    return declared;
}

int tshi_test_functions(bool (*lists)(const char *name), char *words, size_t size) {
    DIR *folder = opendir(TSHARD_SOURCE_DIR "/include/tshard");
    int declared = 0;
    words[0] = '\0';
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length < 2 || strcmp(entry->d_name + length - 2, ".h") != 0) continue;
#ifndef TSHARD_HAVE_MPI
        if (!strcmp(entry->d_name, "mpi.h")) continue; /* this build has none of its functions */
#endif
        declared += look_through(read_header(entry->d_name), lists, words, size);
    }
    if (folder) closedir(folder);
    return declared;
}

int tshi_test_functions_of(const char *header, bool (*lists)(const char *name), char *words, size_t size) {
    words[0] = '\0';
    return look_through(read_header(header), lists, words, size);
}
