/* The variables by which launchers number their ranks. A malformed one is an error, never a default. */
#include "base/number.h"
#include "dist/rendezvous/environment.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The names that one launcher has for four numbers, and for what distinguishes its jobs. NULL: it has none. */
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

static tsh_status check_below(int rank, int size, const char *rank_name, const char *size_name) {
    if (rank < size) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is %d, but %s is %d: it must be from 0 to %d", rank_name, rank, size_name,
                     size, size - 1);
}

/* --- SLURM -------------------------------------------------------------------------------------------------------- */

/* Reads the digits at the start of *text, a number from 1, and moves *text behind them. */
static bool take_number(const char **text, int *out) {
    int64_t value = 0;
    size_t n = strspn(*text, "0123456789");
    bool good = tshi_parse_part(*text, n, 1, INT32_MAX - 1, &value);
    *text += n;
    *out = (int)value;
    return good;
}

/* Tasks on node number `node` of "2(x3),1": 2, 2, 2, 1. *out is 0 when the list has fewer nodes; false when it is no
 * such list. */
static bool tasks_on_node(const char *text, int node, int *out) {
    *out = 0;
    for (int64_t first = 0;;) {
        int tasks, times = 1;
        if (!take_number(&text, &tasks)) return false;
        if (!strncmp(text, "(x", 2)) {
            text += 2;
            if (!take_number(&text, &times) || *text++ != ')') return false;
        }
        if (node >= first && node - first < times) *out = tasks;
        first += times;
        if (*text == '\0') return true;
        if (*text++ != ',') return false;
    }
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
    return tshi_variable(first) ? first : second;
}

/* The tasks on this node, where SLURM publishes them. */
static tsh_status read_tasks(int node, tshi_settings *s) {
    const char *name = either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), *text = tshi_variable(name);
    int here = 0;
    if (!text) return TSH_OK;
    if (!tasks_on_node(text, node, &here)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be tasks of each node, like 2(x3),1", name, text);
    }
    if (here == 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\", which has no node number SLURM_NODEID=%d", name, text,
                         node);
    }
    if (here > s->size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\": %d tasks on this node, but SLURM_NTASKS is %d", name, text,
                         here, s->size);
    }
    s->local_size = here;
    s->local_known = true;
    return tshi_variable("SLURM_LOCALID") ? check_below(s->local_rank, here, "SLURM_LOCALID", name) : TSH_OK;
}

/* Variables that only srun sets: tasks here, the first node, and a job number, from which the port comes. */
static tsh_status read_slurm(tshi_settings *s) {
    int node = 0, nodes = 1, job = 0, step = 0;
    bool found, found_job;
    tsh_status status = tshi_variable_int("SLURM_NODEID", 0, INT32_MAX - 1, &node, NULL);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_NNODES", 1, INT32_MAX, &nodes, &found);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_JOB_ID", 0, INT32_MAX, &job, &found_job);
    if (status == TSH_OK) status = tshi_variable_int("SLURM_STEP_ID", 0, INT32_MAX, &step, NULL);
    if (status == TSH_OK && found) status = check_below(node, nodes, "SLURM_NODEID", "SLURM_NNODES");
    if (status == TSH_OK) status = read_tasks(node, s);
    if (status != TSH_OK) return status;
    const char *list = tshi_variable(either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"));
    if (nodes > 1 && list) {
        first_node(list, s->address);
        s->address_known = true;
    }
    if (found_job) s->port = 20000 + (int)(((unsigned)job * 131u + (unsigned)step) % 20000u);
    return TSH_OK;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The ranks of this machine are among all ranks, and the local rank is one of them. */
static tsh_status read_local(const family *f, tshi_settings *s) {
    bool has_rank, has_size;
    tsh_status status = tshi_variable_int(f->local_rank, 0, INT32_MAX - 1, &s->local_rank, &has_rank);
    if (status == TSH_OK) status = tshi_variable_int(f->local_size, 1, INT32_MAX, &s->local_size, &has_size);
    if (status != TSH_OK) return status;
    s->local_known = has_size;
    if (has_size && !has_rank) s->local_rank = s->rank % s->local_size;
    if (has_size && s->local_size > s->size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is %d, but %s is %d: a machine cannot have more ranks than the world",
                         f->local_size, s->local_size, f->size, s->size);
    }
    const char *size_name = has_size ? f->local_size : f->size;
    return has_rank ? check_below(s->local_rank, s->local_size, f->local_rank, size_name) : TSH_OK;
}

