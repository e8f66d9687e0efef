#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/memory_server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long the others get to come and hear that the ranks contradict each other. */
#define GRACE 2.0
/* How long a connection gets to say who it is. */
#define HEARING 5.0
/* Connections that have not said who they are, beyond one for each rank. */
#define STRANGERS 64
/* Connections taken in a row. */
#define AT_ONCE 64
/* Refusals told one by one; the rest is counted. */
#define TOLD 5

typedef struct stranger {
    int fd;
    double deadline; /* until it says who it is; then: it hears the verdict */
} stranger;

typedef struct server {
    const tshi_settings *settings;
    const tsh_log *log;
    double deadline, next_word;
    int listener;
    int missing;
    int *joined;          /* [size] sockets, -1 */
    struct pollfd *polls; /* [1 + most + size] */
    stranger *strangers;  /* [most], the oldest first */
    int n, most, refused;
    bool full; /* there was no descriptor for a connection */
    char contradiction[TSHI_MESSAGE_SIZE];
    tshi_meeting *meeting;
} server;

static void refuse(int socket, tsh_status status, const char *words) {
    tshi_answer answer = {.magic = TSHI_MAGIC, .status = (int32_t)status};
    snprintf(answer.words, sizeof answer.words, "%s", words);
    tshi_channel_send(socket, &answer, sizeof answer, -1);
}

/* "2, 3" of the ranks that are not here, cut off in time. */
static const char *missing_ranks(const server *s, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 1; i < s->settings->size && used + 16 < size; i++) {
        if (s->joined[i] >= 0) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", i);
    }
    if (used + 16 >= size) snprintf(text + used, size - used, ", ...");
    return text;
}

static void forget(server *s, int index) {
    s->n--;
    memmove(&s->strangers[index], &s->strangers[index + 1], (size_t)(s->n - index) * sizeof *s->strangers);
}

static void drop(server *s, int index) {
    close(s->strangers[index].fd);
    forget(s, index);
}

static void tell_refusal(server *s, const char *words) {
    if (s->refused++ < TOLD) tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: refused a connection: %s", words);
}

/* At most so many at a time: however fast connections come, the deadline and the ranks are looked at in between. Where
 * there is no room the oldest that has said nothing gives way; no more than one, before all that have something to say
 * are heard. */
static void server_accept(server *s) {
    bool room = true;
    for (int taken = 0; room && taken < AT_ONCE; taken++) {
        pid_t pid;
        room = s->n < s->most;
        if (!room) drop(s, 0);
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            s->full = s->n == 0;
            if (s->full)
                tshi_sleep(10e-3);
            else if (taken == 0)
                drop(s, 0); /* without a descriptor there is no way to refuse */
            return;
        } else if (fd < 0) {
            return;
        } else if (!tshi_channel_trusted(fd, &pid)) {
            tell_refusal(s, "it is another user's");
            close(fd);
        } else {
            s->strangers[s->n++] = (stranger){fd, tshi_clock() + HEARING};
        }
    }
}

/* Why a greeting cannot be taken, into words; false when it can. */
static bool hello_is_bad(const server *s, const tshi_hello *hello, ssize_t got, char *words, size_t size) {
    if (got < 0) {
        snprintf(words, size, "receiving its greeting: %s", strerror(errno));
    } else if (got != sizeof *hello || hello->magic != TSHI_MAGIC) {
        snprintf(words, size, "that is no rank of a tshard world");
    } else if (!tshi_channel_proven(s->settings, hello)) {
        snprintf(words, size, "the token is not this job's");
    } else if (hello->version[0] != TSH_VERSION_MAJOR || hello->version[1] != TSH_VERSION_MINOR) {
        snprintf(words, size, "rank %d runs tshard %d.%d, rank 0 runs %d.%d", hello->rank, hello->version[0],
                 hello->version[1], TSH_VERSION_MAJOR, TSH_VERSION_MINOR);
    } else if (hello->size == s->settings->size && (hello->rank < 1 || hello->rank >= hello->size)) {
        snprintf(words, size, "rank %d of %d is taken or there is none", hello->rank, hello->size);
    } else if (hello->size == s->settings->size && s->joined[hello->rank] >= 0) {
        snprintf(words, size, "rank %d is here already", hello->rank);
    } else {
        return false;
    }
    return true;
}

