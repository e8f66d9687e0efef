/* When the ranks of all nodes stop, start again and end. The state table is in launchers.h. */
#define _GNU_SOURCE
#include "launchers.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct run_launchers {
    run_options *options;
    const run_link *guard;
    int signal_fd;
    run_links links;
    int asked;       /* times that a signal has asked this launcher to end */
    bool left;       /* its guard is gone */
    run_order order; /* what this attempt's ranks here are to do */
    int signal;      /* by which the job ends, or 0 */
    bool decided;
    run_message decision;
    char lost[RUN_WORDS / 2]; /* which nodes cannot be reached, or "" */
    /* What node 0 knows of the attempt. */
    bool *stopped; /* [nnodes] the node's ranks have ended */
    int waiting;   /* nodes that have not */
    int cause;     /* the node where a rank failed first; -1: none */
    bool signalled_first, any_failed, any_stopped;
    bool final;          /* no attempt follows */
    run_outcome outcome; /* of the cause */
};

/* --- deciding ----------------------------------------------------------------------------------------------------- */

/* The words for the end of the attempt, and the exit code of a job that ends with it. */
static run_message describe_end(const run_launchers *all) {
    run_message end = {.kind = RUN_END, .node = all->cause};
    run_outcome *o = &end.outcome;
    if (all->signalled_first) {
        if (all->any_failed || all->lost[0]) {
            o->code = 128 + all->signal;
            snprintf(o->text, sizeof o->text, "stopped by signal %d (%s)", all->signal, strsignal(all->signal));
        }
        return end;
    }
    if (all->cause >= 0) *o = all->outcome;
    if (o->failed && !o->unusable && all->options->world_size > 1) {
        tshi_append(o->text, sizeof o->text, "; the others %s", all->any_stopped ? "were stopped" : "have ended");
    }
    if (!all->lost[0]) return end;
    tshi_append(o->text, sizeof o->text, "%s%s; the ranks of all nodes were stopped. Start the job again on all nodes",
                o->text[0] ? "\ntshard-run: " : "", all->lost);
    if (o->code == 0) o->code = 1;
    return end;
}

/* From here on messages are about the next attempt. */
static void begin_attempt(run_launchers *all, int attempt) {
    all->options->attempt = attempt;
    all->order = RUN_GO_ON;
    all->signalled_first = all->any_failed = all->any_stopped = false;
    all->cause = -1;
    all->outcome = (run_outcome){0};
    all->waiting = 1 + all->links.n;
    memset(all->stopped, 0, (size_t)all->options->nnodes * sizeof *all->stopped);
}

static void obey(run_launchers *all, const run_message *m) {
    if (m->kind == RUN_STOP) {
        const run_order order = m->kill ? RUN_KILL : m->signal ? RUN_STOP_BY_SIGNAL : RUN_FAIL;
        if (order > all->order) all->order = order;
        if (m->signal) all->signal = m->signal;
    } else if (m->kind == RUN_START || m->kind == RUN_END) {
        all->decision = *m;
        all->decided = true;
        if (m->kind == RUN_START) begin_attempt(all, m->attempt);
    }
}

static void tell_all(run_launchers *all, const run_message *m) {
    run_links_send(&all->links, -1, m);
    obey(all, m);
}

static void decide(run_launchers *all) {
    const run_options *o = all->options;
    run_message m = describe_end(all);
    if (all->cause >= 0 && !all->final && o->attempt < o->max_restarts) {
        m.kind = RUN_START;
        m.attempt = o->attempt + 1;
        m.most = o->max_restarts;
    }
    tell_all(all, &m);
}

/* A rank of the node has failed, or a signal asks to end. */
static void take_failure(run_launchers *all, int node, const run_message *m) {
    const run_order order = m->kill ? RUN_KILL : m->signal ? RUN_STOP_BY_SIGNAL : RUN_FAIL;
    if (m->signal) {
        all->signalled_first = all->signalled_first || (all->cause < 0 && !all->lost[0]);
        all->final = true;
    } else if (all->cause < 0 && !all->signalled_first && !all->lost[0]) {
        all->cause = node;
    }
    if (order > all->order) tell_all(all, &(run_message){.kind = RUN_STOP, .signal = m->signal, .kill = m->kill});
}

static void take_outcome(run_launchers *all, int node, const run_outcome *o) {
    if (all->stopped[node]) return;
    all->stopped[node] = true;
    all->waiting--;
    all->any_failed = all->any_failed || o->failed;
    all->any_stopped = all->any_stopped || o->stopped_others;
    all->final = all->final || o->unusable;
    if ((o->failed || o->unusable) && all->cause < 0 && !all->signalled_first && !all->lost[0]) all->cause = node;
    if (all->cause == node) all->outcome = *o;
    if (all->waiting == 0) decide(all);
}

static void note_lost(run_launchers *all, const char *text) {
    tshi_append(all->lost, sizeof all->lost, "%s%s", all->lost[0] ? "\ntshard-run: " : "", text);
    all->final = true;
}

