#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/ports.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* The socket, which never listens, stays: whoever sets SO_REUSEADDR, as ranks do, can bind to its port, and the kernel
 * gives it to nobody else. */
static int reserve(int family, void *address, socklen_t size, const in_port_t *port) {
    int on = 1, off = 0, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, size) != 0 || getsockname(fd, address, &size) != 0) return 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return ntohs(*port);
}

int tshi_test_port(void) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    int port = reserve(AF_INET6, &six, sizeof six, &six.sin6_port);
    if (!port) port = reserve(AF_INET, &four, sizeof four, &four.sin_port);
    if (port) return port;
    fprintf(stderr, "no port is free\n");
    abort();
}
