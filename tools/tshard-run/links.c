/* The links between launchers: how they find each other, and their messages. */
#define _GNU_SOURCE
#include "base/hash.h"
#include "base/number.h"
#include "base/settings.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"
#include "launchers.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const double beat_seconds = 1.0;
/* How long a link may be silent, unless TSHARD_TIMEOUT is less: a network that fails for a moment ends no job. */
static const double longest_silence = 30.0;
static const double least_silence = 5.0;
static const double longest_search = 120.0;
static const double farewell_seconds = 2.0;

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* A message's fields in order, with their bytes, integers little-endian: kind 1, flags 1, signal 1, code 1, attempt 4,
 * most 4, node 2, shown 2, length of the text 2, zero 2; then the text. */
enum { FLAG_FAILED = 1, FLAG_UNUSABLE = 2, FLAG_STOPPED_OTHERS = 4, FLAG_KILL = 8, FLAGS = 16 };

static void put_number(unsigned char *out, int bytes, unsigned value) {
    for (int i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> (8 * i));
}

static unsigned get_number(const unsigned char *in, int bytes) {
    unsigned value = 0;
    for (int i = 0; i < bytes; i++) value |= (unsigned)in[i] << (8 * i);
    return value;
}

size_t run_message_write(const run_message *m, unsigned char out[RUN_MESSAGE_MOST]) {
    const run_outcome *o = &m->outcome;
    size_t length = strnlen(o->text, RUN_WORDS - 1);
    memset(out, 0, RUN_MESSAGE_HEAD);
    out[0] = (unsigned char)m->kind;
    out[1] = (unsigned char)((o->failed ? FLAG_FAILED : 0) | (o->unusable ? FLAG_UNUSABLE : 0) |
                             (o->stopped_others ? FLAG_STOPPED_OTHERS : 0) | (m->kill ? FLAG_KILL : 0));
    out[2] = (unsigned char)m->signal;
    out[3] = (unsigned char)o->code;
    put_number(out + 4, 4, (unsigned)m->attempt);
    put_number(out + 8, 4, (unsigned)m->most);
    put_number(out + 12, 2, (unsigned)m->node);
    put_number(out + 14, 2, (unsigned)o->shown);
    put_number(out + 16, 2, (unsigned)length);
    memcpy(out + RUN_MESSAGE_HEAD, o->text, length);
    return RUN_MESSAGE_HEAD + length;
}

/* Other control characters than these would reach a terminal. */
static void clean(char *text) {
    for (; *text; text++) {
        bool control = (unsigned char)*text < 32 || *text == 127;
        if (control && *text != '\n' && *text != '\t') *text = '?';
    }
}

int run_message_read(const unsigned char *bytes, size_t size, run_message *out) {
    if (size < RUN_MESSAGE_HEAD) return 0;
    const size_t length = get_number(bytes + 16, 2);
    *out = (run_message){.kind = (run_message_kind)bytes[0],
                         .signal = bytes[2],
                         .attempt = (int)(get_number(bytes + 4, 4) & INT32_MAX),
                         .most = (int)(get_number(bytes + 8, 4) & INT32_MAX),
                         .node = (int)get_number(bytes + 12, 2),
                         .kill = bytes[1] & FLAG_KILL,
                         .outcome = {.code = bytes[3],
                                     .failed = bytes[1] & FLAG_FAILED,
                                     .unusable = bytes[1] & FLAG_UNUSABLE,
                                     .stopped_others = bytes[1] & FLAG_STOPPED_OTHERS,
                                     .shown = get_number(bytes + 14, 2)}};
    if (out->kind < RUN_BEAT || out->kind >= RUN_LOST || bytes[1] >= FLAGS || out->signal >= NSIG) return -1;
    if (length >= RUN_WORDS || out->outcome.shown > length || bytes[18] || bytes[19]) return -1;
    if (size < RUN_MESSAGE_HEAD + length) return 0;
    memcpy(out->outcome.text, bytes + RUN_MESSAGE_HEAD, length);
    clean(out->outcome.text);
    return (int)(RUN_MESSAGE_HEAD + length);
}

