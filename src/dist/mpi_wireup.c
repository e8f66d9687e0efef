/* MPI for ranks that no launcher of MPI has started: they have met, and tshard-pmix tells MPI of them; see wireup.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/channel.h"
#include "dist/mpi.h"
#include "dist/rendezvous.h"
#include "dist/wireup.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* What the first rank of a machine knows that the tool has to. */
typedef struct wiring {
    const tshi_settings *settings;
    const tshi_roster *roster;
    const tsh_allocator *allocator;
    double deadline;
} wiring;

/* --- the tool ----------------------------------------------------------------------------------------------------- */

/* Beside the library or the program that this code is in, where an installation or a build has it from there, or on
 * PATH. */
static bool find_tool(char *out, size_t size) {
    static const char *const folders[] = {"", "../bin/", "../../bin/"};
    Dl_info here;
    char self[TSHI_PATH_SIZE] = "";
    const char *path = tshi_variable("PATH");
    if (dladdr(folders, &here) == 0) here.dli_fname = NULL;
    ssize_t n = here.dli_fname && here.dli_fname[0] == '/' ? snprintf(self, sizeof self, "%s", here.dli_fname)
                                                           : readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = n > 0 && (size_t)n < sizeof self ? strrchr(self, '/') : NULL;
    for (size_t i = 0; slash && i < sizeof folders / sizeof *folders; i++) {
        slash[1] = '\0';
        snprintf(out, size, "%s%s%s", self, folders[i], TSHI_WIREUP_TOOL);
        if (access(out, X_OK) == 0) return true;
    }
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        snprintf(out, size, "%.*s/%s", length, path, TSHI_WIREUP_TOOL);
        if (length > 0 && access(out, X_OK) == 0) return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* It leaves at once, its child goes on: nobody has to wait for that. */
static tsh_status start_tool(const char *path, int fd) {
    posix_spawn_file_actions_t actions;
    char *arguments[] = {(char *)(uintptr_t)TSHI_WIREUP_TOOL, NULL};
    pid_t pid;
    int error = posix_spawn_file_actions_init(&actions);
    if (error) return tshi_fail_errno(error, "world_init: posix_spawn");
    error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!error) error = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&actions, fd, TSHI_WIREUP_FD);
    if (!error) error = posix_spawn(&pid, path, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) return tshi_fail_errno(error, "world_init: starting %s", path);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return TSH_OK;
}

static tsh_status give_order(const wiring *w, const tshi_meeting *meeting, int fd) {
    const tshi_roster *roster = w->roster;
    tshi_wireup_order order = {.magic = TSHI_WIREUP_MAGIC,
                               .version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR, TSH_VERSION_PATCH},
                               .bytes = sizeof order,
                               .settings = *w->settings,
                               .seconds = w->deadline - tshi_clock(),
                               .node = roster->node[roster->rank],
                               .nodes = roster->nodes,
                               .ranks = roster->size,
                               .here = meeting->size};
    bool good = tshi_dial_write(fd, &order, sizeof order, w->deadline) &&
                tshi_dial_write(fd, roster->node, (size_t)roster->size * sizeof *roster->node, w->deadline) &&
                tshi_dial_write(fd, roster->host, (size_t)roster->nodes * sizeof *roster->host, w->deadline);
    for (int i = 0; i < meeting->size && good; i++) {
        int32_t process = (int32_t)meeting->process[i];
        good = tshi_dial_write(fd, &process, sizeof process, w->deadline);
    }
    return good ? TSH_OK : tshi_fail_errno(errno, "world_init: telling %s who the ranks are", TSHI_WIREUP_TOOL);
}

/* --- what it says ------------------------------------------------------------------------------------------------- */

