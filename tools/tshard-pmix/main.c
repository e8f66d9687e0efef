/* The watcher, and what the helper of a machine does from its start to its end. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/output.h"
#include "folder.h"
#include "report.h"
#include "server.h"
#include "stand_in.h"
#include "star.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STAND_IN "--stand-in"
/* Seconds in which the machine where a rank is missing reports it before those that only wait for it: its ranks may
 * have started that much later. */
#define GRACE 3.0

static const char usage[] =
    "usage: tshard-pmix\n"
    "\n"
    "Started by tshard itself, once on each machine, when ranks on several have met that no launcher of MPI (mpirun,\n"
    "srun) has started: it tells MPI of their processes, and ends with them.\n";

/* --- the order ---------------------------------------------------------------------------------------------------- */

static bool take_order(helper *h) {
    const double soon = tshi_clock() + 10;
    tshi_wireup_order *o = &h->order;
    bool good = tshi_socket_read(TSHI_WIREUP_FD, o, sizeof *o, soon) && o->magic == TSHI_WIREUP_MAGIC &&
                o->version[0] == TSH_VERSION_MAJOR && o->version[1] == TSH_VERSION_MINOR &&
                o->version[2] == TSH_VERSION_PATCH && o->bytes == sizeof *o;
    if (!good || o->nodes < 1 || o->ranks < o->nodes || o->here < 1 || o->here > o->ranks) {
        report_line("the tshard-pmix that was found is of another version of tshard");
        return false;
    }
    h->deadline = o->deadline;
    size_t nodes = (size_t)o->nodes, ranks = (size_t)o->ranks, here = (size_t)o->here;
    h->node = calloc(ranks, sizeof *h->node);
    h->host = calloc(nodes, sizeof *h->host);
    h->here = calloc(here, sizeof *h->here);
    h->connections = calloc(nodes, sizeof *h->connections);
    h->came = calloc(nodes, sizeof *h->came);
    h->parts = calloc(nodes, sizeof *h->parts);
    int32_t *process = calloc(here, sizeof *process);
    good = h->node && h->host && h->here && h->connections && h->came && h->parts && process &&
           tshi_socket_read(TSHI_WIREUP_FD, h->node, ranks * sizeof *h->node, soon) &&
           tshi_socket_read(TSHI_WIREUP_FD, h->host, nodes * sizeof *h->host, soon) &&
           tshi_socket_read(TSHI_WIREUP_FD, process, here * sizeof *process, soon);
    int n = 0;
    for (int i = 0; i < o->ranks && good; i++) {
        if (h->node[i] != o->node || n == o->here) continue;
        h->here[n] = (helper_rank){.rank = i, .process = process[n], .pidfd = -1};
        h->here[n].pidfd = (int)syscall(SYS_pidfd_open, process[n], 0);
        n++;
    }
    free(process);
    if (!good) report_line("tshard-pmix did not receive the list of ranks");
    return good;
}

/* The descriptors of the rank that started this process. */
static void close_the_rest(void) {
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        int fd = atoi(entry->d_name);
        if (fd > TSHI_WIREUP_FD && fd != dirfd(folder)) close(fd);
    }
    if (folder) closedir(folder);
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

static helper_rank *rank_here(helper *h, int rank) {
    for (int i = 0; i < h->order.here; i++) {
        if (h->here[i].rank == rank) return &h->here[i];
    }
    return NULL;
}

/* The other ranks of this machine wait for it in MPI_Init. */
static void replace(helper_rank *r, char *text) {
    char number[16], *rest = NULL;
    if (r->replaced) return;
    r->replaced = true;
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(TSHI_WIREUP_FD);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) putenv(line);
    snprintf(number, sizeof number, "%d", r->rank);
    setenv("PMIX_RANK", number, 1);
    execl("/proc/self/exe", TSHI_WIREUP_TOOL, STAND_IN, (char *)NULL);
    _exit(1);
}

static bool is_stopped(const helper_rank *r) {
    char path[48], line[512] = "", state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", r->process);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const char *rest = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return rest && sscanf(rest + 1, " %c", &state) == 1 && state == 'T';
}

