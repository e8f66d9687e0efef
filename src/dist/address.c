/* Whether an address is one of this machine's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/environment.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

static bool same_host(const struct sockaddr *a, const struct sockaddr *b) {
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

static bool is_loopback(const struct sockaddr *a) {
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

static bool any_is_here(const struct addrinfo *found, const struct ifaddrs *mine) {
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        if (is_loopback(a->ai_addr)) return true;
        for (const struct ifaddrs *m = mine; m; m = m->ifa_next) {
            if (same_host(a->ai_addr, m->ifa_addr)) return true;
        }
    }
    return false;
}

tsh_status tshi_address_is_here(const char *address) {
    char name[TSHI_JOB_SIZE] = "";
    if (gethostname(name, sizeof name - 1) == 0 && !strcmp(name, address)) return TSH_OK;
    if (!strcmp(address, "localhost")) return TSH_OK;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct ifaddrs *mine = NULL;
    int error = getaddrinfo(address, NULL, &hints, &found);
    bool here = false;
    if (error == 0) {
        if (getifaddrs(&mine) != 0) mine = NULL;
        here = any_is_here(found, mine);
        if (mine) freeifaddrs(mine);
        freeaddrinfo(found);
    }
    if (here) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "MASTER_ADDR=%.100s is not this machine%s%s: ranks on several machines need an MPI build", address,
                     error ? ": " : "", error ? gai_strerror(error) : "");
}
