/* The variables that launchers set, read strictly: a malformed one is an error, never a default. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/environment.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT 600.0
#define DEFAULT_PORT    29500
#define LONGEST_TIMEOUT 31536000.0

/* One launcher's names for the same four numbers, and what tells its jobs apart. A NULL is a name it does not have. */
typedef struct family {
    const char *rank, *size, *local_rank, *local_size, *job, *step;
} family;

/* In order of preference: tshard-run and torchrun name the rank outright; mpirun and srun imply it. */
static const family families[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", NULL},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

static const char *variable(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

/* Decimal digits and nothing else. */
static bool parse_integer(const char *text, long long low, long long high, long long *out) {
    if (text[0] < '0' || text[0] > '9') return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || value < low || value > high) return false;
    *out = value;
    return true;
}

/* *out is left alone when the variable is not set; *found says which. */
static tsh_status read_int(const char *name, int low, int high, int *out, bool *found) {
    const char *text = variable(name);
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

static tsh_status read_text(const char *name, char out[TSHI_JOB_SIZE]) {
    const char *text = variable(name);
    if (!text) return TSH_OK;
    if (strlen(text) >= TSHI_JOB_SIZE) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is longer than %d characters", name, TSHI_JOB_SIZE - 1);
    }
    memcpy(out, text, strlen(text) + 1);
    return TSH_OK;
}

static tsh_status read_timeout(double wanted, double *out) {
    const char *text = variable("TSHARD_TIMEOUT");
    *out = wanted;
    if (wanted == 0 && text) {
        char *end;
        *out = strtod(text, &end);
        bool number = end != text && *end == '\0' && text[0] != ' ';
        if (!number || !(*out > 0) || *out > LONGEST_TIMEOUT) {
            return tshi_fail(TSH_ERR_ARGUMENT, "TSHARD_TIMEOUT is \"%.64s\"; it must be a positive number of seconds",
                             text);
        }
    } else if (wanted == 0) {
        *out = DEFAULT_TIMEOUT;
    } else if (!(wanted > 0) || !isfinite(wanted)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: a timeout of %g seconds", wanted);
    }
    if (*out > LONGEST_TIMEOUT) *out = LONGEST_TIMEOUT;
    return TSH_OK;
}

static int suffix_shift(const char *suffix) {
    if (!strcmp(suffix, "")) return 0;
    if (!strcmp(suffix, "K") || !strcmp(suffix, "k")) return 10;
    if (!strcmp(suffix, "M") || !strcmp(suffix, "m")) return 20;
    if (!strcmp(suffix, "G") || !strcmp(suffix, "g")) return 30;
    if (!strcmp(suffix, "T") || !strcmp(suffix, "t")) return 40;
    return -1;
}

/* "4096", "512M", "4G". */
static bool parse_size(const char *text, size_t *out) {
    if (text[0] < '0' || text[0] > '9') return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = suffix_shift(end);
    if (errno || shift < 0 || value == 0 || value > (SIZE_MAX >> 1 >> shift)) return false;
    *out = (size_t)value << shift;
    return true;
}

static tsh_status read_heap(size_t wanted, size_t *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const char *text = variable("TSHARD_HEAP");
    if (wanted) {
        *out = wanted;
    } else if (text) {
        if (!parse_size(text, out)) {
            return tshi_fail(TSH_ERR_ARGUMENT,
                             "TSHARD_HEAP is \"%.64s\"; it must be bytes, or a number like 512M or 4G", text);
        }
    } else {
        *out = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    }
    if (*out > SIZE_MAX / 4) return tshi_fail(TSH_ERR_OVERFLOW, "world_init: a heap of %zu bytes", *out);
    *out = (*out + page - 1) / page * page;
    return TSH_OK;
}

int tshi_granted_cores(unsigned char *mask, size_t size) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (long i = 0; i < (online > 0 ? online : 1); i++) CPU_SET((size_t)i, &set);
    }
    for (size_t i = 0; i < size; i++) mask[i] = 0;
    for (size_t i = 0; i < size * 8 && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) mask[i / 8] |= (unsigned char)(1u << i % 8);
    }
    return CPU_COUNT(&set);
}

static tsh_status read_threads(int wanted, int local_size, int *out) {
    if (wanted < 0) return tshi_fail(TSH_ERR_ARGUMENT, "world_init: blas_threads is %d", wanted);
    bool found = false;
    *out = wanted;
    if (wanted == 0) {
        tsh_status status = read_int("TSHARD_BLAS_THREADS", 1, 4096, out, &found);
        if (status != TSH_OK) return status;
    }
    if (*out == 0) *out = tshi_granted_cores(NULL, 0) / local_size;
    if (*out < 1) *out = 1;
    return TSH_OK;
}

