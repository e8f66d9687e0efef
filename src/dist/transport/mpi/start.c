/* MPI itself: starting it unless the program has, gathering its ranks within the deadline, finalising it.
 *
 * MPI_Init waits for the other ranks without limit and cannot be cancelled. So if the launcher says that all ranks are
 * on this machine, they look for each other first: each rank binds an abstract socket, named after the job's key, to
 * which nothing is ever sent. A rank whose socket exists has arrived. */
#include "base/cpu.h"
#include "dist/rendezvous/sockets.h"
#include "dist/transport/mpi/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pid_t id;            /* of the process that started MPI; its forked children have no MPI */
    bool skips_finalize; /* some rank may never call MPI_Finalize */
    bool marked;         /* MPI_Finalize will call before_end */
    tsh_world *worlds;
} process;

void tshi_mpi_skip_finalize(void) {
    process.skips_finalize = true;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static void leave_all(void) {
    while (process.worlds) {
        tsh_world *world = process.worlds;
        tshi_mpi_leave(world);
        tshi_machine_disconnect(world); /* the process may be about to end */
        tshi_control_break(world, TSH_ERR_STATE,
                           "MPI has been finalised, and this world runs over it: destroy it before");
    }
}

/* MPI_Finalize calls this first: the delete function of an attribute of MPI_COMM_SELF. */
static int before_end(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm;
    (void)key;
    (void)value;
    (void)extra;
    leave_all();
    process.marked = false;
    return MPI_SUCCESS;
}

static bool mark_end(void) {
    int key = MPI_KEYVAL_INVALID;
    if (process.marked) return true;
    if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, before_end, &key, NULL) != MPI_SUCCESS) return false;
    process.marked = MPI_Comm_set_attr(MPI_COMM_SELF, key, &process) == MPI_SUCCESS;
    MPI_Comm_free_keyval(&key);
    return process.marked;
}

static tsh_world **place_of(const tsh_world *world) {
    tsh_world **link = &process.worlds;
    while (*link && *link != world) link = &tshi_mpi_of(*link)->next;
    return link;
}

void tshi_mpi_list(tsh_world *world) {
    if (!mark_end()) return;
    tshi_mpi_of(world)->next = process.worlds;
    process.worlds = world;
}

void tshi_mpi_unlist(tsh_world *world) {
    tsh_world **link = place_of(world);
    if (*link) *link = tshi_mpi_of(world)->next;
}

/* Called at exit, not at the end of a world: MPI starts only once, and the program may create another world. Worlds
 * that the program has not destroyed leave here. MPI_Finalize waits for all ranks, so a rank that exits with an error
 * skips it: the launcher then names the rank that failed first, not one that noticed. */
static void finalize(int code, void *user) {
    int finalized = 1;
    (void)user;
    if (getpid() != process.id) return; /* a forked child of the process that started MPI */
    MPI_Finalized(&finalized);
    if (finalized || tshi_mpi_check_thread() != TSH_OK) return;
    bool unfinished = process.worlds != NULL;
    leave_all();
    if (!process.skips_finalize && (code == 0 || !unfinished)) MPI_Finalize();
}

/* --- starting ----------------------------------------------------------------------------------------------------- */

/* With an RDMA adapter MPI caches memory registrations, and must notice when any thread unmaps memory. Without one,
 * MPI_THREAD_SINGLE avoids locks, which cost 0.3 us a call in Open MPI 4. */
static int thread_level(void) {
    return tshi_has_adapter() ? MPI_THREAD_FUNNELED : MPI_THREAD_SINGLE;
}

tsh_status tshi_mpi_check_thread(void) {
    int level = 0, main_thread = 0;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    if (level >= MPI_THREAD_SERIALIZED || main_thread) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE,
                     "world_init: MPI was initialized for its main thread only, and this is another thread");
}

/* Calls MPI_Init_thread, unless it was called before. */
static tsh_status start_mpi(void) {
    int initialized = 0, level = 0;
    MPI_Initialized(&initialized);
    if (!initialized) {
        process.id = getpid();
        int error = MPI_Init_thread(NULL, NULL, thread_level(), &level);
        if (error != MPI_SUCCESS) return tshi_fail(TSH_ERR_SYSTEM, "world_init: MPI_Init_thread: error %d", error);
        if (on_exit(finalize, NULL) != 0)
            return tshi_fail(TSH_ERR_MEMORY, "world_init: no room to finalise MPI at exit");
        return TSH_OK;
    }
    return tshi_mpi_check_thread(); /* the program has started MPI, so the program ends it */
}

/* --- presence ----------------------------------------------------------------------------------------------------- */

static int presence_open(const tshi_settings *s) {
    struct sockaddr_un name;
    socklen_t length = tshi_unix_name(s, "mpi", s->rank, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) bind(fd, (struct sockaddr *)&name, length);
    return fd;
}

