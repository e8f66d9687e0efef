/* Messages between the ranks that meet, on sockets that keep message boundaries. */
#ifndef TSHI_CHANNEL_H
#define TSHI_CHANNEL_H

#include "dist/environment.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Fewer than the kernel's limit of 253 descriptors a message. */
#define TSHI_CHANNEL_FDS 64
#define TSHI_MAGIC       UINT64_C(0x7473686172640001)

/* From a rank that wants to join; its heap comes along. */
typedef struct tshi_hello {
    uint64_t magic;
    int32_t version[3];
    int32_t rank, size;
    uint64_t heap_bytes;
    char token[TSHI_JOB_SIZE];
} tshi_hello;

/* To it: no (words), or yes, followed by the parts below. */
typedef struct tshi_answer {
    uint64_t magic;
    int32_t status;
    char words[TSHI_MESSAGE_SIZE];
} tshi_answer;

/* Some of the ranks' descriptors, from `first` on; the heap of each, then the pidfd of each that has one. The part
 * with count 0 carries the control memory. */
typedef struct tshi_part {
    uint64_t magic;
    int32_t first, count;
    uint64_t heap_bytes[TSHI_CHANNEL_FDS / 2];
    uint8_t has_process[TSHI_CHANNEL_FDS / 2];
} tshi_part;

/* The abstract name of a job's meeting point. */
socklen_t tshi_channel_address(const tshi_settings *settings, struct sockaddr_un *out);
int tshi_channel_socket(void);
/* One message with its descriptors; false with errno set. */
bool tshi_channel_send(int socket, const void *message, size_t size, const int *fds, int n);
/* Its size, 0 at the end, -1 with errno set. Descriptors beyond `most` are closed; *n is how many came. */
ssize_t tshi_channel_receive(int socket, void *message, size_t size, int *fds, int most, int *n);
/* Whether the process at the other end runs as this user (or root); its pid too. */
bool tshi_channel_trusted(int socket, pid_t *pid);
/* poll on one descriptor: true when something is there before the deadline (tshi_clock's). */
bool tshi_channel_wait(int fd, double deadline);

#endif
