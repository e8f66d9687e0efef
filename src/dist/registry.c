/* The transports of this build. A transport is its folder, a line here and one in CMake. */
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

#include <stdio.h>
#include <string.h>

#ifdef TSHARD_HAVE_MPI
#define MPI_OPS &tshi_mpi_ops
#else
#define MPI_OPS NULL
#endif
#ifdef TSHARD_HAVE_UCX
#define UCX_OPS &tshi_ucx_ops
#else
#define UCX_OPS NULL
#endif
#ifdef TSHARD_HAVE_NCCL
#define NCCL_OPS  &tshi_nccl_ops
#define HOSTS_OPS &tshi_hosts_ops
#else
#define NCCL_OPS  NULL
#define HOSTS_OPS NULL
#endif

/* Which ranks a transport connects. CONTROL: those of several machines, for another transport that moves the data. */
typedef enum reach { ONE_RANK, ONE_MACHINE, MACHINES, CONTROL, DRY_RUN } reach;

/* The first one whose probe takes a world connects its ranks. */
static const struct {
    const char *name;
    const tshi_group_ops *ops; /* NULL: this build has none */
    reach reach;
    const char *option; /* the CMake option that builds the transport; NULL: it is always built */
    bool finds_ranks;   /* init_method may be NAME:// */
} transports[] = {
    {"plan", &tshi_plan_ops, DRY_RUN, NULL, false},     {"hosts", HOSTS_OPS, CONTROL, "TSHARD_NCCL", false},
    {"ucx", UCX_OPS, MACHINES, "TSHARD_UCX", false},    {"mpi", MPI_OPS, MACHINES, "TSHARD_MPI", true},
    {"local", &tshi_shm_ops, ONE_MACHINE, NULL, false}, {"self", &tshi_self_ops, ONE_RANK, NULL, false},
    {"nccl", NCCL_OPS, MACHINES, "TSHARD_NCCL", false},
};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

static bool is_choice(int i) {
    return transports[i].reach != ONE_RANK && transports[i].reach != CONTROL;
}

static int place_of(const char *name) {
    int i = 0;
    while (i < TRANSPORTS && strcmp(transports[i].name, name) != 0) i++;
    return i;
}

static int first_of(reach wanted) {
    int i = 0;
    while (transports[i].reach != wanted) i++;
    return i;
}

const tshi_group_ops *tshi_backend_find(const char *name) {
    int i = name ? place_of(name) : TRANSPORTS;
    return i < TRANSPORTS ? transports[i].ops : NULL;
}

const tshi_group_ops *tshi_backend_of_one(void) {
    return transports[first_of(ONE_RANK)].ops;
}

const tshi_group_ops *tshi_backend_of_machine(void) {
    return transports[first_of(ONE_MACHINE)].ops;
}

bool tshi_backend_is(const char *name) {
    const char *asked = tshi_setting_value(TSHI_SETTING_BACKEND);
    return asked && !strcmp(asked, name);
}

const char *tshi_backend_names(void) {
    return "local, mpi, nccl, plan or ucx"; /* the choices, in alphabetical order */
}

static tsh_status not_built(const char *name, const char *option) {
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: the backend %s is asked for, but this build has none (configure it with -D%s=ON)",
                     name, option);
}

/* Checks that the backends that TSHARD_BACKEND and init_method name exist in this build. */
static tsh_status check_asked(const tshi_settings *settings) {
    const char *asked = tshi_setting_value(TSHI_SETTING_BACKEND);
    int backend = asked ? place_of(asked) : TRANSPORTS, method = TRANSPORTS;
    char text[64];
    if (asked && (backend == TRANSPORTS || !is_choice(backend))) {
        return tshi_fail(TSH_ERR_ARGUMENT, "TSHARD_BACKEND is \"%.64s\"; it must be %s", asked, tshi_backend_names());
    }
    if (settings->method == TSHI_INIT_TRANSPORT) {
        method = place_of(settings->transport);
        snprintf(text, sizeof text, "%s://", settings->transport);
        if (method == TRANSPORTS || !transports[method].finds_ranks) return tshi_init_method_fail(text);
        backend = method;
    }
    if (backend < TRANSPORTS && !transports[backend].ops) {
        return not_built(transports[backend].name, transports[backend].option);
    }
    return TSH_OK;
}

size_t tshi_backend_area_bytes(int size) {
    size_t most = 0;
    for (int i = 0; i < TRANSPORTS; i++) {
        const tshi_group_ops *ops = transports[i].ops;
        size_t bytes = ops && ops->area_bytes ? ops->area_bytes(size) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

tsh_status tshi_backend_connect(const tshi_start *start, const tshi_group_ops **out) {
    char hosts[TSHI_LINE];
    bool takes = false;
    *out = NULL;
    tsh_status status = check_asked(start->settings);
    for (int i = 0; i < TRANSPORTS && status == TSH_OK && !takes; i++) {
        const tshi_group_ops *ops = transports[i].ops;
        if (!ops || !ops->probe) continue;
        status = ops->probe(start, &takes);
        if (takes) *out = ops;
    }
    if (status != TSH_OK || takes || !start->roster) return status;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: the ranks are on %d machines (%s); ranks on several need a build with -D%s=ON, or on "
                     "GPUs with -D%s=ON, or mpirun",
                     start->roster->nodes, tshi_roster_hosts(start->roster, hosts, sizeof hosts),
                     transports[first_of(MACHINES)].option, transports[first_of(CONTROL)].option);
}

tsh_status tshi_backend_take_data(tsh_world *world) {
    tsh_status status = TSH_OK;
    bool takes = world->size == 1;
    for (int i = 0; i < TRANSPORTS && status == TSH_OK && !takes; i++) {
        const tshi_group_ops *ops = transports[i].ops;
        if (ops && !ops->probe) status = ops->take_data(world, &takes);
    }
    if (status == TSH_OK && !takes && world->control->take_data) status = world->control->take_data(world, &takes);
    return status;
}