static void contradict(server *s, const tshi_hello *hello) {
    if (s->contradiction[0]) return;
    snprintf(s->contradiction, sizeof s->contradiction, "rank 0 says WORLD_SIZE=%d, rank %d says WORLD_SIZE=%d",
             s->settings->size, hello->rank, hello->size);
    double soon = tshi_clock() + GRACE;
    if (soon < s->deadline) s->deadline = soon;
}

/* What a connection says: a rank that joins, one that contradicts (kept, to hear the verdict), or nonsense. */
static void server_hear(server *s, int index) {
    int fd = s->strangers[index].fd, unwanted = -1;
    tshi_hello hello = {0};
    char words[TSHI_LINE];
    pid_t pid = 0;
    ssize_t got = tshi_channel_receive(fd, &hello, sizeof hello, &unwanted);
    if (unwanted >= 0) close(unwanted);
    if (got < 0 && errno == EAGAIN) return;
    if (hello_is_bad(s, &hello, got, words, sizeof words)) {
        if (got > 0) refuse(fd, TSH_ERR_ARGUMENT, words);
        if (got != 0) tell_refusal(s, words);
        drop(s, index);
        return;
    }
    if (hello.size != s->settings->size) {
        s->strangers[index].deadline = s->deadline + GRACE;
        contradict(s, &hello);
        return;
    }
    tshi_channel_trusted(fd, &pid);
    s->joined[hello.rank] = fd;
    s->meeting->heap_bytes[hello.rank] = (size_t)hello.heap_bytes;
    s->meeting->process[hello.rank] = pid;
    s->missing--;
    forget(s, index);
}

/* A rank that had joined hung up: it may come again. */
static void server_lose(server *s, int rank) {
    close(s->joined[rank]);
    s->joined[rank] = -1;
    s->missing++;
    tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: rank %d came and went", rank);
}

static void server_say(server *s) {
    char ranks[TSHI_LINE];
    if (!tshi_warning_due(&s->next_word, s->settings->warn_every)) return;
    tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: %d/%d joined, missing rank %s", s->settings->size - s->missing,
             s->settings->size, missing_ranks(s, ranks, sizeof ranks));
    if (s->refused <= TOLD) return;
    tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: refused %d connections so far", s->refused);
}

static int server_poll(server *s) {
    int n = 0;
    s->polls[n++] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (int i = 0; i < s->n; i++) s->polls[n++] = (struct pollfd){.fd = s->strangers[i].fd, .events = POLLIN};
    /* No entry for those that are missing: poll takes no more than the process may have descriptors. */
    for (int i = 0; i < s->settings->size; i++) {
        if (s->joined[i] >= 0) s->polls[n++] = (struct pollfd){.fd = s->joined[i]};
    }
    double next = s->next_word < s->deadline ? s->next_word : s->deadline;
    if (s->n > 0 && s->strangers[0].deadline < next) next = s->strangers[0].deadline;
    double left = next - tshi_clock();
    return poll(s->polls, (nfds_t)n, left > 0 ? (int)(left * 1000) + 1 : 0);
}

static void server_gather(server *s) {
    while (s->missing > 0 && tshi_clock() < s->deadline) {
        int ready = server_poll(s), pending = s->n;
        server_say(s);
        if (ready < 0) continue;
        for (int i = 0, at = 1 + pending; i < s->settings->size; i++) {
            if (s->joined[i] >= 0 && s->polls[at++].revents) server_lose(s, i);
        }
        /* Backwards: behind what is removed the others move up. */
        for (int i = pending - 1; i >= 0; i--) {
            if (s->polls[1 + i].revents) server_hear(s, i);
        }
        while (s->n > 0 && s->strangers[0].deadline < tshi_clock()) drop(s, 0);
        if (s->polls[0].revents) server_accept(s);
    }
}

static void refuse_all(server *s, tsh_status status, const char *words) {
    for (int i = 1; i < s->settings->size; i++) {
        if (s->joined[i] >= 0) refuse(s->joined[i], status, words);
    }
    for (int i = 0; i < s->n; i++) refuse(s->strangers[i].fd, status, words);
}

