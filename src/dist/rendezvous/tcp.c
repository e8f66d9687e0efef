#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static tsh_status add_host(const char *host, int port, double deadline, tshi_endpoint *out, int *n) {
    struct addrinfo *found = NULL;
    tsh_status status = tshi_resolve(host, port, deadline, &found);
    if (status != TSH_OK) return status;
    for (const struct addrinfo *a = found; a && *n < TSHI_ENDPOINTS; a = a->ai_next) {
        if (a->ai_addrlen > sizeof out->address) continue;
        memset(&out[*n], 0, sizeof out[*n]);
        memcpy(&out[*n].address, a->ai_addr, a->ai_addrlen);
        out[(*n)++].length = a->ai_addrlen;
    }
    freeaddrinfo(found);
    return TSH_OK;
}

tsh_status tshi_tcp_resolve(const char *hosts, int port, double deadline, tshi_endpoint *out, int *n) {
    char list[TSHI_JOB_SIZE], *rest = list;
    *n = 0;
    if (!hosts) return add_host(NULL, port, deadline, out, n);
    snprintf(list, sizeof list, "%s", hosts);
    tsh_status status = TSH_OK;
    while (status == TSH_OK && rest) status = add_host(strsep(&rest, ","), port, deadline, out, n);
    return status;
}

void tshi_endpoint_set_port(tshi_endpoint *endpoint, int port) {
    in_port_t number = htons((uint16_t)port);
    if (endpoint->address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&endpoint->address)->sin6_port = number;
    else
        ((struct sockaddr_in *)(void *)&endpoint->address)->sin_port = number;
}

const char *tshi_endpoint_text(const tshi_endpoint *endpoint, char text[TSHI_ENDPOINT_TEXT]) {
    char host[56], service[12];
    const struct sockaddr *address = (const void *)&endpoint->address;
    if (address->sa_family == AF_UNIX) {
        snprintf(text, TSHI_ENDPOINT_TEXT, "this machine");
    } else if (getnameinfo(address, endpoint->length, host, sizeof host, service, sizeof service,
                           NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(text, TSHI_ENDPOINT_TEXT, "somewhere");
    } else {
        bool v6 = address->sa_family == AF_INET6;
        snprintf(text, TSHI_ENDPOINT_TEXT, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", service);
    }
    return text;
}

static int close_keeping_errno(int fd) {
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int tshi_socket_listen(const tshi_endpoint *endpoint, bool shared) {
    const int on = 1;
    int fd = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (endpoint->address.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (const void *)&endpoint->address, endpoint->length) != 0) return close_keeping_errno(fd);
    if (listen(fd, 4096) != 0) return close_keeping_errno(fd);
    return fd;
}

int tshi_tcp_port(int listener) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(listener, (void *)&address, &length) != 0) return -1;
    if (address.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
}

tshi_endpoint tshi_endpoint_any(sa_family_t family) {
    tshi_endpoint any = {.length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)};
    any.address.ss_family = family;
    return any;
}

int tshi_tcp_free_port(void) {
    const tshi_endpoint endpoint = tshi_endpoint_any(AF_INET);
    int fd = tshi_socket_listen(&endpoint, false), port = fd < 0 ? 0 : tshi_tcp_port(fd);
    tshi_socket_close(&fd, 1);
    return port < 0 ? 0 : port;
}

bool tshi_socket_wait(int fd, short events, double deadline) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        double left = deadline - tshi_clock();
        if (left <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
        int n = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* Where no process listens at a port that the system may assign, a connection can end up at itself. */
static bool is_own_end(int fd) {
    struct sockaddr_storage here, there;
    socklen_t a = sizeof here, b = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    if (getsockname(fd, (void *)&here, &a) != 0 || getpeername(fd, (void *)&there, &b) != 0) return false;
    return a == b && !memcmp(&here, &there, a);
}

int tshi_socket_connect(const tshi_endpoint *endpoint, double deadline) {
    const int on = 1;
    int error = 0;
    socklen_t size = sizeof error;
    int fd = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* The system may give this end the very port at which a rank is about to listen, which this allows. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (connect(fd, (const void *)&endpoint->address, endpoint->length) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) return close_keeping_errno(fd);
        if (!tshi_socket_wait(fd, POLLOUT, deadline)) return close_keeping_errno(fd);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error == 0 && is_own_end(fd)) error = ECONNREFUSED;
    errno = error;
    return error ? close_keeping_errno(fd) : fd;
}

/* False where n, which recv or send has returned, ends the transfer; waits where the connection is not ready. */
static bool can_go_on(int fd, ssize_t n, short events, double deadline) {
    if (n == 0) errno = 0;
    if (n > 0 || (n < 0 && errno == EINTR)) return true;
    return n < 0 && errno == EAGAIN && tshi_socket_wait(fd, events, deadline);
}

bool tshi_socket_read(int fd, void *bytes, size_t size, double deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)bytes + done, size - done, 0);
        if (!can_go_on(fd, n, POLLIN, deadline)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

bool tshi_socket_write(int fd, const void *bytes, size_t size, double deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)bytes + done, size - done, MSG_NOSIGNAL);
        if (!can_go_on(fd, n, POLLOUT, deadline)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

void tshi_socket_close(int *fds, int n) {
    for (int i = 0; i < n; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}
