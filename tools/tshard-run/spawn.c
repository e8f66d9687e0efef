/* Starting one rank. */
#define _GNU_SOURCE
#include "base/cpu.h"
#include "base/hash.h"
#include "base/settings.h"
#include "run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The kernel names a free port; it is unlikely that another process takes it before rank 0 does. 0 when it fails. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int port = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    if (bind(fd, (struct sockaddr *)&address, size) == 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0) {
        port = ntohs(address.sin_port);
    }
    close(fd);
    return port;
}

/* Launchers on several machines cannot agree on a secret: the user sets it on all of them. On one machine a user sets
 * it for ranks that are to join the job. */
static bool take_token(run_plan *plan) {
    unsigned char bytes[16];
    if (tshi_setting_text(TSHI_SETTING_TOKEN, plan->token, sizeof plan->token) != TSH_OK) {
        run_say("%s", tsh_error_message());
        return false;
    }
    if (plan->token[0] || plan->options->nnodes > 1 || plan->options->join) return true;
    if (!tshi_random_bytes(bytes, sizeof bytes)) {
        run_say("no random numbers for the job's token: %s", strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(plan->token + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

bool run_plan_prepare(run_plan *plan) {
    if (!take_token(plan)) return false;
    if (plan->options->join) return true;
    plan->port = plan->options->port;
    if (plan->port == 0) plan->port = plan->options->nnodes > 1 ? RUN_DEFAULT_PORT : free_port();
    if (plan->port == 0) {
        run_say("no free port on 127.0.0.1: %s", strerror(errno));
        return false;
    }
    return true;
}

/* --- in the child ------------------------------------------------------------------------------------------------- */

static bool set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1) == 0;
}

static bool begins_with_any(const char *text, const char *const *prefixes) {
    while (*prefixes && strncmp(text, *prefixes, strlen(*prefixes)) != 0) prefixes++;
    return *prefixes != NULL;
}

/* A launcher of MPI that has started tshard-run, once on each node, has numbered it: MPI would take that for a rank's
 * number. */
static void forget_outer_launcher(void) {
    static const char *const kept[] = {"PMIX_MCA_", NULL};
    static const char *const gone[] = {
        "PMIX_", "PMI_", "MPI_LOCALRANKID=", "MPI_LOCALNRANKS=", "MV2_COMM_WORLD_", NULL};
    static const char *const gone_of_mpirun[] = {"OMPI_COMM_WORLD_", "OMPI_MCA_orte_",      "OMPI_MCA_ess",
                                                 "OMPI_MCA_pmix=",   "OMPI_UNIVERSE_SIZE=", NULL};
    const bool mpirun = getenv("OMPI_COMM_WORLD_RANK") != NULL;
    for (char **variable = environ; *variable;) {
        char name[RUN_NAME_SIZE];
        bool goes = begins_with_any(*variable, gone) && !begins_with_any(*variable, kept);
        goes = goes || (mpirun && begins_with_any(*variable, gone_of_mpirun));
        int length = snprintf(name, sizeof name, "%.*s", (int)strcspn(*variable, "="), *variable);
        if (goes && length < (int)sizeof name && unsetenv(name) == 0)
            variable = environ;
        else
            variable++;
    }
}

/* A rank that joins learns from the job which number it has. */
static bool set_join(const run_options *o) {
    static const char *const gone[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) unsetenv(gone[i]);
    return setenv("TSHARD_JOIN", o->join, 1) == 0 && setenv("TSHARD_SILENCE", "5", 0) == 0;
}

/* torchrun's variables, and the job's token. */
static bool set_environment(const run_plan *plan, int index) {
    const run_options *o = plan->options;
    const int rank = o->first_rank + index;
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"RANK", rank},
                   {"ROLE_RANK", rank},
                   {"LOCAL_RANK", index},
                   {"WORLD_SIZE", o->world_size},
                   {"ROLE_WORLD_SIZE", o->world_size},
                   {"LOCAL_WORLD_SIZE", o->ranks},
                   {"GROUP_RANK", o->node_rank},
                   {"GROUP_WORLD_SIZE", o->nnodes},
                   {"TORCHELASTIC_RESTART_COUNT", o->attempt},
                   {"TSHARD_RESTART", o->attempt},
                   {"TORCHELASTIC_MAX_RESTARTS", o->max_restarts},
                   {"MASTER_PORT", plan->port}};
    const char *run_id = o->run_id ? o->run_id : o->nnodes == 1 ? plan->token : "none";
    bool done = true;
    forget_outer_launcher();
    if (o->join) return set_join(o) && (!o->min_ranks || set_number("TSHARD_MIN_RANKS", o->min_ranks));
    unsetenv("TSHARD_JOIN"); /* of a rank that has started this launcher */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        done = done && set_number(numbers[i].name, numbers[i].value);
    }
    done = done && setenv("TORCHELASTIC_RUN_ID", run_id, 1) == 0 && setenv("ROLE_NAME", "default", 1) == 0;
    /* It would say that a store of torchrun listens at MASTER_PORT. */
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    if (o->min_ranks) done = done && set_number("TSHARD_MIN_RANKS", o->min_ranks);
    if (o->min_ranks) done = done && setenv("TSHARD_SILENCE", "5", 0) == 0;
    done = done && setenv("MASTER_ADDR", o->master_addr ? o->master_addr : "127.0.0.1", 1) == 0;
    return done && (plan->token[0] ? setenv("TSHARD_TOKEN", plan->token, 1) : unsetenv("TSHARD_TOKEN")) == 0;
}

