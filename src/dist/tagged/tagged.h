/* What transports of tagged messages between two ranks share: groups, collectives (schedule.h), point to point,
 * failures, the deadline and recovery. Messages make progress only inside the library's calls. A transport provides the
 * messages (tshi_message_ops), whose tags name their group, epoch and call. */
#ifndef TSHI_TAGGED_H
#define TSHI_TAGGED_H

#include "dist/collectives/schedule.h"
#include "dist/control/control.h"

/* Seconds for which messages that a rank sent before it left or failed may still be in flight. */
#define TSHI_GRACE 0.25

/* What a message is for, in the upper bits of its tag, and a number below. The number of a header is 0: headers of a
 * sender are taken in their order. */
typedef enum tshi_purpose { TSHI_FOR_CALL, TSHI_FOR_HEADER, TSHI_FOR_DATA, TSHI_FOR_REPLY } tshi_purpose;

#define TSHI_PURPOSE_SHIFT 62

static inline uint64_t tshi_tag(tshi_purpose purpose, uint64_t number) {
    return (uint64_t)purpose << TSHI_PURPOSE_SHIFT | number;
}

/* The first member of a transport's state of a world. */
typedef struct tshi_tagged {
    const tshi_message_ops *ops;
    int64_t longest; /* the most bytes in one message */
    unsigned looks;
    bool oversubscribed; /* see tshi_machine_oversubscribed */
    bool moved;          /* bytes have moved since a wait last cleared it: the transport sets it, if it can tell */
    double *left;        /* [size] when this rank noticed that a rank has left; 0: it has not */
    double looked;       /* when this rank last polled for deaths */
    /* The start of the wait in progress, and its next warning. */
    double waiting_since, next_warning;
    tshi_pool messages;
    struct tshi_tagged_message *given_up; /* messages that the transport may still use */
} tshi_tagged;

/* The first member of its state of a group. */
typedef struct tshi_tagged_group {
    tshi_schedule call;  /* the collective in flight */
    double trouble_seen; /* when this rank first saw a failure in this call; 0: it has not */
    uint32_t *sent;      /* [size] messages to each member */
} tshi_tagged_group;

static inline tshi_tagged *tshi_tagged_of(const tsh_world *world) {
    return world->state[world->control->place];
}

static inline tshi_tagged_group *tshi_tagged_group_of(const tsh_group *group) {
    return group->state;
}

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* The transport has zeroed the state, and set world->state. */
tsh_status tshi_tagged_open(tsh_world *world, tshi_tagged *tagged, const tshi_message_ops *ops, int64_t longest);
/* Once all ranks have joined. */
void tshi_tagged_joined(tsh_world *world);
void tshi_tagged_close(tsh_world *world, tshi_tagged *tagged);
/* Sets group->state to zeroed memory of that many bytes, which begins with a tshi_tagged_group. */
tsh_status tshi_tagged_group_prepare(tsh_group *group, size_t bytes);
/* Frees it. usable: the transport can still be called; with a message in flight the memory is leaked. */
void tshi_tagged_group_close(tsh_group *group, bool usable);
/* tshi_message_ops.fail: breaks the world. */
tsh_status tshi_tagged_fail(tsh_group *group, tsh_status status);

/* --- collective.c: see tshi_group_ops ----------------------------------------------------------------------------- */

tsh_status tshi_tagged_run(tsh_group *group, const tshi_comm_call *call);
tsh_status tshi_tagged_start(tsh_work *work);
void tshi_tagged_progress(tsh_work *work);
bool tshi_tagged_overlaps(const tsh_group *group);
bool tshi_tagged_stages(const tsh_group *group, const tshi_comm_call *call);

/* --- failure.c ---------------------------------------------------------------------------------------------------- */

/* Called while waiting: polls for deaths every 20 ms, and answers SIGUSR1. */
void tshi_tagged_poll(tsh_world *world);
/* This rank noticed at least `seconds` ago that the rank has left. */
bool tshi_tagged_has_left(const tsh_world *world, int rank, double seconds);
/* The error that a call has to return now, or TSH_OK. */
tsh_status tshi_tagged_failure(tsh_world *world);
/* See tshi_group_ops.check_peers. */
tsh_status tshi_tagged_check_peers(tsh_group *group, bool look, bool waits);
/* As above for a rank that waits for the group's members: also an error if one of them has left. */
tsh_status tshi_tagged_group_failure(tsh_group *group);
/* Cancels a receive. If its message is already coming, waits for the rest until the deadline. */
void tshi_tagged_end_receive(tsh_world *world, tshi_request *request, double deadline);
/* After tshi_tagged_group_failure has found an error: returns it once the group's call has been given up, and until
 * then TSH_OK. No message uses the caller's memory any more, unless the world is broken. */
tsh_status tshi_tagged_give_up(tsh_group *group);
/* The error with which the group's call, waited for since `since`, has been given up; else TSH_OK. */
tsh_status tshi_tagged_poll_call(tsh_group *group, double since);
/* Yields the processor for the first 2 ms without progress, then sleeps, longer as the wait lasts. */
void tshi_tagged_doze(double waited);
tsh_status tshi_tagged_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_tagged_awake(tsh_group *group);

/* --- recover.c: see tshi_group_ops -------------------------------------------------------------------------------- */

tsh_status tshi_tagged_recover(tsh_world *world);
void tshi_tagged_restart(tsh_group *group);

/* --- point_to_point.c --------------------------------------------------------------------------------------------- */

tsh_status tshi_tagged_message_start(tsh_work *work);
void tshi_tagged_message_progress(tsh_work *work);
/* See tshi_group_ops.drop. */
void tshi_tagged_message_drop(tsh_work *work);
/* Frees the given-up messages that the transport no longer uses. True if none is left. */
bool tshi_tagged_messages_ended(tsh_world *world);

#endif
