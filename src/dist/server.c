#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD_EVERY 5.0
/* How long the others get to come and hear that the ranks contradict each other. */
#define GRACE 2.0
/* Connections that have not said who they are, at most. */
#define PENDING 32

typedef struct server {
    const tshi_settings *settings;
    const tsh_log *log;
    double deadline, next_word;
    int listener;
    int missing;
    int *joined;          /* [size] sockets, -1 */
    struct pollfd *polls; /* [1 + PENDING + size] */
    int pending[PENDING];
    int pending_count;
    char contradiction[TSHI_MESSAGE_SIZE];
    tshi_meeting *meeting;
} server;

static int open_process(pid_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

static void refuse(int socket, tsh_status status, const char *words) {
    tshi_answer answer = {.magic = TSHI_MAGIC, .status = (int32_t)status};
    snprintf(answer.words, sizeof answer.words, "%s", words);
    tshi_channel_send(socket, &answer, sizeof answer, NULL, 0);
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

static void pending_remove(server *s, int index) {
    s->pending[index] = s->pending[--s->pending_count];
}

static void server_accept(server *s) {
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    pid_t pid;
    if (!tshi_channel_trusted(fd, &pid)) {
        tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: refused a process of another user");
        close(fd);
        return;
    }
    if (s->pending_count == PENDING) {
        close(s->pending[0]);
        pending_remove(s, 0);
    }
    s->pending[s->pending_count++] = fd;
}

/* Why a greeting cannot be taken, into words; false when it can. */
static bool hello_is_bad(const server *s, const tshi_hello *hello, ssize_t got, int n, char *words, size_t size) {
    if (got != sizeof *hello || hello->magic != TSHI_MAGIC || n != 1) {
        snprintf(words, size, "that is no rank of a tshard world");
    } else if (memcmp(hello->token, s->settings->token, sizeof hello->token) != 0) {
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

/* What a pending connection says: a rank that joins, one that contradicts (kept, to hear the verdict), or nonsense. */
static void server_hear(server *s, int index) {
    int fd = s->pending[index], heap = -1, n = 0;
    tshi_hello hello = {0};
    char words[TSHI_LINE];
    pid_t pid = 0;
    ssize_t got = tshi_channel_receive(fd, &hello, sizeof hello, &heap, 1, &n);
    if (hello_is_bad(s, &hello, got, n, words, sizeof words)) {
        if (got > 0) refuse(fd, TSH_ERR_ARGUMENT, words);
        if (got > 0) tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: refused a connection: %s", words);
        if (n > 0) close(heap);
        close(fd);
        pending_remove(s, index);
        return;
    }
    if (hello.size != s->settings->size) {
        close(heap);
        contradict(s, &hello);
        return;
    }
    tshi_channel_trusted(fd, &pid);
    s->joined[hello.rank] = fd;
    s->meeting->heap[hello.rank] = heap;
    s->meeting->heap_bytes[hello.rank] = (size_t)hello.heap_bytes;
    s->meeting->process[hello.rank] = open_process(pid);
    s->missing--;
    pending_remove(s, index);
}

/* A rank that had joined hung up: it may come again. */
static void server_lose(server *s, int rank) {
    tshi_meeting *m = s->meeting;
    close(s->joined[rank]);
    close(m->heap[rank]);
    if (m->process[rank] >= 0) close(m->process[rank]);
    s->joined[rank] = m->heap[rank] = m->process[rank] = -1;
    s->missing++;
    tshi_log(s->log, TSH_LOG_WARNING, "rendezvous: rank %d came and went", rank);
}

static void server_say(server *s) {
    char ranks[TSHI_LINE];
    if (tshi_clock() < s->next_word) return;
    s->next_word += WORD_EVERY;
    tshi_log(s->log, TSH_LOG_INFO, "rendezvous: %d/%d joined, missing rank %s", s->settings->size - s->missing,
             s->settings->size, missing_ranks(s, ranks, sizeof ranks));
}

static int server_poll(server *s) {
    int n = 0;
    s->polls[n++] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (int i = 0; i < s->pending_count; i++) s->polls[n++] = (struct pollfd){.fd = s->pending[i], .events = POLLIN};
    for (int i = 0; i < s->settings->size; i++) s->polls[n++] = (struct pollfd){.fd = s->joined[i], .events = 0};
    double next = s->next_word < s->deadline ? s->next_word : s->deadline;
    double left = next - tshi_clock();
    return poll(s->polls, (nfds_t)n, left > 0 ? (int)(left * 1000) + 1 : 0);
}

static void server_gather(server *s) {
    while (s->missing > 0 && tshi_clock() < s->deadline) {
        int ready = server_poll(s), pending = s->pending_count;
        server_say(s);
        if (ready <= 0) continue;
        for (int i = 0; i < s->settings->size; i++) {
            if (s->joined[i] >= 0 && s->polls[1 + pending + i].revents) server_lose(s, i);
        }
        /* Backwards: what is removed is replaced by the last. */
        for (int i = pending - 1; i >= 0; i--) {
            if (s->polls[1 + i].revents) server_hear(s, i);
        }
        if (s->polls[0].revents) server_accept(s);
    }
}

static bool send_part(int socket, const tshi_meeting *m, int first) {
    int most = TSHI_CHANNEL_FDS / 2, fds[TSHI_CHANNEL_FDS], n = 0;
    tshi_part part = {.magic = TSHI_MAGIC, .first = first};
    part.count = m->size - first < most ? m->size - first : most;
    for (int i = 0; i < part.count; i++) {
        fds[n++] = m->heap[first + i];
        part.heap_bytes[i] = m->heap_bytes[first + i];
    }
    for (int i = 0; i < part.count; i++) {
        part.has_process[i] = m->process[first + i] >= 0;
        if (part.has_process[i]) fds[n++] = m->process[first + i];
    }
    return tshi_channel_send(socket, &part, sizeof part, fds, n);
}

static bool welcome(int socket, const tshi_meeting *m) {
    tshi_answer answer = {.magic = TSHI_MAGIC, .status = TSH_OK};
    tshi_part control = {.magic = TSHI_MAGIC};
    if (!tshi_channel_send(socket, &answer, sizeof answer, NULL, 0)) return false;
    if (!tshi_channel_send(socket, &control, sizeof control, &m->control, 1)) return false;
    for (int first = 0; first < m->size; first += TSHI_CHANNEL_FDS / 2) {
        if (!send_part(socket, m, first)) return false;
    }
    return true;
}

static void refuse_all(server *s, tsh_status status, const char *words) {
    for (int i = 1; i < s->settings->size; i++) {
        if (s->joined[i] >= 0) refuse(s->joined[i], status, words);
    }
    for (int i = 0; i < s->pending_count; i++) refuse(s->pending[i], status, words);
}

static tsh_status server_conclude(server *s) {
    if (s->contradiction[0]) {
        refuse_all(s, TSH_ERR_ARGUMENT, s->contradiction);
        return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: %s", s->contradiction);
    }
    if (s->missing > 0) {
        char ranks[TSHI_LINE], words[TSHI_MESSAGE_SIZE];
        snprintf(words, sizeof words, "%d/%d joined, missing rank %s", s->settings->size - s->missing,
                 s->settings->size, missing_ranks(s, ranks, sizeof ranks));
        refuse_all(s, TSH_ERR_TIMEOUT, words);
        return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %s", words);
    }
    for (int i = 1; i < s->settings->size; i++) {
        if (welcome(s->joined[i], s->meeting)) continue;
        return tshi_fail_errno(errno, "rendezvous: sending to rank %d", i);
    }
    return TSH_OK;
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
    /* poll may announce a connection that is gone when it is taken. */
    fcntl(s->listener, F_SETFL, O_NONBLOCK);
    return TSH_OK;
}

/* Rank 0's own part of the meeting, in descriptors of their own. */
static tsh_status server_join_self(server *s, int heap, int control) {
    tshi_meeting *m = s->meeting;
    m->heap[0] = fcntl(heap, F_DUPFD_CLOEXEC, 0);
    m->control = fcntl(control, F_DUPFD_CLOEXEC, 0);
    m->heap_bytes[0] = s->settings->heap_bytes;
    m->process[0] = open_process(getpid());
    if (m->heap[0] < 0 || m->control < 0) return tshi_fail_errno(errno, "rendezvous: descriptors");
    return TSH_OK;
}

tsh_status tshi_server_run(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, int heap, int control, tshi_meeting *out) {
    server s = {.settings = settings,
                .log = log,
                .deadline = deadline,
                .next_word = tshi_clock() + WORD_EVERY,
                .listener = -1,
                .missing = settings->size - 1,
                .meeting = out};
    size_t size = (size_t)settings->size;
    s.joined = tshi_calloc(allocator, size, sizeof *s.joined);
    s.polls = tshi_calloc(allocator, size + 1 + PENDING, sizeof *s.polls);
    tsh_status status = s.joined && s.polls ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; i < settings->size && s.joined; i++) s.joined[i] = -1;
    if (status == TSH_OK) status = server_join_self(&s, heap, control);
    if (status == TSH_OK) status = server_listen(&s);
    if (status == TSH_OK) server_gather(&s);
    /* Before anybody is let go: who makes his next world at once must not find this listener. */
    if (s.listener >= 0) close(s.listener);
    if (status == TSH_OK) status = server_conclude(&s);
    for (int i = 0; i < settings->size && s.joined; i++) {
        if (s.joined[i] >= 0) close(s.joined[i]);
    }
    for (int i = 0; i < s.pending_count; i++) close(s.pending[i]);
    tshi_free(allocator, s.joined);
    tshi_free(allocator, s.polls);
    return status;
}
