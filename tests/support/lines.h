/* The log lines of a world, each as "LEVEL TEXT", as far as there is room. config.log = {tshi_keep_line, &lines}. */
#ifndef TSHI_LINES_H
#define TSHI_LINES_H

#include "tshard/base.h"

#include <stdio.h>
#include <string.h>

typedef struct tshi_lines {
    char text[4096];
} tshi_lines;

static inline void tshi_keep_line(void *user, tsh_log_level level, const char *line) {
    tshi_lines *l = user;
    size_t used = strlen(l->text);
    snprintf(l->text + used, sizeof l->text - used, "%d %s\n", (int)level, line);
}

/* Leaves out what only informs, such as of a way that a device takes. */
static inline void tshi_keep_warning(void *user, tsh_log_level level, const char *line) {
    if (level >= TSH_LOG_WARNING) tshi_keep_line(user, level, line);
}

#endif
