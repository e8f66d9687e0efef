/* The rank's side of the helper process tshard-pmix (wireup.h): starting it, reading its answers, waking it if it is
 * stopped. */
#ifndef TSHI_MPI_HELPER_H
#define TSHI_MPI_HELPER_H

#include "dist/rendezvous/environment.h"
#include "dist/transport/mpi/watcher.h"

/* Writes the helper's path to `out` (size bytes); false: it is not installed. */
bool tshi_helper_find(char *out, size_t size);
/* Starts the helper with `fd` as its end of the stream. Returns when the helper is no longer this rank's child, or
 * at the deadline. */
tsh_status tshi_helper_start(const char *path, int fd, double deadline);

/* Copies the lines received so far; text has TSHI_WIREUP_TEXT bytes. */
void tshi_helper_peek(int stream, char *text);
/* The helper's failure message, cut out of `text`; NULL: it has reported no failure. */
const char *tshi_helper_failure(char *text);
/* Seconds past the deadline in which the helper may still report which ranks are missing; it has the same deadline. */
#define TSHI_HELPER_GRACE 4.0
/* Waits until the lines are complete or the helper reports a failure, but not longer than TSHI_HELPER_GRACE past the
 * deadline. */
tsh_status tshi_helper_wait(int stream, double deadline, char *text);

/* A thread that runs during a call in which MPI waits for the helper without limit. A byte received makes a stopped
 * helper continue, so the thread sends one each second. A helper that is still stopped after the deadline (a debugger
 * holds it) is killed: MPI's call then fails by itself. */
typedef struct tshi_helper_watch {
    int stream, process; /* process: the PID of the helper's server; 0: unknown */
    double since, deadline, warn_every;
    const char *call;
    const tsh_log_sink *log;
    double next_warning;
    tshi_watcher thread;
} tshi_helper_watch;

/* The caller sets stream, since, deadline, warn_every, call and log; text: the lines so far. If no thread can be
 * started, the log warns, and the helper is not watched. tshi_watcher_end(&w->thread) ends the watch. */
void tshi_helper_watch_begin(tshi_helper_watch *w, const char *text);

#endif
