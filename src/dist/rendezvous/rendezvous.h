/* The rendezvous: the ranks of a job find each other and learn on which machines they are.
 *
 * One rank listens on TCP; its peers connect, prove that they are of the job, and get the roster. The methods
 * differ in how the listening rank is found: it is rank 0 (env://, tcp://HOST), the first reader of a file
 * (file://), or the first of those that receive each other's announcements (tcp:// with a multicast address). */
#ifndef TSHI_RENDEZVOUS_H
#define TSHI_RENDEZVOUS_H

#include "base/base.h"

#include "dist/rendezvous/wire.h"

/* What a rank brings to a rendezvous. */
typedef struct tshi_rendezvous {
    const tshi_settings *settings;
    const tsh_log_sink *log;
    const tsh_allocator *allocator;
    double deadline, next_warning;        /* next_warning: when the wait next logs what it waits for */
    unsigned char group[TSHI_GROUP_SIZE]; /* the public name of the job */
    tshi_process me;
    int *connections;                      /* see tshi_rendezvous_run */
    const struct tshi_memory_plan *memory; /* of a memory exchange; NULL: ranks get a roster */
    const int *numbers;                    /* of the ranks in messages: those of the world; NULL: as they are */
} tshi_rendezvous;

static inline int tshi_rendezvous_number(const tshi_rendezvous *r, int rank) {
    return r->numbers ? r->numbers[rank] : rank;
}

/* Finds the other ranks by the settings' method until `deadline`; the roster is the caller's (tshi_roster_free). Where
 * the launcher says that all ranks are on this machine, no message is needed.
 * `connections` ([size] of -1, or NULL) keeps the connections: the listening rank gets the one to each other rank at
 * that rank's index, each other rank the one that it has at its own. */
TSHI_TOOLS tsh_status tshi_rendezvous_run(const tshi_settings *settings, const tsh_log_sink *log,
                                          const tsh_allocator *allocator, double deadline, int *connections,
                                          tshi_roster *out);
/* Rank 0 warns of a token that is short enough to be guessed from a challenge, and of machines that share no token. */
void tshi_rendezvous_warn(const tshi_settings *settings, const tshi_roster *roster, const tsh_log_sink *log);
/* Fills what a rendezvous under the settings' key needs. */
tsh_status tshi_rendezvous_begin(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                                 double deadline, tshi_rendezvous *out);
/* Seconds in which peers may still come when ranks contradict each other, and in which all have to take their
 * answer. */
#define TSHI_RENDEZVOUS_GRACE 2.0
/* Seconds that a rendezvous may take: min(120, the timeout). */
double tshi_rendezvous_patience(const tshi_settings *settings);

/* --- rendezvous_file.c, rendezvous_multicast.c -------------------------------------------------------------------- */

tsh_status tshi_rendezvous_file(tshi_rendezvous *r, tshi_roster *out);
tsh_status tshi_rendezvous_multicast(tshi_rendezvous *r, tshi_roster *out);
/* For a launcher whose ranks have ended: takes the records of dead processes of this machine out of the file that a
 * file:// method names, and removes a file without other records. Any other method, or NULL: nothing. */
TSHI_TOOLS void tshi_rendezvous_tidy(const char *init_method);

/* --- roster.c ----------------------------------------------------------------------------------------------------- */

/* Arrays for `size` ranks on at most `nodes` machines. */
tsh_status tshi_roster_init(tshi_roster *roster, int size, int nodes, const tsh_allocator *allocator);
TSHI_TOOLS void tshi_roster_free(tshi_roster *roster, const tsh_allocator *allocator);
/* The roster of processes in the order of their ranks, with a new key; machines are numbered by their lowest rank. The
 * caller sets its own rank in it. */
tsh_status tshi_roster_of(const tshi_process *const *process, int size, const tsh_allocator *allocator,
                          tshi_roster *out);
/* Sets rank, local rank and size, and the key of this world. */
void tshi_roster_settings(const tshi_roster *roster, tshi_settings *settings);
/* Appends "ranks 0, 1", those of the machine. */
void tshi_roster_append(const tshi_roster *roster, int node, char *text, size_t size);
/* "a: ranks 0, 1; b: ranks 2, 3", cut off at `size`. */
const char *tshi_roster_hosts(const tshi_roster *roster, char *text, size_t size);

/* --- machine.c ---------------------------------------------------------------------------------------------------- */

/* This process. TSH_ERR_SYSTEM where it cannot read what its machine is. */
tsh_status tshi_process_self(tshi_process *out);
bool tshi_process_same_machine(const tshi_process *a, const tshi_process *b);
/* It is known to have ended: a process of this machine that is no more. */
bool tshi_process_ended(const tshi_process *process, const tshi_process *me);
/* The executable file's fingerprint: equal for ranks of one build of a program; 0: the file cannot be read. */
uint64_t tshi_program_fingerprint(void);
/* This rank and the sender of the frame disagree on the world's size: unless `text` (TSHI_MESSAGE_SIZE bytes) already
 * tells of such ranks it tells of these, and the deadline moves up, to when all will have heard. False: it already
 * did. */
bool tshi_rendezvous_contradict(const tshi_rendezvous *r, const tshi_frame *frame, char *text, double *deadline);
/* This machine has an RDMA adapter. */
bool tshi_has_adapter(void);
/* "rank 3", or "process 17 on host" where rank is negative. */
const char *tshi_rank_name(int rank, const tshi_process *process, char *text, size_t size);

#endif