/* --- finding each other ------------------------------------------------------------------------------------------- */

/* A search for the launchers, on a thread of its own so that this one can handle signals. A search that is given up
 * runs until the process ends. */
typedef struct search {
    tshi_settings settings;
    tshi_roster roster;
    int *connections; /* [settings.size] */
    int done;         /* an eventfd */
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
} search;

/* The rendezvous says "rank 2" and "ranks": here they are nodes. */
static void name_nodes(char *text) {
    for (char *at = text; (at = strstr(at, "rank")); at += 4) {
        bool begins = at == text || strchr(" (", at[-1]), ends = at[4] == 's' || at[4] == ' ';
        if (begins && ends) memcpy(at, "node", 4);
    }
}

static void say_line(void *user, tsh_log_level level, const char *line) {
    char text[TSHI_MESSAGE_SIZE];
    (void)user;
    if (level < TSH_LOG_INFO) return;
    snprintf(text, sizeof text, "%s", line);
    name_nodes(text);
    run_say("tshard-run of all nodes: %s", text);
}

static void *find_launchers(void *argument) {
    search *s = argument;
    const tsh_log_sink sink = {.fn = say_line};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    const uint64_t found = 1;
    double patience = s->settings.timeout < longest_search ? s->settings.timeout : longest_search;
    s->status =
        tshi_rendezvous_run(&s->settings, &sink, &allocator, tshi_clock() + patience, s->connections, &s->roster);
    snprintf(s->message, sizeof s->message, "%s", s->status != TSH_OK ? tsh_error_message() : "");
    name_nodes(s->message);
    ssize_t ignored = write(s->done, &found, sizeof found);
    (void)ignored;
    return NULL;
}

/* A malformed variable is the ranks' to report. */
static double seconds_of(tshi_setting_id id, double initial) {
    const char *text = tshi_setting_value(id);
    double seconds = initial;
    return text && tshi_parse_real(text, 1e-3, 1e9, &seconds) ? seconds : initial;
}

/* As tcp://MASTER_ADDR:MASTER_PORT: at that port rank 0 listens, once the launchers have closed it. */
static bool fill_settings(const run_options *o, tshi_settings *s) {
    static const char purpose[] = "tshard-run";
    char names[2 * TSHI_JOB_SIZE];
    *s = (tshi_settings){.method = TSHI_INIT_TCP, .rank = o->node_rank, .size = o->nnodes, .address_known = true};
    s->port = o->port ? o->port : RUN_DEFAULT_PORT;
    s->timeout = seconds_of(TSHI_SETTING_TIMEOUT, 600);
    s->warn_every = seconds_of(TSHI_SETTING_WARN, 5);
    snprintf(s->address, sizeof s->address, "%s", o->master_addr);
    if (tshi_setting_text(TSHI_SETTING_TOKEN, s->token, sizeof s->token) != TSH_OK) {
        run_say("%s", tsh_error_message());
        return false;
    }
    int length = snprintf(names, sizeof names, "%s %.255s", s->token, o->run_id ? o->run_id : "");
    tshi_hmac((const unsigned char *)purpose, sizeof purpose, names, (size_t)length, "", 0, s->key);
    return true;
}

/* Signals are for the thread that waits. */
static bool start_search(search *s) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    s->done = eventfd(0, EFD_CLOEXEC);
    if (s->done < 0) return false;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&thread, NULL, find_launchers, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errno) return false;
    pthread_detach(thread);
    return true;
}

