/* The backend over MPI: collectives are MPI's own, on a communicator for each group.
 *
 * MPI cannot be told to give up a call that blocks, so nobody enters one before all members have come. Each call first
 * passes the group's gate, where a rank waits with its eyes open: for failures that others report, for those that have
 * left, for the deadline. The gate also compares what the ranks are about to do. Members that share a machine meet in a
 * page of shared memory, others in a small reduction that does not block.
 *
 * Two ranks trade messages instead, all_reduce apart, and keep their eyes open throughout; see mpi_pair.c. For calls
 * that block a thread has them open, which can say what it sees and no more; see mpi_watch.c. */
#ifndef TSHI_MPI_H
#define TSHI_MPI_H

#include "dist/backends/mpi/watcher.h"
#include "dist/bootstrap/rendezvous.h"
#include "dist/core/collectives.h"
#include "dist/core/wait_graph.h"
#include "dist/world.h"

#include <mpi.h>
#include <stdalign.h>
#include <stdatomic.h>

/* --- notices ------------------------------------------------------------------------------------------------------ */

typedef enum tshi_notice_kind {
    TSHI_NOTICE_FAILED,
    TSHI_NOTICE_BROKEN,
    TSHI_NOTICE_LEFT,
    TSHI_NOTICES
} tshi_notice_kind;

/* What a rank tells all the others of itself. */
typedef struct tshi_notice {
    uint32_t kind, epoch; /* the epoch goes up with each recovery; failures of an earlier one are forgotten */
    tshi_tape_step step;  /* of a failure */
    char words[TSHI_MESSAGE_SIZE];
} tshi_notice;

typedef struct tshi_outbox {
    tshi_notice notice;
    MPI_Request *request; /* [size] */
} tshi_outbox;

/* What is known of a rank. */
typedef struct tshi_mpi_peer {
    uint32_t failed;     /* 1 + epoch of its last failure */
    tshi_tape_step step; /* of that */
    bool broken;         /* it has given up for good */
    double left;         /* when it was heard to, 0: not */
    char *words;         /* of the failure, TSHI_MESSAGE_SIZE; made when there is one */
} tshi_mpi_peer;

/* Watches the calls of MPI that block; see watch.c. */
typedef struct tshi_mpi_watch {
    _Atomic uint64_t passages; /* entries to such a call and returns from it: odd inside */
    _Atomic(const tsh_group *) group;
    tshi_watcher thread;
    /* The thread's: the passages that it saw last, since when, and when it warns next. */
    uint64_t seen;
    double since, next_warning;
} tshi_mpi_watch;

/* What a rank has sent before it left or failed may still be under way for so long, seconds. */
#define TSHI_GRACE 0.25

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi {
    /* What each call looks at stands together. */
    int64_t chunk; /* most elements that one call of MPI is given */
    tsh_status broken;
    unsigned looks;
    bool troubled; /* somebody has failed or left; look closer */
    bool watched;  /* TSHARD_CHECK */
    bool shared;   /* TSHARD_MPI_SHARED */
    bool crowded;  /* more ranks than cores on this machine */
    bool ready;    /* the communicators are there */
    bool rdma;
    MPI_Comm recovery, notices;
    MPI_Request inbox_request;
    MPI_Op op[TSH_DTYPE_COUNT][TSH_REDUCE_OP_COUNT];
    int *node; /* [size] the machine of each rank, from 0 */
    int nodes;
    uint32_t epoch;
    tshi_notice inbox;
    tshi_outbox *outbox; /* [TSHI_NOTICES] */
    tshi_mpi_peer *peer; /* [size] */
    tshi_process me;
    double looked; /* for deaths, when last */
    /* Of the wait under way. */
    double waiting_since, next_word;
    tshi_waits waits;
    uint64_t next_group; /* numbers the groups that this rank leads */
    char broken_words[TSHI_MESSAGE_SIZE];
    tshi_pool messages;
    tshi_mpi_watch watch;
} tshi_mpi;

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* A member of a group on one machine, in memory that all of them share; see mpi_gate.c. */
typedef struct tshi_gate_member {
    alignas(128) _Atomic uint64_t arrived[2]; /* even and odd gates: who passes one may be at the next already */
    alignas(128) _Atomic uint64_t passed;     /* the last gate; apart, for only those look who want to give up */
    tshi_process who;
} tshi_gate_member;

