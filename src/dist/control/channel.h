/* Messages between two ranks, on whatever machines: small data of the library's own, for callers that wait. A message
 * is one or more packets (packets.h). It goes into the queue of the rank that receives it, and on another machine the
 * relays carry it there.
 *
 * Invariant: no call receives a message of an earlier one. It holds because the messages of a group are numbered alike
 * on its members, from 0 in each epoch: every rank has returned from its calls before any rank begins a new epoch
 * (recover.c), and discards the packets of others. */
#ifndef TSHI_CHANNEL_H
#define TSHI_CHANNEL_H

#include "dist/world.h"

/* A call of a group's ranks, in which they send each other messages. */
typedef struct tshi_channel_call {
    tsh_group *group;
    const char *name;          /* "mesh_create data=2,model=2" */
    unsigned long long number; /* for messages to the user */
    uint32_t message;          /* number of the next one, the same on all ranks */
    double since;              /* 0 until the call waits for long */
    double next_warning, next_poll;
    bool had_left;  /* the rank waited for, at the last poll */
    bool peer_left; /* a receive has failed with TSH_ERR_PEER because the member has left the world */
} tshi_channel_call;

/* `name` must outlive the call. Fails if a rank has failed. */
tsh_status tshi_channel_begin(tshi_channel_call *call, tsh_group *group, const char *name);
/* Ends the call, whatever its outcome. It had `numbers` numbers of messages on every rank. */
void tshi_channel_end(tshi_channel_call *call, uint32_t numbers);

/* Sends message number call->message + `offset` to a member. Waits while its queue is full. */
tsh_status tshi_channel_send(tshi_channel_call *call, int member, uint32_t offset, const void *data, size_t bytes);
/* Receives that message of a member. Bytes past `room` are discarded. *bytes, if not NULL: those of the message. */
tsh_status tshi_channel_receive(tshi_channel_call *call, int member, uint32_t offset, void *out, size_t room,
                                size_t *bytes);
void tshi_channel_close(tsh_world *world);

#endif
