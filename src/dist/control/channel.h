/* Messages between two ranks, on whatever machines: small data of the library's own, for callers that wait. A message
 * is one or more packets (packets.h). It goes into the queue of the rank that receives it, and on another machine the
 * relays carry it there.
 *
 * Invariant: no call receives a message of an earlier one. It holds because the messages of a group are numbered alike
 * on its members, from 0 in each epoch: every rank has returned from its calls before any rank begins a new epoch
 * (recover.c), and discards the packets of others. */
#ifndef TSHI_CHANNEL_H
#define TSHI_CHANNEL_H

#include "dist/control/control.h"

/* A call of a group's ranks, in which each sends any other one at most one message.
 *
 * After a failure that a recovery may end, a rank that waits in a call gives up only if the member that it waits for is
 * not in this call and has sent nothing to it.
 *
 * Invariant: a rank receives what the member that it waits for has sent, even if some rank fails at that time; so a
 * failure after an agreement does not change what other members have from it. It holds because a rank writes in its
 * record which call it is in before it looks for failures, and that it is in none after it has sent its last message;
 * a waiting rank looks for failures, then reads that record, then empties its queue. */
typedef struct tshi_channel_call {
    tsh_group *group;
    const char *name;          /* "mesh_create data=2,model=2" */
    unsigned long long number; /* for messages to the user */
    uint32_t message;          /* its number, the same on all ranks; the messages of a call have one number */
    uint64_t agreement;        /* what its members have in their records */
    double since;              /* 0 until the call waits for long */
    double next_poll;
    tshi_deadline deadline; /* of that wait */
    bool peer_left;         /* a receive has failed with TSH_ERR_PEER because the member has left the world */
} tshi_channel_call;

/* `name` must outlive the call. Fails if a rank has failed. */
tsh_status tshi_channel_begin(tshi_channel_call *call, tsh_group *group, const char *name);
/* Ends the call, whatever its outcome. */
void tshi_channel_end(tshi_channel_call *call);

/* Sends the call's message to a member: one, to each that receives it. Waits while its queue is full. */
tsh_status tshi_channel_send(tshi_channel_call *call, int member, const void *data, size_t bytes);
/* Receives the call's message of a member. Bytes past `room` are discarded. *bytes: those of the message. */
tsh_status tshi_channel_receive(tshi_channel_call *call, int member, void *out, size_t room, size_t *bytes);
/* Takes memory for a queue of packets that come before they are waited for. More takes more memory; without it the
 * world breaks. */
tsh_status tshi_channel_open(tsh_world *world);
void tshi_channel_close(tsh_world *world);

#endif
