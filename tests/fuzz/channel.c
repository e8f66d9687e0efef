/* The socket over which ranks of one machine come to share memory, from both ends: rank 0 and whoever comes to it; a
 * rank and whatever listens where rank 0 should be. Messages of any bytes and any number of descriptors. It ends in
 * time, leaves nothing, takes nobody in without the key, and takes no memory from a wrong message. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/memory_exchange.h"
#include "dist/bootstrap/unix_socket.h"
#include "stage.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PEERS 10

typedef struct play {
    script s;
    tshi_settings settings;
    struct sockaddr_un address;
    socklen_t length;
    int listener; /* -1: the other side listens */
    int peers[PEERS];
    bool may_join[8];
    int good_answers;
} play;

static bool memory_fails;

static int make_memory(const tshi_meeting *meeting) {
    (void)meeting;
    if (!memory_fails) return memfd_create("fuzz", MFD_CLOEXEC);
    return -(int)tshi_fail(TSH_ERR_MEMORY, "there is none");
}

static void leave(int *peer) {
    if (*peer >= 0) close(*peer);
    *peer = -1;
}

static void come(play *p, int *peer) {
    leave(peer);
    if (p->listener >= 0) {
        *peer = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        return;
    }
    *peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    stage_require(*peer >= 0);
    if (connect(*peer, (const void *)&p->address, p->length) != 0) leave(peer);
}

/* With so many descriptors; false when it was not sent. */
static bool say(int peer, void *bytes, size_t size, int descriptors) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * 32)];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptors > 0) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)descriptors);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)descriptors);
        for (int i = 0; i < descriptors; i++) memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &peer, sizeof peer);
    }
    return peer >= 0 && sendmsg(peer, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

static void greet(play *p, int peer) {
    unsigned kind = script_byte(&p->s), spoiled = script_byte(&p->s);
    unsigned char bytes[sizeof(tshi_hello)];
    tshi_hello hello = {.magic = TSHI_MAGIC,
                        .version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR, TSH_VERSION_PATCH},
                        .rank = (int32_t)(spoiled % 8) - 1,
                        .size = kind & 1 ? (int32_t)(kind >> 4) : p->settings.size,
                        .heap_bytes = script_byte(&p->s)};
    if (kind & 2) hello.version[1] += 1;
    tshi_channel_prove(&p->settings, &hello);
    memcpy(bytes, &hello, sizeof hello);
    if (kind & 4) bytes[script_byte(&p->s) % sizeof bytes] ^= (unsigned char)(1u << (kind >> 5));
    size_t size = kind & 8 ? script_byte(&p->s) % sizeof bytes : sizeof bytes;
    bool sent = say(peer, bytes, size, kind & 16 ? (int)(spoiled % 32) : 0);
    if (sent && !(kind & 8) && hello.rank >= 0) p->may_join[hello.rank] = true;
}

static void answer(play *p, int peer) {
    unsigned kind = script_byte(&p->s), spoiled = script_byte(&p->s);
    unsigned char bytes[sizeof(tshi_answer) + 64];
    tshi_answer a = {.magic = TSHI_MAGIC, .status = (int32_t)(kind & 7) - 1};
    memset(a.words, 'w', kind & 32 ? sizeof a.words : spoiled);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &a, sizeof a);
    if (kind & 8) bytes[spoiled % 12] ^= 1;
    size_t size = kind & 64 ? sizeof a - 1 - spoiled % 64 : sizeof a;
    int descriptors = kind & 16 ? (int)(spoiled % 32) : (int)(kind >> 7);
    if (say(peer, bytes, size, descriptors) && descriptors > 0 && size == sizeof a) p->good_answers++;
}

static void talk_nonsense(play *p, int peer) {
    unsigned char bytes[256];
    int descriptors = (int)(script_byte(&p->s) % 32);
    size_t size = script_bytes(&p->s, bytes, script_byte(&p->s));
    say(peer, bytes, size, descriptors);
}

static void act(play *p) {
    unsigned op = script_byte(&p->s);
    int *peer = &p->peers[(op >> 3) % PEERS];
    switch (op & 7) {
    case 0: come(p, peer); break;
    case 1:
        if (p->listener < 0)
            greet(p, *peer);
        else
            answer(p, *peer);
        break;
    case 2: talk_nonsense(p, *peer); break;
    case 3: leave(peer); break;
    case 4: stage_advance(0.25 * script_byte(&p->s)); break;
    case 5:
        if (*peer >= 0) shutdown(*peer, SHUT_WR);
        break;
    default: break;
    }
}

static void turn(void *user) {
    play *p = user;
    for (unsigned n = 1 + script_byte(&p->s) % 4; n > 0 && !script_over(&p->s); n--) act(p);
}

/* Nobody gets memory but those that may have joined. */
static void check_peers(play *p, tsh_status status) {
    for (int i = 0; i < PEERS; i++) {
        tshi_answer a;
        int memory = -1;
        ssize_t n = p->peers[i] < 0 ? 0 : tshi_channel_receive(p->peers[i], &a, sizeof a, &memory);
        if (n > 0 && p->listener < 0) {
            stage_require(n == sizeof a && a.magic == TSHI_MAGIC && memchr(a.words, 0, sizeof a.words));
            stage_require((a.status == TSH_OK) == (memory >= 0) && (a.status != TSH_OK || status == TSH_OK));
        }
        leave(&memory);
        leave(&p->peers[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static play p;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    int memory = -1;
    p = (play){.s = {data, data + size}, .listener = -1};
    for (int i = 0; i < PEERS; i++) p.peers[i] = -1;
    stage_begin(turn, &p);
    unsigned setup = script_byte(&p.s);
    stage_settings(&p.settings, (int)(setup & 1), 2 + (int)(setup >> 1) % 4);
    memory_fails = setup & 16;
    p.length = tshi_channel_address(&p.settings, &p.address);
    if (p.settings.rank != 0) {
        p.listener = tshi_channel_socket();
        stage_require(bind(p.listener, (const void *)&p.address, p.length) == 0 && listen(p.listener, 64) == 0);
    }
    tsh_status status =
        tshi_rendezvous(&p.settings, &stage_log, &allocator, tshi_clock() + 30, make_memory, NULL, &memory);
    stage_require((status == TSH_OK) == (memory >= 0));
    stage_require(stage_waited() < 30 + 5);
    if (status == TSH_OK && p.listener >= 0) stage_require(p.good_answers > 0);
    for (int i = 1; status == TSH_OK && p.listener < 0 && i < p.settings.size; i++) stage_require(p.may_join[i]);
    check_peers(&p, status);
    leave(&memory);
    leave(&p.listener);
    stage_end();
    return 0;
}
