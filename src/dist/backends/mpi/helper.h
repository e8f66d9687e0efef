/* tshard-pmix as a rank has to do with it: starting it, its words, and that it goes on; see wireup.h. */
#ifndef TSHI_MPI_HELPER_H
#define TSHI_MPI_HELPER_H

#include "dist/backends/mpi/watcher.h"
#include "dist/bootstrap/environment.h"

/* Its path into out (size bytes); false: there is none. */
bool tshi_helper_find(char *out, size_t size);
/* With `fd` as its end of the stream. Returns once it goes on by itself, or at the deadline. */
tsh_status tshi_helper_start(const char *path, int fd, double deadline);

/* All lines so far, TSHI_WIREUP_TEXT. */
void tshi_helper_look(int stream, char *text);
/* Its words of a failure, cut out of the lines; NULL: there are none. */
const char *tshi_helper_failure(char *text);
/* Waits until the lines are complete, or it says what is wrong; no longer than the deadline. */
tsh_status tshi_helper_wait(int stream, double deadline, char *text);

/* A thread for the time of a call in which MPI waits for the helper without limit. What arrives at the helper makes it
 * go on when it has been stopped, so the thread sends something now and then. A helper that stays stopped past the
 * deadline, as under a debugger, is killed: MPI then ends by itself. */
typedef struct tshi_helper_watch {
    int stream, process; /* the helper's server, 0: unknown */
    double since, deadline, warn_every;
    const char *call;
    const tsh_log *log;
    double next_warning;
    tshi_watcher thread;
} tshi_helper_watch;

/* stream, since, deadline, warn_every, call and log are set; `text` is the lines so far. Without a thread, which is no
 * error, the helper is not watched. tshi_watcher_end(&w->thread) ends it. */
void tshi_helper_watch_begin(tshi_helper_watch *w, const char *text);

#endif
