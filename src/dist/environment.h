/* What a world starts from: the configuration, the launcher's environment, and the defaults, in that order. */
#ifndef TSHI_ENVIRONMENT_H
#define TSHI_ENVIRONMENT_H

#include "dist/dist.h"

#define TSHI_JOB_SIZE 256

typedef struct tshi_settings {
    int rank, size, local_rank, local_size;
    double timeout;
    size_t heap_bytes;
    int blas_threads;
    uint64_t seed;
    /* Where and as what the ranks meet. Ranks with another job string never see each other. */
    char address[TSHI_JOB_SIZE];
    int port;
    char token[TSHI_JOB_SIZE];
    char job[TSHI_JOB_SIZE];
} tshi_settings;

tsh_status tshi_settings_read(const tsh_world_config *config, tshi_settings *out);
/* Cores that this process may run on, at least 1. `mask`: a bit for each, size bytes, may be NULL. */
int tshi_granted_cores(unsigned char *mask, size_t size);
/* TSH_OK when `address` names this machine, else TSH_ERR_UNSUPPORTED with the words. */
tsh_status tshi_address_is_here(const char *address);

#endif
