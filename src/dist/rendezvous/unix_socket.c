#include "base/hash.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST_TRIES 2000
#define MOST_FDS   16
#define NAME_BYTES 16

socklen_t tshi_unix_name(const tshi_settings *settings, const char *purpose, int number, struct sockaddr_un *out) {
    unsigned char name[TSHI_HASH_SIZE];
    const int parts[] = {(int)getuid(), number};
    tshi_hmac(settings->key, sizeof settings->key, purpose, strlen(purpose), parts, sizeof parts, name);
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    for (size_t i = 0; i < NAME_BYTES; i++) snprintf(out->sun_path + 1 + 2 * i, 3, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 2 * NAME_BYTES);
}

void tshi_unix_endpoint(const tshi_settings *settings, tshi_endpoint *out) {
    memset(out, 0, sizeof *out);
    out->length = tshi_unix_name(settings, "memory", 0, (struct sockaddr_un *)(void *)&out->address);
}

/* Room for a descriptor, aligned as the kernel requires; a message that comes may bring more than it should. */
typedef union ancillary {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int) * MOST_FDS)];
} ancillary;

bool tshi_unix_send(int socket, const void *bytes, size_t size, int fd) {
    ancillary control;
    memset(&control, 0, sizeof control);
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = control.room;
        header.msg_controllen = CMSG_SPACE(sizeof fd);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    /* The kernel limits how many descriptors may be in flight; there are fewer once peers have received theirs. */
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) return sent == (ssize_t)size;
        if (errno == ETOOMANYREFS)
            tshi_sleep(2e-3);
        else if (errno != EINTR)
            return false;
    }
    return false;
}

static void take_descriptors(struct msghdr *header, int *out) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (*out < 0)
                *out = fd;
            else
                close(fd);
        }
    }
}

ssize_t tshi_unix_receive(int socket, void *bytes, size_t size, int *fd) {
    ancillary control;
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    *fd = -1;
    ssize_t received;
    do received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (received < 0 && errno == EINTR);
    if (received >= 0) take_descriptors(&header, fd);
    return received;
}

bool tshi_unix_same_user(int socket) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
    return peer.uid == getuid() || peer.uid == 0;
}
