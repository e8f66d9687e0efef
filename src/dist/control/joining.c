#include "dist/control/joining.h"
#include "dist/rendezvous/connector.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Seconds to connect; to wait for a CHALLENGE before another connection is tried, because a stopped rank may be
 * listening there; for the rest of a frame; for the confirmation of a world, after the round has ended; and between two
 * tries. */
#define CONNECT_SECONDS   2.0
#define CHALLENGE_SECONDS 5.0
#define FRAME_SECONDS     5.0
#define VERDICT_SECONDS   5.0
#define PAUSE             20e-3

tsh_status tshi_joining_open(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                             tshi_joining *out) {
    *out = (tshi_joining){.settings = *settings, .fd = -1, .since = tshi_clock(), .unheard = tshi_clock()};
    memcpy(out->settings.key, settings->join_key, sizeof out->settings.key);
    double deadline = tshi_clock() + tshi_rendezvous_patience(settings);
    tsh_status status = tshi_rendezvous_begin(&out->settings, log, allocator, deadline, &out->r);
    if (status != TSH_OK) return status;
    return tshi_tcp_resolve(settings->join_address, settings->join_port, deadline, out->at, &out->n);
}

void tshi_joining_close(tshi_joining *j) {
    tshi_socket_close(&j->fd, 1);
}

/* --- the connection ----------------------------------------------------------------------------------------------- */

static void lose(tshi_joining *j, const char *reason) {
    snprintf(j->reason, sizeof j->reason, "%s", reason);
    tshi_socket_close(&j->fd, 1);
}

static void greet(tshi_joining *j) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame challenge;
    size_t n = tshi_connector_receive(j->fd, TSHI_CHALLENGE, bytes, tshi_clock() + CHALLENGE_SECONDS);
    if (n == 0 || !tshi_wire_read(TSHI_CHALLENGE, bytes, n, NULL, &challenge)) {
        lose(j, "the job has not completed a step since, or its program does not call tsh_world_joiners");
        return;
    }
    if (memcmp(challenge.group, j->r.group, sizeof challenge.group) != 0) {
        lose(j, "another job is there: its token or its group_name is not ours");
        return;
    }
    memcpy(j->theirs, challenge.nonce, sizeof j->theirs);
    j->r.deadline = tshi_clock() + FRAME_SECONDS;
    if (!tshi_connector_hello(&j->r, j->fd, &challenge, j->mine)) lose(j, strerror(errno));
}

static void connect_to(tshi_joining *j) {
    for (int i = 0; i < j->n && j->fd < 0; i++) {
        j->fd = tshi_socket_connect(&j->at[i], tshi_clock() + CONNECT_SECONDS);
        if (j->fd < 0)
            lose(j, strerror(errno));
        else
            greet(j);
    }
}

