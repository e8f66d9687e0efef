#include "dist/rendezvous/environment.h"
#include "base/cpu.h"
#include "base/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PORT    29500
#define DEFAULT_ADDRESS "127.0.0.1"
#define LONGEST_TIMEOUT 31536000.0

static tsh_status read_timeout(double wanted, double *out) {
    if (wanted == 0) return tshi_setting_seconds(TSHI_SETTING_TIMEOUT, out);
    if (!(wanted > 0) || !isfinite(wanted)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the timeout is %g seconds; it must be positive", wanted);
    }
    *out = wanted < LONGEST_TIMEOUT ? wanted : LONGEST_TIMEOUT;
    return TSH_OK;
}

/* By default a rank may fill the machine's memory; all heaps together still have to fit an address space. */
static size_t default_heap(int ranks, size_t page) {
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * page, most = ((size_t)1 << 45) / (size_t)ranks;
    return memory < most ? memory : most;
}

static tsh_status read_heap(size_t wanted, int ranks, size_t *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *out = wanted ? wanted : default_heap(ranks, page);
    tsh_status status = wanted ? TSH_OK : tshi_setting_bytes(TSHI_SETTING_HEAP, out);
    if (status != TSH_OK) return status;
    if (*out > SIZE_MAX / 4) return tshi_fail(TSH_ERR_OVERFLOW, "world_init: the heap would have %zu bytes", *out);
    *out = (*out + page - 1) / page * page;
    return TSH_OK;
}

/* The bits of a product may depend on the number of threads. */
static tsh_status read_threads(int wanted, int local_size, bool deterministic, int *out) {
    if (wanted < 0)
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: blas_threads is %d; it must not be negative", wanted);
    int share = deterministic ? 1 : tshi_granted_cores(NULL, 0) / local_size;
    uint64_t threads = wanted ? (uint64_t)wanted : share > 1 ? (uint64_t)share : 1;
    tsh_status status = wanted ? TSH_OK : tshi_setting_number(TSHI_SETTING_BLAS_THREADS, &threads);
    *out = (int)threads;
    return status;
}

static tsh_status read_device(tsh_device_kind wanted, tsh_device_kind *out) {
    static const tsh_device_kind kinds[] = {TSH_CPU, TSH_CUDA}; /* as the setting's choices */
    int choice = 0;
    *out = wanted;
    if (wanted == TSH_CPU || wanted == TSH_CUDA) return TSH_OK;
    if (wanted != TSH_DEVICE_DEFAULT) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: %d is not a kind of device", (int)wanted);
    }
    tsh_status status = tshi_setting_choice(TSHI_SETTING_DEVICE, &choice);
    *out = kinds[choice];
    return status;
}

static tsh_status read_log(int *out) {
    static const tsh_log_level levels[] = {TSH_LOG_ERROR, TSH_LOG_WARNING, TSH_LOG_INFO, TSH_LOG_DEBUG};
    int choice = -1;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_LOG, &choice);
    *out = choice < 0 ? -1 : (int)levels[choice];
    return status;
}

/* The settings of every backend are read whichever runs: a malformed one is an error at the start, not later or
 * never. */
static tsh_status read_switches(tshi_settings *s) {
    tsh_status status = tshi_setting_seconds(TSHI_SETTING_WARN, &s->warn_every);
    if (status == TSH_OK) status = tshi_setting_choice(TSHI_SETTING_CHECK, &s->checks);
    if (status == TSH_OK) status = tshi_setting_switch(TSHI_SETTING_PLAN, &s->logs_plans);
    if (status == TSH_OK && !s->deterministic)
        status = tshi_setting_switch(TSHI_SETTING_DETERMINISTIC, &s->deterministic);
    if (status == TSH_OK) status = tshi_setting_switch(TSHI_SETTING_SIGUSR1, &s->logs_recent_calls);
    if (status == TSH_OK) status = read_log(&s->log);
    return status;
}

/* --- the method --------------------------------------------------------------------------------------------------- */

/* A text that the configuration and a setting may both give. */
static const char *either(const char *wanted, tshi_setting_id id) {
    return wanted && wanted[0] ? wanted : tshi_setting_value(id);
}

tsh_status tshi_init_method_fail(const char *text) {
    return tshi_fail(
        TSH_ERR_ARGUMENT,
        "world_init: init_method is \"%.100s\"; it must be env://, tcp://HOST:PORT, file:///PATH or mpi://", text);
}