/* The number of a signal that asks to end, -1 when the guard has ended, 0 when the search has. */
static int wait_for_search(const search *s, const run_link *guard, int signal_fd) {
    for (;;) {
        struct signalfd_siginfo info;
        struct pollfd fds[3] = {{.fd = s->done, .events = POLLIN},
                                {.fd = guard->life, .events = POLLIN},
                                {.fd = signal_fd, .events = POLLIN}};
        poll(fds, 3, -1);
        if (fds[0].revents) return 0;
        if (fds[1].revents) return -1;
        while (read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            if (run_asks_to_end((int)info.ssi_signo)) return (int)info.ssi_signo;
        }
    }
}

static bool add_connection(run_links *links, const search *s, int node) {
    const int on = 1;
    int fd = s->connections[s->settings.rank == 0 ? node : s->settings.rank];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)links->n};
    run_connection *c = &links->connection[links->n++];
    *c = (run_connection){.fd = fd, .node = node, .heard = tshi_clock()};
    snprintf(c->host, sizeof c->host, "%s", s->roster.host[s->roster.node[node]]);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return epoll_ctl(links->events, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool take_connections(run_links *links, const search *s) {
    const int n = s->settings.rank == 0 ? s->settings.size - 1 : 1;
    links->connection = calloc((size_t)n, sizeof *links->connection);
    links->events = epoll_create1(EPOLL_CLOEXEC);
    bool good = links->connection && links->events >= 0;
    for (int i = 0; i < n && good; i++) good = add_connection(links, s, s->settings.rank == 0 ? i + 1 : 0);
    links->silence = s->settings.timeout < longest_silence ? s->settings.timeout : longest_silence;
    if (links->silence < least_silence) links->silence = least_silence;
    if (!good) run_say("cannot watch the other launchers: %s", strerror(errno));
    return good;
}

/* The code to exit with where the search has not ended well. */
static int say_failed_search(const search *s, int end) {
    if (end > 0) run_say("stopped by signal %d (%s)", end, strsignal(end));
    if (end == 0)
        run_say("--max-restarts: the %d nodes have not found each other: %s. Start tshard-run on all of them, with the "
                "same --nnodes, --master-addr, --master-port, --max-restarts and TSHARD_TOKEN",
                s->settings.size, s->message);
    return end > 0 ? 128 + end : 1;
}

int run_links_open(run_links *links, const run_options *options, const run_link *guard, int signal_fd) {
    search *s = calloc(1, sizeof *s);
    int code = 1;
    *links = (run_links){.events = -1};
    if (s) s->connections = calloc((size_t)options->nnodes, sizeof *s->connections);
    if (!s || !s->connections || !fill_settings(options, &s->settings)) return 1;
    for (int i = 0; i < options->nnodes; i++) s->connections[i] = -1;
    if (!start_search(s)) {
        run_say("cannot look for the other launchers: %s", strerror(errno));
        return 1;
    }
    int end = wait_for_search(s, guard, signal_fd);
    if (end != 0) return say_failed_search(s, end); /* the thread uses the memory still */
    if (s->status != TSH_OK)
        code = say_failed_search(s, 0);
    else if (take_connections(links, s))
        code = 0;
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_roster_free(&s->roster, &allocator);
    close(s->done);
    free(s->connections);
    free(s);
    return code;
}

/* --- links -------------------------------------------------------------------------------------------------------- */

/* Sends what the socket takes. A failure shows when the link is read. */
static void flush_link(run_connection *c) {
    while (c->fd >= 0 && c->waiting > 0) {
        ssize_t n = send(c->fd, c->out, c->waiting, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        c->waiting -= (size_t)n;
        memmove(c->out, c->out + n, c->waiting);
    }
}

static void send_bytes(run_connection *c, const unsigned char *bytes, size_t size) {
    if (c->fd < 0) return;
    if (sizeof c->out - c->waiting < size) {
        shutdown(c->fd, SHUT_RDWR); /* the other end has read nothing for long */
        return;
    }
    memcpy(c->out + c->waiting, bytes, size);
    c->waiting += size;
    flush_link(c);
}

void run_links_send(run_links *links, int node, const run_message *message) {
    unsigned char bytes[RUN_MESSAGE_MOST];
    size_t size = run_message_write(message, bytes);
    for (int i = 0; i < links->n; i++) {
        if (node < 0 || links->connection[i].node == node) send_bytes(&links->connection[i], bytes, size);
    }
}

/* The reason is in English already, or an errno's. */
static void lose(run_connection *c, const char *reason, run_message_fn *handle, void *user) {
    run_message lost = {.kind = RUN_LOST, .node = c->node};
    close(c->fd);
    c->fd = -1;
    snprintf(lost.outcome.text, sizeof lost.outcome.text, "tshard-run on %s (node %d) cannot be reached: %s", c->host,
             c->node, reason);
    handle(user, c->node, &lost);
}

static void handle_messages(run_connection *c, run_message_fn *handle, void *user) {
    run_message message;
    size_t used = 0;
    int n = 1;
    while (c->fd >= 0 && (n = run_message_read(c->in + used, c->received - used, &message)) > 0) {
        used += (size_t)n;
        if (message.kind != RUN_BEAT) handle(user, c->node, &message);
    }
    c->received -= used;
    memmove(c->in, c->in + used, c->received);
    if (n < 0 && c->fd >= 0) lose(c, "it has sent an invalid message", handle, user);
}

static void read_link(run_connection *c, run_message_fn *handle, void *user) {
    if (c->fd < 0) return;
    ssize_t n = recv(c->fd, c->in + c->received, sizeof c->in - c->received, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        lose(c, n == 0 || errno == ECONNRESET ? "its connection ended" : strerror(errno), handle, user);
        return;
    }
    c->heard = tshi_clock();
    c->received += (size_t)n;
    handle_messages(c, handle, user);
}

/* A launcher that was itself kept from running reads what has come meanwhile first. */
static void check_silence(run_links *links, run_connection *c, run_message_fn *handle, void *user) {
    char reason[128];
    struct pollfd fd = {.fd = c->fd, .events = POLLIN};
    if (c->fd < 0 || tshi_clock() - c->heard < links->silence || poll(&fd, 1, 0) != 0) return;
    snprintf(reason, sizeof reason, "nothing has come from it for %g s: the network is cut, or it is stopped",
             links->silence);
    lose(c, reason, handle, user);
}

void run_links_serve(run_links *links, run_message_fn *handle, void *user) {
    struct epoll_event events[64];
    if (links->n == 0) return;
    int n = epoll_wait(links->events, events, 64, 0);
    for (int i = 0; i < n; i++) read_link(&links->connection[events[i].data.u64], handle, user);
    if (!tshi_warning_due(&links->next_beat, beat_seconds)) return;
    run_links_send(links, -1, &(run_message){.kind = RUN_BEAT});
    for (int i = 0; i < links->n; i++) check_silence(links, &links->connection[i], handle, user);
}

double run_links_patience(const run_links *links) {
    double left = links->next_beat - tshi_clock();
    return left > 0 ? left : 0;
}

/* Closing a socket that has unread bytes discards what is on its way: so the other end closes first. */
static bool has_closed(run_connection *c) {
    if (c->fd < 0) return true;
    flush_link(c);
    if (c->waiting == 0) shutdown(c->fd, SHUT_WR);
    ssize_t n;
    while ((n = recv(c->fd, c->in, sizeof c->in, MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

void run_links_close(run_links *links) {
    const double deadline = tshi_clock() + farewell_seconds;
    int open = links->n;
    while (open > 0 && tshi_clock() < deadline) {
        open = 0;
        for (int i = 0; i < links->n; i++) open += !has_closed(&links->connection[i]);
        if (open > 0) tshi_sleep(0.005);
    }
    for (int i = 0; i < links->n; i++) tshi_socket_close(&links->connection[i].fd, 1);
    tshi_socket_close(&links->events, 1);
    free(links->connection);
    *links = (run_links){.events = -1};
}
