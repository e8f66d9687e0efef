/* Addresses as they are written, and which of them are this machine's. */
#include "base/number.h"
#include "dist/rendezvous/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool tshi_same_host(const struct sockaddr *a, const struct sockaddr *b) {
    if (!a || !b || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
        return !memcmp(&x->sin6_addr, &y->sin6_addr, sizeof x->sin6_addr);
    }
    return false;
}

bool tshi_is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a;
        return (ntohl(x->sin_addr.s_addr) >> 24) == 127;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a;
        return IN6_IS_ADDR_LOOPBACK(&x->sin6_addr);
    }
    return false;
}

/* Connecting a datagram socket sends nothing; port 0 would not do. */
bool tshi_endpoint_source(const tshi_endpoint *there, tshi_endpoint *out) {
    tshi_endpoint to = *there;
    tshi_endpoint_set_port(&to, 9);
    int fd = socket(to.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *out = (tshi_endpoint){.length = sizeof out->address};
    bool known = fd >= 0 && connect(fd, (const void *)&to.address, to.length) == 0 &&
                 getsockname(fd, (void *)&out->address, &out->length) == 0;
    if (fd >= 0) close(fd);
    return known;
}

static bool any_is_here(const struct addrinfo *found, const struct ifaddrs *mine) {
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        if (tshi_is_loopback(a->ai_addr)) return true;
        for (const struct ifaddrs *m = mine; m; m = m->ifa_next) {
            if (tshi_same_host(a->ai_addr, m->ifa_addr)) return true;
        }
    }
    return false;
}

static bool is_link_local(const struct sockaddr *a) {
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

void tshi_address_own(char *text, size_t size) {
    struct ifaddrs *mine = NULL;
    text[0] = '\0';
    if (getifaddrs(&mine) != 0) return;
    for (const struct ifaddrs *m = mine; m; m = m->ifa_next) {
        char host[64];
        const struct sockaddr *a = m->ifa_addr;
        bool known = a && (a->sa_family == AF_INET || a->sa_family == AF_INET6);
        if (!known || !(m->ifa_flags & IFF_UP) || tshi_is_loopback(a) || is_link_local(a)) continue;
        socklen_t length = a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (getnameinfo(a, length, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0) continue;
        if (strlen(text) + strlen(host) + 2 < size) tshi_append(text, size, "%s%s", text[0] ? "," : "", host);
    }
    freeifaddrs(mine);
}

tsh_status tshi_address_is_here(const char *address, double deadline) {
    char name[TSHI_JOB_SIZE] = "";
    if (gethostname(name, sizeof name - 1) == 0 && !strcmp(name, address)) return TSH_OK;
    if (!strcmp(address, "localhost")) return TSH_OK;
    struct addrinfo *found = NULL;
    struct ifaddrs *mine = NULL;
    bool known = tshi_resolve(address, 0, deadline, &found) == TSH_OK, here = false;
    if (known) {
        if (getifaddrs(&mine) != 0) mine = NULL;
        here = any_is_here(found, mine);
        if (mine) freeifaddrs(mine);
        freeaddrinfo(found);
    }
    if (here) return TSH_OK;
    char why[TSHI_LINE] = "";
    if (!known) snprintf(why, sizeof why, " (%.200s)", tsh_error_message());
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "MASTER_ADDR=%.100s is not this machine%s, although all ranks are said to be here", address, why);
}

bool tshi_address_is_loopback(const char *address) {
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcmp(address, "localhost")) return true;
    if (inet_pton(AF_INET, address, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool tshi_address_is_multicast(const char *address) {
    struct in_addr v4;
    struct in6_addr v6;
    char plain[TSHI_JOB_SIZE];
    if (inet_pton(AF_INET, address, &v4) == 1) return IN_MULTICAST(ntohl(v4.s_addr));
    size_t length = strcspn(address, "%"); /* the interface */
    if (length >= sizeof plain) return false;
    memcpy(plain, address, length);
    plain[length] = '\0';
    return inet_pton(AF_INET6, plain, &v6) == 1 && IN6_IS_ADDR_MULTICAST(&v6);
}

bool tshi_address_split(const char *text, char *host, int *port) {
    const char *start = text, *end = strrchr(text, ':');
    if (!end) return false;
    const char *digits = end + 1;
    if (text[0] == '[') {
        start = text + 1;
        end--;
        if (end <= start || *end != ']') return false;
    }
    size_t length = (size_t)(end - start);
    if (length == 0 || length >= TSHI_JOB_SIZE) return false;
    /* In an IPv6 address without brackets the start of the port is ambiguous. */
    if (text[0] != '[' && memchr(start, ':', length)) return false;
    if (strcspn(text, "/?#@ ") != strlen(text)) return false;
    if (!tshi_parse_int(digits, 1, 65535, port)) return false;
    memcpy(host, start, length);
    host[length] = '\0';
    return true;
}
