/* MPI for ranks that no MPI launcher has started: the rendezvous has found them, and tshard-pmix describes them to MPI;
 * see wireup.h. */
#include "dist/transport/mpi/wireup.h"
#include "dist/rendezvous/memory_exchange.h"
#include "dist/rendezvous/sockets.h"
#include "dist/transport/mpi/helper.h"
#include "dist/transport/mpi/mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds that MPI_Finalize waits for a stopped helper, or TSHARD_TIMEOUT if that is shorter. */
#define PATIENCE_AT_END 30.0

/* The user pointer of make_stream. */
typedef struct wiring {
    const tshi_settings *settings;
    const tshi_roster *roster;
    const tsh_allocator *allocator;
    const tsh_log_sink *log;
    double deadline;
} wiring;

/* --- the tool ----------------------------------------------------------------------------------------------------- */

static tsh_status give_order(const wiring *w, const tshi_memory_ranks *ranks, int fd) {
    const tshi_roster *roster = w->roster;
    tshi_wireup_order order = {.magic = TSHI_WIREUP_MAGIC,
                               .version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR, TSH_VERSION_PATCH},
                               .bytes = sizeof order,
                               .settings = *w->settings,
                               .seconds = w->deadline - tshi_clock(),
                               .deadline = w->deadline,
                               .node = roster->node[roster->rank],
                               .nodes = roster->nodes,
                               .ranks = roster->size,
                               .here = ranks->size};
    bool good = tshi_socket_write(fd, &order, sizeof order, w->deadline) &&
                tshi_socket_write(fd, roster->node, (size_t)roster->size * sizeof *roster->node, w->deadline) &&
                tshi_socket_write(fd, roster->host, (size_t)roster->nodes * sizeof *roster->host, w->deadline);
    for (int i = 0; i < ranks->size && good; i++) {
        int32_t process = (int32_t)ranks->process[i];
        good = tshi_socket_write(fd, &process, sizeof process, w->deadline);
    }
    return good ? TSH_OK : tshi_fail_errno(errno, "world_init: telling %s who the ranks are", TSHI_WIREUP_TOOL);
}

/* tshi_memory_plan.make, on the first rank of a machine: starts the tool, and returns the ranks' end of the stream. */
static int make_stream(const tshi_memory_ranks *ranks) {
    const wiring *w = ranks->user;
    char path[TSHI_PATH_SIZE + 64], hosts[TSHI_LINE];
    int ends[2];
    if (!tshi_helper_find(path, sizeof path)) {
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
    if (status == TSH_OK) status = tshi_helper_start(path, ends[1], w->deadline);
    tshi_socket_close(&ends[1], 1);
    if (status == TSH_OK) fcntl(ends[0], F_SETFL, O_NONBLOCK);
    if (status == TSH_OK) status = give_order(w, ranks, ends[0]);
    if (status == TSH_OK) status = tshi_helper_wait(ends[0], w->deadline, text);
    tshi_free(w->allocator, text);
    if (status == TSH_OK) return ends[0];
    tshi_socket_close(&ends[0], 1);
    return -(int)status;
}

/* --- variables ---------------------------------------------------------------------------------------------------- */

/* Sets PMIX_RANK to this rank, and the variables in `text`: those of PMIx always, others only if the user has not set
 * them. Blanks the names of variables that it does not set, for unset_variables. */
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

/* Unsets the variables again once MPI has started: another world, or a program started by this one, would mistake them
 * for a launcher's. */
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

/* Shares the stream between the ranks of this machine, with a rendezvous of their own. */
static tsh_status share_stream(wiring *w, int *out) {
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
    /* The first rank may report the reason of a failure late, so the others wait longer. */
    double deadline = w->deadline + (here.rank ? TSHI_HELPER_GRACE : 0);
    const tshi_memory_plan plan = {.make = make_stream, .user = w, .memory = out};
    return tshi_memory_exchange(&here, NULL, w->allocator, deadline, &plan);
}

static tshi_helper_watch watch_of(const wiring *w, int fd, const char *call) {
    return (tshi_helper_watch){.stream = fd,
                               .since = tshi_clock(),
                               .deadline = w->deadline,
                               .warn_every = w->settings->warn_every,
                               .call = call,
                               .log = w->log};
}

/* The watch over the helper during MPI_Finalize; a process has one, as MPI starts and ends once. */
static tshi_helper_watch end_watch;
static double end_patience;

/* Runs before MPI_Finalize: atexit calls the function registered last first. The thread ends with the process. */
static void begin_end_watch(void) {
    char *text = tshi_mpi_is_forked() ? NULL : malloc(TSHI_WIREUP_TEXT);
    if (!text) return;
    tshi_helper_peek(end_watch.stream, text);
    end_watch.since = tshi_clock();
    end_watch.deadline = end_watch.since + end_patience;
    tshi_helper_watch_begin(&end_watch, text);
    free(text);
}

static tsh_status watch_the_end(const wiring *w, const tshi_helper_watch *watch) {
    end_patience = w->settings->timeout < PATIENCE_AT_END ? w->settings->timeout : PATIENCE_AT_END;
    end_watch = *watch;
    end_watch.call = "MPI_Finalize";
    end_watch.log = NULL; /* the world's log is gone by then */
    if (atexit(begin_end_watch) == 0) return TSH_OK;
    return tshi_fail(TSH_ERR_MEMORY, "world_init: no room to watch the end of MPI");
}

/* MPI_Init returns even if other ranks are missing: the tool lets it return, and reports the failure on the stream. */
static tsh_status start_mpi(const wiring *w, int fd, char text[TSHI_WIREUP_TEXT]) {
    int32_t number = w->roster->rank;
    tshi_helper_watch watch = watch_of(w, fd, "world_init: MPI_Init");
    tshi_helper_peek(fd, text);
    tshi_helper_watch_begin(&watch, text);
    bool set = set_variables(text, w->roster->rank);
    tsh_status status = set ? tshi_mpi_start() : tshi_fail(TSH_ERR_MEMORY, "world_init: no room for MPI's variables");
    unset_variables(text);
    tshi_watcher_end(&watch.thread);
    if (status == TSH_OK) status = watch_the_end(w, &watch);
    ssize_t ignored = send(fd, &number, sizeof number, MSG_NOSIGNAL);
    (void)ignored; /* fails only if the tool has ended, which MPI notices itself */
    if (status != TSH_OK) return status;
    tshi_helper_peek(fd, text);
    const char *words = tshi_helper_failure(text);
    if (!words) return TSH_OK;
    tshi_mpi_skip_finalize();
    return tshi_fail(TSH_ERR_PEER, "world_init: %s", words);
}

static tsh_status wire_up(wiring *w) {
    int fd = -1; /* stays open as long as this process lives: the tool waits for its end */
    char *text = tshi_calloc(w->allocator, TSHI_WIREUP_TEXT, 1);
    tsh_status status = text ? share_stream(w, &fd) : TSH_ERR_MEMORY;
    if (status != TSH_OK) tshi_socket_close(&fd, 1);
    if (status == TSH_OK) status = start_mpi(w, fd, text);
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

tsh_status tshi_mpi_connect(const tshi_start *start) {
    const tshi_roster *roster = start->roster;
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
    wiring w = {start->settings, roster, start->allocator, &start->config->log, start->deadline};
    if (!initialized && !finalized) status = wire_up(&w);
    return status == TSH_OK && !finalized ? compare(roster) : status;
}
