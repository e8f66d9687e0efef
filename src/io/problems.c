/* Collects problems in one message. */
#include "io/problems.h"

#include <stdio.h>
#include <string.h>

void tshi_problem(tshi_problems *p, const char *format, ...) {
    char text[TSHI_LINE];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    va_end(arguments);
    size_t used = strlen(p->words), more = strlen(text) + 2;
    if (p->left_out == 0 && used + more + sizeof "; and 2147483647 more, in the log of rank 0" < sizeof p->words) {
        tshi_append(p->words, sizeof p->words, "%s%s", p->count ? "; " : "", text);
    } else {
        if (p->world->rank == 0) tshi_log(&p->world->log, TSH_LOG_ERROR, "%s '%s': %s", p->call, p->path, text);
        p->left_out++;
    }
    p->count++;
}

tsh_status tshi_problems_report(tshi_problems *p) {
    if (p->count == 0) return TSH_OK;
    if (p->left_out) tshi_append(p->words, sizeof p->words, "; and %d more, in the log of rank 0", p->left_out);
    return tshi_fail(TSH_ERR_IO, "%s '%.120s': %s", p->call, p->path, p->words);
}