/* All lines so far. */
static void look(int fd, char text[TSHI_WIREUP_TEXT]) {
    ssize_t n = recv(fd, text, TSHI_WIREUP_TEXT - 1, MSG_PEEK | MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
}

/* Its words of a failure, cut out of the lines; NULL: there are none. */
static const char *failure_in(char *text) {
    char *line = text[0] == '!' ? text : strstr(text, "\n!");
    if (!line) return NULL;
    line += 1 + (line[0] == '\n');
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static bool is_complete(const char *text) {
    return strstr(text, "\n\n") != NULL;
}

static tsh_status wait_until_ready(int fd, double deadline, char text[TSHI_WIREUP_TEXT]) {
    const double grace = 2.0; /* it has the same deadline, and more to tell */
    for (;;) {
        struct pollfd p = {.fd = fd};
        bool gone = poll(&p, 1, 5) > 0 && p.revents & POLLHUP;
        look(fd, text);
        /* Then the others are about to start MPI: so does this rank, whatever is wrong by now. */
        if (is_complete(text)) return TSH_OK;
        const char *words = failure_in(text);
        if (words) return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s", words);
        if (gone) return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s has ended without a word", TSHI_WIREUP_TOOL);
        if (tshi_clock() > deadline + grace) {
            return tshi_fail(TSH_ERR_TIMEOUT, "world_init: %s does not say anything", TSHI_WIREUP_TOOL);
        }
    }
}

/* tshi_meeting.make of a machine's first rank: the end of the stream that its ranks share. */
static int make_stream(const tshi_meeting *meeting) {
    const wiring *w = meeting->user;
    char path[TSHI_PATH_SIZE + 64], hosts[TSHI_LINE];
    int ends[2];
    if (!find_tool(path, sizeof path)) {
        return -(int)tshi_fail(
            TSH_ERR_UNSUPPORTED,
            "world_init: the ranks are on %d machine%s (%s), no launcher of MPI has started them, and %s, "
            "which does then what mpirun or srun would, is neither beside tshard nor on PATH: it is "
            "built where PMIx is found",
            w->roster->nodes, w->roster->nodes > 1 ? "s" : "", tshi_roster_hosts(w->roster, hosts, sizeof hosts),
            TSHI_WIREUP_TOOL);
    }
    char *text = tshi_calloc(w->allocator, TSHI_WIREUP_TEXT, 1);
    if (!text) return -(int)TSH_ERR_MEMORY;
    tsh_status status = TSH_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        status = tshi_fail_errno(errno, "world_init: socketpair");
        ends[0] = ends[1] = -1;
    }
    if (status == TSH_OK) status = start_tool(path, ends[1]);
    tshi_dial_close(&ends[1], 1);
    if (status == TSH_OK) fcntl(ends[0], F_SETFL, O_NONBLOCK);
    if (status == TSH_OK) status = give_order(w, meeting, ends[0]);
    if (status == TSH_OK) status = wait_until_ready(ends[0], w->deadline, text);
    tshi_free(w->allocator, text);
    if (status == TSH_OK) return ends[0];
    tshi_dial_close(&ends[0], 1);
    return -(int)status;
}

/* --- variables ---------------------------------------------------------------------------------------------------- */

/* Sets those in `text` that the user has not, but for PMIx' own; the others are made empty in it. This rank's number is
 * not among them. */
static bool set_variables(char *text, int rank) {
    char number[16];
    bool good = true;
    snprintf(number, sizeof number, "%d", rank);
    for (char *line = text; *line && *line != '\n'; line += strlen(line) + 1) {
        line[strcspn(line, "\n")] = '\0';
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = '\0';
        bool own = !strncmp(line, "PMIX_", 5);
        if (!strcmp(line, "PMIX_RANK") || (!own && tshi_variable(line)))
            memset(line, ' ', strlen(line));
        else
            good = setenv(line, equals + 1, 1) == 0 && good;
        *equals = '=';
    }
    return setenv("PMIX_RANK", number, 1) == 0 && good;
}

/* They are MPI's alone: another world, or a program that this one starts, would take them for a launcher's. */
static void unset_variables(char *text) {
    for (char *line = text; *line && *line != '\n'; line += strlen(line) + 1) {
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = '\0';
        if (line[0] != ' ') unsetenv(line);
        *equals = '=';
    }
    unsetenv("PMIX_RANK");
}

/* --- the ranks ---------------------------------------------------------------------------------------------------- */

/* The ranks of this machine, as a world of their own. */
static tsh_status share_stream(const wiring *w, int *out) {
    static const unsigned char purpose[] = "mpi";
    const tshi_roster *roster = w->roster;
    tshi_settings here = *w->settings;
    here.rank = here.size = 0;
    for (int i = 0; i < roster->size; i++) {
        if (roster->node[i] != roster->node[roster->rank]) continue;
        here.rank += i < roster->rank;
        here.size++;
    }
    tshi_hmac(w->settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, "", 0, here.key);
    return tshi_rendezvous(&here, NULL, w->allocator, w->deadline, make_stream, w, out);
}

/* MPI_Init returns even when other ranks have not come: the tool lets it, and says so here. */
static tsh_status start_mpi(int fd, int rank, char text[TSHI_WIREUP_TEXT]) {
    int32_t number = rank;
    look(fd, text);
    bool set = set_variables(text, rank);
    tsh_status status = set ? tshi_mpi_start() : tshi_fail(TSH_ERR_MEMORY, "world_init: no room for MPI's variables");
    unset_variables(text);
    ssize_t ignored = send(fd, &number, sizeof number, MSG_NOSIGNAL);
    (void)ignored; /* where the tool is gone, so are its clients */
    if (status != TSH_OK) return status;
    look(fd, text);
    const char *words = failure_in(text);
    if (!words) return TSH_OK;
    tshi_mpi_distrust();
    return tshi_fail(TSH_ERR_PEER, "world_init: %s", words);
}

static tsh_status wire_up(const wiring *w) {
    int fd = -1; /* open as long as this process lives: the tool waits for that to end */
    char *text = tshi_calloc(w->allocator, TSHI_WIREUP_TEXT, 1);
    tsh_status status = text ? share_stream(w, &fd) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = start_mpi(fd, w->roster->rank, text);
    tshi_free(w->allocator, text);
    return status;
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static tsh_status compare(const tshi_roster *roster) {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == roster->rank && size == roster->size) return TSH_OK;
    return tshi_fail(
        TSH_ERR_STATE,
        "world_init: this is rank %d of %d, but rank %d of %d of MPI, which starts once in a process and keeps "
        "its ranks",
        roster->rank, roster->size, rank, size);
}

#ifdef OPEN_MPI
static const bool takes_pmix = true;
#else
static const bool takes_pmix = false;
#endif

tsh_status tshi_mpi_connect(const tsh_world_config *config, const tshi_roster *roster, const tsh_allocator *allocator,
                            double deadline, tshi_settings *settings) {
    int initialized = 0, finalized = 0;
    char hosts[TSHI_LINE];
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    tsh_status status = TSH_OK;
    if (!initialized && !finalized && !takes_pmix) {
        return tshi_fail(
            TSH_ERR_UNSUPPORTED,
            "world_init: the ranks are on %d machine%s (%s); those that no launcher of MPI has started need a "
            "build with Open MPI, and this one has another: start them by its mpirun, or by srun",
            roster->nodes, roster->nodes > 1 ? "s" : "", tshi_roster_hosts(roster, hosts, sizeof hosts));
    }
    wiring w = {settings, roster, allocator, deadline};
    if (!initialized && !finalized) status = wire_up(&w);
    if (status == TSH_OK && !finalized) status = compare(roster);
    return status == TSH_OK ? tshi_mpi_enter(config, settings) : status;
}
