/* The meeting: from "I am of this job" to "these are all of us, and where".
 *
 * One rank listens on TCP, the others come to it, prove that they are of the job, and get the roster. The methods
 * differ in how the one that listens is found: it is rank 0 (env://, tcp://HOST), whoever of the file's readers is
 * first (file://), or the first of those that hear of each other (tcp:// with a multicast address). */
#ifndef TSHI_MEET_H
#define TSHI_MEET_H

#include "dist/bootstrap/wire.h"

#include <sys/socket.h>

typedef struct tshi_meet {
    const tshi_settings *settings;
    const tsh_log *log;
    const tsh_allocator *allocator;
    double deadline, next_word;           /* next_word: when the wait prints again what it waits for */
    unsigned char group[TSHI_GROUP_SIZE]; /* what the job is called in public */
    tshi_who me;
    int *spokes; /* as of tshi_meet_all */
} tshi_meet;

/* Meet by the settings' method until `deadline`; the roster is the caller's (tshi_roster_free). Ranks that the launcher
 * says are all of this machine have no need to.
 * `spokes` ([size] of -1, or NULL) keeps the connections: the one that has listened gets that to each of the others, at
 * their rank, and each of the others the one that it has, at its own. */
tsh_status tshi_meet_all(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                         double deadline, int *spokes, tshi_roster *out);

/* Seconds that meeting may take: min(120, the timeout). */
double tshi_meet_patience(const tshi_settings *settings);
/* Rank, local rank and size, and the key of this world. */
void tshi_roster_settings(const tshi_roster *roster, tshi_settings *settings);
/* "a: ranks 0, 1; b: ranks 2, 3", cut off in time. */
const char *tshi_roster_hosts(const tshi_roster *roster, char *text, size_t size);

/* --- who.c -------------------------------------------------------------------------------------------------------- */

/* TSH_ERR_SYSTEM where this rank cannot read what its machine is. */
tsh_status tshi_who_am_i(tshi_who *out);
bool tshi_who_same_host(const tshi_who *a, const tshi_who *b);
/* Known to be dead: a process of this host that is no more. */
bool tshi_who_gone(const tshi_who *who, const tshi_who *me);

/* --- dial.c: sockets that never wait ------------------------------------------------------------------------------ */

#define TSHI_PLACES     16
#define TSHI_PLACE_TEXT 80

typedef struct tshi_place_at {
    struct sockaddr_storage address;
    socklen_t length;
} tshi_place_at;

/* All addresses of host (NULL: every one of this machine's), at most TSHI_PLACES. */
tsh_status tshi_dial_resolve(const char *host, int port, tshi_place_at *out, int *n);
/* "127.0.0.1:29500", "[::1]:29500" */
const char *tshi_dial_text(const tshi_place_at *place, char text[TSHI_PLACE_TEXT]);
/* A socket that listens there, or -1 with errno set. `shared`: others of this user may listen there too. */
int tshi_dial_listen(const tshi_place_at *place, bool shared);
/* The port of a listener that the system chose. */
int tshi_dial_port(int listener);
/* A connection, or -1 with errno set (ETIMEDOUT at the deadline). */
int tshi_dial_connect(const tshi_place_at *place, double deadline);
/* Read or write all of it before the deadline; false with errno set, 0 at the end of the connection. */
bool tshi_dial_read(int fd, void *bytes, size_t size, double deadline);
bool tshi_dial_write(int fd, const void *bytes, size_t size, double deadline);
void tshi_dial_close(int *fds, int n);

/* --- host.c: the one that listens --------------------------------------------------------------------------------- */

typedef struct tshi_host_plan {
    int *listeners; /* [n], stay the caller's */
    int n;
    unsigned char *leader; /* the nonce by which this rank was announced; NULL: it was not */
    /* Called about every 100 ms while ranks come; false ends it with *again. May be NULL. */
    bool (*tick)(void *user);
    /* Called when all have come or time is up, before anybody hears of it. May be NULL. */
    void (*closing)(void *user);
    void *user;
} tshi_host_plan;

/* Gather all ranks and answer them. *again (may be NULL when tick is): tick said so, nobody was answered. */
tsh_status tshi_host_run(tshi_meet *meet, const tshi_host_plan *plan, bool *again, tshi_roster *out);

/* --- guest.c: the ones that come ---------------------------------------------------------------------------------- */

typedef enum tshi_guest_end {
    TSHI_GUEST_DONE,     /* *status holds: the roster, or an error that the host gave or that is final */
    TSHI_GUEST_NOBODY,   /* nothing there, or it went away: try again */
    TSHI_GUEST_STRANGER, /* something else is there; or another job, which may share the place */
} tshi_guest_end;

/* One attempt at one place, to connect within `patience` seconds. `leader`, where not NULL, is the nonce by which the
 * one that listens was announced, as its challenge has to say. Why it came to nothing goes into words. */
tshi_guest_end tshi_guest_try(tshi_meet *meet, const tshi_place_at *place, const unsigned char *leader, double patience,
                              tsh_status *status, tshi_roster *out, char *words, size_t words_size);
/* All places, again and again until the deadline. */
tsh_status tshi_guest_run(tshi_meet *meet, const tshi_place_at *places, int n, tshi_roster *out);

/* --- records.c ---------------------------------------------------------------------------------------------------- */

/* What is in the file where jobs meet. */
typedef struct tshi_records {
    size_t size;
    unsigned char bytes[65536];
} tshi_records;

/* Whether a meeting may have written this; else it is somebody's own. */
bool tshi_records_possible(const tshi_records *records);
/* Drop the records of the dead (`dead`: the nonce of one known to be), of nonce `mine`, and what breaks off; true when
 * something was. *leader is the last of this job, where *found. */
bool tshi_records_sort(tshi_records *records, const tshi_meet *meet, const unsigned char *mine,
                       const unsigned char *dead, tshi_frame *leader, bool *found);
/* False: there is no room. */
bool tshi_records_add(tshi_records *records, const tshi_meet *meet, const tshi_frame *record);

/* --- meet_file.c, meet_many.c ------------------------------------------------------------------------------------- */

tsh_status tshi_meet_file(tshi_meet *meet, tshi_roster *out);
/* For a launcher whose ranks are gone: takes what dead processes of this machine have left out of the file that a
 * file:// method names; without records of others the file goes. Any other method, or NULL: nothing. */
void tshi_meet_tidy(const char *init_method);
tsh_status tshi_meet_many(tshi_meet *meet, tshi_roster *out);

#endif
