/* Collectives as messages between the members of a group, for transports that send contiguous bytes.
 *
 *   phase           what travels                                             next
 *   TSHI_ENTERING   each member's hash of the call, and its contribution if   the result of a small call, calls of two
 *                   that is small (schedule_entry.c)                          levels (levels.h), or a phase below
 *   TSHI_COMPARING  each member's signature: the hashes differ                an error, or TSHI_COUNTING
 *   TSHI_COUNTING   all counts of an all_to_all with unequal parts            an error, or TSHI_MOVING
 *   TSHI_MOVING     the data (schedule_move.c)                                TSHI_IDLE
 *
 * No function here waits, except for two levels: the transport calls tshi_schedule_advance until the phase is IDLE,
 * whether the caller waits for the call or has started it.
 *
 * Invariant: all members take the same phases unless a rank fails. It holds because each change of phase depends only
 * on what all members have sent to all. A member in TSHI_MOVING knows that all members have made the call. */
#ifndef TSHI_SCHEDULE_H
#define TSHI_SCHEDULE_H

#include "dist/collectives/collectives.h"

/* --- what a transport provides ------------------------------------------------------------------------------------ */

typedef struct tshi_request {
    uint64_t handle; /* the transport's */
    int member;      /* the peer; TSH_ANY_RANK for a receive from any */
    int sender;      /* world rank: set by `test` when a receive from any member is done */
    bool active;     /* the transport may still use the memory */
    bool receives;
} tshi_request;

/* Messages between two members with one tag arrive in the order in which they were sent. An error breaks the world. */
typedef struct tshi_message_ops {
    /* Begin to send and to receive: they set request->handle, or clear request->active if the message has gone or come.
     * The tag of a collective's message is the number of the call in the group. A message may be shorter than the room
     * for it. */
    tsh_status (*send)(tsh_group *group, int member, uint64_t tag, const void *data, size_t bytes, tshi_request *out);
    tsh_status (*receive)(tsh_group *group, int member, uint64_t tag, void *data, size_t room, tshi_request *out);
    /* Clears request->active once the message has gone or come; never waits. */
    tsh_status (*test)(tsh_world *world, tshi_request *request);
    /* Cancels a receive, which ends soon unless its message is already on its way. */
    void (*cancel)(tsh_world *world, tshi_request *request);
    /* Receives and discards all messages to this rank for which no receive is posted. */
    tsh_status (*discard)(tsh_world *world);
    /* Breaks the world if the transport has lost a peer that the control channel has not. NULL: it loses none. */
    void (*look)(tsh_world *world);
    /* The world will never recover: messages in flight end soon, if the transport can end them. NULL: it cannot. */
    void (*lose)(tsh_world *world);
    /* Breaks the world: this rank cannot take part in a call that its peers have begun, for that status and
     * tsh_error_message(). Returns the world's error. */
    tsh_status (*fail)(tsh_group *group, tsh_status status);
} tshi_message_ops;

/* --- the call in flight ------------------------------------------------------------------------------------------- */

typedef enum tshi_phase { TSHI_IDLE, TSHI_ENTERING, TSHI_COMPARING, TSHI_COUNTING, TSHI_MOVING } tshi_phase;

struct tshi_schedule;

/* Steps of messages: `begun` of them have been posted and the first `done` have ended. */
typedef struct tshi_schedule_steps {
    int64_t count, begun, done;
    int window; /* the most steps in flight */
    tsh_status (*post)(struct tshi_schedule *m, int64_t step);
    void (*finish)(struct tshi_schedule *m, int64_t step); /* when all its messages have ended; NULL: nothing to do */
    bool (*may_post)(const struct tshi_schedule *m, int64_t step); /* NULL: as soon as the window has room */
} tshi_schedule_steps;

typedef struct tshi_detail {
    tshi_signature signature;
    char text[TSHI_MESSAGE_SIZE];
} tshi_detail;

