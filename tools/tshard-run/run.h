/* tshard-run: N ranks of a program on this machine, and as many on each of the other machines of the job.
 *
 * Two processes share the work, so that no death of either leaves anything behind:
 *   guard       the process that the user started: it takes the user's signals and terminal, and outlives the
 *   supervisor  its child, in a process group of its own: it starts the ranks, passes their output on, ends them.
 * Ranks die with the supervisor (PR_SET_PDEATHSIG). The supervisor ends everything when the guard is gone; the guard
 * does when the supervisor is. Both are subreapers: what a rank leaves behind becomes their child and is found. When
 * both are killed, a third process, the keeper, kills the ranks' process groups: what a rank's shell has started. */
#ifndef RUN_H
#define RUN_H

#include "base/base.h"
#include "base/clock.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#define RUN_USAGE_EXIT      2
#define RUN_NOT_FOUND_EXIT  127
#define RUN_NOT_USABLE_EXIT 126
#define RUN_DEFAULT_PORT    29500
#define RUN_MAX_RANKS       1024
#define RUN_MAX_NODES       1024
#define RUN_NAME_SIZE       256
#define RUN_LONGEST_LOG_DIR 3584 /* and the names of folders and file in it, in 4096 */

typedef enum run_bind { RUN_BIND_AUTO = 0, RUN_BIND_CORES, RUN_BIND_NODES, RUN_BIND_LIST, RUN_BIND_NONE } run_bind;

typedef struct run_node {
    char name[RUN_NAME_SIZE];
    int slots; /* 0: as many as everywhere */
} run_node;

enum { RUN_TO_SCREEN = 0, RUN_STDOUT_TO_FILE = 1, RUN_STDERR_TO_FILE = 2 };

typedef struct run_options {
    int ranks; /* here */
    int nnodes, node_rank;
    run_node nodes[RUN_MAX_NODES]; /* [nodes_listed] */
    int nodes_listed, own_slots;
    int world_size, first_rank; /* of all machines; rank of the first one here */
    const char *master_addr;    /* NULL: 127.0.0.1, or the first node */
    const char *run_id;         /* the same on all nodes */
    const char *log_dir;        /* NULL: no files */
    int redirects;              /* what goes to files alone */
    int max_restarts;
    int min_ranks;    /* the job goes on while so many live; 0: it ends with the first that fails */
    const char *join; /* HOST:PORT of the running job that the ranks join; NULL: they are a job */
    int attempt;      /* restarts so far */
    run_bind bind;
    const char *bind_list; /* of RUN_BIND_LIST: sets of cores, "0-3:4,6" */
    bool report_bindings;
    double grace; /* seconds between TERM and KILL */
    int port;     /* MASTER_PORT; 0: one that is free, on several nodes 29500 */
    bool prefix;
    char **command; /* ends with NULL */
    bool planned;   /* tshard-plan takes over, with this command line, which ends with NULL */
    char **plan;
    int plan_words; /* options in it */
} run_options;

/* options.c: reads the command line. Returns -1 to go on, or the code to exit with (after help or a usage error). */
int run_options_parse(int argc, char **argv, run_options *options);
/* foreign.c: what to write instead of another launcher's option that tshard-run does not have, or NULL. */
const char *run_foreign_option(const char *word);
/* nodes.c: HOST, HOST:PORT or [IPV6]:PORT; the text is split where it stands. False when it is none of these. */
bool run_endpoint_split(char *text, const char **host, int *port);
/* "a,b,c"; false when it is no list of names. */
bool run_nodes_from_list(run_options *options, const char *list);
/* A name a line, with "slots=N" or ":N". 0, the number of a line that makes no sense, or -1 with errno set. */
int run_nodes_from_file(run_options *options, const char *path);
/* The first listed node that is this machine, -1: none. *others: further nodes that are this machine too. */
int run_nodes_find_self(const run_options *options, int *others);
/* World size, first rank and ranks here, once node_rank is known. */
void run_nodes_count(run_options *options);

/* --- signals.c ---------------------------------------------------------------------------------------------------- */

typedef struct run_signals {
    sigset_t taken;            /* blocked, and read through a signalfd; none that was ignored at the start */
    sigset_t mask_found;       /* blocked at the start */
    sigset_t ignored_at_start; /* by nohup, or by a shell that started this in the background */
} run_signals;

/* To be called first: until then a signal or a full disk ends this process as any other. */
void run_signals_open(run_signals *signals);
/* Those of `taken` are pending from here on, for a signalfd. */
void run_signals_block(run_signals *signals);
/* INT, TERM, HUP or QUIT. */
bool run_asks_to_end(int number);
/* In a rank's process: all is as it was at the start. */
void run_signals_restore(const run_signals *signals);

/* --- write.c: no reader that has stopped keeps this program waiting ----------------------------------------------- */

/* Writes what fd takes within a moment: the number of bytes, 0 for none, -1 with errno set. */
ssize_t run_write(int fd, const char *text, size_t size);
/* "tshard-run: ..." and a newline to stderr. What stderr does not take within a second is dropped. */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What is in stdout's buffer goes out: 0, or 1 having said why it cannot. */
int run_flush_stdout(void);

/* --- guard and supervisor ----------------------------------------------------------------------------------------- */