typedef struct tshi_gate_block {
    _Atomic uint64_t id; /* of the group */
    tshi_gate_member member[];
} tshi_gate_block;

enum {
    TSHI_GATE_PASSED = 1,
    TSHI_GATE_ASYNC = 2,     /* somebody's call does not wait, so nobody's may block */
    TSHI_GATE_IRREGULAR = 4, /* somebody's parts are not equal */
    TSHI_GATE_DIFFER = 8,
    TSHI_GATE_STOPPED = 16 /* somebody has given up waiting */
};

typedef struct tshi_detail {
    tshi_post post;
    char text[TSHI_MESSAGE_SIZE];
} tshi_detail;

typedef enum tshi_phase { TSHI_IDLE, TSHI_AT_GATE, TSHI_COMPARING, TSHI_COUNTING, TSHI_MOVING } tshi_phase;

/* What a rank of two sends, receives and has for itself; see pair.c. */
typedef struct tshi_trade {
    const void *from, *own;
    void *to, *own_to;
    int64_t sends, receives, owns;
    int64_t block; /* most elements of a message */
    bool folds;    /* what is received is reduced with `own`, into `to` */
    size_t size;   /* of an element */
} tshi_trade;

/* The collective under way; there is one at a time. */
typedef struct tshi_mpi_op {
    tshi_phase phase;
    tsh_status status;
    bool async;
    bool regular;      /* all parts are equal: of the whole group once the gate is passed */
    uint64_t identity; /* hash of what has to agree */
    tshi_post post;
    bool moves; /* false: the ranks only compare */
    void *out;  /* where the result goes: call.out, or scratch */
    void *scratch;
    tshi_call call;
    int64_t whole;       /* most elements that one call of MPI has to do with, were it only one */
    int64_t step, steps; /* the next one, and how many there are; the same on all ranks if more than two */
    tshi_trade trade;
    int requests;
    MPI_Request request[2];
    tsh_tensor *held[2];
    double trouble_seen; /* when, 0: not */
    const char *text;    /* of an agreement, else NULL */
    uint64_t mine[3], all[3];
    char words[TSHI_MESSAGE_SIZE]; /* of a call that cannot be made */
} tshi_mpi_op;

typedef struct tshi_mpi_group {
    MPI_Comm comm;
    tshi_gate_block *block; /* NULL: the members are on several machines */
    uint64_t gate, moved;   /* last gate I came to, and the last behind which I went on */
    uint64_t word;          /* what I said at that gate */
    double stopping;        /* when I said that I give up there, 0: not */
    tshi_mpi_op op;
    uint64_t id;
    size_t block_bytes;
    int *counts;         /* [4 * size] for MPI */
    int64_t *kept;       /* [2 * size] counts of a call that may be given up */
    int64_t *matrix;     /* [2 * size * size], all_to_all with parts of its own; made when needed */
    char *fold;          /* two blocks, for sums of two ranks; made when needed */
    tshi_detail *detail; /* [1 + size], mine first */
    uint32_t *sent;      /* [size] messages to each member */
} tshi_mpi_group;

static inline tshi_mpi *tshi_mpi_of(const tsh_world *world) {
    return world->state;
}

static inline tshi_mpi_group *tshi_mpi_group_of(const tsh_group *group) {
    return group->state;
}

/* --- mpi_world.c -------------------------------------------------------------------------------------------------- */

/* See tshi_group_ops. */
tsh_status tshi_mpi_probe(const tshi_start *start, bool *takes);
tsh_status tshi_mpi_world_open(tsh_world *world, const tshi_start *start, void **heap);
tsh_status tshi_mpi_world_join(tsh_world *world, tsh_status mine);
void tshi_mpi_info(const tsh_world *world, tshi_backend_info *out);
void tshi_mpi_leave(tsh_world *world);
void tshi_mpi_world_close(tsh_world *world);

/* --- mpi_wireup.c ------------------------------------------------------------------------------------------------- */

/* Starts MPI for ranks that the rendezvous has found, where no launcher of MPI has started them. */
tsh_status tshi_mpi_connect(const tshi_start *start);

/* --- mpi_start.c: MPI itself, of which a process has one ---------------------------------------------------------- */

