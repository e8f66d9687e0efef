/* Whether the ranks are to meet over MPI. */
#include "dist/backends/mpi/world.h"

#include <string.h>

/* Set by launchers that start programs of MPI. */
static bool under_mpi(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (tshi_variable(names[i])) return true;
    }
    return false;
}

bool tshi_backend_is(const char *name) {
    const char *backend = tshi_setting_value(TSHI_SETTING_BACKEND);
    return backend && !strcmp(backend, name);
}

tsh_status tshi_mpi_wanted(const tshi_settings *settings, bool *out) {
    /* With nccl the ranks meet as they would without it. */
    int place = -1;
    *out = false;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_BACKEND, &place);
    if (status != TSH_OK) return status;
    bool local = place == 0, mpi = place == 1;
    if (local && settings->method == TSHI_INIT_MPI) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: init_method is mpi://, but TSHARD_BACKEND is local");
    }
    bool machines = settings->method == TSHI_INIT_ENV && settings->local_known &&
                    settings->local_size != settings->size && under_mpi();
    *out = (mpi && (settings->size == 1 || under_mpi())) || settings->method == TSHI_INIT_MPI || (machines && !local);
    return TSH_OK;
}
