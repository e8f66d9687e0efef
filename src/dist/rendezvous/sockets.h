/* Stream sockets that never wait longer than they should: TCP between machines, Unix sockets on one. */
#ifndef TSHI_SOCKETS_H
#define TSHI_SOCKETS_H

#include "base/base.h"

#include "dist/rendezvous/environment.h"

#include <sys/socket.h>
#include <sys/un.h>

/* --- resolve.c ---------------------------------------------------------------------------------------------------- */

/* The addresses of host (NULL: every one of this machine's), which freeaddrinfo frees. TSH_ERR_TIMEOUT at the deadline,
 * TSH_ERR_SYSTEM where the resolver knows none. */
struct addrinfo;
tsh_status tshi_resolve(const char *host, int port, double deadline, struct addrinfo **found);

/* --- tcp.c -------------------------------------------------------------------------------------------------------- */

#define TSHI_ENDPOINTS     16
#define TSHI_ENDPOINT_TEXT 80

typedef struct tshi_endpoint {
    struct sockaddr_storage address;
    socklen_t length;
} tshi_endpoint;

/* All addresses of a host, or of several with commas between them, as tshi_resolve finds them, at most
 * TSHI_ENDPOINTS. */
tsh_status tshi_tcp_resolve(const char *hosts, int port, double deadline, tshi_endpoint *out, int *n);
/* Every address of this machine in the family, AF_INET or AF_INET6; the system chooses the port. */
tshi_endpoint tshi_endpoint_any(sa_family_t family);
void tshi_endpoint_set_port(tshi_endpoint *endpoint, int port);
/* "127.0.0.1:29500", "[::1]:29500" */
const char *tshi_endpoint_text(const tshi_endpoint *endpoint, char text[TSHI_ENDPOINT_TEXT]);
/* address.c: the address of this machine from which packets go to `there`; false where it is not known. */
bool tshi_endpoint_source(const tshi_endpoint *there, tshi_endpoint *out);
/* address.c: the addresses are equal, whatever their ports. `a` may be NULL. */
bool tshi_same_host(const struct sockaddr *a, const struct sockaddr *b);
bool tshi_is_loopback(const struct sockaddr *address);
/* A socket that listens there, or -1 with errno set. `shared`: other sockets of this user may listen there too. */
int tshi_socket_listen(const tshi_endpoint *endpoint, bool shared);
/* The port of a listener that the system chose. */
int tshi_tcp_port(int listener);
/* A port at which nothing listens now, on any address of this machine; 0: there is none. */
int tshi_tcp_free_port(void);
/* A connection, or -1 with errno set (ETIMEDOUT at the deadline). */
int tshi_socket_connect(const tshi_endpoint *endpoint, double deadline);
/* Waits until `events` (POLLIN, POLLOUT) of fd; false with errno set (ETIMEDOUT at the deadline). */
bool tshi_socket_wait(int fd, short events, double deadline);
/* Read or write all of it before the deadline; false with errno set, 0 at the end of the connection. */
TSHI_TOOLS bool tshi_socket_read(int fd, void *bytes, size_t size, double deadline);
TSHI_TOOLS bool tshi_socket_write(int fd, const void *bytes, size_t size, double deadline);
TSHI_TOOLS void tshi_socket_close(int *fds, int n);

/* --- unix_socket.c: streams on one machine, which carry descriptors ----------------------------------------------- */

/* The abstract name of a socket of this user's job: digits that tell neither the job nor the purpose to a process
 * without the key. */
socklen_t tshi_unix_name(const tshi_settings *settings, const char *purpose, int number, struct sockaddr_un *out);
/* The endpoint at which rank 0 listens for the ranks of its machine. */
void tshi_unix_endpoint(const tshi_settings *settings, tshi_endpoint *out);
/* The process at the other end runs as this user, or as root. */
bool tshi_unix_same_user(int socket);
/* Sends all of these bytes, with a descriptor where fd >= 0; false with errno set. */
bool tshi_unix_send(int socket, const void *bytes, size_t size, int fd);
/* The number of bytes that have come, 0 at the end, -1 with errno set. *fd is the descriptor that came with them, or
 * -1; further ones are closed. */
ssize_t tshi_unix_receive(int socket, void *bytes, size_t size, int *fd);

#endif
