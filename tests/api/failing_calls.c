/* The wrapped functions. Those that release a resource are not among them, because no program can do without them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "failing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    bool on;
    long number, calls;
    int error;
    const char *name;
} failing;

void tshi_failing_begin(long number, int error) {
    failing.on = true;
    failing.number = number;
    failing.calls = 0;
    failing.error = error;
    failing.name = "";
}

long tshi_failing_end(char *name, size_t size) {
    failing.on = false;
    snprintf(name, size, "%s", failing.name);
    return failing.calls;
}

static bool strikes(const char *name) {
    if (!failing.on || ++failing.calls != failing.number) return false;
    failing.name = name;
    errno = failing.error;
    return true;
}

/* The linker's names for a function and for what stands in for it. */
#define WRAP(type, name, parameters, arguments, bad)                                                                   \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        return strikes(#name) ? (bad) : __real_##name arguments;                                                       \
    }

WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset), (at, n, prot, flags, fd, offset),
     MAP_FAILED)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), -1)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
WRAP(int, socketpair, (int domain, int type, int protocol, int ends[2]), (domain, type, protocol, ends), -1)
WRAP(int, bind, (int fd, const struct sockaddr *name, socklen_t n), (fd, name, n), -1)
WRAP(int, listen, (int fd, int n), (fd, n), -1)
WRAP(int, accept4, (int fd, struct sockaddr *name, socklen_t *n, int flags), (fd, name, n, flags), -1)
WRAP(int, connect, (int fd, const struct sockaddr *name, socklen_t n), (fd, name, n), -1)
WRAP(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t n), (fd, level, name, value, n), -1)
WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *n), (fd, level, name, value, n), -1)
WRAP(int, getsockname, (int fd, struct sockaddr *name, socklen_t *n), (fd, name, n), -1)
WRAP(int, getpeername, (int fd, struct sockaddr *name, socklen_t *n), (fd, name, n), -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), -1)
WRAP(ssize_t, send, (int fd, const void *from, size_t n, int flags), (fd, from, n, flags), -1)
WRAP(ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags), -1)
WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), -1)
WRAP(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), -1)
WRAP(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), -1)
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), -1)
WRAP(int, fsync, (int fd), (fd), -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), -1)
WRAP(int, poll, (struct pollfd * fds, nfds_t n, int wait), (fds, n, wait), -1)
WRAP(int, fstat, (int fd, struct stat *to), (fd, to), -1)
WRAP(int, stat, (const char *path, struct stat *to), (path, to), -1)
WRAP(ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n), -1)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), -1)
WRAP(int, gethostname, (char *to, size_t n), (to, n), -1)
WRAP(int, getaddrinfo, (const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out),
     (node, service, hints, out), EAI_MEMORY)
WRAP(int, pthread_create, (pthread_t * thread, const pthread_attr_t *a, void *(*start)(void *), void *arg),
     (thread, a, start, arg), EAGAIN)

/* Those with a variable number of arguments take the most that there may be. */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return strikes("open") ? -1 : __real_open(path, flags, mode);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    return strikes("syscall") ? -1 : __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