/* MPI_Init_thread, unless somebody has called it. */
tsh_status tshi_mpi_start(void);
/* The ranks of MPI_COMM_WORLD come together: rank, size and threads become theirs. MPI is started if it has to be. */
tsh_status tshi_mpi_enter(const tsh_world_config *config, tshi_settings *settings);
/* From now on MPI is not finalised at exit: that could wait for ever. */
void tshi_mpi_distrust(void);
/* Room for what the ranks of a world of that size are told. Not of the world's allocator: see tshi_mpi_part. */
tshi_outbox *tshi_outbox_create(int size);
/* Takes over the notices of a world that is left, which may be MPI_COMM_NULL. So many ranks have still to say that they
 * leave, which has to be received before MPI ends. Takes *outbox as well while MPI still sends from it. */
void tshi_mpi_part(MPI_Comm *notices, int missing, tshi_outbox **outbox, int size);
/* Hardware that reads and writes memory past the CPU. */
bool tshi_mpi_has_adapter(void);
/* A communicator of all of MPI_COMM_WORLD, once its ranks have come for it; TSH_ERR_TIMEOUT when they do not. */
tsh_status tshi_mpi_gather(double seconds, double warn_every, const tsh_log *log, MPI_Comm *out);

/* --- mpi_group.c -------------------------------------------------------------------------------------------------- */

/* group->state on a communicator of its members, which it takes over. Collective over them. */
tsh_status tshi_mpi_group_attach(tsh_group *group, tshi_mpi_group *mg, MPI_Comm comm);
tshi_mpi_group *tshi_mpi_group_new(tsh_world *world, int size);
void tshi_mpi_group_free(tsh_world *world, tshi_mpi_group *mg);
tsh_status tshi_mpi_group_open(tsh_group *parent, const int *ranks, int n, tsh_group *group);
void tshi_mpi_group_close(tsh_group *group);

/* --- mpi_gate.c --------------------------------------------------------------------------------------------------- */

/* Say that I am there with mg->op. An MPI error code. */
int tshi_gate_arrive(tsh_group *group);
/* TSHI_GATE_* bits once it is decided, else 0. */
int tshi_gate_poll(tsh_group *group, int *error);
/* "; rank 1 is stopped" of those that a signal has stopped, else "". */
const char *tshi_gate_stopped(const tsh_group *group, char *text, size_t size);
/* Takes members whose process is gone for broken. */
void tshi_gate_look_for_deaths(tsh_group *group);
/* As if no member had ever come. Collective, nobody is at the gate. */
void tshi_gate_renew(tsh_group *group);
/* Give up; false when it was passed after all, or when it is too early to tell: ask again. */
bool tshi_gate_withdraw(tsh_group *group);
/* That member has not come to this rank's gate, as far as one can tell. */
bool tshi_gate_lacks(const tsh_group *group, int member);

/* --- mpi_types.c -------------------------------------------------------------------------------------------------- */

MPI_Datatype tshi_mpi_type(tsh_dtype dtype);
/* Reductions of one dtype, made by tshi_mpi_ops_create. */
MPI_Op tshi_mpi_reduction(const tshi_mpi *mpi, tsh_dtype dtype, tsh_reduce_op reduce);
int tshi_mpi_ops_create(tshi_mpi *mpi);
void tshi_mpi_ops_free(tshi_mpi *mpi);
/* x /= ranks. */
void tshi_mpi_divide(tsh_device *device, tsh_dtype dtype, int64_t n, int ranks, void *x);

/* --- mpi_move.c --------------------------------------------------------------------------------------------------- */

/* The data of mg->op in steps of MPI calls. Before the first: sets op->steps. */
void tshi_move_begin(tsh_group *group);
/* One of them: done when it returns (`wait`), or with op->requests to wait for. An MPI error code. */
int tshi_move_step(tsh_group *group, int64_t step, bool wait);
/* After the last. */
void tshi_move_end(tsh_group *group);
/* Starts to send to one rank and to receive from another, with op->requests to wait for. An MPI error code. */
int tshi_mpi_exchange(tsh_group *group, const void *from, int send, int to_rank, void *to, int receive, int from_rank);

/* So many elements behind base, which may be NULL. */
static inline void *tshi_at(const void *base, int64_t elements, size_t size) {
    return (void *)((uintptr_t)base + (size_t)elements * size);
}

/* --- mpi_pair.c --------------------------------------------------------------------------------------------------- */

