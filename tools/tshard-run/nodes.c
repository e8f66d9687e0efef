/* Which machines take part, and which of them this is. */
#define _GNU_SOURCE
#include "base/number.h"
#include "run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- lists -------------------------------------------------------------------------------------------------------- */

static bool add_node(run_options *options, const char *name, size_t length, int slots) {
    if (options->nodes_listed == RUN_MAX_NODES || length == 0 || length >= RUN_NAME_SIZE) return false;
    run_node *node = &options->nodes[options->nodes_listed++];
    *node = (run_node){.slots = slots};
    memcpy(node->name, name, length);
    return true;
}

bool run_nodes_from_list(run_options *options, const char *list) {
    options->nodes_listed = 0;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (!add_node(options, at, length, 0)) return false;
        at += length;
        if (*at == '\0') return true;
    }
}

bool run_endpoint_split(char *text, const char **host, int *port) {
    bool bracketed = text[0] == '[';
    char *name = text + bracketed, *end = name + strcspn(name, bracketed ? "]" : ":"), *rest = end + bracketed;
    if (end == name || (bracketed && *end != ']')) return false;
    if (*rest && (*rest != ':' || !tshi_parse_int(rest + 1, 0, 65535, port))) return false;
    *end = '\0';
    *host = name;
    return true;
}

/* "host", "host slots=4", "host:4"; # begins a comment. */
static bool take_line(run_options *options, char *line) {
    static const char key[] = "slots=";
    int slots = 0;
    line[strcspn(line, "#\n")] = '\0';
    char *rest = NULL, *name = strtok_r(line, " \t\r", &rest), *word = name ? strtok_r(NULL, " \t\r", &rest) : NULL;
    if (!name) return true;
    if (word && strtok_r(NULL, " \t\r", &rest)) return false;
    char *colon = strchr(name, ':');
    if (colon && !strchr(colon + 1, ':')) { /* more of them: an IPv6 address */
        *colon = '\0';
        if (word || !tshi_parse_int(colon + 1, 1, RUN_MAX_RANKS, &slots)) return false;
    }
    if (word && strncmp(word, key, sizeof key - 1) != 0) return false;
    if (word && !tshi_parse_int(word + sizeof key - 1, 1, RUN_MAX_RANKS, &slots)) return false;
    return add_node(options, name, strlen(name), slots);
}

/* The next line without its end: 1, 0 at the end of the file, -1 when it is too long or holds a zero byte. */
static int read_line(FILE *file, char *line, size_t size) {
    size_t n = 0;
    int c;
    while ((c = fgetc(file)) != EOF && c != '\n') {
        if (c == '\0' || n + 1 == size) return -1;
        line[n++] = (char)c;
    }
    line[n] = '\0';
    return c == '\n' || n > 0;
}

/* 0, or the number of the line that makes no sense; -1 when the file cannot be read. */
int run_nodes_from_file(run_options *options, const char *path) {
    char line[1024];
    int number = 0, bad = 0, got;
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    options->nodes_listed = 0;
    while (!bad && (got = read_line(file, line, sizeof line)) != 0) {
        number++;
        if (got < 0 || !take_line(options, line)) bad = number;
    }
    int error = ferror(file) ? errno : 0;
    fclose(file);
    errno = error;
    if (error) return -1;
    return bad || options->nodes_listed ? bad : number + 1;
}

/* --- myself ------------------------------------------------------------------------------------------------------- */

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
    if (!b || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 && !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                                               &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16);
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    }
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool is_here(const char *name, const struct ifaddrs *mine) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[RUN_NAME_SIZE] = "";
    if (gethostname(host, sizeof host - 1) == 0 && !strcmp(host, name)) return true;
    if (getaddrinfo(name, NULL, &hints, &found) != 0) return false;
    bool here = false;
    for (const struct addrinfo *a = found; a && !here; a = a->ai_next) {
        here = is_loopback(a->ai_addr);
        for (const struct ifaddrs *m = mine; m && !here; m = m->ifa_next) here = same_address(a->ai_addr, m->ifa_addr);
    }
    freeaddrinfo(found);
    return here;
}

int run_nodes_find_self(const run_options *options, int *others) {
    struct ifaddrs *mine = NULL;
    int first = -1;
    *others = 0;
    if (getifaddrs(&mine) != 0) mine = NULL;
    for (int i = 0; i < options->nodes_listed; i++) {
        if (!is_here(options->nodes[i].name, mine)) continue;
        if (first < 0)
            first = i;
        else
            (*others)++;
    }
    if (mine) freeifaddrs(mine);
    return first;
}

void run_nodes_count(run_options *options) {
    options->world_size = options->first_rank = 0;
    for (int i = 0; i < options->nnodes; i++) {
        int slots = i < options->nodes_listed && options->nodes[i].slots ? options->nodes[i].slots : options->ranks;
        if (i == options->node_rank) options->first_rank = options->world_size;
        if (i == options->node_rank && options->nodes_listed) options->own_slots = slots;
        options->world_size += slots;
    }
    if (options->own_slots) options->ranks = options->own_slots;
}
