/* The transports of this build. A transport is its folder, a line here and one in CMake. */
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

#include <string.h>

/* In the order in which they are asked whether they take a world. */
static const tshi_group_ops *const backends[] = {
    &tshi_plan_ops,
#ifdef TSHARD_HAVE_MPI
    &tshi_mpi_ops,
#endif
    &tshi_shm_ops,  &tshi_self_ops,
#ifdef TSHARD_HAVE_NCCL
    &tshi_nccl_ops,
#endif
};
#define BACKENDS (sizeof backends / sizeof *backends)

const tshi_group_ops *tshi_backend_find(const char *name) {
    for (size_t i = 0; name && i < BACKENDS; i++) {
        if (!strcmp(backends[i]->name, name)) return backends[i];
    }
    return NULL;
}

bool tshi_backend_is(const char *name) {
    const char *asked = tshi_setting_value(TSHI_SETTING_BACKEND);
    return asked && !strcmp(asked, name);
}

/* The backend that the user asks for is in this build. */
static tsh_status check_asked(const tshi_settings *settings) {
    const char *asked = tshi_setting_value(TSHI_SETTING_BACKEND);
    int choice = 0;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_BACKEND, &choice);
    if (status != TSH_OK) return status;
    if (settings->method == TSHI_INIT_MPI) asked = "mpi";
    if (!asked || tshi_backend_find(asked)) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: the backend %s is asked for, but this build has none (configure it with -D%s=ON)",
                     asked, !strcmp(asked, "mpi") ? "TSHARD_MPI" : "TSHARD_NCCL");
}

tsh_status tshi_backend_connect(const tshi_start *start, const tshi_group_ops **out) {
    char hosts[TSHI_LINE];
    bool takes = false;
    *out = NULL;
    tsh_status status = check_asked(start->settings);
    for (size_t i = 0; i < BACKENDS && status == TSH_OK && !takes; i++) {
        if (!backends[i]->probe) continue;
        status = backends[i]->probe(start, &takes);
        if (takes) *out = backends[i];
    }
    if (status != TSH_OK || takes || !start->roster) return status;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: the ranks are on %d machines (%s); ranks on several need an MPI build (TSHARD_MPI)",
                     start->roster->nodes, tshi_roster_hosts(start->roster, hosts, sizeof hosts));
}

tsh_status tshi_backend_take_data(tsh_world *world) {
    tsh_status status = TSH_OK;
    bool takes = world->size == 1;
    for (size_t i = 0; i < BACKENDS && status == TSH_OK && !takes; i++) {
        if (!backends[i]->probe) status = backends[i]->take_data(world, &takes);
    }
    if (status == TSH_OK && !takes && world->control->take_data) status = world->control->take_data(world, &takes);
    return status;
}
