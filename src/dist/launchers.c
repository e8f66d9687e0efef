/* The variables by which launchers say who is who. A malformed one is an error, never a default. */
#include "dist/environment.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One launcher's names for the same four numbers, and what tells its jobs apart. A NULL is a name it does not have. */
typedef struct family {
    const char *rank, *size, *local_rank, *local_size, *job, *step;
} family;

/* In order of preference: tshard-run and torchrun name the rank outright; mpirun and srun imply it.
 * PMIx itself has no variable for the size: Open MPI (mpirun) and SLURM (srun --mpi=pmix) set their own beside it. */
static const family families[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE", NULL},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
     "PMI_JOBID", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", NULL},
    {"PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "PMIX_NAMESPACE", NULL},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

#define FAMILIES (sizeof families / sizeof *families)

const char *tshi_variable(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

static bool parse_integer(const char *text, long long low, long long high, long long *out) {
    if (text[0] < '0' || text[0] > '9') return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || value < low || value > high) return false;
    *out = value;
    return true;
}

tsh_status tshi_variable_int(const char *name, int low, int high, int *out, bool *found) {
    const char *text = tshi_variable(name);
    *found = text != NULL;
    if (!text) return TSH_OK;
    long long value;
    if (!parse_integer(text, low, high, &value)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be a whole number from %d to %d", name, text, low,
                         high);
    }
    *out = (int)value;
    return TSH_OK;
}

/* --- SLURM -------------------------------------------------------------------------------------------------------- */

/* Tasks on node number `node` of "2(x3),1": 2, 2, 2, 1. 0 when it does not say. */
static int tasks_on_node(const char *text, int node) {
    for (int first = 0; text && *text;) {
        char *end;
        long tasks = strtol(text, &end, 10), times = 1;
        if (end == text || tasks < 1 || tasks > INT32_MAX) return 0;
        if (!strncmp(end, "(x", 2)) {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')' || times < 1 || times > INT32_MAX) return 0;
        }
        if (node - first < times) return (int)tasks;
        first += (int)times;
        if (*end && *end != ',') return 0;
        text = *end ? end + 1 : end;
    }
    return 0;
}

/* The first of "a,b", "node[01-04,7]" or "rack1-node[3,5].site". */
static void first_node(const char *list, char out[TSHI_JOB_SIZE]) {
    size_t used = 0;
    bool inside = false, number_done = false;
    for (const char *c = list; *c && used + 1 < TSHI_JOB_SIZE; c++) {
        if (*c == '[') {
            inside = true;
        } else if (*c == ']') {
            inside = false;
        } else if (!inside && *c == ',') {
            break;
        } else {
            if (inside && (*c == '-' || *c == ',')) number_done = true;
            if (!inside || !number_done) out[used++] = *c;
        }
    }
    out[used] = '\0';
}

static const char *either(const char *first, const char *second) {
    const char *value = tshi_variable(first);
    return value ? value : tshi_variable(second);
}

/* What srun says in ways of its own: tasks here, the first node, and a port that differs from job to job. */
static tsh_status read_slurm(tshi_settings *s) {
    int node = 0, nodes = 1, job = 0, step = 0;
    bool found, found_job;
    tsh_status status = tshi_variable_int("SLURM_NODEID", 0, INT32_MAX - 1, &node, &found);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_NNODES", 1, INT32_MAX, &nodes, &found);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_JOB_ID", 0, INT32_MAX, &job, &found_job);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_STEP_ID", 0, INT32_MAX, &step, &found);
    if (status != TSH_OK) return status;
    int here = tasks_on_node(either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), node);
    if (here > 0) {
        s->local_size = here;
        s->local_known = true;
    }
    const char *list = either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    if (nodes > 1 && list) {
        first_node(list, s->address);
        s->address_known = true;
    }
    if (found_job) s->port = 20000 + (int)(((unsigned)job * 131u + (unsigned)step) % 20000u);
    return TSH_OK;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static tsh_status check_below(int rank, int size, const char *rank_name, const char *size_name) {
    if (rank < size) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is %d, but %s is %d: ranks go from 0 to %d", rank_name, rank, size_name,
                     size, size - 1);
}

static tsh_status read_local(const family *f, tshi_settings *s) {
    bool has_rank, has_size;
    tsh_status status = tshi_variable_int(f->local_rank, 0, INT32_MAX - 1, &s->local_rank, &has_rank);
    if (status == TSH_OK) status = tshi_variable_int(f->local_size, 1, INT32_MAX, &s->local_size, &has_size);
    if (status != TSH_OK) return status;
    s->local_known = has_size;
    if (has_size && has_rank) return check_below(s->local_rank, s->local_size, f->local_rank, f->local_size);
    return TSH_OK;
}

/* A family of which a rank and a size are set. Of the first both or neither: it is also what people set by hand. */
static tsh_status read_family(const family *f, tshi_settings *s, bool *found) {
    bool has_size;
    tsh_status status = tshi_variable_int(f->rank, 0, INT32_MAX - 1, &s->rank, found);
    if (status == TSH_OK) status = tshi_variable_int(f->size, 1, INT32_MAX, &s->size, &has_size);
    if (status != TSH_OK) return status;
    if (!*found && has_size && f == &families[0] && s->ranks_given) {
        s->rank = TSHI_ANY_PLACE;
        s->local_rank = 0;
        s->local_size = s->size;
        *found = true;
        return TSH_OK;
    }
    if (*found != has_size && f == &families[0]) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is set, but %s is not", *found ? f->rank : f->size,
                         *found ? f->size : f->rank);
    }
    *found = *found && has_size;
    if (!*found) return TSH_OK;
    status = check_below(s->rank, s->size, f->rank, f->size);
    s->local_rank = s->rank;
    s->local_size = s->size;
    if (status == TSH_OK) status = read_local(f, s);
    if (status == TSH_OK && f->size == families[FAMILIES - 1].size) status = read_slurm(s);
    if (status != TSH_OK) return status;
    const char *job = tshi_variable(f->job), *step = tshi_variable(f->step);
    snprintf(s->job, sizeof s->job, "%.120s.%.120s", job ? job : "", step ? step : "");
    return TSH_OK;
}

tsh_status tshi_launcher_read(tshi_settings *out, bool *found) {
    *found = false;
    for (size_t i = 0; i < FAMILIES && !*found; i++) {
        tsh_status status = read_family(&families[i], out, found);
        if (status != TSH_OK) return status;
    }
    if (!*found && tshi_variable("PMIX_RANK") && out->method != TSHI_INIT_MPI) {
        return tshi_fail(TSH_ERR_ARGUMENT, "PMIX_RANK is set, but no variable tells the number of ranks: set RANK and "
                                           "WORLD_SIZE, or meet by mpi://");
    }
    return TSH_OK;
}
