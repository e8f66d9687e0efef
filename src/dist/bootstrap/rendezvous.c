/* Which method, and the two where rank 0 listens at an address that all know. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_MEETING 120.0
/* How long an address that is in use, although nobody listens there, gets to become free: a connection that is being
 * closed has it, or one that the system gave this very port. */
#define RELEASE 5.0

/* --- ranks of one machine ----------------------------------------------------------------------------------------- */

/* Where the launcher says that all are here, or the address cannot be reached from elsewhere, nobody need be asked. */
static bool is_one_machine(const tshi_settings *s) {
    if (s->method != TSHI_INIT_ENV) return false;
    if (s->local_known && s->local_size == s->size && s->address_known) return true;
    return tshi_address_is_loopback(s->address);
}

static tsh_status roster_of_one_machine(const tshi_meet *meet, tshi_roster *out) {
    const tshi_settings *s = meet->settings;
    tsh_status status = tshi_roster_init(out, s->size, 1, meet->allocator);
    if (status != TSH_OK) return status;
    out->rank = s->rank;
    memcpy(out->host[0], meet->me.host, sizeof meet->me.host);
    memcpy(out->key, s->key, sizeof out->key);
    return TSH_OK;
}

/* --- rank 0 listens ----------------------------------------------------------------------------------------------- */

/* A name that means this machine's loopback here (as /etc/hosts has it for the own name) means another address
 * elsewhere: then listen at all of them. */
static bool means_itself(const char *name, const tshi_place_at *places, int n) {
    bool found = false;
    for (int i = 0; i < n && !found; i++) {
        char text[TSHI_PLACE_TEXT];
        tshi_dial_text(&places[i], text);
        found = !strncmp(text, "127.", 4) || !strncmp(text, "[::1]", 5);
    }
    return found && !tshi_address_is_loopback(name);
}

typedef enum tenant { NOBODY, SOMEBODY, ANOTHER_OF_US } tenant;

/* Who listens there already; one of the same job would split it in two. */
static tenant tenant_of(tshi_meet *meet, const tshi_place_at *place) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame;
    int fd = tshi_dial_connect(place, tshi_clock() + 0.5);
    if (fd < 0) return NOBODY;
    bool here = tshi_dial_read(fd, bytes, TSHI_WIRE_HEAD, tshi_clock() + 0.5);
    int64_t body = here ? tshi_wire_body(bytes, TSHI_CHALLENGE, sizeof bytes - TSHI_WIRE_HEAD) : -1;
    here = body >= 0 && tshi_dial_read(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, tshi_clock() + 0.5) &&
           tshi_wire_read(TSHI_CHALLENGE, bytes, TSHI_WIRE_HEAD + (size_t)body, NULL, &frame) &&
           !memcmp(frame.group, meet->group, sizeof frame.group);
    tshi_dial_close(&fd, 1);
    return here ? ANOTHER_OF_US : SOMEBODY;
}

/* A listener, or -1 with the reason in words. */
static int listen_at_one(tshi_meet *meet, const tshi_place_at *place, char *words, size_t size) {
    double patience = tshi_clock() + RELEASE;
    if (patience > meet->deadline) patience = meet->deadline;
    for (;;) {
        tenant other = tenant_of(meet, place);
        int fd = other == ANOTHER_OF_US ? -1 : tshi_dial_listen(place, true);
        if (fd >= 0) return fd;
        int error = errno;
        bool passes = other == NOBODY && error == EADDRINUSE && tshi_clock() < patience;
        snprintf(words, size, "%s", other == ANOTHER_OF_US ? "a rank 0 of this job is there already" : strerror(error));
        if (!passes) return fd;
        tshi_sleep(20e-3);
    }
}

static tsh_status listen_at(tshi_meet *meet, const tshi_place_at *places, int n, int *listeners, int *count) {
    const tshi_settings *s = meet->settings;
    char words[TSHI_LINE] = "";
    size_t used = 0;
    *count = 0;
    for (int i = 0; i < n; i++) {
        char where[TSHI_PLACE_TEXT], why[128];
        int fd = listen_at_one(meet, &places[i], why, sizeof why);
        if (fd >= 0)
            listeners[(*count)++] = fd;
        else if (used < sizeof words)
            used += (size_t)snprintf(words + used, sizeof words - used, "%s%s: %s", used ? "; " : "",
                                     tshi_dial_text(&places[i], where), why);
    }
    if (*count > 0) return TSH_OK;
    return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: rank 0 cannot listen at %s:%d (%s)", s->address, s->port, words);
}