/* A rank that has died meanwhile is missed at the first call. */
static bool has_died(int error) {
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

/* Every rank has the memory before any goes on with it: a rank that cannot get it ends the rendezvous of all. */
static tsh_status server_send(server *s, int memory) {
    const tshi_answer answer = {.magic = TSHI_MAGIC, .status = TSH_OK};
    char words[TSHI_LINE];
    for (int i = 1; i < s->settings->size; i++) {
        if (tshi_channel_send(s->joined[i], &answer, sizeof answer, memory) || has_died(errno)) continue;
        snprintf(words, sizeof words, "rank 0 cannot send rank %d the memory of all: %s (errno %d)", i, strerror(errno),
                 errno);
        refuse_all(s, TSH_ERR_SYSTEM, words);
        return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: %s", words);
    }
    for (int i = 1; i < s->settings->size; i++) tshi_channel_send(s->joined[i], &answer, sizeof answer, -1);
    return TSH_OK;
}

static tsh_status server_conclude(server *s, int *memory) {
    if (s->contradiction[0]) {
        refuse_all(s, TSH_ERR_ARGUMENT, s->contradiction);
        return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: %s", s->contradiction);
    }
    if (s->missing > 0) {
        char ranks[TSHI_LINE], words[TSHI_MESSAGE_SIZE];
        snprintf(words, sizeof words, "%d/%d joined, missing rank %s%s", s->settings->size - s->missing,
                 s->settings->size, missing_ranks(s, ranks, sizeof ranks),
                 s->full ? "; rank 0 has no descriptor left for them (ulimit -n)" : "");
        refuse_all(s, TSH_ERR_TIMEOUT, words);
        return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %s", words);
    }
    int made = s->meeting->make(s->meeting);
    if (made < 0) {
        refuse_all(s, (tsh_status)-made, tsh_error_message());
        return (tsh_status)-made;
    }
    tsh_status status = server_send(s, made);
    if (status == TSH_OK)
        *memory = made;
    else
        close(made);
    return status;
}

static tsh_status server_listen(server *s) {
    struct sockaddr_un address;
    socklen_t length = tshi_channel_address(s->settings, &address);
    s->listener = tshi_channel_socket();
    if (s->listener < 0) return tshi_fail_errno(errno, "rendezvous: socket");
    if (bind(s->listener, (struct sockaddr *)&address, length) != 0) {
        return tshi_fail_errno(errno, "rendezvous: rank 0 cannot listen at %s:%d; is another job there?",
                               s->settings->address, s->settings->port);
    }
    if (listen(s->listener, SOMAXCONN) != 0) return tshi_fail_errno(errno, "rendezvous: listen");
    return TSH_OK;
}

static tsh_status server_init(server *s, const tsh_allocator *allocator) {
    size_t size = (size_t)s->settings->size;
    s->joined = tshi_calloc(allocator, size, sizeof *s->joined);
    s->strangers = tshi_calloc(allocator, (size_t)s->most, sizeof *s->strangers);
    s->polls = tshi_calloc(allocator, size + 1 + (size_t)s->most, sizeof *s->polls);
    for (size_t i = 0; i < size && s->joined; i++) s->joined[i] = -1;
    s->meeting->heap_bytes[0] = s->settings->heap_bytes;
    s->meeting->process[0] = getpid();
    return s->joined && s->strangers && s->polls ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_server_run(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, tshi_meeting *meeting, int *memory) {
    server s = {.settings = settings,
                .log = log,
                .deadline = deadline,
                .next_word = tshi_clock() + settings->warn_every,
                .listener = -1,
                .missing = settings->size - 1,
                .most = settings->size + STRANGERS,
                .meeting = meeting};
    tsh_status status = server_init(&s, allocator);
    if (status == TSH_OK) status = server_listen(&s);
    if (status == TSH_OK) server_gather(&s);
    /* Before anybody is let go: who makes his next world at once must not find this listener. */
    if (s.listener >= 0) close(s.listener);
    if (status == TSH_OK) status = server_conclude(&s, memory);
    for (int i = 0; i < settings->size && s.joined; i++) {
        if (s.joined[i] >= 0) close(s.joined[i]);
    }
    while (s.n > 0) drop(&s, s.n - 1);
    tshi_free(allocator, s.joined);
    tshi_free(allocator, s.strangers);
    tshi_free(allocator, s.polls);
    return status;
}
