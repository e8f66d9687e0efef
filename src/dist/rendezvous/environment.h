/* What a world starts from: the configuration, the launcher's environment, and the defaults, in that order. */
#ifndef TSHI_ENVIRONMENT_H
#define TSHI_ENVIRONMENT_H

#include "base/clock.h"
#include "base/settings.h"
#include "tshard/dist.h"

#define TSHI_JOB_SIZE  256
#define TSHI_PATH_SIZE 1024
#define TSHI_KEY_SIZE  32
/* A shorter token gets a warning. */
#define TSHI_TOKEN_LENGTH 16

/* How the ranks find each other. TRANSPORT: NAME://, by the means of the transport of that name. */
typedef enum tshi_init_method {
    TSHI_INIT_ENV = 0,
    TSHI_INIT_TCP,
    TSHI_INIT_FILE,
    TSHI_INIT_TRANSPORT
} tshi_init_method;

/* A rank that the rendezvous is to assign. */
#define TSHI_ANY_RANK (-1)

/* The largest world: a size past it is a mistake, and tables for it would fill the memory of the machine. */
#define TSHI_MOST_RANKS 1048576

typedef struct tshi_settings {
    tshi_init_method method;
    char transport[8]; /* of TSHI_INIT_TRANSPORT: the name, which need not be one */
    /* rank may be TSHI_ANY_RANK where the method assigns ranks (tcp:// with a multicast address, file://). With
     * TSHI_INIT_TRANSPORT rank and size are those of the environment or the configuration, or 0 of 1. */
    int rank, size, local_rank, local_size;
    bool launched;           /* rank and size are those that a launcher has set */
    const char *launcher[2]; /* the names of its variables for them */
    bool local_known;        /* local_size is the launcher's */
    bool ranks_assigned;     /* by the rendezvous, where none is wanted */
    double timeout;
    double silence; /* TSHARD_SILENCE */
    size_t heap_bytes;
    int blas_threads;
    uint64_t seed;
    tsh_device_kind device;
    double warn_every; /* TSHARD_WARN */
    int checks;        /* TSHARD_CHECK: 0, 1, or 2 for nan */
    bool logs_plans;   /* TSHARD_PLAN */
    bool deterministic;
    bool logs_recent_calls; /* TSHARD_SIGUSR1 */
    int log;                /* TSHARD_LOG: the least level of a line, or -1 where it is not set */
    /* The rendezvous: its address and its names. Ranks with different jobs, tokens or group names never see each
     * other. */
    char address[TSHI_JOB_SIZE];
    bool address_known; /* not the default */
    int port;
    char path[TSHI_PATH_SIZE]; /* of file:// */
    char token[TSHI_JOB_SIZE];
    char job[TSHI_JOB_SIZE];
    uint64_t restart; /* TSHARD_RESTART */
    char group_name[TSHI_JOB_SIZE];
    unsigned char key[TSHI_KEY_SIZE]; /* made of path, token, job, restart and group name; then: only of this world */
    /* Where ranks enter the running job, whatever world it has come to, and with which key: made of port, token and
     * group name, which a rank that joins knows. */
    bool joins; /* TSHARD_JOIN: this rank enters */
    char join_address[TSHI_JOB_SIZE];
    int join_port; /* 0: nowhere */
    unsigned char join_key[TSHI_KEY_SIZE];
} tshi_settings;

/* Reads configuration, environment and defaults. TSH_ERR_ARGUMENT for a malformed value. */
tsh_status tshi_settings_read(const tsh_world_config *config, tshi_settings *out);
/* TSH_ERR_ARGUMENT for an init_method that is none of those there are. */
tsh_status tshi_init_method_fail(const char *text);
/* The part of it that is not about finding the ranks: s has their number already, or 0. */
tsh_status tshi_settings_complete(const tsh_world_config *config, tshi_settings *s);
/* The threads of each of s->local_size ranks on this machine, where neither the configuration nor the environment has a
 * number. */
void tshi_settings_share_cores(const tsh_world_config *config, tshi_settings *s);

/* --- address.c ---------------------------------------------------------------------------------------------------- */

/* TSH_OK when `address` names this machine, as the resolver tells until the deadline, else TSH_ERR_UNSUPPORTED. */
tsh_status tshi_address_is_here(const char *address, double deadline);
/* The address is written as "localhost", 127.x or ::1; it is not looked up. */
bool tshi_address_is_loopback(const char *address);
/* The addresses by which other machines may reach this one, with commas between them; "" where there are none. */
void tshi_address_own(char *text, size_t size);
/* "HOST:PORT", "[IPV6]:PORT" into its parts (host: TSHI_JOB_SIZE bytes); false when it is none. */
bool tshi_address_split(const char *text, char *host, int *port);
/* True for a multicast address (239.1.2.3, ff15::1). */
bool tshi_address_is_multicast(const char *address);

/* --- launchers.c -------------------------------------------------------------------------------------------------- */

/* Rank, size, local rank and size, job, and the default address and port, from the first family of variables that is
 * set; false when none is. */
tsh_status tshi_launcher_read(tshi_settings *out, bool *found);

#endif
