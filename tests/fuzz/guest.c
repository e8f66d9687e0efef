/* A rank that connects, and a fuzzed listener: a host of its job, or one that breaks off, lies or sends garbage. The
 * rank ends in time, leaves nothing, and accepts no roster without a valid HMAC. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/connector.h"
#include "stage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct play {
    script s;
    tshi_rendezvous meet;
    tshi_settings settings;
    int listener, fd; /* the rank that connects */
    bool greeted;
    unsigned char challenge[TSHI_NONCE_SIZE], nonce[TSHI_NONCE_SIZE];
    int good_answers;
    tsh_status answered;
} play;

static void hang_up(play *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->greeted = false;
}

static void take_connection(play *p) {
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    hang_up(p);
    p->fd = fd;
}

static void say(play *p, const void *bytes, size_t size) {
    if (p->fd >= 0 && size > 0) (void)!send(p->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* All of these bytes, part of them, or with a bit changed; false unless all. */
static bool say_perhaps(play *p, unsigned char *bytes, size_t size) {
    unsigned kind = script_byte(&p->s), where = script_byte(&p->s) | script_byte(&p->s) << 8;
    if (kind & 1) bytes[where % size] ^= (unsigned char)(1u << (kind >> 5));
    say(p, bytes, kind & 2 ? where % size : size);
    return !(kind & 3) && p->fd >= 0;
}

static void challenge(play *p) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame = {0};
    unsigned kind = script_byte(&p->s);
    memset(frame.nonce, (int)kind, sizeof frame.nonce);
    memcpy(p->challenge, frame.nonce, sizeof frame.nonce);
    memcpy(frame.group, p->meet.group, sizeof frame.group);
    if (kind == 255) frame.group[0] ^= 1;
    say_perhaps(p, bytes, tshi_wire_write(TSHI_CHALLENGE, &frame, NULL, bytes));
}

static void take_greeting(play *p) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame hello;
    tshi_seal seal = {p->settings.key, p->challenge};
    ssize_t n = p->fd < 0 ? -1 : recv(p->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0 || !tshi_wire_read(TSHI_HELLO, bytes, (size_t)n, &seal, &hello)) return;
    stage_require(hello.size == p->settings.size && hello.rank == p->settings.rank);
    memcpy(p->nonce, hello.nonce, sizeof p->nonce);
    p->greeted = true;
}

static void answer(play *p) {
    unsigned kind = script_byte(&p->s);
    tshi_wire_answer a = {.status = (tsh_status)(kind & 7)};
    int ranks = kind & 8 ? 1 + (int)(kind >> 4) : p->settings.size;
    take_greeting(p);
    unsigned char *bytes = malloc(tshi_wire_answer_room(ranks));
    stage_require(bytes && tshi_roster_init(&a.roster, ranks, ranks, p->meet.allocator) == TSH_OK);
    a.roster.nodes = 1 + (int)script_byte(&p->s) % ranks;
    a.roster.rank = (int)(script_byte(&p->s) % 8) - 1;
    for (int i = 0; i < ranks; i++) a.roster.node[i] = (int)(script_byte(&p->s) % 5);
    for (size_t i = 0; i < sizeof a.message - 1 && kind & 64; i++) a.message[i] = (char)(1 + (kind + i) % 255);
    tshi_seal seal = {p->settings.key, p->nonce};
    size_t size = tshi_wire_write_answer(&a, &seal, bytes);
    if (say_perhaps(p, bytes, size) && p->greeted && a.status == TSH_OK) p->good_answers++;
    tshi_roster_free(&a.roster, p->meet.allocator);
    free(bytes);
}

static void talk_nonsense(play *p) {
    unsigned char bytes[256];
    say(p, bytes, script_bytes(&p->s, bytes, script_byte(&p->s)));
}

static void turn(void *user) {
    play *p = user;
    switch (script_over(&p->s) ? 5 : script_byte(&p->s) % 8) {
    case 0: take_connection(p); break;
    case 1:
        take_connection(p);
        challenge(p);
        break;
    case 2: answer(p); break;
    case 3: talk_nonsense(p); break;
    case 4: take_greeting(p); break;
    case 5:
        hang_up(p);
        take_connection(p);
        break;
    case 6: stage_advance(0.1 * script_byte(&p->s)); break;
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static play p;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_roster roster = {0};
    p = (play){.s = {data, data + size}, .fd = -1};
    stage_begin(turn, &p);
    unsigned setup = script_byte(&p.s);
    stage_settings(&p.settings, (int)(setup & 1), 2 + (int)(setup >> 1) % 4);
    p.settings.timeout = 20;
    stage_meet(&p.meet, &p.settings, &allocator);
    p.listener = stage_listen();
    tshi_endpoint place = stage_place(p.listener);
    tsh_status status = tshi_connector_run(&p.meet, &place, 1, &roster);
    stage_require(stage_waited() < p.settings.timeout + 10);
    if (status == TSH_OK) {
        stage_require(p.good_answers > 0 && roster.size == p.settings.size);
        stage_require(roster.rank >= 0 && roster.rank < roster.size && roster.nodes >= 1);
        for (int i = 0; i < roster.size; i++) stage_require(roster.node[i] >= 0 && roster.node[i] < roster.nodes);
    } else {
        stage_require(!roster.node && !roster.host && tsh_error_message()[0]);
    }
    tshi_roster_free(&roster, &allocator);
    hang_up(&p);
    close(p.listener);
    stage_end();
    return 0;
}
