/* Messages between the ranks that meet, on sockets that keep message boundaries. */
#ifndef TSHI_CHANNEL_H
#define TSHI_CHANNEL_H

#include "base/hash.h"
#include "dist/bootstrap/environment.h"

#include <sys/socket.h>
#include <sys/un.h>

#define TSHI_MAGIC UINT64_C(0x7473686172640004)

/* From a rank that wants to join. */
typedef struct tshi_hello {
    uint64_t magic;
    int32_t version[3];
    int32_t rank, size;
    uint64_t heap_bytes;
    unsigned char proof[TSHI_HASH_SIZE]; /* the HMAC of all before it, under the job's key */
} tshi_hello;

/* To it: no, with words; or yes, with the descriptor of the memory that all share, and a second yes without one once
 * that has been sent to every rank. */
typedef struct tshi_answer {
    uint64_t magic;
    int32_t status;
    char words[TSHI_MESSAGE_SIZE];
} tshi_answer;

/* The abstract name of a socket of this user's job: digits that tell those without the key neither the job nor what it
 * is for. */
socklen_t tshi_channel_name(const tshi_settings *settings, const char *purpose, int number, struct sockaddr_un *out);
/* Of the one that rank 0 listens at. */
socklen_t tshi_channel_address(const tshi_settings *settings, struct sockaddr_un *out);
/* Makes the proof of a hello that is otherwise complete. */
void tshi_channel_prove(const tshi_settings *settings, tshi_hello *hello);
bool tshi_channel_proven(const tshi_settings *settings, const tshi_hello *hello);
/* One that never waits; or -1 with errno set. */
int tshi_channel_socket(void);
/* One message, with a descriptor where fd >= 0; false with errno set. */
bool tshi_channel_send(int socket, const void *message, size_t size, int fd);
/* Its size, 0 at the end, -1 with errno set. *fd is what came along, or -1; more than one are closed. */
ssize_t tshi_channel_receive(int socket, void *message, size_t size, int *fd);
/* Whether the process at the other end runs as this user (or root); its pid too. */
bool tshi_channel_trusted(int socket, pid_t *pid);
/* poll on one descriptor: true when something is there before the deadline (tshi_clock's). */
bool tshi_channel_wait(int fd, double deadline);

#endif