/* The same for two ranks and what they do better without MPI's collectives; steps only start. prepare: the memory that
 * the call needs. */
bool tshi_pair_takes(const tsh_group *group);
tsh_status tshi_pair_prepare(tsh_group *group);
void tshi_pair_begin(tsh_group *group);
int tshi_pair_step(tsh_group *group, int64_t step);
void tshi_pair_end(tsh_group *group);
/* For good: what has not come yet must not come into the caller's memory. */
void tshi_pair_abandon(tsh_group *group);

/* --- watch.c ------------------------------------------------------------------------------------------------------ */

/* Where there can be no thread, calls that block give no warnings. */
void tshi_watch_open(tsh_world *world);

/* Before and after a call that blocks. */
static inline void tshi_watch_pass(tsh_group *group) {
    tshi_mpi_watch *w = &tshi_mpi_of(group->world)->watch;
    uint64_t passages = atomic_load_explicit(&w->passages, memory_order_relaxed);
    atomic_store_explicit(&w->group, group, memory_order_relaxed);
    atomic_store_explicit(&w->passages, passages + 1, memory_order_release);
}

/* --- mpi_failure.c ------------------------------------------------------------------------------------------------ */

/* Take in what others have reported. */
void tshi_mpi_poll(tsh_world *world);
/* The same while waiting for a group: deaths too, and what a signal asks for. */
void tshi_mpi_look_around(tsh_group *group);
/* A rank has given up for good, or its process is gone. */
void tshi_mpi_lose(tsh_world *world, int rank, const char *words);
/* The error that a call has to return now, or TSH_OK. */
tsh_status tshi_mpi_trouble(tsh_world *world);
/* See tshi_group_ops.trouble. */
tsh_status tshi_mpi_heard(tsh_group *group, bool look, bool waits);
/* The same while waiting for the members of a group: also when one of them has left. */
tsh_status tshi_mpi_group_trouble(tsh_group *group);
/* The same error once it has been decided to stop: permanent where it has to be. */
tsh_status tshi_mpi_stop(tsh_group *group);
/* A failure of MPI itself, in its own words. Permanent. */
tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error);
/* Post the ranks that the wait for the group's call, or for a message, is for, as far as they have not come. */
void tshi_mpi_post_wait(tsh_group *group, const tsh_work *message);
/* Post the ranks that a recovery waits for: all of them, since no record says which have reached it. */
void tshi_mpi_post_recovery(tsh_world *world);
/* The wait that began at `since` has lasted too long; words when it has lasted long. It is under way until
 * tshi_waits_end. message: what is waited for, NULL: the group's call. */
bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since);
/* The deadline has passed. Permanent. message as above; what: the name of the call. */
tsh_status tshi_mpi_time_out(tsh_group *group, const tsh_work *message, const char *what);
/* Sleep a little, or only let others run; the longer the more. */
void tshi_mpi_doze(double waited);
void tshi_mpi_tell(tsh_world *world, tshi_notice_kind kind, const char *words, tshi_tape_step step);
tsh_status tshi_mpi_break(tsh_world *world, tsh_status status, const char *words);
void tshi_mpi_fail(tsh_world *world, const char *reason, tshi_tape_step step);
bool tshi_mpi_fails_later(const tsh_world *world, tshi_tape_step step);
tsh_status tshi_mpi_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_mpi_awake(tsh_group *group);
/* The wait that was posted is over. */
void tshi_mpi_end_wait(tsh_world *world);

/* --- mpi_recover.c ------------------------------------------------------------------------------------------------ */

tsh_status tshi_mpi_recover(tsh_world *world);

/* --- mpi.c -------------------------------------------------------------------------------------------------------- */

/* One look at the collective under way: true when it has moved. op->status holds once the phase is TSHI_IDLE. */
bool tshi_mpi_advance(tsh_group *group);
void tshi_mpi_op_end(tsh_group *group, tsh_status status);
tsh_status tshi_mpi_agree(tsh_group *parent, const char *text, tsh_status failed);

/* --- mpi_message.c ------------------------------------------------------------------------------------------------ */

tsh_status tshi_mpi_message_start(tsh_work *work);
void tshi_mpi_message_progress(tsh_work *work);
/* Forget those under way. */
void tshi_mpi_messages_drop(tsh_group *group);

#endif