static void rank_ended(helper *h, helper_rank *r, char *text) {
    char message[TSHI_LINE];
    tshi_socket_close(&r->pidfd, 1);
    if (r->started) return;
    snprintf(message, sizeof message, "rank %d on %s ended while MPI started", r->rank, h->host[h->order.node]);
    helper_star_fail(h, message);
    if (!r->connected) replace(r, text);
}

/* The deadline has passed, and some ranks of this machine are not in the fence. */
static void report_missing_ranks(helper *h, char *text) {
    char message[TSHI_LINE];
    for (int i = 0; i < h->order.here; i++) {
        helper_rank *r = &h->here[i];
        if (r->started || (r->connected && !is_stopped(r))) continue;
        snprintf(message, sizeof message, "rank %d on %s %s", r->rank, h->host[h->order.node],
                 is_stopped(r) ? "is stopped" : "did not come while MPI started");
        helper_star_fail(h, message);
        replace(r, text);
    }
    snprintf(message, sizeof message, "the ranks on %s did not all come while MPI started", h->host[h->order.node]);
    helper_star_fail(h, message);
}

/* --- serving ------------------------------------------------------------------------------------------------------ */

typedef struct service {
    helper *h;
    struct pollfd *polls; /* 2 + nodes + here */
    int events;
    char *text; /* the variables */
} service;

static bool all_started(const helper *h) {
    for (int i = 0; i < h->order.here; i++) {
        if (!h->here[i].started) return false;
    }
    return true;
}

/* Milliseconds until there is something to do although nothing comes. */
static int patience(const helper *h) {
    double left = h->deadline + (h->fenced ? GRACE : 0) - tshi_clock();
    if (all_started(h)) return -1;
    return left > 0 ? (int)(left * 1000) + 1 : 1000;
}

/* False: all that is left is to end, by which MPI ends the ranks. */
static bool check_deadline(service *s) {
    helper *h = s->h;
    bool had_failed = h->failed;
    if (all_started(h) || tshi_clock() < h->deadline) return true;
    if (h->fenced) {
        if (tshi_clock() >= h->deadline + GRACE) helper_star_give_up(h);
        return true;
    }
    report_missing_ranks(h, s->text);
    return !had_failed;
}

static void take_event(service *s) {
    helper_event event;
    if (read(s->events, &event, sizeof event) != (ssize_t)sizeof event) return;
    if (event.kind == HELPER_FENCE) {
        helper_star_fence(s->h, event.part);
        return;
    }
    helper_rank *r = rank_here(s->h, event.rank);
    if (r) r->connected = true;
}

/* A rank's number: its MPI has started. False: no rank is left. */
static bool take_number(helper *h) {
    int32_t rank;
    ssize_t n = recv(TSHI_WIREUP_FD, &rank, sizeof rank, MSG_DONTWAIT);
    helper_rank *r = n == (ssize_t)sizeof rank ? rank_here(h, rank) : NULL;
    if (r) r->started = true;
    return n != 0 && !(n < 0 && errno != EAGAIN && errno != EINTR);
}

static void serve_ranks(service *s) {
    helper *h = s->h;
    const int nodes = h->order.nodes, here = h->order.here;
    for (;;) {
        struct pollfd *p = s->polls;
        p[0] = (struct pollfd){.fd = TSHI_WIREUP_FD, .events = POLLIN};
        p[1] = (struct pollfd){.fd = s->events, .events = POLLIN};
        for (int i = 0; i < nodes; i++) p[2 + i] = (struct pollfd){.fd = h->connections[i], .events = POLLIN};
        for (int i = 0; i < here; i++) p[2 + nodes + i] = (struct pollfd){.fd = h->here[i].pidfd, .events = POLLIN};
        poll(p, (nfds_t)(2 + nodes + here), patience(h));
        if (p[0].revents && !take_number(h)) return;
        if (p[1].revents) take_event(s);
        for (int i = 0; i < nodes; i++) {
            if (p[2 + i].revents && h->connections[i] >= 0) helper_star_read(h, i);
        }
        for (int i = 0; i < here; i++) {
            if (p[2 + nodes + i].revents) rank_ended(h, &h->here[i], s->text);
        }
        if (!check_deadline(s)) return;
    }
}

