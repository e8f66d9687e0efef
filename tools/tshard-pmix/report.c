#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "report.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

const char *report_ranks(const helper *h, int node, char *text, size_t size) {
    int here = 0;
    size_t used;
    for (int i = 0; i < h->order.ranks; i++) here += h->node[i] == node;
    used = (size_t)snprintf(text, size, here > 1 ? "ranks" : "rank");
    const char *comma = " ";
    for (int i = 0; i < h->order.ranks && used + 24 < size; i++) {
        if (h->node[i] != node) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", comma, i);
        comma = ", ";
    }
    if (used + 24 >= size) snprintf(text + used, size - used, ", ...");
    return text;
}

void report_line(const char *message) {
    char line[TSHI_MESSAGE_SIZE + 8];
    int n = snprintf(line, sizeof line, "!%.*s\n", TSHI_MESSAGE_SIZE, message);
    for (char *c = line; c < line + n - 1; c++) {
        if (*c == '\n') *c = ' ';
    }
    ssize_t ignored = send(TSHI_WIREUP_FD, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored; /* no rank is left */
}

void report_on_stderr(const char *level, const char *message) {
    char line[TSHI_MESSAGE_SIZE + 32];
    struct pollfd can = {.fd = STDERR_FILENO, .events = POLLOUT};
    int n = snprintf(line, sizeof line, "tshard %s: %.*s\n", level, TSHI_MESSAGE_SIZE, message);
    if (poll(&can, 1, 0) <= 0) return;
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);
    (void)ignored; /* there is no other way to report it */
}

void report_failure(helper *h, const char *message) {
    if (h->failed) return;
    h->failed = true;
    report_line(message);
    report_on_stderr("error", message);
}