static tsh_status meet_at_address(tshi_meet *meet, tshi_roster *out) {
    const tshi_settings *s = meet->settings;
    tshi_place_at places[TSHI_PLACES];
    int n = 0, listeners[TSHI_PLACES], count = 0;
    tsh_status status = tshi_dial_resolve(s->address, s->port, places, &n);
    if (status != TSH_OK) return status;
    if (s->rank != 0) return tshi_guest_run(meet, places, n, out);
    if (means_itself(s->address, places, n)) status = tshi_dial_resolve(NULL, s->port, places, &n);
    if (status == TSH_OK) status = listen_at(meet, places, n, listeners, &count);
    if (status != TSH_OK) return status;
    tshi_host_plan plan = {.listeners = listeners, .n = count};
    status = tshi_host_run(meet, &plan, NULL, out);
    tshi_dial_close(listeners, count);
    return status;
}

/* --- the roster --------------------------------------------------------------------------------------------------- */

double tshi_meet_patience(const tshi_settings *settings) {
    return settings->timeout < LONGEST_MEETING ? settings->timeout : LONGEST_MEETING;
}

void tshi_roster_settings(const tshi_roster *roster, tshi_settings *settings) {
    /* What the launcher says of a machine of its own stands; else it is counted. */
    bool known = settings->local_known && settings->local_size == roster->size;
    int node = roster->node[roster->rank], before = 0, here = 0;
    for (int i = 0; i < roster->size; i++) {
        here += roster->node[i] == node;
        before += i < roster->rank && roster->node[i] == node;
    }
    settings->rank = roster->rank;
    if (!known) settings->local_rank = before;
    settings->local_size = here;
    memcpy(settings->key, roster->key, sizeof settings->key);
}

const char *tshi_roster_hosts(const tshi_roster *roster, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int node = 0; node < roster->nodes && used + 96 < size; node++) {
        int here = 0;
        for (int i = 0; i < roster->size; i++) here += roster->node[i] == node;
        used += (size_t)snprintf(text + used, size - used, "%s%s: rank%s", used ? "; " : "", roster->host[node],
                                 here > 1 ? "s" : "");
        const char *comma = " ";
        for (int i = 0; i < roster->size && used + 96 < size; i++) {
            if (roster->node[i] != node) continue;
            used += (size_t)snprintf(text + used, size - used, "%s%d", comma, i);
            comma = ", ";
        }
    }
    if (used + 96 >= size) snprintf(text + used, size - used, ", ...");
    return text;
}

/* --- all methods -------------------------------------------------------------------------------------------------- */

/* mpirun and srun start ranks on several machines without a word about where rank 0 is. */
static tsh_status check_address(const tshi_settings *s) {
    if (s->method != TSHI_INIT_ENV || s->address_known || !s->local_known || s->local_size == s->size) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: %d of %d ranks are on this machine, and MASTER_ADDR does not say where rank 0 is",
                     s->local_size, s->size);
}

tsh_status tshi_meet_all(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                         double deadline, int *spokes, tshi_roster *out) {
    static const unsigned char public_name[] = "group";
    tshi_meet meet = {.settings = settings, .log = log, .allocator = allocator, .deadline = deadline, .spokes = spokes};
    unsigned char digest[TSHI_HASH_SIZE];
    meet.next_word = tshi_clock() + settings->warn_every;
    tshi_hmac(settings->key, TSHI_KEY_SIZE, public_name, sizeof public_name, "", 0, digest);
    memcpy(meet.group, digest, sizeof meet.group);
    *out = (tshi_roster){0};
    tsh_status status = tshi_who_am_i(&meet.me);
    if (status == TSH_OK) status = check_address(settings);
    if (status != TSH_OK) return status;
    if (is_one_machine(settings)) {
        status = tshi_address_is_here(settings->address);
        return status == TSH_OK ? roster_of_one_machine(&meet, out) : status;
    }
    if (settings->method == TSHI_INIT_FILE) return tshi_meet_file(&meet, out);
    return settings->ranks_given ? tshi_meet_many(&meet, out) : meet_at_address(&meet, out);
}
