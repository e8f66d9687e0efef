/* tshard-pmix: the watcher, and what the helper of a machine does from its start to its end. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/output.h"
#include "helper.h"

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
/* Who knows what is wrong speaks before those who only wait for it. */
#define GRACE 1.0

static const char usage[] =
    "usage: tshard-pmix\n"
    "\n"
    "Started by tshard itself, once on each machine, when ranks on several have met that no launcher of MPI (mpirun,\n"
    "srun) has started: it tells MPI who they are, and ends with them.\n";

/* --- words -------------------------------------------------------------------------------------------------------- */

const char *helper_ranks_of(const helper *h, int node, char *text, size_t size) {
    int here = 0;
    size_t used;
    for (int i = 0; i < h->order.ranks; i++) here += h->node[i] == node;
    used = (size_t)snprintf(text, size, here > 1 ? "ranks" : "rank");
    const char *comma = " ";
    for (int i = 0; i < h->order.ranks && used + 24 < size; i++) {
        if (h->node[i] != node) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", comma, i);
        comma = ", ";
    }
    if (used + 24 >= size) snprintf(text + used, size - used, ", ...");
    return text;
}

static void say(const char *words) {
    char line[TSHI_MESSAGE_SIZE + 8];
    int n = snprintf(line, sizeof line, "!%.*s\n", TSHI_MESSAGE_SIZE, words);
    for (char *c = line; c < line + n - 1; c++) {
        if (*c == '\n') *c = ' ';
    }
    ssize_t ignored = send(TSHI_WIREUP_FD, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored; /* nobody is there to hear it */
}

/* Words are dropped where stderr is a full pipe without a reader: serving the ranks does not wait for it. */
static void say_on_stderr(const char *level, const char *words) {
    char line[TSHI_MESSAGE_SIZE + 32];
    struct pollfd can = {.fd = STDERR_FILENO, .events = POLLOUT};
    int n = snprintf(line, sizeof line, "tshard %s: %.*s\n", level, TSHI_MESSAGE_SIZE, words);
    if (poll(&can, 1, 0) <= 0) return;
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);
    (void)ignored; /* there is nowhere else to say it */
}

void helper_say(helper *h, const char *words) {
    if (h->troubled) return;
    h->troubled = true;
    say(words);
    say_on_stderr("error", words);
}

/* --- the order ---------------------------------------------------------------------------------------------------- */

static bool take_order(helper *h) {
    const double soon = tshi_clock() + 10;
    tshi_wireup_order *o = &h->order;
    bool good = tshi_socket_read(TSHI_WIREUP_FD, o, sizeof *o, soon) && o->magic == TSHI_WIREUP_MAGIC &&
                o->version[0] == TSH_VERSION_MAJOR && o->version[1] == TSH_VERSION_MINOR &&
                o->version[2] == TSH_VERSION_PATCH && o->bytes == sizeof *o;
    if (!good || o->nodes < 1 || o->ranks < o->nodes || o->here < 1 || o->here > o->ranks) {
        say("the tshard-pmix that was found is of another version of tshard");
        return false;
    }
    h->deadline = tshi_clock() + o->seconds;
    size_t nodes = (size_t)o->nodes, ranks = (size_t)o->ranks, here = (size_t)o->here;
    h->node = calloc(ranks, sizeof *h->node);
    h->host = calloc(nodes, sizeof *h->host);
    h->here = calloc(here, sizeof *h->here);
    h->spokes = calloc(nodes, sizeof *h->spokes);
    h->brought = calloc(nodes, sizeof *h->brought);
    h->parts = calloc(nodes, sizeof *h->parts);
    int32_t *process = calloc(here, sizeof *process);
    good = h->node && h->host && h->here && h->spokes && h->brought && h->parts && process &&
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
    if (!good) say("tshard-pmix did not hear who the ranks are");
    return good;
}

/* What the rank had open, and did not mean for others. */
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

/* The others of this machine wait for it in MPI_Init. */
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

/* A rank's process has ended. */
static void mourn(helper *h, helper_rank *r, char *text) {
    char words[TSHI_LINE];
    tshi_socket_close(&r->pidfd, 1);
    if (r->started) return;
    snprintf(words, sizeof words, "rank %d on %s ended while MPI started", r->rank, h->host[h->order.node]);
    helper_star_trouble(h, words);
    if (!r->connected) replace(r, text);
}

/* The deadline: of this machine's ranks, some are to blame when they are not all in a fence. */
static void blame_ranks(helper *h, char *text) {
    char words[TSHI_LINE];
    for (int i = 0; i < h->order.here; i++) {
        helper_rank *r = &h->here[i];
        if (r->started || (r->connected && !is_stopped(r))) continue;
        snprintf(words, sizeof words, "rank %d on %s %s", r->rank, h->host[h->order.node],
                 is_stopped(r) ? "is stopped" : "did not come while MPI started");
        helper_star_trouble(h, words);
        replace(r, text);
    }
    snprintf(words, sizeof words, "the ranks on %s did not all come while MPI started", h->host[h->order.node]);
    helper_star_trouble(h, words);
}

/* --- its life ----------------------------------------------------------------------------------------------------- */

typedef struct life {
    helper *h;
    struct pollfd *polls; /* 2 + nodes + here */
    int events;
    char *text; /* the variables */
} life;

static bool all_started(const helper *h) {
    for (int i = 0; i < h->order.here; i++) {
        if (!h->here[i].started) return false;
    }
    return true;
}

/* Milliseconds until there is something to do that nobody will wake us for. */
static int patience(const helper *h) {
    double left = h->deadline + (h->fenced ? GRACE : 0) - tshi_clock();
    if (all_started(h)) return -1;
    return left > 0 ? (int)(left * 1000) + 1 : 1000;
}

