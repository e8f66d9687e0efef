/* PMIx calls from a thread of its own; its events go through a pipe. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "server.h"
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <pmix.h>
#include <pmix_server.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* PMIx has one server in a process, and gives its calls no argument of ours. */
static struct {
    int events;
    sem_t done;
    pmix_status_t result;
    pmix_modex_cbfunc_t release; /* of the fence under way */
    void *release_data;
} server;

/* --- from PMIx ---------------------------------------------------------------------------------------------------- */

static void report(helper_event event) {
    ssize_t n;
    do n = write(server.events, &event, sizeof event);
    while (n < 0 && errno == EINTR);
}

static pmix_status_t connected(const pmix_proc_t *process, void *object, pmix_op_cbfunc_t then, void *data) {
    (void)object;
    (void)then;
    (void)data;
    report((helper_event){.kind = HELPER_CONNECTED, .rank = (int)process->rank});
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t finalized(const pmix_proc_t *process, void *object, pmix_op_cbfunc_t then, void *data) {
    (void)process;
    (void)object;
    (void)then;
    (void)data;
    return PMIX_OPERATION_SUCCEEDED;
}

/* All ranks of this machine are in it. MPI fences all its processes or, where it starts others, some: not here. */
static pmix_status_t fence(const pmix_proc_t processes[], size_t n, const pmix_info_t info[], size_t ninfo, char *bytes,
                           size_t size, pmix_modex_cbfunc_t then, void *data) {
    (void)info;
    (void)ninfo;
    if (n != 1 || processes[0].rank != PMIX_RANK_WILDCARD) return PMIX_ERR_NOT_SUPPORTED;
    server.release = then;
    server.release_data = data;
    report((helper_event){.kind = HELPER_FENCE, .part = {bytes, bytes ? size : 0}});
    return PMIX_SUCCESS;
}

static void forget(void *bytes) {
    free(bytes);
}

void helper_server_release(helper_blob whole) {
    server.release(PMIX_SUCCESS, whole.bytes, whole.size, server.release_data, forget, whole.bytes);
}

/* --- the job, to PMIx --------------------------------------------------------------------------------------------- */

static void operation_done(pmix_status_t result, void *data) {
    (void)data;
    server.result = result;
    sem_post(&server.done);
}

/* The result of a call that another thread completes. */
static pmix_status_t finish(pmix_status_t started) {
    if (started == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (started != PMIX_SUCCESS) return started;
    while (sem_wait(&server.done) != 0 && errno == EINTR) {
    }
    return server.result;
}

static void add_number(pmix_info_t *info, size_t *n, const char *key, int value) {
    uint32_t number = (uint32_t)value;
    PMIX_INFO_LOAD(&info[(*n)++], key, &number, PMIX_UINT32);
}

static void add_short(pmix_info_t *info, size_t *n, const char *key, int value) {
    uint16_t number = (uint16_t)value;
    PMIX_INFO_LOAD(&info[(*n)++], key, &number, PMIX_UINT16);
}

static void add_rank(pmix_info_t *info, size_t *n, const char *key, int value) {
    pmix_rank_t rank = (pmix_rank_t)value;
    PMIX_INFO_LOAD(&info[(*n)++], key, &rank, PMIX_PROC_RANK);
}

/* Machines of the same name are two all the same. */
static void machine_name(const helper *h, int node, char *out, size_t size) {
    snprintf(out, size, "%.60s-%d", h->host[node], node);
    for (char *c = out; *c; c++) {
        if (*c == ',' || *c == ';') *c = '_';
    }
}

static void add_process(const helper *h, int rank, int local, pmix_info_t *info, size_t *n) {
    enum { FACTS = 7 };
    char name[96];
    size_t used = 0;
    pmix_data_array_t facts;
    PMIX_DATA_ARRAY_CONSTRUCT(&facts, FACTS, PMIX_INFO);
    pmix_info_t *fact = facts.array;
    machine_name(h, h->node[rank], name, sizeof name);
    add_rank(fact, &used, PMIX_RANK, rank);
    add_rank(fact, &used, PMIX_GLOBAL_RANK, rank);
    add_short(fact, &used, PMIX_LOCAL_RANK, local);
    add_short(fact, &used, PMIX_NODE_RANK, local);
    add_number(fact, &used, PMIX_NODEID, h->node[rank]);
    add_number(fact, &used, PMIX_APPNUM, 0);
    PMIX_INFO_LOAD(&fact[used], PMIX_HOSTNAME, name, PMIX_STRING);
    PMIX_INFO_LOAD(&info[(*n)++], PMIX_PROC_DATA, &facts, PMIX_DATA_ARRAY);
    PMIX_DATA_ARRAY_DESTRUCT(&facts);
}

/* "0,1;2,3" of all machines, or one machine's part of it. */
static char *rank_list(const helper *h, int only) {
    size_t room = (size_t)h->order.ranks * 12 + (size_t)h->order.nodes + 1, used = 0;
    char *text = calloc(room, 1);
    for (int node = 0; node < h->order.nodes && text; node++) {
        const char *before = used ? ";" : "";
        for (int i = 0; i < h->order.ranks; i++) {
            if (h->node[i] != node || (only >= 0 && only != node)) continue;
            used += (size_t)snprintf(text + used, room - used, "%s%d", before, i);
            before = ",";
        }
    }
    return text;
}

static char *machine_list(const helper *h) {
    size_t room = (size_t)h->order.nodes * 96, used = 0;
    char *text = calloc(room, 1), name[96];
    for (int node = 0; node < h->order.nodes && text; node++) {
        machine_name(h, node, name, sizeof name);
        used += (size_t)snprintf(text + used, room - used, "%s%s", node ? "," : "", name);
    }
    return text;
}

/* Which ranks are on which machine. */
static bool add_maps(const helper *h, pmix_info_t *info, size_t *n) {
    char *machines = machine_list(h), *ranks = rank_list(h, -1), *peers = rank_list(h, h->order.node);
    char *nodes = NULL, *processes = NULL;
    bool good = machines && ranks && peers && PMIx_generate_regex(machines, &nodes) == PMIX_SUCCESS &&
                PMIx_generate_ppn(ranks, &processes) == PMIX_SUCCESS;
    if (good) {
        PMIX_INFO_LOAD(&info[(*n)++], PMIX_NODE_MAP, nodes, PMIX_STRING);
        PMIX_INFO_LOAD(&info[(*n)++], PMIX_PROC_MAP, processes, PMIX_STRING);
        PMIX_INFO_LOAD(&info[(*n)++], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
    }
    free(machines);
    free(ranks);
    free(peers);
    free(nodes);
    free(processes);
    return good;
}

static pmix_status_t register_job(const helper *h, const pmix_nspace_t name) {
    const bool yes = true;
    size_t n = 0, room = 16 + (size_t)h->order.ranks;
    int *seen = calloc((size_t)h->order.nodes, sizeof *seen);
    pmix_info_t *info;
    PMIX_INFO_CREATE(info, room);
    pmix_status_t result = seen && info && add_maps(h, info, &n) ? PMIX_SUCCESS : PMIX_ERR_NOMEM;
    if (result == PMIX_SUCCESS) {
        add_number(info, &n, PMIX_UNIV_SIZE, h->order.ranks);
        add_number(info, &n, PMIX_JOB_SIZE, h->order.ranks);
        add_number(info, &n, PMIX_MAX_PROCS, h->order.ranks);
        add_number(info, &n, PMIX_LOCAL_SIZE, h->order.here);
        add_number(info, &n, PMIX_NODE_SIZE, h->order.here);
        add_number(info, &n, PMIX_NUM_NODES, h->order.nodes);
        PMIX_INFO_LOAD(&info[n++], PMIX_JOBID, name, PMIX_STRING);
        /* MPI's own files; removed with everything here. */
        PMIX_INFO_LOAD(&info[n++], PMIX_TMPDIR, h->folder, PMIX_STRING);
        PMIX_INFO_LOAD(&info[n++], PMIX_NSDIR, h->folder, PMIX_STRING);
        PMIX_INFO_LOAD(&info[n++], PMIX_PROCDIR, h->folder, PMIX_STRING);
        PMIX_INFO_LOAD(&info[n++], PMIX_TDIR_RMCLEAN, &yes, PMIX_BOOL);
        for (int i = 0; i < h->order.ranks; i++) add_process(h, i, seen[h->node[i]]++, info, &n);
        result = finish(PMIx_server_register_nspace(name, h->order.here, info, n, operation_done, NULL));
    }
    if (info) PMIX_INFO_FREE(info, room);
    free(seen);
    return result;
}

/* --- starting ----------------------------------------------------------------------------------------------------- */

static pmix_status_t init(const helper *h) {
    static pmix_server_module_t module;
    const bool no = false;
    char name[96];
    pmix_info_t info[4];
    size_t n = 0;
    module.client_connected = connected;
    module.client_finalized = finalized;
    module.fence_nb = fence;
    machine_name(h, h->order.node, name, sizeof name);
    PMIX_INFO_LOAD(&info[n++], PMIX_SERVER_TMPDIR, h->folder, PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_SYSTEM_TMPDIR, h->folder, PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_HOSTNAME, name, PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_SERVER_TOOL_SUPPORT, &no, PMIX_BOOL);
    /* What clients may read goes in messages: a lock in memory that they share could be held by one that stops. */
    setenv("PMIX_MCA_gds", "hash", 1);
    pmix_status_t result = PMIx_server_init(&module, info, n);
    for (size_t i = 0; i < n; i++) PMIX_INFO_DESTRUCT(&info[i]);
    return result;
}

/* Beside PMIx' own: that Open MPI 4 is started by something that is not its mpirun shows from one variable; then, where
 * ranks of one machine keep the memory that they share, and what mpirun says to more of them than there are cores. */
static bool write_variables(const helper *h, char *const *variables, char *text, size_t size) {
    const char *yield = h->order.here > sysconf(_SC_NPROCESSORS_ONLN) ? "OMPI_MCA_mpi_yield_when_idle=1\n" : "";
    size_t used = 0;
    for (; variables && *variables && used < size; variables++) {
        used += (size_t)snprintf(text + used, size - used, "%s\n", *variables);
    }
    if (used < size) {
        used += (size_t)snprintf(text + used, size - used,
                                 "JSM_JSRUN_PORT=0\nOMPI_MCA_btl_vader_backing_directory=%s\n"
                                 "OMPI_MCA_btl_sm_backing_directory=%s\n%s",
                                 h->folder, h->folder, yield);
    }
    return used < size;
}

static pmix_status_t register_ranks(const helper *h, const pmix_nspace_t name, char *text, size_t size) {
    pmix_proc_t process;
    char **variables = NULL;
    pmix_status_t result = PMIX_SUCCESS;
    PMIX_LOAD_NSPACE(process.nspace, name);
    for (int i = 0; i < h->order.here && result == PMIX_SUCCESS; i++) {
        process.rank = (pmix_rank_t)h->here[i].rank;
        result = finish(PMIx_server_register_client(&process, getuid(), getgid(), NULL, operation_done, NULL));
    }
    if (result == PMIX_SUCCESS) result = PMIx_server_setup_fork(&process, &variables);
    if (result == PMIX_SUCCESS && !write_variables(h, variables, text, size)) result = PMIX_ERR_NOMEM;
    for (char **v = variables; v && *v; v++) free(*v);
    free(variables);
    return result;
}

bool helper_server_start(helper *h, int *events, char *text, size_t size) {
    int ends[2];
    pmix_nspace_t name = "tshard-";
    char message[TSHI_MESSAGE_SIZE];
    const unsigned char *key = h->order.settings.key;
    static const unsigned char purpose[] = "name";
    unsigned char digest[TSHI_HASH_SIZE];
    /* The job's name is the same on all machines, and no secret. */
    tshi_hmac(key, TSHI_KEY_SIZE, purpose, sizeof purpose, "", 0, digest);
    for (int i = 0; i < 8; i++) snprintf(name + 7 + 2 * i, 3, "%02x", digest[i]);
    if (pipe2(ends, O_CLOEXEC) != 0 || sem_init(&server.done, 0, 0) != 0) {
        report_failure(h, strerror(errno));
        return false;
    }
    *events = ends[0];
    server.events = ends[1];
    const char *step = "PMIx_server_init";
    pmix_status_t result = init(h);
    if (result == PMIX_SUCCESS) {
        step = "PMIx_server_register_nspace";
        result = register_job(h, name);
    }
    if (result == PMIX_SUCCESS) {
        step = "PMIx_server_register_client";
        result = register_ranks(h, name, text, size);
    }
    if (result == PMIX_SUCCESS) return true;
    snprintf(message, sizeof message, "%s on %s: %s", step, h->host[h->order.node], PMIx_Error_string(result));
    report_failure(h, message);
    return false;
}
