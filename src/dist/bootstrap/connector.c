/* The ranks that come to the one that listens. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long what listens gets for its first words. */
#define HEARING 5.0
/* The host knows better who is missing: it gets to speak first. */
#define GRACE 1.0
/* An address that does not even refuse. */
#define CONNECTING 3.0

static double sooner(double a, double b) {
    return a < b ? a : b;
}

static const char *error_text(int error) {
    return error ? strerror(error) : "it hung up";
}

/* "rank 3", or "this process" where ranks are given out. */
static const char *my_name(const tshi_meet *meet, char text[32]) {
    if (meet->settings->rank >= 0)
        snprintf(text, 32, "rank %d", meet->settings->rank);
    else
        snprintf(text, 32, "process %u", meet->me.process);
    return text;
}

static bool take_challenge(tshi_meet *meet, int fd, tshi_frame *out, char *words, size_t size) {
    unsigned char bytes[TSHI_WIRE_MOST];
    double deadline = sooner(tshi_clock() + HEARING, meet->deadline + GRACE);
    if (!tshi_dial_read(fd, bytes, TSHI_WIRE_HEAD, deadline)) {
        snprintf(words, size, "it does not speak first (%s)", error_text(errno));
        return false;
    }
    int64_t body = tshi_wire_body(bytes, TSHI_CHALLENGE, sizeof bytes - TSHI_WIRE_HEAD);
    bool good = body >= 0 && tshi_dial_read(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, deadline);
    good = good && tshi_wire_read(TSHI_CHALLENGE, bytes, TSHI_WIRE_HEAD + (size_t)body, NULL, out);
    if (!good) snprintf(words, size, "what listens there is no rank of a tshard world");
    return good;
}

static bool say_hello(tshi_meet *meet, int fd, const tshi_frame *challenge, unsigned char nonce[TSHI_NONCE_SIZE]) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR},
                        .rank = meet->settings->rank,
                        .size = meet->settings->size,
                        .who = meet->me};
    if (!tshi_random_bytes(nonce, TSHI_NONCE_SIZE)) return false;
    memcpy(hello.nonce, nonce, TSHI_NONCE_SIZE);
    tshi_seal seal = {meet->settings->key, challenge->nonce};
    size_t size = tshi_wire_write(TSHI_HELLO, &hello, &seal, bytes);
    return tshi_dial_write(fd, bytes, size, meet->deadline);
}

/* Until when the rest of an answer has to come: what listens does not hold the deadline up by sending it in drops. */
static double hearing(const tshi_meet *meet) {
    return sooner(tshi_clock() + HEARING, meet->deadline + 2 * GRACE);
}

/* Until the head of the answer is here. */
static bool wait_for_head(tshi_meet *meet, int fd, unsigned char head[TSHI_WIRE_HEAD]) {
    char name[32];
    double deadline = meet->deadline + GRACE;
    unsigned char first;
    for (;;) {
        double until = sooner(meet->next_word, deadline);
        if (tshi_dial_read(fd, &first, 1, until)) break;
        if (errno != ETIMEDOUT || tshi_clock() >= deadline) return false;
        if (!tshi_warning_due(&meet->next_word, meet->settings->warn_every)) continue;
        tshi_log(meet->log, TSH_LOG_INFO, "rendezvous: %s waits for all %d ranks to come", my_name(meet, name),
                 meet->settings->size);
    }
    head[0] = first;
    return tshi_dial_read(fd, head + 1, TSHI_WIRE_HEAD - 1, hearing(meet));
}

