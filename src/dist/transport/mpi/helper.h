/* The helper process tshard-pmix on the rank's side: starting it, reading its answers, waking it when it has been
 * stopped; see wireup.h. */
#ifndef TSHI_MPI_HELPER_H
#define TSHI_MPI_HELPER_H

#include "dist/rendezvous/environment.h"
#include "dist/transport/mpi/watcher.h"

/* Writes the helper's path to out (size bytes); false: there is no helper. */
bool tshi_helper_find(char *out, size_t size);
/* Starts the helper with `fd` as its end of the stream. Returns when the helper is no longer this rank's child, or
 * at the deadline. */
tsh_status tshi_helper_start(const char *path, int fd, double deadline);

/* Copies the lines that have come so far; text has TSHI_WIREUP_TEXT bytes. */
void tshi_helper_peek(int stream, char *text);
/* The helper's message about a failure, cut out of the lines; NULL: there is none. */
const char *tshi_helper_failure(char *text);
/* Seconds past the deadline in which the helper, which has the same one, may still report which ranks are missing. */
#define TSHI_HELPER_GRACE 2.0
/* Waits until the lines are complete, or the helper reports a failure, at most until TSHI_HELPER_GRACE past the
 * deadline. */
tsh_status tshi_helper_wait(int stream, double deadline, char *text);

/* A thread for the time of a call in which MPI waits for the helper without limit. Whatever the helper receives
 * makes it continue after a stop, so the thread sends something now and then. A helper that stays stopped past the
 * deadline, as under a debugger, is killed: MPI then ends by itself. */
typedef struct tshi_helper_watch {
    int stream, process; /* the helper's server, 0: unknown */
    double since, deadline, warn_every;
    const char *call;
    const tsh_log_sink *log;
    double next_warning;
    tshi_watcher thread;
} tshi_helper_watch;

/* stream, since, deadline, warn_every, call and log are set; `text` is the lines so far. Without a thread, which is no
 * error, the helper is not watched. tshi_watcher_end(&w->thread) ends it. */
void tshi_helper_watch_begin(tshi_helper_watch *w, const char *text);

#endif
