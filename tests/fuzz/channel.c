/* The socket over which ranks of one machine come to share memory, from both ends: rank 0 and whatever connects to
 * it; a rank and whatever listens where rank 0 should be. Any bytes with any number of descriptors. The exchange
 * ends in time, leaves nothing, takes no rank without the key, and takes no memory from a wrong message. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/memory_exchange.h"
#include "stage.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PEERS 10

typedef struct peer {
    int fd;
    int rank; /* that it has greeted as */
    bool greeted;
    unsigned char nonce[TSHI_NONCE_SIZE]; /* of the other side: its challenge's or its HELLO's */
    unsigned char own[TSHI_NONCE_SIZE];
} peer;

typedef struct play {
    script s;
    tshi_settings settings;
    tshi_rendezvous rendezvous;
    tshi_endpoint endpoint;
    int listener; /* -1: the other side listens */
    peer peers[PEERS];
    int came;
    bool may_join[8], may_have_joined[8];
    int good_answers;
    bool joined, join_fails;
} play;

static bool memory_fails;

static int make_memory(const tshi_memory_ranks *meeting) {
    (void)meeting;
    if (!memory_fails) return memfd_create("fuzz", MFD_CLOEXEC);
    return -(int)tshi_fail(TSH_ERR_MEMORY, "there is none");
}

static tsh_status join_memory(void *user) {
    play *p = user;
    p->joined = true;
    return p->join_fails ? tshi_fail(TSH_ERR_SYSTEM, "it does not fit") : TSH_OK;
}

static void close_one(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void leave(peer *v) {
    close_one(&v->fd);
    *v = (peer){.fd = -1};
}

static void come(play *p, peer *v) {
    leave(v);
    memset(v->own, ++p->came, sizeof v->own);
    if (p->listener >= 0) {
        v->fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        return;
    }
    v->fd = stage_connect(&p->endpoint);
}

/* With so many descriptors; false when it was not sent. */
static bool say(int fd, void *bytes, size_t size, int descriptors) {
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
        for (int i = 0; i < descriptors; i++) memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &fd, sizeof fd);
    }
    return fd >= 0 && sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

/* A challenge alone, for an answer may follow it. */
static void take_frame(play *p, peer *v, tshi_wire_type type) {
    enum { CHALLENGE_SIZE = TSHI_WIRE_HEAD + TSHI_GROUP_SIZE + 2 * TSHI_NONCE_SIZE };
    unsigned char bytes[TSHI_WIRE_MOST];
    size_t most = type == TSHI_CHALLENGE ? CHALLENGE_SIZE : sizeof bytes;
    tshi_frame frame;
    tshi_seal seal = {p->settings.key, v->own};
    ssize_t n = v->fd < 0 || v->greeted ? -1 : recv(v->fd, bytes, most, MSG_DONTWAIT);
    /* An end that has left bytes unread is reported first, and then what it has sent. */
    if (n < 0 && v->fd >= 0 && !v->greeted && errno == ECONNRESET) n = recv(v->fd, bytes, most, MSG_DONTWAIT);
    if (n <= 0 || !tshi_wire_read(type, bytes, (size_t)n, &seal, &frame)) return;
    memcpy(v->nonce, frame.nonce, sizeof v->nonce);
    v->greeted = true;
}

static void greet(play *p, peer *v) {
    unsigned kind = script_byte(&p->s), spoiled = script_byte(&p->s);
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR},
                        .rank = (int)(spoiled % 8) - 1,
                        .size = kind & 1 ? (int)(kind >> 4) : p->settings.size,
                        .heap_bytes = script_byte(&p->s),
                        .process = p->rendezvous.me};
    take_frame(p, v, TSHI_CHALLENGE);
    if (kind & 2) hello.version[1] += 1;
    memcpy(hello.nonce, v->own, sizeof hello.nonce);
    tshi_seal seal = {p->settings.key, v->nonce};
    size_t whole = tshi_wire_write(TSHI_HELLO, &hello, &seal, bytes);
    if (kind & 4) bytes[script_byte(&p->s) % whole] ^= (unsigned char)(1u << (kind >> 5));
    size_t size = kind & 8 ? script_byte(&p->s) % whole : whole;
    bool sent = say(v->fd, bytes, size, kind & 16 ? (int)(spoiled % 32) : 0);
    v->rank = hello.rank;
    if (sent && v->greeted && !(kind & 8) && hello.rank >= 0) p->may_join[hello.rank] = true;
}

static void challenge(play *p, peer *v) {
    unsigned kind = script_byte(&p->s);
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame = {0};
    memcpy(frame.nonce, v->own, sizeof frame.nonce);
    memcpy(frame.group, p->rendezvous.group, sizeof frame.group);
    size_t size = tshi_wire_write(TSHI_CHALLENGE, &frame, NULL, bytes);
    if (kind & 1) bytes[kind % size] ^= (unsigned char)(1u << (kind >> 5));
    say(v->fd, bytes, kind & 2 ? kind % size : size, kind & 4 ? (int)(kind >> 3) : 0);
}