/* TSH_OK as long as waiting makes sense. */
static tsh_status check_clock(tshi_joining *j) {
    const tshi_settings *s = j->r.settings;
    double now = tshi_clock();
    if (j->fd < 0 && now > j->unheard + tshi_rendezvous_patience(s))
        return tshi_fail(TSH_ERR_TIMEOUT, "world_init: no job takes this rank in at %s:%d (%s)", s->address,
                         s->join_port, j->reason);
    if (now > j->since + s->timeout)
        return tshi_fail(TSH_ERR_TIMEOUT, "world_init: the job at %s:%d has not taken this rank in for %g s",
                         s->address, s->join_port, s->timeout);
    if (tshi_warning_due(&j->r.next_warning, s->warn_every))
        tshi_log(j->r.log, TSH_LOG_WARNING, "world_init: waits to join the job at %s:%d%s%s%s", s->address,
                 s->join_port, j->fd < 0 ? " (" : "", j->fd < 0 ? j->reason : "", j->fd < 0 ? ")" : "");
    return TSH_OK;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

/* The next frame; NULL when the connection has ended. The caller frees it. */
static unsigned char *read_frame(const tshi_joining *j, tshi_wire_type *type, size_t *size) {
    unsigned char head[TSHI_WIRE_HEAD];
    double deadline = tshi_clock() + FRAME_SECONDS;
    if (!tshi_socket_read(j->fd, head, sizeof head, deadline)) return NULL;
    *type = head[5] == TSHI_PLACE ? TSHI_PLACE : TSHI_ANSWER;
    return tshi_connector_rest(&j->r, j->fd, head, *type, TSHI_WIRE_LARGEST + TSHI_WIRE_HEAD, deadline, size);
}

/* Reads a PLACE; place->size is 0 if the last world is confirmed. False when the connection has ended. *status: the
 * status of an ANSWER that has come instead, which says why the rank is refused. */
static bool read_place(const tshi_joining *j, tshi_frame *place, tsh_status *status) {
    const tshi_seal seal = {j->settings.key, j->mine};
    tshi_wire_type type;
    tshi_wire_answer answer;
    size_t size = 0;
    unsigned char *bytes = read_frame(j, &type, &size);
    bool good = bytes && type == TSHI_PLACE && tshi_wire_read(TSHI_PLACE, bytes, size, &seal, place);
    bool refused =
        bytes && type == TSHI_ANSWER && tshi_wire_read_answer(bytes, size, 0, &seal, j->r.allocator, &answer) == TSH_OK;
    tshi_free(j->r.allocator, bytes);
    *status = TSH_OK;
    if (refused)
        *status = tshi_fail(answer.status, "world_init: the job at %s:%d: %.400s", j->settings.address,
                            j->settings.join_port, answer.message);
    return good || *status != TSH_OK;
}

static bool read_roster(const tshi_joining *j, int ranks, tshi_roster *out) {
    const tshi_seal seal = {j->settings.key, j->mine};
    tshi_wire_type type;
    tshi_wire_answer answer = {.status = TSH_ERR_SYSTEM};
    size_t size = 0;
    unsigned char *bytes = read_frame(j, &type, &size);
    bool good = bytes && type == TSHI_ANSWER &&
                tshi_wire_read_answer(bytes, size, ranks, &seal, j->r.allocator, &answer) == TSH_OK;
    tshi_free(j->r.allocator, bytes);
    *out = answer.roster;
    return good && answer.status == TSH_OK;
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

/* Something has come: on the connection, or after the last world. */
static tsh_status take_place(tshi_joining *j, tshi_join_place *out) {
    tshi_frame place = j->next;
    tsh_status status = TSH_OK;
    bool read = j->has_next || read_place(j, &place, &status);
    j->has_next = false;
    if (status != TSH_OK) return status;
    if (read && place.size > 0 && read_roster(j, place.size, &out->roster)) {
        out->seed = place.seed;
        out->port = place.port;
        out->patience = 1e-3 * place.patience;
        return TSH_OK;
    }
    j->unheard = tshi_clock();
    lose(j, "rank 0 of the job has ended");
    return TSH_OK;
}

tsh_status tshi_joining_wait(tshi_joining *j, tshi_join_place *out) {
    *out = (tshi_join_place){.port = 0};
    for (;;) {
        tsh_status status = check_clock(j);
        if (status != TSH_OK) return status;
        if (j->fd < 0) connect_to(j);
        if (j->fd < 0) {
            tshi_sleep(PAUSE);
            continue;
        }
        if (!j->has_next && !tshi_socket_wait(j->fd, POLLIN, tshi_clock() + 0.2)) continue;
        status = take_place(j, out);
        if (status != TSH_OK || out->roster.size > 0) return status;
    }
}

bool tshi_joining_report(tshi_joining *j, tsh_status built, double patience) {
    tsh_status status;
    j->r.deadline = tshi_clock() + FRAME_SECONDS;
    if (!tshi_connector_report(&j->r, j->fd, j->theirs, built)) lose(j, strerror(errno));
    if (j->fd < 0 || built != TSH_OK) return false;
    double longest = patience + TSHI_LONGEST_LAG + VERDICT_SECONDS;
    bool came = tshi_socket_wait(j->fd, POLLIN, tshi_clock() + longest);
    j->has_next = came && read_place(j, &j->next, &status) && status == TSH_OK;
    bool confirmed = j->has_next && j->next.size == 0;
    if (confirmed) j->has_next = false;
    if (!confirmed && !j->has_next) lose(j, "rank 0 of the job has ended");
    return confirmed;
}