/* What node 0, or a launcher without links, does with a message of the node. */
static void decide_on(run_launchers *all, int node, const run_message *m) {
    if (all->decided && all->decision.kind == RUN_END) return;
    switch (m->kind) {
    case RUN_FAILED: take_failure(all, node, m); break;
    case RUN_STOPPED: take_outcome(all, node, &m->outcome); break;
    case RUN_LOST:
        note_lost(all, m->outcome.text);
        if (all->order < RUN_FAIL) tell_all(all, &(run_message){.kind = RUN_STOP});
        take_outcome(all, node, &(run_outcome){0});
        break;
    default: break; /* STOP, START and END come from node 0 only */
    }
}

/* run_message_fn */
static void handle(void *user, int node, const run_message *m) {
    run_launchers *all = user;
    if (all->options->node_rank == 0) {
        decide_on(all, node, m);
    } else if (m->kind == RUN_LOST) {
        note_lost(all, m->outcome.text);
        if (all->order < RUN_FAIL) all->order = RUN_FAIL;
    } else {
        obey(all, m);
    }
}

static void report(run_launchers *all, const run_message *m) {
    const int node = all->options->node_rank;
    if (all->links.n == 0 || node == 0)
        decide_on(all, node, m);
    else
        run_links_send(&all->links, 0, m);
}

void run_launchers_failed(run_launchers *all) {
    const int node = all->options->node_rank;
    if (node != 0 && all->links.n > 0 && all->order == RUN_GO_ON) all->cause = node; /* for when node 0 is lost */
    report(all, &(run_message){.kind = RUN_FAILED});
}

bool run_launchers_signal(run_launchers *all, int number) {
    all->asked++;
    all->signal = all->signal ? all->signal : number;
    report(all, &(run_message){.kind = RUN_FAILED, .signal = number, .kill = all->asked > 1});
    return all->asked > 1;
}

void run_launchers_leave(run_launchers *all) {
    all->left = true;
}

run_order run_launchers_serve(run_launchers *all, int *number) {
    run_links_serve(&all->links, handle, all);
    *number = all->signal;
    return all->order;
}

/* --- between two attempts ----------------------------------------------------------------------------------------- */

static void wait_for_others(run_launchers *all) {
    struct signalfd_siginfo info;
    struct pollfd fds[3] = {{.fd = all->signal_fd, .events = POLLIN},
                            {.fd = all->guard->life, .events = POLLIN},
                            {.fd = all->links.events, .events = POLLIN}};
    poll(fds, 3, (int)(1e3 * run_links_patience(&all->links)) + 1);
    while (read(all->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (run_asks_to_end((int)info.ssi_signo)) run_launchers_signal(all, (int)info.ssi_signo);
    }
    if (fds[1].revents) all->left = true;
    run_links_serve(&all->links, handle, all);
}

/* True if this launcher no longer waits for the others: its guard has ended, a second signal has asked to end, or the
 * link to node 0 is lost. */
static bool is_alone(const run_launchers *all) {
    return all->left || all->asked > 1 || (all->options->node_rank != 0 && all->lost[0]);
}

static void decide_alone(run_launchers *all, const run_outcome *o) {
    if (all->cause == all->options->node_rank) all->outcome = *o;
    all->any_stopped = all->any_stopped || o->stopped_others;
    all->any_failed = all->any_failed || o->failed || all->links.n > 0;
    if (all->options->node_rank != 0 && all->links.n > 0) all->signalled_first = all->signal != 0;
    all->decision = describe_end(all);
}

bool run_launchers_again(run_launchers *all, const run_outcome *outcome, int *code) {
    if (!all->left) report(all, &(run_message){.kind = RUN_STOPPED, .outcome = *outcome});
    while (!all->decided && !is_alone(all)) wait_for_others(all);
    if (!all->decided) decide_alone(all, outcome);
    const run_message *m = &all->decision;
    const run_outcome *o = &m->outcome;
    const char *text = o->text + (m->node == all->options->node_rank ? o->shown : 0);
    if (*text) run_say("%s", text);
    *code = o->code ? o->code : outcome->code;
    if (m->kind != RUN_START) return false;
    run_say("starting all ranks again, %d of %d times", m->attempt, m->most);
    all->decided = false;
    return true;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

run_launchers *run_launchers_open(run_options *options, const run_link *guard, int *code) {
    run_launchers *all = calloc(1, sizeof *all);
    *code = 1;
    if (all) {
        *all = (run_launchers){.options = options, .guard = guard, .links = {.events = -1}};
        all->stopped = calloc((size_t)options->nnodes, sizeof *all->stopped);
        all->signal_fd = signalfd(-1, &guard->signals->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    }
    if (!all || !all->stopped || all->signal_fd < 0) {
        run_say("cannot start: %s", strerror(errno));
        return NULL;
    }
    if (options->nnodes > 1 && options->max_restarts > 0) {
        *code = run_links_open(&all->links, options, guard, all->signal_fd);
        if (*code != 0) return NULL;
    }
    begin_attempt(all, 0);
    return all;
}

void run_launchers_close(run_launchers *all) {
    run_links_close(&all->links);
    close(all->signal_fd);
    free(all->stopped);
    free(all);
}

int run_launchers_fd(const run_launchers *all) {
    return all->links.events;
}

double run_launchers_patience(const run_launchers *all) {
    return all->links.n > 0 ? run_links_patience(&all->links) : -1;
}