static void answer(play *p, peer *v) {
    unsigned kind = script_byte(&p->s), spoiled = script_byte(&p->s);
    unsigned char bytes[2 * TSHI_MESSAGE_SIZE];
    tshi_wire_answer a = {.status = (tsh_status)(kind & 7)};
    take_frame(p, v, TSHI_HELLO);
    memset(a.message, 'w', kind & 32 ? sizeof a.message - 1 : spoiled);
    tshi_seal seal = {p->settings.key, v->nonce};
    size_t whole = tshi_wire_write_answer(&a, &seal, bytes);
    if (kind & 8) bytes[spoiled % whole] ^= 1;
    size_t size = kind & 64 ? spoiled % whole : whole;
    int descriptors = kind & 16 ? (int)(spoiled % 32) : (int)(kind >> 7);
    bool good = v->greeted && !(kind & 8) && size == whole && descriptors > 0;
    if (say(v->fd, bytes, size, descriptors) && good) p->good_answers++;
}

/* How a rank fares with the memory. */
static void report(play *p, peer *v) {
    unsigned kind = script_byte(&p->s);
    unsigned char bytes[2 * TSHI_MESSAGE_SIZE];
    tshi_wire_answer a = {.status = (tsh_status)(kind & 7)};
    memset(a.message, 'w', kind & 32 ? sizeof a.message - 1 : kind);
    tshi_seal seal = {p->settings.key, v->own};
    size_t whole = tshi_wire_write_answer(&a, &seal, bytes);
    if (kind & 8) bytes[script_byte(&p->s) % whole] ^= 1;
    size_t size = kind & 64 ? script_byte(&p->s) % whole : whole;
    bool good = v->greeted && v->rank >= 0 && !(kind & 15) && size == whole;
    if (say(v->fd, bytes, size, kind & 16 ? (int)(kind >> 5) : 0) && good) p->may_have_joined[v->rank] = true;
}

static void talk_nonsense(play *p, peer *v) {
    unsigned char bytes[256];
    int descriptors = (int)(script_byte(&p->s) % 32);
    size_t size = script_bytes(&p->s, bytes, script_byte(&p->s));
    say(v->fd, bytes, size, descriptors);
}

static void act(play *p) {
    unsigned op = script_byte(&p->s);
    peer *v = &p->peers[(op >> 3) % PEERS];
    switch (op & 7) {
    case 0: come(p, v); break;
    case 1:
        if (p->listener < 0)
            greet(p, v);
        else
            answer(p, v);
        break;
    case 2: talk_nonsense(p, v); break;
    case 3: leave(v); break;
    case 4: stage_advance(0.25 * script_byte(&p->s)); break;
    case 5:
        if (v->fd >= 0) shutdown(v->fd, SHUT_WR);
        break;
    case 6:
        if (p->listener >= 0) challenge(p, v);
        break;
    case 7:
        if (p->listener < 0) report(p, v);
        break;
    default: break;
    }
}

static void turn(void *user) {
    play *p = user;
    for (unsigned n = 1 + script_byte(&p->s) % 4; n > 0 && !script_over(&p->s); n--) act(p);
}

/* No peer gets memory but those that may have joined. */
static void check_peers(play *p, tsh_status status) {
    for (int i = 0; i < PEERS; i++) {
        peer *v = &p->peers[i];
        unsigned char bytes[2 * TSHI_MESSAGE_SIZE];
        tshi_wire_answer a;
        tshi_seal seal = {p->settings.key, v->own};
        int memory = -1;
        if (p->listener < 0) take_frame(p, v, TSHI_CHALLENGE);
        ssize_t n = v->fd < 0 ? 0 : tshi_unix_receive(v->fd, bytes, sizeof bytes, &memory);
        if (n > 0 && p->listener < 0) {
            stage_require(tshi_wire_read_answer(bytes, (size_t)n, 0, &seal, p->rendezvous.allocator, &a) == TSH_OK);
            stage_require((a.status == TSH_OK) == (memory >= 0) && (a.status == TSH_OK || status != TSH_OK));
        }
        close_one(&memory);
        leave(v);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static play p;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    int memory = -1;
    p = (play){.s = {data, data + size}, .listener = -1};
    for (int i = 0; i < PEERS; i++) p.peers[i].fd = -1;
    stage_begin(turn, &p);
    unsigned setup = script_byte(&p.s);
    stage_settings(&p.settings, (int)(setup & 1), 2 + (int)(setup >> 1) % 4);
    stage_require(tshi_rendezvous_begin(&p.settings, &stage_log, &allocator, 0, &p.rendezvous) == TSH_OK);
    memory_fails = setup & 16;
    p.join_fails = setup & 32;
    tshi_unix_endpoint(&p.settings, &p.endpoint);
    if (p.settings.rank != 0) {
        p.listener = tshi_socket_listen(&p.endpoint, false);
        stage_require(p.listener >= 0);
    }
    const tshi_memory_plan plan = {.make = make_memory, .join = join_memory, .user = &p, .memory = &memory};
    tsh_status status = tshi_memory_exchange(&p.settings, &stage_log, &allocator, tshi_clock() + 30, &plan);
    if (status == TSH_OK) stage_require(p.joined && !p.join_fails && memory >= 0);
    stage_require(stage_waited() < 30 + 5);
    if (status == TSH_OK && p.listener >= 0) stage_require(p.good_answers > 0);
    for (int i = 1; status == TSH_OK && p.listener < 0 && i < p.settings.size; i++) {
        stage_require(p.may_join[i] && p.may_have_joined[i]);
    }
    check_peers(&p, status);
    close_one(&memory);
    close_one(&p.listener);
    stage_end();
    return 0;
}
