/* One formatted line to a world's log sink. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#define LINE_SIZE 1024

static const char *level_name(tsh_log_level level) {
    switch (level) {
    case TSH_LOG_DEBUG: return "debug";
    case TSH_LOG_INFO: return "info";
    case TSH_LOG_WARNING: return "warning";
    default: return "error";
    }
}

void tshi_log_print(void *user, tsh_log_level level, const char *line) {
    (void)user;
    fprintf(stderr, "tshard %s: %s\n", level_name(level), line);
}

void tshi_log(const tsh_log_sink *log, tsh_log_level level, const char *format, ...) {
    bool has_sink = log && log->fn;
    if (!has_sink && level < TSH_LOG_WARNING) return;
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    if (length >= LINE_SIZE) memcpy(line + LINE_SIZE - 4, "...", 4);
    if (has_sink)
        log->fn(log->user, level, line);
    else
        tshi_log_print(NULL, level, line);
}
