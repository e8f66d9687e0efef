#include "dist/transport/mpi/helper.h"
#include "base/number.h"
#include "dist/control/wait_graph.h"
#include "dist/transport/mpi/wireup.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Seconds between two messages that wake the helper. */
#define WAKE_EVERY 1.0
/* Seconds past the deadline in which the helper may report it; the helper has the same deadline. */
#define LAST_WORDS 8.0

/* --- starting the helper ------------------------------------------------------------------------------------------ */

/* Searches the folder of the library or program that contains this code, the helper's folder relative to it in an
 * installation or a build, then PATH. */
bool tshi_helper_find(char *out, size_t size) {
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

/* Waits until the started process exits: its child is the helper. While it is this rank's own child, waitpid reports if
 * it is stopped, and it is continued. */
static tsh_status wait_until_away(pid_t pid, double deadline) {
    for (double pause = 50e-6;; pause = pause < 5e-3 ? 2 * pause : pause) {
        int status = 0;
        pid_t n = waitpid(pid, &status, WNOHANG | WUNTRACED);
        if (n == pid && WIFSTOPPED(status)) kill(pid, SIGCONT);
        if ((n == pid && !WIFSTOPPED(status)) || (n < 0 && errno != EINTR)) return TSH_OK;
        if (tshi_clock() >= deadline) break;
        tshi_sleep(pause);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return tshi_fail(TSH_ERR_TIMEOUT, "world_init: %s has not started within the time for it", TSHI_WIREUP_TOOL);
}

tsh_status tshi_helper_start(const char *path, int fd, double deadline) {
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
    return wait_until_away(pid, deadline);
}

/* --- the helper's answers ----------------------------------------------------------------------------------------- */

void tshi_helper_peek(int stream, char *text) {
    ssize_t n = recv(stream, text, TSHI_WIREUP_TEXT - 1, MSG_PEEK | MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
}

const char *tshi_helper_failure(char *text) {
    char *line = text[0] == '!' ? text : strstr(text, "\n!");
    if (!line) return NULL;
    line += 1 + (line[0] == '\n');
    line[strcspn(line, "\n")] = '\0';
    return line;
}

/* Sends rank -1, which the helper ignores. The arrival sends it SIGCONT (wireup.h), so that a stopped helper
 * continues. */
static void wake(int stream) {
    const int32_t no_rank = -1;
    ssize_t ignored = send(stream, &no_rank, sizeof no_rank, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

tsh_status tshi_helper_wait(int stream, double deadline, char *text) {
    double next_wake = tshi_clock() + WAKE_EVERY;
    for (;;) {
        struct pollfd p = {.fd = stream};
        bool gone = poll(&p, 1, 5) > 0 && p.revents & POLLHUP;
        tshi_helper_peek(stream, text);
        /* After this answer the peers start MPI, which waits for this rank: so this rank starts MPI too, despite a
         * failure. */
        if (strstr(text, "\n\n")) return TSH_OK;
        const char *words = tshi_helper_failure(text);
        if (words) return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s", words);
        if (gone) return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s exited without a message", TSHI_WIREUP_TOOL);
        double now = tshi_clock();
        if (now > deadline + TSHI_HELPER_GRACE) {
            return tshi_fail(TSH_ERR_TIMEOUT, "world_init: %s does not answer", TSHI_WIREUP_TOOL);
        }
        if (now < next_wake) continue;
        wake(stream);
        next_wake = now + WAKE_EVERY;
    }
}

/* --- watching the helper ------------------------------------------------------------------------------------------ */

static bool is_gone(int stream) {
    struct pollfd p = {.fd = stream};
    return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

/* tshi_watcher.look: wakes the helper, warns while it is stopped, and kills it after the deadline. */
static void look_after(void *user) {
    tshi_helper_watch *w = user;
    double now = tshi_clock(), end = w->deadline + LAST_WORDS;
    wake(w->stream);
    if (now < w->next_warning || is_gone(w->stream) || !tshi_process_stopped(w->process)) return;
    if (now < end) {
        tshi_log(w->log, TSH_LOG_WARNING, "%s waits for %s, process %d, which is stopped", w->call, TSHI_WIREUP_TOOL,
                 w->process);
        w->next_warning = fmin(now + fmax(now - w->since, w->warn_every), end);
        return;
    }
    tshi_log(w->log, TSH_LOG_ERROR, "%s: %s, process %d, stays stopped: it is killed, and MPI ends", w->call,
             TSHI_WIREUP_TOOL, w->process);
    kill(w->process, SIGKILL);
    w->next_warning = INFINITY;
}

/* The server's PID in a line "@1234", or 0. */
static int process_in(const char *text) {
    const char *line = text[0] == '@' ? text : strstr(text, "\n@");
    int64_t process;
    if (!line) return 0;
    line += 1 + (line[0] == '\n');
    return tshi_parse_part(line, strcspn(line, "\n"), 1, INT_MAX, &process) ? (int)process : 0;
}

void tshi_helper_watch_begin(tshi_helper_watch *w, const char *text) {
    w->process = process_in(text);
    w->next_warning = w->since + w->warn_every;
    if (tshi_watcher_begin(&w->thread, WAKE_EVERY, look_after, w)) return;
    tshi_log(w->log, TSH_LOG_WARNING, "%s: no thread to watch %s", w->call, TSHI_WIREUP_TOOL);
}