static bool present(const tshi_settings *s, int rank) {
    struct sockaddr_un name;
    socklen_t length = tshi_unix_name(s, "mpi", rank, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool there = fd < 0 || connect(fd, (struct sockaddr *)&name, length) == 0;
    if (fd >= 0) close(fd);
    return there;
}

/* The number of ranks that have not arrived; `text` lists them as "rank 1, 3". */
static int missing(const tshi_settings *s, char *text, size_t size) {
    int n = 0;
    text[0] = '\0';
    for (int i = 0; i < s->size; i++) {
        if (i == s->rank || present(s, i)) continue;
        n++;
        tshi_append(text, size, "%s%d", n > 1 ? ", " : "rank ", i);
    }
    return n;
}

/* The ranks can look for each other before MPI_Init: all are on this machine, and PMIx has numbered them, whose job
 * names are unique. (Those of MPICH's launcher are not.) */
static bool can_look(const tshi_settings *s) {
    const char *job = tshi_variable("PMIX_NAMESPACE");
    if (!job || strncmp(s->job, job, strlen(job)) != 0) return false;
    return s->size > 1 && s->local_known && s->local_size == s->size;
}

static tsh_status look_around(const tshi_settings *s, const tsh_log_sink *log, double deadline) {
    char ranks[TSHI_LINE];
    double since = tshi_clock(), next_warning = since + s->warn_every;
    for (int n; (n = missing(s, ranks, sizeof ranks)) > 0;) {
        double now = tshi_clock();
        if (now >= deadline) {
            tshi_sleep(TSHI_GRACE); /* ranks with a later deadline must still find this one */
            return tshi_fail(TSH_ERR_TIMEOUT, "world_init: %d/%d joined within %g s, missing %s", s->size - n, s->size,
                             tshi_rendezvous_patience(s), ranks);
        }
        if (tshi_warning_due(&next_warning, s->warn_every)) {
            tshi_log(log, TSH_LOG_WARNING, "world_init: %d/%d joined, missing %s", s->size - n, s->size, ranks);
        }
        tshi_sleep(now - since < 0.1 ? 200e-6 : 5e-3);
    }
    return TSH_OK;
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_gather(MPI_Comm base, double seconds, double warn_every, const tsh_log_sink *log, MPI_Comm *out) {
    double since = tshi_clock(), next_warning = since + warn_every;
    const char *which = base == MPI_COMM_WORLD ? "MPI_COMM_WORLD" : "the communicator";
    MPI_Request request;
    int done = 0, error;
    error = MPI_Comm_idup(base, out, &request);
    while (error == MPI_SUCCESS && !done) {
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done || error != MPI_SUCCESS) break;
        double now = tshi_clock();
        if (now - since >= seconds) {
            tshi_mpi_skip_finalize();
            return tshi_fail(TSH_ERR_TIMEOUT, "world_init: not all ranks of %s came within %g s", which, seconds);
        }
        if (tshi_warning_due(&next_warning, warn_every)) {
            tshi_log(log, TSH_LOG_WARNING, "world_init: waiting for the other ranks of %s", which);
        }
        tshi_tagged_doze(now - since);
    }
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS) return TSH_OK;
    return tshi_fail(TSH_ERR_SYSTEM, "world_init: MPI_Comm_idup: error %d", error);
}

/* Takes this rank's number from MPI, and checks it against the configuration and the launcher. */
static tsh_status take_rank(const tsh_world_config *config, tshi_settings *settings, MPI_Comm all) {
    const tshi_settings before = *settings;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int rank, size, length;
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    settings->rank = rank;
    settings->size = size;
    if (config->world_size && (config->world_size != size || config->rank != rank)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the configuration says rank %d of %d, MPI rank %d of %d",
                         config->rank, config->world_size, rank, size);
    }
    if (!before.launched || (before.size == size && before.rank == rank)) return TSH_OK;
    MPI_Get_library_version(version, &length);
    return tshi_fail(TSH_ERR_STATE,
                     "world_init: %s and %s say rank %d of %d, but MPI says rank %d of %d: these ranks were not "
                     "started by a launcher of the MPI that tshard was built with (%.40s)",
                     before.launcher[0], before.launcher[1], before.rank, before.size, rank, size, version);
}

tsh_status tshi_mpi_enter(const tshi_start *start) {
    tshi_settings *settings = start->settings;
    const tsh_log_sink *log = &start->config->log;
    tsh_status status = TSH_OK;
    int finalized = 0, fd = -1;
    MPI_Comm all = MPI_COMM_NULL;
    MPI_Finalized(&finalized);
    if (finalized) return tshi_fail(TSH_ERR_STATE, "world_init: MPI has been finalised, and it starts only once");
    double patience = tshi_rendezvous_patience(settings);
    if (can_look(settings)) {
        fd = presence_open(settings);
        status = look_around(settings, log, tshi_clock() + patience);
    }
    if (status == TSH_OK) status = start_mpi();
    if (status == TSH_OK) status = tshi_mpi_gather(MPI_COMM_WORLD, patience, settings->warn_every, log, &all);
    if (fd >= 0) close(fd);
    if (status == TSH_OK) {
        status = tshi_mpi_roster(all, settings, start->allocator, take_rank(start->config, settings, all),
                                 start->roster ? NULL : start->found);
        MPI_Comm_free(&all);
    }
    if (status == TSH_OK) tshi_settings_share_cores(start->config, settings);
    return status;
}