/* False: nothing more can be done for the ranks than to end; so do they then, by MPI's doing. */
static bool check_deadline(life *l) {
    helper *h = l->h;
    bool was_troubled = h->troubled;
    if (all_started(h) || tshi_clock() < h->deadline) return true;
    if (h->fenced) {
        if (tshi_clock() >= h->deadline + GRACE) helper_star_give_up(h);
        return true;
    }
    blame_ranks(h, l->text);
    return !was_troubled;
}

static void take_event(life *l) {
    helper_event event;
    if (read(l->events, &event, sizeof event) != (ssize_t)sizeof event) return;
    if (event.kind == HELPER_FENCE) {
        helper_star_fence(l->h, event.part);
        return;
    }
    helper_rank *r = rank_here(l->h, event.rank);
    if (r) r->connected = true;
}

/* A rank's number: its MPI has started. False: no rank is left. */
static bool take_word(helper *h) {
    int32_t rank;
    ssize_t n = recv(TSHI_WIREUP_FD, &rank, sizeof rank, MSG_DONTWAIT);
    helper_rank *r = n == (ssize_t)sizeof rank ? rank_here(h, rank) : NULL;
    if (r) r->started = true;
    return n != 0 && !(n < 0 && errno != EAGAIN && errno != EINTR);
}

static void live(life *l) {
    helper *h = l->h;
    const int nodes = h->order.nodes, here = h->order.here;
    for (;;) {
        struct pollfd *p = l->polls;
        p[0] = (struct pollfd){.fd = TSHI_WIREUP_FD, .events = POLLIN};
        p[1] = (struct pollfd){.fd = l->events, .events = POLLIN};
        for (int i = 0; i < nodes; i++) p[2 + i] = (struct pollfd){.fd = h->spokes[i], .events = POLLIN};
        for (int i = 0; i < here; i++) p[2 + nodes + i] = (struct pollfd){.fd = h->here[i].pidfd, .events = POLLIN};
        poll(p, (nfds_t)(2 + nodes + here), patience(h));
        if (p[0].revents && !take_word(h)) return;
        if (p[1].revents) take_event(l);
        for (int i = 0; i < nodes; i++) {
            if (p[2 + i].revents && h->spokes[i] >= 0) helper_star_hear(h, i);
        }
        for (int i = 0; i < here; i++) {
            if (p[2 + nodes + i].revents) mourn(h, &h->here[i], l->text);
        }
        if (!check_deadline(l)) return;
    }
}

/* The server's process. */
static int serve(helper *h) {
    size_t polls = 2 + (size_t)h->order.nodes + (size_t)h->order.here;
    life l = {.h = h, .polls = calloc(polls, sizeof *l.polls), .text = calloc(TSHI_WIREUP_TEXT, 1)};
    if (!l.polls || !l.text) return 1;
    snprintf(l.text, TSHI_WIREUP_TEXT, "@%d\n", (int)getpid());
    send(TSHI_WIREUP_FD, l.text, strlen(l.text), MSG_NOSIGNAL);
    if (!helper_star_open(h) || !helper_server_start(h, &l.events, l.text, TSHI_WIREUP_TEXT - 2)) return 1;
    send(TSHI_WIREUP_FD, l.text, strlen(l.text), MSG_NOSIGNAL);
    send(TSHI_WIREUP_FD, "\n", 1, MSG_NOSIGNAL);
    live(&l);
    helper_star_close(h);
    helper_folder_remove(h->folder); /* the watcher may be gone */
    return 0;
}

/* Until the server ends. One that is stopped goes on. */
static void attend(const helper *h, pid_t server, int *ended) {
    char words[TSHI_LINE];
    bool told = false;
    for (pid_t n = 0; n == 0 || (n < 0 && errno == EINTR) || WIFSTOPPED(*ended) || WIFCONTINUED(*ended);) {
        n = waitpid(server, ended, WUNTRACED | WCONTINUED);
        if (n == server && WIFSTOPPED(*ended)) kill(server, SIGCONT);
        if (n != server || !WIFCONTINUED(*ended) || told) continue;
        told = true;
        snprintf(words, sizeof words, "tshard-pmix on %s was stopped; it goes on", h->host[h->order.node]);
        say_on_stderr("warning", words);
    }
}

/* Whatever becomes of the server, the ranks are told and nothing is left. */
static int watch(void) {
    static helper h;
    int ended = 0;
    char words[TSHI_LINE];
    if (!take_order(&h)) return 1;
    if (!helper_folder_make(h.folder, sizeof h.folder)) {
        say("tshard-pmix can make no folder in /dev/shm or /tmp");
        return 1;
    }
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_NAME, "tshard-pmix-srv");
        _exit(serve(&h));
    }
    if (server < 0) say(strerror(errno));
    if (server > 0) attend(&h, server, &ended);
    helper_folder_remove(h.folder);
    if (server > 0 && WIFSIGNALED(ended)) {
        snprintf(words, sizeof words, "tshard-pmix on %s, which MPI cannot do without, was ended by signal %d",
                 h.host[h.order.node], WTERMSIG(ended));
        helper_say(&h, words);
    }
    return 0;
}

/* See wireup.h. */
static bool be_woken(void) {
    int flags = fcntl(TSHI_WIREUP_FD, F_GETFL);
    bool done = flags >= 0 && fcntl(TSHI_WIREUP_FD, F_SETSIG, SIGCONT) == 0 &&
                fcntl(TSHI_WIREUP_FD, F_SETOWN, -getpgrp()) == 0 &&
                fcntl(TSHI_WIREUP_FD, F_SETFL, flags | O_ASYNC) == 0;
    if (!done) say(strerror(errno));
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
    /* It is to end with the ranks, and not before them. */
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
