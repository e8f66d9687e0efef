/* Calls under way, those that wait for their turn, and the host buffers of calls on a GPU's tensors. */
#ifndef TSHI_WORK_H
#define TSHI_WORK_H

#include "dist/collectives/call.h"

/* Where the buffers of a call are while it runs on the host (staging.c). */
typedef struct tshi_staging {
    void *in, *out; /* of world->host, owned; NULL where none is needed */
    void *to;       /* the tensor's memory, which gets the `bytes` of out */
    size_t bytes;
} tshi_staging;

struct tsh_work {
    tsh_group *group;
    tshi_comm_call call;  /* its counts point to `counts` */
    int64_t *counts;      /* [2 * size], owned */
    tsh_tensor *in, *out; /* references */
    tsh_tensor **parts;   /* [group size] references: what comes to `out` goes on to them; NULL: it stays there */
    tshi_staging stage;
    bool started, done;
    bool backward;                  /* it was made in a backward */
    struct tshi_trace_event *event; /* of a trace, or NULL */
    int64_t number;                 /* for that event */
    uint64_t message_number;        /* of a message, from tshi_group_note */
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE]; /* of a failure */
    int sender;                      /* of a receive */
    void *state;                     /* the backend's, from start until done */
    bool linked;                     /* in the group's queue or list */
    bool orphan;                     /* no caller holds it: freed when it is done */
    struct tsh_work *next;           /* in the group's queue (collectives), or in its list of messages */
};

/* --- work.c ------------------------------------------------------------------------------------------------------- */

/* Fills a zeroed work for the call, whose counts are borrowed. */
void tshi_work_set(tsh_work *work, tsh_group *group, const tshi_comm_call *call);
/* A work from the group's pool, with copies of the counts and references to the tensors. NULL with the message set. */
tsh_work *tshi_work_new(tsh_group *group, const tshi_comm_call *call, const tsh_tensor *in, const tsh_tensor *out);
/* Puts the work behind those of its group and starts it if it is its turn. */
void tshi_work_enqueue(tsh_work *work);
/* Runs a message at once, if the backend can; false: it has to be enqueued. */
bool tshi_work_quick(tsh_work *work);
/* Waits until the work is done; its status and message. */
tsh_status tshi_work_finish(tsh_work *work);
/* Waits until everything that this rank queues later finds the work's result; the host may go on before that. */
tsh_status tshi_work_join(tsh_work *work);
/* tsh_work_wait for the rooms above: what they queue from here on finds the result; the time counts as the group's. */
tsh_status tshi_work_wait_queued(tsh_work *work);
/* Frees a message, done or not. */
void tshi_message_cancel(tsh_work *work, const char *why);
/* Ends a work: its status, and for a failure the message of tsh_error_message(). Backends call it once a work. */
void tshi_work_end(tsh_work *work, tsh_status status);
/* Advances every work of the world, without waiting. Backends call it while they wait and world->pending is not
 * zero. */
void tshi_world_progress(tsh_world *world);
/* Queues the messages that the data transport holds back, because this rank is about to wait for peers. */
void tshi_world_submit(tsh_world *world);
/* Waits until the group's queue is empty. failed: the status of the call that comes next; its message,
 * tsh_error_message(), is kept. */
void tshi_group_drain(tsh_group *group, tsh_status failed);
/* Runs the call when the calls queued before it are done. */
tsh_status tshi_group_run(tsh_group *group, const tshi_comm_call *call);
/* Ends all works with TSH_ERR_STATE and without the transport, which closes the group or recovers. */
void tshi_group_forget(tsh_group *group, const char *why);

/* Copies the result of a finished work to its parts. */
void tshi_work_spread(tsh_work *work);
/* Copies between a tensor that holds the elements of one part for each rank and the parts, unless they share memory. */
void tshi_parts_copy(const tsh_group *group, const tsh_tensor *whole, tsh_tensor *const *parts, bool to_parts);
void tshi_parts_release(const tsh_group *group, tsh_tensor **parts);

/* --- staging.c ---------------------------------------------------------------------------------------------------- */

/* The call needs host buffers for this world's tensors. */
bool tshi_call_is_staged(const tsh_group *group, const tshi_comm_call *call);
/* The call's buffers become host buffers that hold this rank's input; without memory the call is marked failed. close:
 * the result is copied to the tensor if status is TSH_OK; the buffers are released. */
void tshi_stage_open(tsh_group *group, tshi_comm_call *call, tshi_staging *stage);
void tshi_stage_close(tsh_group *group, tshi_staging *stage, tsh_status status);
/* Runs the call on host buffers: tshi_stage_open, ops->run, tshi_stage_close. */
tsh_status tshi_staged_run(tsh_group *group, const tshi_comm_call *call);

#endif