/* The guard's descriptors for its supervisor. */
typedef struct run_link {
    int input;  /* rank 0's stdin */
    int life;   /* reads end of file when the guard is gone */
    int keeper; /* writing end */
    const run_signals *signals;
    struct rlimit descriptors; /* at the start, which ranks get */
} run_link;

/* keeper.c: starts the keeper, which reads from fd. Its process, or -1. `closed`: what it must not keep open, ended by
 * -1. */
pid_t run_keeper_start(int fd, pid_t supervisor, const int *closed);
/* Tells it of a rank that has been started; 0: all processes of the job have ended. */
void run_tell_keeper(const run_link *link, pid_t rank);
/* The job is over. */
void run_keeper_end(pid_t keeper);

/* guard.c: runs the job under a supervisor; returns the exit code. */
int run_guard(run_options *options, run_signals *signals);
/* job.c: the supervisor's life; returns the exit code. */
int run_job(run_options *options, const run_link *link);

/* --- starting: spawn.c, cores.c ----------------------------------------------------------------------------------- */

/* A core that this process may use (a hardware thread, by the kernel's number), and its memory node. */
typedef struct run_core {
    int id, node;
} run_core;

typedef struct run_plan {
    const run_options *options;
    const run_link *link;
    char token[RUN_NAME_SIZE];
    int port;
    const run_core *cores; /* NULL: ranks are not bound */
    int core_count;
    bool *chosen; /* of the cores, those of the rank that is started */
    int chosen_count;
    int null_input; /* stdin of the ranks other than 0 */
    pid_t supervisor;
} run_plan;

typedef struct run_rank {
    pid_t pid;
    int pidfd;                  /* -1 where the kernel has none, or once the rank has ended */
    int stdout_fd, stderr_fd;   /* reading ends */
    bool ended;                 /* a zombie until the job's end: so its process group's number is not used again */
    int wait_code, wait_status; /* of siginfo: CLD_EXITED and the code, or CLD_KILLED, CLD_DUMPED and the signal */
} run_rank;

/* Fills port and token. False, having said why. */
bool run_plan_prepare(run_plan *plan);
/* Starts one rank. 0, or the code to exit with, having said why. */
int run_spawn(const run_plan *plan, int index, run_rank *rank);
/* The cores this process may use, so that neighbours share the most: those of a physical core, of a cache, of a memory
 * node. NULL: unknown. */
run_core *run_cores_allowed(int *count);
/* The number of sets in a list of them, 0 when it is none. */
int run_cores_sets(const char *list);
/* Marks the cores of rank `index` on this machine; returns how many. 0: the list names none of them. */
int run_cores_choose(const run_options *o, const run_core *cores, int count, int index, bool *chosen);
/* This process runs on the chosen cores from here on. */
void run_cores_pin(const run_core *cores, int count, const bool *chosen);
void run_cores_say(int rank, const run_core *cores, int count, const bool *chosen);

/* --- output: relay.c ---------------------------------------------------------------------------------------------- */

/* What is on a terminal's last line: both sinks share one when both are the terminal. */
typedef struct run_screen {
    const struct run_stream *owner; /* whose unfinished line it shows, or NULL */
    bool returned;                  /* the cursor is back at its start */
} run_screen;

enum { RUN_NEWEST = 4 };

typedef struct run_sink {
    int fd;
    bool terminal, prefix;
    const char *name; /* stdout or stderr */
    bool broken;      /* its reader is gone, or is not waited for any more */
    bool lost;        /* some of the output could not be written */
    int error;        /* the last that has been reported, or 0 */
    run_screen *screen;
    /* Waits until fd can be written, and serves the job meanwhile. False: the output is dropped. */
    bool (*wait_writable)(void *user, int fd);
    void *user;
    size_t used;
    char buffer[16384];
    /* The lines that have been shown: how many, and the fingerprints and ranks of the newest. */
    unsigned long lines;
    uint64_t newest[RUN_NEWEST];
    int newest_rank[RUN_NEWEST];
} run_sink;

#define RUN_TAIL 2048

typedef struct run_stream {
    int fd; /* -1 once at its end */
    int rank;
    run_sink *sink;
    int log;       /* a file that gets all of it, or -1 */
    int log_error; /* why the file lacks some of it, or 0 */
    bool quiet;    /* the file alone */
    char *line;    /* what has come since the last end of line */
    size_t used, capacity;
    char tail[RUN_TAIL]; /* the last that came, a ring */
    size_t total;
    unsigned long shown; /* the sink's count of lines at the newest one of this stream */
} run_stream;

/* The last whole lines of what came, at most RUN_TAIL bytes with an end; returns their length. */
size_t run_stream_tail(const run_stream *stream, char text[RUN_TAIL + 1]);

/* Take what is there and pass whole lines on. Closes the stream at its end. */
void run_stream_read(run_stream *stream);
/* Pass an unfinished line on as it is: only on a terminal, where a prompt or a progress line should be seen. */
void run_stream_show(run_stream *stream);
/* Pass on what is left, as a line of its own, and close. */
void run_stream_close(run_stream *stream);
/* A line that the terminal shows half finished ends here. */
void run_sink_end_line(run_sink *sink);

/* --- ending: guard.c ---------------------------------------------------------------------------------------------- */

/* Kills and reaps every descendant of this process, and says when one does not end. Then what killed ranks have left in
 * the file of a file:// rendezvous, which TSHARD_INIT names, is taken out. */
void run_sweep(void);

#endif