/* A rank sees its own cores alone once it is pinned, so its number of threads is worked out here. */
static bool set_threads(const run_plan *plan, int total) {
    int share = plan->options->bind == RUN_BIND_LIST ? plan->chosen_count : total / plan->options->ranks;
    char text[16];
    if (plan->options->ranks == 1 || total == 0) return true;
    snprintf(text, sizeof text, "%d", share > 0 ? share : 1);
    return setenv("OMP_NUM_THREADS", text, 0) == 0 && setenv("TSHARD_BLAS_THREADS", text, 0) == 0;
}

static bool set_descriptors(int input, int output, int error) {
    /* The sources are above 2 (guard.c sees to it), so no dup2 overwrites one that is still needed. */
    return dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 && dup2(error, STDERR_FILENO) >= 0;
}

/* Never returns. A failure goes to the supervisor as an errno through `report`, which exec closes. */
static void become_rank(const run_plan *plan, int rank, int output, int error, int report) {
    bool is_first = rank + plan->options->first_rank == 0 && !plan->options->join;
    int input = is_first ? plan->link->input : plan->null_input;
    bool ready = setpgid(0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
    if (getppid() != plan->supervisor) _exit(1); /* the supervisor has died */
    ready = ready && set_environment(plan, rank) && set_threads(plan, tshi_granted_cores(NULL, 0));
    if (plan->cores) run_cores_pin(plan->cores, plan->core_count, plan->chosen);
    ready = ready && set_descriptors(input, output, error);
    if (ready) {
        run_signals_restore(plan->link->signals);
        setrlimit(RLIMIT_NOFILE, &plan->link->descriptors);
        execvp(plan->options->command[0], plan->options->command);
    }
    int number = errno;
    ssize_t ignored = write(report, &number, sizeof number);
    (void)ignored;
    _exit(RUN_NOT_FOUND_EXIT);
}

/* --- in the supervisor -------------------------------------------------------------------------------------------- */

static void close_all(int *fds, int n) {
    for (int i = 0; i < n; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
}

static int start_failed(const run_plan *plan, int number) {
    run_say("cannot run '%s': %s", plan->options->command[0], strerror(number));
    return number == ENOENT ? RUN_NOT_FOUND_EXIT : RUN_NOT_USABLE_EXIT;
}

/* True when the job has to end: such a signal is pending, or the guard has ended. The main loop then finds out why. */
static bool is_to_end(const run_link *link) {
    struct pollfd life = {.fd = link->life, .events = POLLIN};
    sigset_t pending;
    bool found = poll(&life, 1, 0) > 0;
    sigpending(&pending);
    for (int i = 1; i < NSIG; i++) found = found || (run_asks_to_end(i) && sigismember(&pending, i) == 1);
    return found;
}

/* 0 once the program runs, or what kept it from running. A child that is stopped before that goes on; one that hangs is
 * killed when the job is to end. */
static int exec_result(const run_plan *plan, int report, pid_t pid) {
    int number = 0;
    ssize_t got;
    for (struct pollfd told = {.fd = report, .events = POLLIN}; poll(&told, 1, 50) <= 0;) {
        kill(pid, is_to_end(plan->link) ? SIGKILL : SIGCONT);
    }
    do {
        got = read(report, &number, sizeof number);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof number) return 0;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return number ? number : EIO;
}

int run_spawn(const run_plan *plan, int index, run_rank *rank) {
    int fds[6] = {-1, -1, -1, -1, -1, -1}; /* pairs for stdout, stderr, exec's result */
    int number = 0;
    *rank = (run_rank){.pid = -1, .pidfd = -1, .stdout_fd = -1, .stderr_fd = -1, .ended = true};
    for (int i = 0; i < 3; i++) {
        if (pipe2(fds + 2 * i, O_CLOEXEC) == 0) continue;
        number = errno;
        goto fail;
    }
    pid_t pid = fork();
    if (pid < 0) {
        number = errno;
        goto fail;
    }
    if (pid == 0) become_rank(plan, index, fds[1], fds[3], fds[5]);
    setpgid(pid, pid); /* the child does it too: either may be first */
    close(fds[5]);
    fds[5] = -1;
    number = exec_result(plan, fds[4], pid);
    if (number) goto fail;
    rank->pid = pid;
    rank->ended = false;
    rank->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    rank->stdout_fd = fds[0];
    rank->stderr_fd = fds[2];
    fds[0] = fds[2] = -1;
    close_all(fds, 6);
    return 0;
fail:
    close_all(fds, 6);
    return start_failed(plan, number);
}
