#include "dist/rendezvous/connector.h"
#include "dist/rendezvous/memory_exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long the listening rank has for its challenge, and for the rest of an answer that has begun: it cannot hold the
 * deadline up by sending one byte after another. */
#define FRAME_SECONDS 5.0
/* How long past the deadline an answer may come. */
#define GRACE 1.0
/* How long an address that does not answer at all is tried. */
#define CONNECT_SECONDS 3.0

static double sooner(double a, double b) {
    return a < b ? a : b;
}

static const char *error_text(int error) {
    return error ? strerror(error) : "it hung up";
}

tsh_status tshi_rendezvous_begin(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                                 double deadline, tshi_rendezvous *out) {
    static const unsigned char purpose[] = "group";
    unsigned char digest[TSHI_HASH_SIZE];
    *out = (tshi_rendezvous){.settings = settings, .log = log, .allocator = allocator, .deadline = deadline};
    out->next_warning = tshi_clock() + settings->warn_every;
    tshi_hmac(settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, "", 0, digest);
    memcpy(out->group, digest, sizeof out->group);
    return tshi_process_self(&out->me);
}

/* --- greeting ----------------------------------------------------------------------------------------------------- */

size_t tshi_connector_receive(int fd, tshi_wire_type type, unsigned char bytes[TSHI_WIRE_MOST], double deadline) {
    if (!tshi_socket_read(fd, bytes, TSHI_WIRE_HEAD, deadline)) return 0;
    int64_t body = tshi_wire_body(bytes, type, TSHI_WIRE_MOST - TSHI_WIRE_HEAD);
    errno = 0;
    if (body < 0 || !tshi_socket_read(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, deadline)) return 0;
    return TSHI_WIRE_HEAD + (size_t)body;
}

unsigned char *tshi_connector_rest(const tshi_rendezvous *r, int fd, const unsigned char head[TSHI_WIRE_HEAD],
                                   tshi_wire_type type, size_t most, double deadline, size_t *size) {
    int64_t body = tshi_wire_body(head, type, most - TSHI_WIRE_HEAD);
    errno = body < 0 ? EBADMSG : ENOMEM;
    unsigned char *bytes = body < 0 ? NULL : tshi_calloc(r->allocator, TSHI_WIRE_HEAD + (size_t)body, 1);
    if (!bytes) return NULL;
    memcpy(bytes, head, TSHI_WIRE_HEAD);
    *size = TSHI_WIRE_HEAD + (size_t)body;
    if (tshi_socket_read(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, deadline)) return bytes;
    tshi_free(r->allocator, bytes);
    return NULL;
}

bool tshi_connector_hello(const tshi_rendezvous *r, int fd, const tshi_frame *challenge,
                          unsigned char nonce[TSHI_NONCE_SIZE]) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR},
                        .rank = r->settings->rank,
                        .size = r->settings->size,
                        .heap_bytes = r->settings->heap_bytes,
                        .seed = r->settings->seed,
                        .program = tshi_program_fingerprint(),
                        .process = r->me};
    if (!tshi_random_bytes(nonce, TSHI_NONCE_SIZE)) return false;
    memcpy(hello.nonce, nonce, TSHI_NONCE_SIZE);
    tshi_seal seal = {r->settings->key, challenge->nonce};
    size_t size = tshi_wire_write(TSHI_HELLO, &hello, &seal, bytes);
    return tshi_socket_write(fd, bytes, size, r->deadline);
}

bool tshi_connector_report(const tshi_rendezvous *r, int fd, const unsigned char *nonce, tsh_status status) {
    unsigned char bytes[TSHI_WIRE_MOST + TSHI_MESSAGE_SIZE];
    tshi_seal seal = {r->settings->key, nonce};
    tshi_wire_answer answer = {.status = status};
    if (status != TSH_OK) snprintf(answer.message, sizeof answer.message, "%s", tsh_error_message());
    return tshi_socket_write(fd, bytes, tshi_wire_write_answer(&answer, &seal, bytes), r->deadline);
}

static tshi_connect_end give_reason(tshi_attempt *t, tshi_connect_end end, const char *reason) {
    snprintf(t->reason, sizeof t->reason, "%s", reason);
    return end;
}