/* A group's, which has one collective in flight. */
typedef struct tshi_schedule {
    tsh_group *group;
    const tshi_message_ops *ops;
    int64_t longest; /* the most bytes in one message */
    bool apart;      /* the members are on several machines */
    tshi_phase phase;
    bool copies;  /* this member reaches others without RDMA, which copies what it sends */
    bool async;   /* this member has started the call without waiting; after TSHI_ENTERING: some member has */
    bool eager;   /* after TSHI_ENTERING: for some member `copies` */
    bool regular; /* this rank's parts of an all_to_all are equal; after TSHI_ENTERING: all members' are */
    bool stopped; /* the call is being given up */
    uint64_t number;
    tshi_comm_call call; /* its lists of counts are the caller's */
    tshi_signature signature;
    tshi_failure outcome; /* of a call that has ended; before: the reason why this rank cannot make it */
    tshi_schedule_steps steps;
    tshi_request *request; /* of the steps in flight, 2 (size - 1) each */
    int posted;            /* of the step that is being posted */
    /* TSHI_ENTERING: a block of each member (schedule_entry.c). */
    char *blocks;
    size_t *block, blocks_end; /* where each member's begins, and where the last one ends */
    int64_t *matrix;           /* [2 size size] counts of an all_to_all; allocated when first needed */
    tshi_detail *detail;       /* [size] */
    char *gathered;            /* TSHI_COMPARING, TSHI_COUNTING: one of the two, and the bytes of a member */
    size_t gathered_bytes;
    /* TSHI_MOVING (schedule_move.c): the elements of a message, the operands of a reduction, received blocks, and this
     * rank's part of a `reduce` to another rank. */
    int64_t elements;
    const void **terms;
    void *fold, *part;
    size_t request_room, fold_room, part_room; /* bytes */
} tshi_schedule;

/* The transport has zeroed it, and set ops, longest and apart. */
tsh_status tshi_schedule_open(tshi_schedule *m, tsh_group *group);
/* Frees the memory. No request may be active. */
void tshi_schedule_close(tshi_schedule *m);

/* Begins a call. started: the caller does not wait for it. The lists of counts must stay until the call has ended. */
tsh_status tshi_schedule_begin(tshi_schedule *m, const tshi_comm_call *call, bool started);
/* Advances the call in flight; true if it has made progress. m->outcome is valid when the phase is TSHI_IDLE. */
bool tshi_schedule_advance(tshi_schedule *m);
/* Gives up the call: cancels its receives. True once no message uses the caller's memory; then tshi_schedule_end. */
bool tshi_schedule_stop(tshi_schedule *m);
/* Ends the call with that status and tsh_error_message(). */
void tshi_schedule_end(tshi_schedule *m, tsh_status status);
/* The call waits for a message to or from that member. */
bool tshi_schedule_await(const tshi_schedule *m, int member);

/* --- schedule_steps.c --------------------------------------------------------------------------------------------- */

/* Posts a message of a step; nothing for 0 bytes of data. */
tsh_status tshi_step_send(tshi_schedule *m, int64_t step, int member, const void *data, size_t bytes);
tsh_status tshi_step_receive(tshi_schedule *m, int64_t step, int member, void *data, size_t room);
/* Begins with the steps that m->steps describes. */
tsh_status tshi_steps_begin(tshi_schedule *m);
/* Advances them without waiting. */
tsh_status tshi_steps_advance(tshi_schedule *m);
/* Grows *memory, of *room bytes, to at least `bytes`; its contents are lost. */
bool tshi_steps_reserve(const tshi_schedule *m, size_t bytes, void **memory, size_t *room);

/* --- schedule_entry.c: what all members send to all --------------------------------------------------------------- */

/* Up to so many members the one for whose block a call waits has not made it. */
#define TSHI_MOST_DIRECT 8

enum { TSHI_ENTRY_ASYNC = 1, TSHI_ENTRY_IRREGULAR = 2, TSHI_ENTRY_DIFFER = 4, TSHI_ENTRY_COPIES = 8 };

/* Bytes of a member's block. */
size_t tshi_entry_room(int size);
/* Begins to send this member's block, with the hash and TSHI_ENTRY_* flags of its call, to all. */
tsh_status tshi_entry_begin(tshi_schedule *m, uint64_t hash, uint32_t flags);
/* The flags of all members' blocks, which have come. */
uint32_t tshi_entry_flags(const tshi_schedule *m);
/* The blocks of all members have the data of the call. All members know it, if their calls do not differ. */
bool tshi_entry_has_data(const tshi_schedule *m);
/* The call's result, from those blocks. */
void tshi_entry_finish(tshi_schedule *m);
/* Begins an all-gather of `bytes` bytes for each member in `all`, where this member's already are. */
tsh_status tshi_gather_begin(tshi_schedule *m, void *all, size_t bytes);

/* --- schedule_move.c ---------------------------------------------------------------------------------------------- */

/* Begins to move the data of the call. */
tsh_status tshi_move_begin(tshi_schedule *m);

#endif