static tsh_status read_seed(uint64_t wanted, uint64_t *out) {
    const char *text = variable("TSHARD_SEED");
    *out = wanted;
    if (wanted || !text) return TSH_OK;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9') {
        return tshi_fail(TSH_ERR_ARGUMENT, "TSHARD_SEED is \"%.64s\"; it must be a whole number", text);
    }
    return TSH_OK;
}

static tsh_status check_rank(int rank, int size, const char *rank_name, const char *size_name) {
    if (rank < size) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is %d, but %s is %d: ranks go from 0 to %d", rank_name, rank, size_name,
                     size, size - 1);
}

/* The first family of which a rank is set. Both or neither. */
static tsh_status read_family(const family *f, tshi_settings *s, bool *found) {
    bool has_size, has_local_rank, has_local_size;
    tsh_status status = read_int(f->rank, 0, INT32_MAX - 1, &s->rank, found);
    if (status == TSH_OK) status = read_int(f->size, 1, INT32_MAX, &s->size, &has_size);
    if (status != TSH_OK) return status;
    if (*found != has_size && f == &families[0]) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is set, but %s is not", *found ? f->rank : f->size,
                         *found ? f->size : f->rank);
    }
    *found = *found && has_size;
    if (!*found) return TSH_OK;
    status = check_rank(s->rank, s->size, f->rank, f->size);
    s->local_rank = s->rank;
    s->local_size = s->size;
    if (status == TSH_OK) status = read_int(f->local_rank, 0, INT32_MAX - 1, &s->local_rank, &has_local_rank);
    if (status == TSH_OK) status = read_int(f->local_size, 1, INT32_MAX, &s->local_size, &has_local_size);
    if (status == TSH_OK && has_local_size && has_local_rank) {
        status = check_rank(s->local_rank, s->local_size, f->local_rank, f->local_size);
    }
    if (status != TSH_OK) return status;
    const char *job = variable(f->job), *step = variable(f->step);
    snprintf(s->job, sizeof s->job, "%s.%s", job ? job : "", step ? step : "");
    return TSH_OK;
}

static tsh_status read_launcher(tshi_settings *s, bool *found) {
    *found = false;
    for (size_t i = 0; i < sizeof families / sizeof *families && !*found; i++) {
        tsh_status status = read_family(&families[i], s, found);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

/* Rank and size: the configuration's, else the launcher's, else a world of one. */
static tsh_status resolve_ranks(const tsh_world_config *config, tshi_settings *s) {
    if (config->world_size < 0 || config->rank < 0 || (config->world_size == 0 && config->rank != 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: rank %d of world_size %d", config->rank, config->world_size);
    }
    bool found;
    tsh_status status = read_launcher(s, &found);
    if (status != TSH_OK) return status;
    if (!found) *s = (tshi_settings){.size = 1, .local_size = 1};
    if (config->world_size == 0) return TSH_OK;
    if (found && (s->rank != config->rank || s->size != config->world_size)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "world_init: the configuration says rank %d of %d, the environment rank %d of %d",
                         config->rank, config->world_size, s->rank, s->size);
    }
    if (!found) {
        s->rank = s->local_rank = config->rank;
        s->size = s->local_size = config->world_size;
    }
    return check_rank(s->rank, s->size, "world_init: rank", "world_size");
}

static tsh_status read_meeting(tshi_settings *s) {
    bool found;
    s->port = DEFAULT_PORT;
    memcpy(s->address, "127.0.0.1", sizeof "127.0.0.1");
    tsh_status status = read_int("MASTER_PORT", 1, 65535, &s->port, &found);
    if (status == TSH_OK) status = read_text("MASTER_ADDR", s->address);
    if (status == TSH_OK) status = read_text("TSHARD_TOKEN", s->token);
    return status;
}

tsh_status tshi_settings_read(const tsh_world_config *config, tshi_settings *out) {
    tshi_settings s = {0};
    tsh_status status = TSH_OK;
    if (!config->threads) {
        status = resolve_ranks(config, &s);
        if (status == TSH_OK) status = read_meeting(&s);
    }
    if (status == TSH_OK) status = read_timeout(config->timeout, &s.timeout);
    if (status == TSH_OK) status = read_heap(config->heap_bytes, &s.heap_bytes);
    if (status == TSH_OK) status = read_seed(config->seed, &s.seed);
    if (status == TSH_OK) status = read_threads(config->blas_threads, s.local_size ? s.local_size : 1, &s.blas_threads);
    if (status == TSH_OK) *out = s;
    return status;
}