/* Takes the challenge of the listening rank and answers it with a HELLO, whose nonce its answer's HMAC will need. */
static tshi_connect_end greet(tshi_rendezvous *r, int fd, tshi_attempt *t, unsigned char nonce[TSHI_NONCE_SIZE]) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame challenge;
    size_t n =
        tshi_connector_receive(fd, TSHI_CHALLENGE, bytes, sooner(tshi_clock() + FRAME_SECONDS, r->deadline + GRACE));
    if (n == 0 || !tshi_wire_read(TSHI_CHALLENGE, bytes, n, NULL, &challenge)) {
        snprintf(t->reason, sizeof t->reason, "no challenge of a tshard world came (%s)", error_text(n ? 0 : errno));
        return TSHI_CONNECT_OTHER;
    }
    bool same = !memcmp(challenge.group, r->group, sizeof challenge.group);
    if (same && t->leader) same = !memcmp(challenge.leader, t->leader, sizeof challenge.leader);
    if (!same)
        return give_reason(t, TSHI_CONNECT_OTHER,
                           "another job is there: its token, its group_name or its number of restarts is not ours");
    if (tshi_connector_hello(r, fd, &challenge, nonce)) return TSHI_CONNECT_ANSWERED;
    return give_reason(t, TSHI_CONNECT_FAILED, error_text(errno));
}

/* --- the answer --------------------------------------------------------------------------------------------------- */

/* Waits until the answer begins, a moment past the deadline: the listening rank knows better which ranks are
 * missing, so it speaks first. False when nothing has come. */
static bool wait_for_answer(tshi_rendezvous *r, int fd) {
    char name[TSHI_HOST_SIZE + 32];
    const double deadline = r->deadline + GRACE;
    while (!tshi_socket_wait(fd, POLLIN, sooner(r->next_warning, deadline))) {
        if (errno != ETIMEDOUT || tshi_clock() >= deadline) return false;
        if (!tshi_warning_due(&r->next_warning, r->settings->warn_every)) continue;
        tshi_log(r->log, TSH_LOG_INFO, "rendezvous: %s waits for all %d ranks to join",
                 tshi_rank_name(r->settings->rank, &r->me, name, sizeof name), r->settings->size);
    }
    return true;
}

unsigned char *tshi_connector_answer(tshi_rendezvous *r, int fd, size_t *size, int *descriptor) {
    unsigned char head[TSHI_WIRE_HEAD];
    *descriptor = -1;
    if (!wait_for_answer(r, fd)) return NULL;
    double deadline = sooner(tshi_clock() + FRAME_SECONDS, r->deadline + 2 * GRACE);
    ssize_t n = tshi_unix_receive(fd, head, sizeof head, descriptor);
    if (n == 0) errno = 0;
    if (n <= 0 || !tshi_socket_read(fd, head + n, sizeof head - (size_t)n, deadline)) return NULL;
    return tshi_connector_rest(r, fd, head, TSHI_ANSWER, tshi_wire_answer_room(r->settings->size), deadline, size);
}

/* The listener went away without an answer, as that of an earlier world does, or sent none that can be read. */
static bool can_retry(int error) {
    return error == 0 || error == ECONNRESET || error == EPIPE || error == EAGAIN || error == ETIMEDOUT ||
           error == EBADMSG;
}

static tshi_connect_end take_answer(tshi_rendezvous *r, int fd, const unsigned char *nonce, int *descriptor,
                                    tshi_attempt *t) {
    tshi_seal seal = {r->settings->key, nonce};
    tshi_wire_answer answer;
    size_t size = 0;
    unsigned char *bytes = tshi_connector_answer(r, fd, &size, descriptor);
    if (!bytes && r->memory && !can_retry(errno)) {
        t->status = tshi_fail_errno(errno, "rendezvous: rank %d receiving rank 0's answer", r->settings->rank);
        return TSHI_CONNECT_ANSWERED;
    }
    if (!bytes) {
        snprintf(t->reason, sizeof t->reason, "no answer came (%s)", error_text(errno));
        return TSHI_CONNECT_FAILED;
    }
    const int ranks = r->memory ? 0 : r->settings->size;
    t->status = tshi_wire_read_answer(bytes, size, ranks, &seal, r->allocator, &answer);
    tshi_free(r->allocator, bytes);
    if (t->status == TSH_ERR_SYSTEM) return give_reason(t, TSHI_CONNECT_FAILED, "its answer is malformed");
    if (t->status != TSH_OK) return TSHI_CONNECT_ANSWERED;
    *t->out = answer.roster;
    if (answer.status != TSH_OK) t->status = tshi_fail(answer.status, "rendezvous: %s", answer.message);
    return TSHI_CONNECT_ANSWERED;
}

