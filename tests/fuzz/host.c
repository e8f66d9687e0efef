/* The rank that listens, and fuzzed connections: good greetings, spoiled ones, halves, garbage, silence, in any order
 * and at any time. The rank ends in time, leaves nothing, and accepts no connection without a valid HMAC. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/acceptor.h"
#include "stage.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GUESTS 12

typedef struct visitor {
    int fd;
    bool challenged, replayed;
    unsigned char nonce[TSHI_NONCE_SIZE], own[TSHI_NONCE_SIZE];
    unsigned char rest[TSHI_WIRE_MOST]; /* of a greeting that was sent in part */
    size_t left;
    unsigned char heard[TSHI_WIRE_MOST]; /* the last greeting that was sent whole */
    size_t heard_size;
} visitor;

typedef struct play {
    script s;
    tshi_rendezvous meet;
    tshi_settings settings;
    tshi_endpoint place;
    visitor visitors[GUESTS];
    int honest; /* greetings that a rank of this job could have sent */
    int ticks_left, came;
} play;

static void leave(visitor *v) {
    if (v->fd >= 0) close(v->fd);
    *v = (visitor){.fd = -1};
}

static void come(play *p, visitor *v) {
    leave(v);
    v->fd = stage_connect(&p->place);
    memset(v->own, ++p->came, sizeof v->own);
}

static void take_challenge(play *p, visitor *v) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame;
    ssize_t n = v->fd < 0 || v->challenged ? -1 : recv(v->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) return;
    stage_require(tshi_wire_read(TSHI_CHALLENGE, bytes, (size_t)n, NULL, &frame));
    stage_require(!memcmp(frame.group, p->meet.group, sizeof frame.group));
    memcpy(v->nonce, frame.nonce, sizeof v->nonce);
    v->challenged = true;
}

static void say(visitor *v, const void *bytes, size_t size) {
    if (v->fd >= 0 && size > 0) (void)!send(v->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* `kind`: what is wrong with it. */
static void greet(play *p, visitor *v) {
    unsigned kind = script_byte(&p->s), spoiled = script_byte(&p->s);
    tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR}, .process = p->meet.me};
    hello.rank = (int)(script_byte(&p->s) % 8) - 2;
    hello.size = kind & 1 ? (int)(kind >> 4) : p->settings.size;
    if (kind & 2) hello.version[1] = (int)spoiled;
    hello.process.number = script_byte(&p->s);
    memset(hello.process.machine, (int)(script_byte(&p->s) % 3), sizeof hello.process.machine);
    memcpy(hello.nonce, v->own, sizeof hello.nonce);
    take_challenge(p, v);
    tshi_seal seal = {p->settings.key, v->nonce};
    size_t size = tshi_wire_write(TSHI_HELLO, &hello, &seal, v->rest);
    bool honest = v->challenged && !(kind & 4) && v->fd >= 0;
    if (kind & 4) v->rest[spoiled % size] ^= (unsigned char)(1u << (kind >> 5));
    size_t part = kind & 8 ? spoiled % size : size;
    say(v, v->rest, part);
    if (part == size) memcpy(v->heard, v->rest, v->heard_size = size);
    v->left = size - part;
    memmove(v->rest, v->rest + part, v->left);
    if (honest) p->honest++;
}

static void go_on(visitor *v) {
    say(v, v->rest, v->left);
    v->left = 0;
}

static void talk_nonsense(play *p, visitor *v) {
    unsigned char bytes[256];
    say(v, bytes, script_bytes(&p->s, bytes, script_byte(&p->s)));
}

/* A replayed greeting on another connection: it is not accepted. */
static void replay(play *p, visitor *v) {
    visitor *from = &p->visitors[script_byte(&p->s) % GUESTS];
    unsigned char bytes[TSHI_WIRE_MOST];
    size_t size = from->heard_size;
    memcpy(bytes, from->heard, size);
    if (from == v || size == 0) return;
    come(p, v);
    say(v, bytes, size);
    v->replayed = true;
}

static void act(play *p) {
    unsigned op = script_byte(&p->s);
    visitor *v = &p->visitors[(op >> 3) % GUESTS];
    switch (op & 7) {
    case 0: come(p, v); break;
    case 1: greet(p, v); break;
    case 2: go_on(v); break;
    case 3: talk_nonsense(p, v); break;
    case 4: leave(v); break;
    case 5:
        if (v->fd >= 0) shutdown(v->fd, SHUT_WR);
        break;
    case 6: stage_advance(0.25 * script_byte(&p->s)); break;
    default:
        if (op >> 3 >= 2 * GUESTS)
            replay(p, v);
        else
            take_challenge(p, v);
        break;
    }
}

static void turn(void *user) {
    play *p = user;
    for (unsigned n = 1 + script_byte(&p->s) % 4; n > 0 && !script_over(&p->s); n--) act(p);
}

/* Ends it by and by, where it is used. */
static bool tick(void *user) {
    play *p = user;
    return --p->ticks_left != 0;
}

/* Every answer that was sent is whole and has a valid HMAC. */
static void check_answer(play *p, visitor *v, tsh_status status) {
    unsigned char bytes[8192];
    tshi_wire_answer answer;
    tshi_seal seal = {p->settings.key, v->own};
    take_challenge(p, v);
    ssize_t n = v->fd >= 0 ? recv(v->fd, bytes, sizeof bytes, MSG_DONTWAIT) : -1;
    if (n <= 0) return;
    stage_require(v->challenged && !v->replayed);
    tsh_status read = tshi_wire_read_answer(bytes, (size_t)n, p->settings.size, &seal, p->meet.allocator, &answer);
    stage_require(read == TSH_OK && answer.status != TSH_ERR_PEER);
    if (answer.status == TSH_OK) stage_require(status == TSH_OK && answer.roster.size == p->settings.size);
    tshi_roster_free(&answer.roster, p->meet.allocator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static play p;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_roster roster = {0};
    bool again = false;
    p = (play){.s = {data, data + size}};
    for (int i = 0; i < GUESTS; i++) p.visitors[i].fd = -1;
    stage_begin(turn, &p);
    unsigned setup = script_byte(&p.s), more = script_byte(&p.s);
    stage_settings(&p.settings, 0, 2 + (int)(setup % 4));
    p.settings.ranks_assigned = setup & 16;
    if (setup & 32) p.settings.rank = p.settings.ranks_assigned ? TSHI_ANY_RANK : 0;
    stage_meet(&p.meet, &p.settings, &allocator);
    unsigned char nonce[TSHI_NONCE_SIZE] = "of the one that listens";
    int listener = stage_listen();
    p.place = stage_place(listener);
    p.ticks_left = (int)more;
    tshi_acceptor_plan plan = {.listeners = &listener,
                               .n = 1,
                               .leader = setup & 64 ? nonce : NULL,
                               .tick = setup & 128 ? tick : NULL,
                               .user = &p};
    tsh_status status = tshi_roster_gather(&p.meet, &plan, &again, &roster);
    stage_require(stage_waited() < p.settings.timeout + 5);
    if (status == TSH_OK && !again) {
        stage_require(p.honest >= p.settings.size - 1 && roster.size == p.settings.size);
        stage_require(roster.rank >= 0 && roster.rank < roster.size && roster.nodes >= 1);
    }
    for (int i = 0; i < GUESTS; i++) {
        if (!again) check_answer(&p, &p.visitors[i], status);
        leave(&p.visitors[i]);
    }
    tshi_roster_free(&roster, &allocator);
    if (listener >= 0) close(listener);
    stage_end();
    return 0;
}