/* The name of the job, by which the launcher distinguishes its jobs. */
static tsh_status read_job(const family *f, tshi_settings *s) {
    char job[TSHI_JOB_SIZE / 2 - 1] = "", step[TSHI_JOB_SIZE / 2 - 1] = "";
    tsh_status status = tshi_variable_text(f->job, job, sizeof job, NULL);
    if (status == TSH_OK) status = tshi_variable_text(f->step, step, sizeof step, NULL);
    if (job[0] || step[0]) snprintf(s->job, sizeof s->job, "%s.%s", job, step);
    return status;
}

/* `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE beside its own variables, which say on which nodes the ranks are, too. A
 * launcher of MPI that srun has started on each node has more ranks than srun has tasks. */
static bool srun_says_more(const family *f) {
    const char *size = tshi_variable(f->size), *tasks = tshi_variable("SLURM_NTASKS");
    return !strcmp(f->rank, "PMI_RANK") && tshi_variable("SLURM_STEP_ID") && size && tasks && !strcmp(size, tasks);
}

/* A family applies when its rank and its size are set. Of the first both have to be, or neither: users set it by
 * hand. */
static tsh_status read_family(const family *f, tshi_settings *s, bool *found) {
    bool has_size;
    if (srun_says_more(f)) return TSH_OK;
    tsh_status status = tshi_variable_int(f->rank, 0, INT32_MAX - 1, &s->rank, found);
    if (status == TSH_OK) status = tshi_variable_int(f->size, 1, TSHI_MOST_RANKS, &s->size, &has_size);
    if (status != TSH_OK) return status;
    if (!*found && has_size && f == &families[0] && s->ranks_assigned) {
        s->rank = TSHI_ANY_RANK;
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
    s->launcher[0] = f->rank;
    s->launcher[1] = f->size;
    status = read_job(f, s);
    if (status == TSH_OK) status = check_below(s->rank, s->size, f->rank, f->size);
    s->local_rank = s->rank;
    s->local_size = s->size;
    if (status == TSH_OK) status = read_local(f, s);
    return status == TSH_OK && f->size == families[FAMILIES - 1].size ? read_slurm(s) : status;
}

/* A launcher of MPI that runs inside one that started a single rank: its ranks would be as many worlds of one.
 * torchrun's agents may themselves be such ranks. */
static tsh_status check_single(const tshi_settings *s) {
    if (s->launcher[1] != families[0].size || s->size != 1 || tshi_variable("TORCHELASTIC_USE_AGENT_STORE")) {
        return TSH_OK;
    }
    for (size_t i = 1; i < FAMILIES - 2; i++) {
        int size = 1;
        tsh_status status = tshi_variable_int(families[i].size, 1, TSHI_MOST_RANKS, &size, NULL);
        if (status != TSH_OK) return status;
        if (size == 1 || !tshi_variable(families[i].rank)) continue;
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "WORLD_SIZE is 1, but %s is %d: only one of two nested launchers may number the ranks",
                         families[i].size, size);
    }
    return TSH_OK;
}

tsh_status tshi_launcher_read(tshi_settings *out, bool *found) {
    *found = false;
    for (size_t i = 0; i < FAMILIES && !*found; i++) {
        tsh_status status = read_family(&families[i], out, found);
        if (status != TSH_OK) return status;
    }
    if (*found && check_single(out) != TSH_OK) return TSH_ERR_ARGUMENT;
    if (!*found && tshi_variable("PMIX_RANK") && out->method != TSHI_INIT_TRANSPORT) {
        return tshi_fail(TSH_ERR_ARGUMENT, "PMIX_RANK is set, but no variable says how many ranks there are: set RANK "
                                           "and WORLD_SIZE, or use mpi://");
    }
    return TSH_OK;
}