static tsh_status join(const tshi_memory_plan *plan, int descriptor) {
    *plan->memory = descriptor;
    if (descriptor >= 0) return plan->join ? plan->join(plan->user) : TSH_OK;
    return tshi_fail(TSH_ERR_SYSTEM,
                     "rendezvous: the descriptor of the shared memory has not arrived: this process may have "
                     "no more descriptors (ulimit -n)");
}

/* The roster; or the memory, which this rank joins, and then the answer that every rank has. */
static tshi_connect_end take_answers(tshi_rendezvous *r, int fd, const unsigned char *nonce, tshi_attempt *t) {
    int first = -1, second = -1;
    tshi_connect_end end = take_answer(r, fd, nonce, &first, t);
    bool came = end == TSHI_CONNECT_ANSWERED && t->status == TSH_OK;
    if (r->memory && came)
        t->status = join(r->memory, first);
    else
        tshi_socket_close(&first, 1);
    if (!r->memory || end != TSHI_CONNECT_ANSWERED) return end;
    tshi_connector_report(r, fd, nonce, t->status);
    if (t->status == TSH_OK && take_answer(r, fd, nonce, &second, t) != TSHI_CONNECT_ANSWERED)
        t->status = tshi_fail(TSH_ERR_PEER, "rendezvous: rank 0 ended before all ranks had its memory (%s)", t->reason);
    tshi_socket_close(&second, 1);
    return end;
}

static tshi_connect_end try_one(tshi_rendezvous *r, const tshi_endpoint *endpoint, tshi_attempt *t) {
    unsigned char nonce[TSHI_NONCE_SIZE];
    tshi_connect_end end;
    int fd = tshi_socket_connect(endpoint, sooner(tshi_clock() + t->patience, r->deadline + GRACE));
    if (fd < 0) return give_reason(t, TSHI_CONNECT_FAILED, error_text(errno));
    if (endpoint->address.ss_family == AF_UNIX && !tshi_unix_same_user(fd))
        end = give_reason(t, TSHI_CONNECT_OTHER, "another user's process listens there");
    else
        end = greet(r, fd, t, nonce);
    if (end == TSHI_CONNECT_ANSWERED) end = take_answers(r, fd, nonce, t);
    if (end == TSHI_CONNECT_ANSWERED && t->status == TSH_OK && r->connections)
        r->connections[t->out->rank] = fd;
    else
        close(fd);
    return end;
}

/* --- all endpoints ------------------------------------------------------------------------------------------------ */

tshi_connect_end tshi_connector_try(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, tshi_attempt *t) {
    tshi_connect_end end = TSHI_CONNECT_FAILED;
    t->reasons[0] = '\0';
    for (int i = 0; i < n && end != TSHI_CONNECT_ANSWERED; i++) {
        char where[TSHI_ENDPOINT_TEXT];
        t->reason[0] = '\0';
        end = try_one(r, &endpoints[i], t);
        tshi_append(t->reasons, sizeof t->reasons, "%s%s: %s", i ? "; " : "", tshi_endpoint_text(&endpoints[i], where),
                    t->reason);
    }
    return end;
}

tsh_status tshi_connector_run(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, tshi_roster *out) {
    const tshi_settings *s = r->settings;
    tshi_attempt t = {.patience = CONNECT_SECONDS, .out = out};
    for (double pause = 0.001;; pause = pause < 0.05 ? pause * 2 : pause) {
        if (tshi_connector_try(r, endpoints, n, &t) == TSHI_CONNECT_ANSWERED) return t.status;
        if (tshi_clock() >= r->deadline) break;
        if (tshi_warning_due(&r->next_warning, s->warn_every)) {
            tshi_log(r->log, TSH_LOG_WARNING, "rendezvous: rank %d waits for rank 0 at %s:%d (%s)", s->rank, s->address,
                     s->port, t.reasons);
        }
        tshi_sleep(pause);
    }
    return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank %d found no rank 0 at %s:%d (%s)", s->rank, s->address, s->port,
                     t.reasons);
}