static tsh_status read_method(const tsh_world_config *config, tshi_settings *s) {
    const char *text = either(config->init_method, TSHI_SETTING_INIT);
    if (!text || !strcmp(text, "env://")) return TSH_OK;
    if (!strncmp(text, "tcp://", 6)) {
        s->method = TSHI_INIT_TCP;
        if (!tshi_address_split(text + 6, s->address, &s->port)) return tshi_init_method_fail(text);
        s->ranks_assigned = tshi_address_is_multicast(s->address);
    } else if (!strncmp(text, "file:///", 8) && strlen(text) > 8) {
        s->method = TSHI_INIT_FILE;
        s->ranks_assigned = true;
        if (strlen(text + 7) >= sizeof s->path) {
            return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the path of init_method is longer than %d characters",
                             TSHI_PATH_SIZE - 1);
        }
        memcpy(s->path, text + 7, strlen(text + 7) + 1);
    } else {
        size_t length = strcspn(text, ":");
        if (length == 0 || length >= sizeof s->transport || strcmp(text + length, "://") != 0) {
            return tshi_init_method_fail(text);
        }
        s->method = TSHI_INIT_TRANSPORT;
        memcpy(s->transport, text, length);
    }
    return TSH_OK;
}

static tsh_status read_group(const tsh_world_config *config, tshi_settings *s) {
    const char *text = either(config->group_name, TSHI_SETTING_GROUP);
    if (!text) return TSH_OK;
    if (strlen(text) >= sizeof s->group_name) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: group_name is longer than %d characters", TSHI_JOB_SIZE - 1);
    }
    memcpy(s->group_name, text, strlen(text) + 1);
    return TSH_OK;
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

/* What is left of a launcher's variables is the name of its job, where the environment is how the ranks find each
 * other. */
static void forget_launcher(tshi_settings *s, int rank, int size) {
    s->local_rank = rank < 0 ? 0 : rank;
    s->size = s->local_size = size;
    s->local_known = s->address_known = false;
    s->port = DEFAULT_PORT;
    memcpy(s->address, DEFAULT_ADDRESS, sizeof DEFAULT_ADDRESS);
    if (s->method != TSHI_INIT_ENV) s->job[0] = '\0';
}

/* The rank and size of the configuration, whatever a launcher has said. Of the same number of ranks its variables still
 * say on which machines they are; a world of another number is not the launcher's. Where the rendezvous assigns ranks,
 * rank 0 in a configuration wants none: it is what a zeroed configuration says. */
static tsh_status take_config_ranks(const tsh_world_config *config, bool launched, tshi_settings *s) {
    bool any = s->ranks_assigned && config->rank <= 0, same = launched && s->size == config->world_size;
    int rank = any ? TSHI_ANY_RANK : config->rank;
    if (config->world_size > TSHI_MOST_RANKS) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: world_size is %d; a world has at most %d ranks",
                         config->world_size, TSHI_MOST_RANKS);
    }
    if (rank >= config->world_size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: rank is %d, but world_size is %d: ranks go from 0 to %d", rank,
                         config->world_size, config->world_size - 1);
    }
    if (!same) forget_launcher(s, rank, config->world_size);
    s->launched = same && (any || s->rank == rank);
    if (same && !s->launched && !s->local_known) s->local_rank = rank;
    if (!any || !same) s->rank = rank;
    return TSH_OK;
}

/* Rank and size: the configuration's, else the launcher's, else a world of one. */
static tsh_status read_ranks(const tsh_world_config *config, tshi_settings *s) {
    int lowest = s->ranks_assigned ? TSHI_ANY_RANK : 0;
    if (config->world_size < 0 || config->rank < lowest || (config->world_size == 0 && config->rank > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: rank %d of world_size %d", config->rank, config->world_size);
    }
    bool found;
    s->size = s->local_size = 1;
    tsh_status status = tshi_launcher_read(s, &found);
    if (config->world_size > 0) return take_config_ranks(config, found && status == TSH_OK, s);
    if (status != TSH_OK) return status;
    s->launched = found;
    if (!found) {
        s->rank = s->local_rank = 0;
        s->size = s->local_size = 1;
        s->local_known = false;
    }
    if (!found && (s->method == TSHI_INIT_TCP || s->method == TSHI_INIT_FILE)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: %s needs %s, in the configuration or the environment",
                         s->method == TSHI_INIT_FILE ? "file://" : "tcp://",
                         s->ranks_assigned ? "world_size (WORLD_SIZE)" : "rank and world_size (RANK, WORLD_SIZE)");
    }
    return TSH_OK;
}

/* --- the address -------------------------------------------------------------------------------------------------- */

static tsh_status read_address(tshi_settings *s) {
    bool known = false;
    tsh_status status = TSH_OK;
    if (s->method != TSHI_INIT_TCP) {
        status = tshi_variable_int("MASTER_PORT", 1, 65535, &s->port, NULL);
        if (status == TSH_OK) status = tshi_variable_text("MASTER_ADDR", s->address, sizeof s->address, &known);
        s->address_known = s->address_known || known;
        /* A store of torchrun listens at MASTER_PORT. */
        const char *agent = tshi_variable("TORCHELASTIC_USE_AGENT_STORE");
        if (agent && !strcmp(agent, "True")) s->port += s->port < 65535 ? 1 : -1;
    }
    if (status == TSH_OK) status = tshi_setting_text(TSHI_SETTING_TOKEN, s->token, sizeof s->token);
    if (status == TSH_OK) status = tshi_setting_number(TSHI_SETTING_RESTART, &s->restart);
    return status;
}