/* TSHI_GUEST_NOBODY: the host went away without an answer. */
static tshi_guest_end take_answer(tshi_meet *meet, int fd, const unsigned char *nonce, tsh_status *status,
                                  tshi_roster *out, char *words, size_t words_size) {
    const tshi_settings *s = meet->settings;
    unsigned char head[TSHI_WIRE_HEAD];
    if (!wait_for_head(meet, fd, head)) {
        snprintf(words, words_size, "no answer came (%s)", error_text(errno));
        return TSHI_GUEST_NOBODY;
    }
    size_t most = tshi_wire_answer_room(s->size);
    int64_t body = tshi_wire_body(head, TSHI_ANSWER, most - TSHI_WIRE_HEAD);
    unsigned char *bytes = body < 0 ? NULL : tshi_calloc(meet->allocator, TSHI_WIRE_HEAD + (size_t)body, 1);
    bool came = bytes && tshi_dial_read(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, hearing(meet));
    tshi_wire_answer answer = {0};
    tshi_guest_end end = TSHI_GUEST_NOBODY;
    snprintf(words, words_size, "its answer makes no sense, or not all of it came");
    if (came) {
        tshi_seal seal = {s->key, nonce};
        memcpy(bytes, head, sizeof head);
        *status = tshi_wire_read_answer(bytes, TSHI_WIRE_HEAD + (size_t)body, s->size, &seal, meet->allocator, &answer);
        end = *status == TSH_ERR_SYSTEM ? TSHI_GUEST_NOBODY : TSHI_GUEST_DONE;
    }
    tshi_free(meet->allocator, bytes);
    if (end != TSHI_GUEST_DONE || *status != TSH_OK) return end;
    *out = answer.roster;
    if (answer.status != TSH_OK) *status = tshi_fail(answer.status, "rendezvous: %s", answer.words);
    return end;
}

tshi_guest_end tshi_guest_try(tshi_meet *meet, const tshi_place_at *place, const unsigned char *leader, double patience,
                              tsh_status *status, tshi_roster *out, char *words, size_t words_size) {
    tshi_frame host;
    unsigned char mine[TSHI_NONCE_SIZE];
    int fd = tshi_dial_connect(place, sooner(tshi_clock() + patience, meet->deadline + GRACE));
    if (fd < 0) {
        snprintf(words, words_size, "%s", error_text(errno));
        return TSHI_GUEST_NOBODY;
    }
    tshi_guest_end end = TSHI_GUEST_STRANGER;
    if (take_challenge(meet, fd, &host, words, words_size)) {
        bool same = !memcmp(host.group, meet->group, sizeof host.group);
        if (same && leader) same = !memcmp(host.leader, leader, sizeof host.leader);
        if (!same) {
            snprintf(words, words_size, "another job is there: its token or its group_name is not ours");
        } else if (say_hello(meet, fd, &host, mine)) {
            end = take_answer(meet, fd, mine, status, out, words, words_size);
        } else {
            snprintf(words, words_size, "%s", error_text(errno));
            end = TSHI_GUEST_NOBODY;
        }
    }
    if (end == TSHI_GUEST_DONE && *status == TSH_OK && meet->spokes)
        meet->spokes[out->rank] = fd;
    else
        close(fd);
    return end;
}

/* --- all places --------------------------------------------------------------------------------------------------- */

/* Once round; what each place said goes into words: "127.0.0.1:29500: Connection refused; [::1]:29500: ...". */
static tshi_guest_end try_places(tshi_meet *meet, const tshi_place_at *places, int n, tsh_status *status,
                                 tshi_roster *out, char *words, size_t size) {
    size_t used = 0;
    words[0] = '\0';
    for (int i = 0; i < n; i++) {
        char where[TSHI_PLACE_TEXT], why[160] = "";
        tshi_guest_end end = tshi_guest_try(meet, &places[i], NULL, CONNECTING, status, out, why, sizeof why);
        if (end == TSHI_GUEST_DONE) return end;
        if (used < size) {
            used += (size_t)snprintf(words + used, size - used, "%s%s: %s", used ? "; " : "",
                                     tshi_dial_text(&places[i], where), why);
        }
    }
    return TSHI_GUEST_NOBODY;
}

tsh_status tshi_guest_run(tshi_meet *meet, const tshi_place_at *places, int n, tshi_roster *out) {
    const tshi_settings *s = meet->settings;
    char words[TSHI_LINE];
    tsh_status status = TSH_OK;
    for (double pause = 0.002;; pause = pause < 0.1 ? pause * 2 : pause) {
        if (try_places(meet, places, n, &status, out, words, sizeof words) == TSHI_GUEST_DONE) return status;
        if (tshi_clock() >= meet->deadline) break;
        if (tshi_warning_due(&meet->next_word, s->warn_every)) {
            tshi_log(meet->log, TSH_LOG_WARNING, "rendezvous: rank %d waits for rank 0 at %s:%d (%s)", s->rank,
                     s->address, s->port, words);
        }
        tshi_sleep(pause);
    }
    return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank %d found no rank 0 at %s:%d (%s)", s->rank, s->address, s->port,
                     words);
}