/* The server's process. */
static int serve(helper *h) {
    size_t polls = 2 + (size_t)h->order.nodes + (size_t)h->order.here;
    service s = {.h = h, .polls = calloc(polls, sizeof *s.polls), .text = calloc(TSHI_WIREUP_TEXT, 1)};
    if (!s.polls || !s.text) return 1;
    snprintf(s.text, TSHI_WIREUP_TEXT, "@%d\n", (int)getpid());
    send(TSHI_WIREUP_FD, s.text, strlen(s.text), MSG_NOSIGNAL);
    if (!helper_star_open(h) || !helper_server_start(h, &s.events, s.text, TSHI_WIREUP_TEXT - 2)) return 1;
    send(TSHI_WIREUP_FD, s.text, strlen(s.text), MSG_NOSIGNAL);
    send(TSHI_WIREUP_FD, "\n", 1, MSG_NOSIGNAL);
    serve_ranks(&s);
    helper_star_close(h);
    helper_folder_remove(h->folder); /* the watcher may be gone */
    return 0;
}

/* Until the server ends; a stopped one is made to continue. */
static void wait_for_server(const helper *h, pid_t server, int *ended) {
    char message[TSHI_LINE];
    bool warned = false;
    for (pid_t n = 0; n == 0 || (n < 0 && errno == EINTR) || WIFSTOPPED(*ended) || WIFCONTINUED(*ended);) {
        n = waitpid(server, ended, WUNTRACED | WCONTINUED);
        if (n == server && WIFSTOPPED(*ended)) kill(server, SIGCONT);
        if (n != server || !WIFCONTINUED(*ended) || warned) continue;
        warned = true;
        snprintf(message, sizeof message, "tshard-pmix on %s was stopped; it goes on", h->host[h->order.node]);
        report_on_stderr("warning", message);
    }
}

/* However the server ends, the ranks learn of it and nothing is left. */
static int watch(void) {
    static helper h;
    int ended = 0;
    char message[TSHI_LINE];
    if (!take_order(&h)) return 1;
    if (!helper_folder_make(h.folder, sizeof h.folder)) {
        report_line("tshard-pmix can make no folder in /dev/shm or /tmp");
        return 1;
    }
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_NAME, "tshard-pmix-srv");
        _exit(serve(&h));
    }
    if (server < 0) report_line(strerror(errno));
    if (server > 0) wait_for_server(&h, server, &ended);
    helper_folder_remove(h.folder);
    if (server > 0 && WIFSIGNALED(ended)) {
        snprintf(message, sizeof message, "tshard-pmix on %s, which MPI cannot do without, was ended by signal %d",
                 h.host[h.order.node], WTERMSIG(ended));
        report_failure(&h, message);
    }
    return 0;
}

/* See wireup.h. */
static bool be_woken(void) {
    int flags = fcntl(TSHI_WIREUP_FD, F_GETFL);
    bool done = flags >= 0 && fcntl(TSHI_WIREUP_FD, F_SETSIG, SIGCONT) == 0 &&
                fcntl(TSHI_WIREUP_FD, F_SETOWN, -getpgrp()) == 0 &&
                fcntl(TSHI_WIREUP_FD, F_SETFL, flags | O_ASYNC) == 0;
    if (!done) report_line(strerror(errno));
    return done;
}

int main(int argc, char **argv) {
    int type = 0;
    socklen_t size = sizeof type;
    if (argc == 2 && !strcmp(argv[1], STAND_IN)) return helper_stand_in();
    if (argc > 1 || getsockopt(TSHI_WIREUP_FD, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
        bool help = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
        fputs(usage, help ? stdout : stderr);
        return output_end("tshard-pmix", help ? 0 : 2);
    }
    setsid(); /* out of reach of what the rank's terminal sends */
    /* It ends with the ranks, and not before them. */
    const int ignored[] = {SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGIO};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    if (!be_woken()) return 1;
    /* Not the rank's child, so that the rank need not wait for it. */
    pid_t child = fork();
    if (child != 0) return child < 0;
    signal(SIGCHLD, SIG_DFL);
    close_the_rest();
    return watch();
}