static void hash_texts(const char *const *texts, size_t n, unsigned char key[TSHI_KEY_SIZE]) {
    tshi_sha256 hash;
    tshi_sha256_begin(&hash);
    for (size_t i = 0; i < n; i++) tshi_sha256_add(&hash, texts[i], strlen(texts[i]) + 1);
    tshi_sha256_end(&hash, key);
}

/* Ranks of one job have the same key, and those of a restart another one: a late rank of an earlier start cannot join.
 * The address is not in it: one may be written in many ways. */
static void make_key(tshi_settings *s) {
    char port[16], restart[24];
    const char *const parts[] = {port, "tshard", s->path, s->job, s->group_name, s->token, restart};
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(restart, sizeof restart, "%" PRIu64, s->restart);
    hash_texts(parts, sizeof parts / sizeof *parts, s->key);
}

static void make_entrance(tshi_settings *s) {
    char port[16];
    const char *const parts[] = {"tshard entrance", s->group_name, s->token, port};
    if (s->ranks_assigned || (s->method != TSHI_INIT_ENV && s->method != TSHI_INIT_TCP)) return;
    memcpy(s->join_address, s->address, sizeof s->join_address);
    s->join_port = s->port;
    snprintf(port, sizeof port, "%d", s->port);
    hash_texts(parts, sizeof parts / sizeof *parts, s->join_key);
}

/* TSHARD_JOIN in place of a launcher's variables. A world whose ranks or method the program names does not join. */
static tsh_status read_join(const tsh_world_config *config, tshi_settings *s) {
    const char *text = tshi_setting_value(TSHI_SETTING_JOIN);
    if (!text || config->world_size != 0 || config->init_method) return TSH_OK;
    s->joins = s->address_known = true;
    s->rank = TSHI_ANY_RANK;
    s->local_size = 1;
    if (!tshi_address_split(text, s->address, &s->port) || tshi_address_is_multicast(s->address))
        return tshi_fail(TSH_ERR_ARGUMENT, "TSHARD_JOIN is \"%.100s\"; it must be HOST:PORT", text);
    tsh_status status = read_group(config, s);
    if (status == TSH_OK) status = tshi_setting_text(TSHI_SETTING_TOKEN, s->token, sizeof s->token);
    make_entrance(s);
    return status;
}

static tsh_status read_rendezvous(const tsh_world_config *config, tshi_settings *s) {
    s->port = DEFAULT_PORT;
    memcpy(s->address, DEFAULT_ADDRESS, sizeof DEFAULT_ADDRESS);
    tsh_status status = read_join(config, s);
    if (s->joins) return status;
    if (status == TSH_OK) status = read_method(config, s);
    if (status == TSH_OK) status = read_group(config, s);
    char address[TSHI_JOB_SIZE];
    int port = s->port;
    memcpy(address, s->address, sizeof address);
    if (status == TSH_OK) status = read_ranks(config, s);
    if (status == TSH_OK && s->method == TSHI_INIT_TCP) {
        memcpy(s->address, address, sizeof address);
        s->port = port;
        s->address_known = true;
    }
    if (status == TSH_OK) status = read_address(s);
    if (s->size == 1 && s->rank < 0) s->rank = 0; /* there is no other to assign */
    if (status != TSH_OK) return status;
    make_key(s);
    make_entrance(s);
    return TSH_OK;
}

tsh_status tshi_settings_complete(const tsh_world_config *config, tshi_settings *s) {
    tsh_status status = read_timeout(config->timeout, &s->timeout);
    if (status == TSH_OK) status = read_heap(config->heap_bytes, s->size > 0 ? s->size : 1, &s->heap_bytes);
    s->silence = s->timeout;
    if (status == TSH_OK) status = tshi_setting_seconds(TSHI_SETTING_SILENCE, &s->silence);
    s->seed = config->seed;
    s->deterministic = config->deterministic;
    if (status == TSH_OK && s->seed == 0) status = tshi_setting_number(TSHI_SETTING_SEED, &s->seed);
    if (status == TSH_OK) status = read_device(config->device, &s->device);
    if (status == TSH_OK) status = read_switches(s);
    if (status != TSH_OK) return status;
    return read_threads(config->blas_threads, s->local_size ? s->local_size : 1, s->deterministic, &s->blas_threads);
}

void tshi_settings_share_cores(const tsh_world_config *config, tshi_settings *s) {
    if (config->blas_threads != 0 || s->deterministic || tshi_setting_value(TSHI_SETTING_BLAS_THREADS)) return;
    s->blas_threads = tshi_granted_cores(NULL, 0) / s->local_size;
    if (s->blas_threads < 1) s->blas_threads = 1;
}

tsh_status tshi_settings_read(const tsh_world_config *config, tshi_settings *out) {
    tshi_settings s = {0};
    tsh_status status = config->threads ? TSH_OK : read_rendezvous(config, &s);
    if (status == TSH_OK) status = tshi_settings_complete(config, &s);
    if (status == TSH_OK) *out = s;
    return status;
}
