/* Groups: their ranks, their transport, and the calls that they have made. */
#ifndef TSHI_GROUP_H
#define TSHI_GROUP_H

#include "dist/backend.h"

#define TSHI_RECENT_CALLS 32

typedef struct tshi_recent_call {
    uint64_t number;
    tsh_collective op;
    tsh_dtype dtype;
    int64_t count;
} tshi_recent_call;

struct tsh_group {
    const tshi_group_ops *ops;
    tsh_world *world;
    const tsh_mesh *mesh; /* the mesh that has this group as an axis */
    tsh_mesh own_mesh;    /* `mesh` of a group that was not made by a mesh */
    int meshes;           /* live meshes of this group's ranks, which use the group */
    bool dropped;         /* by its owner: the last of those meshes frees it */
    int rank, size;
    int *ranks;      /* world ranks */
    void *state;     /* of its transport */
    int stream;      /* index of the device's communication stream for its collectives */
    int64_t *counts; /* [2 * size] scratch for balanced splits */
    tsh_communication_stats stats;
    uint64_t ticks;         /* spent inside calls; converted to stats.seconds on request */
    uint64_t calls;         /* calls that every rank makes: collectives and agreements */
    uint64_t posts;         /* sends and receives */
    uint64_t notes;         /* calls ever noted in `recent` */
    uint32_t traced;        /* its number in the trace; 0: not traced yet */
    uint64_t id;            /* the same on all members, and of no other group that a rank is in; the world's is 0 */
    uint32_t epoch;         /* machine.steps of its last agreement */
    uint32_t messages_made; /* numbers that the messages of its agreements in this epoch have had */
    tshi_recent_call recent[TSHI_RECENT_CALLS];
    tsh_work *queue, *queue_end; /* collectives started and not done, oldest first */
    tsh_work *messages;          /* sends and receives not done, oldest first */
    tshi_pool works;             /* of tsh_work with room for counts */
    tsh_group *next;             /* the world's list of live groups */
    /* The group of the same ranks in which they agree and report failures: this one, or, if `ops` is a data transport
     * only, a group of another transport. */
    tsh_group *control;
    /* The members of this rank's machine, and those with this rank's index on each machine. NULL unless the group spans
     * machines that have equally many members, which are neighbours in the group's order. Owned. */
    tsh_group *near, *far;
};

/* The parts of a dim along the group; of the group of all of a mesh's ranks, equal parts. */
tshi_parts tshi_group_parts(const tsh_group *group);

/* Gathers `bytes` bytes of every rank, in the order of the group's ranks, into memory of world->host, which the caller
 * releases. *status: this rank's status so far, and on return the outcome; NULL unless it is TSH_OK. `what` names the
 * call in errors. Collective; waits. */
void *tshi_group_gather(tsh_group *group, const char *what, const void *mine, size_t bytes, tsh_status *status);
/* Replaces part k of the `n` parts of `bytes` bytes each at `parts` by part k of the group's rank from[k]: what each
 * rank needs of one other. After a failure the parts are as they were. Collective; waits. */
tsh_status tshi_group_fetch(tsh_group *group, const char *what, const int32_t *from, int n, void *parts, size_t bytes,
                            tsh_status failed);

/* A group without the transport's state, in the world's list. A group of one rank always uses `self`. NULL with the
 * message set. */
tsh_group *tshi_group_new(tsh_world *world, const tshi_group_ops *ops, const int *ranks, int n);
void tshi_group_free(tsh_group *group);
/* Ends the group's communication: calls in flight fail. */
void tshi_group_close(tsh_group *group);
/* Frees the group for its owner, at once or when the last mesh that uses it is destroyed. */
void tshi_group_drop(tsh_group *group);
/* The group of `ranks` on a rank outside it: its rank is -1, and its calls do nothing. */
tsh_group *tshi_group_non_member(tsh_world *world, const int *ranks, int n);
/* A group of parent's ranks[0..n), this rank among them, that tshi_groups_open has still to open, and its control
 * group. NULL with the message set. */
tsh_group *tshi_group_of(tsh_group *parent, const int *ranks, int n);
/* All of these ranks of the world are on one machine. */
bool tshi_ranks_share_machine(const tsh_world *world, const int *ranks, int n);
/* Opens n groups (at most TSH_MAX_AXES), of which other members of parent may have others at the same places; NULL:
 * this rank gets none there. status: this rank's status so far. After a failure the caller frees the groups. Collective
 * over parent, waits. */
tsh_status tshi_groups_open(tsh_group *parent, tsh_group *const *groups, int n, tsh_status status);
/* Opens group->near and group->far, where it gets them. status: this rank's status so far. Collective over the group,
 * waits. */
tsh_status tshi_group_open_levels(tsh_group *group, tsh_status status);
/* The group of parent's ranks[0..n); NULL in *out on ranks outside it. `what` names the call. Collective over
 * parent. */
tsh_status tshi_group_open(tsh_group *parent, const char *what, const int *ranks, int n, tsh_group **out);
/* Every rank of the group passes the same `text`, or a status `failed` with its message set. TSH_ERR_MISMATCH with both
 * texts, or TSH_ERR_PEER with the message of the rank that failed. Collective; waits. */
tsh_status tshi_group_agree(tsh_group *group, const char *text, tsh_status failed);
/* TSH_ERR_ARGUMENT for a call whose group is NULL. If an earlier tsh_mesh_group failed, its message is appended. */
tsh_status tshi_group_missing(const char *what);
/* Initializes `mesh` as a mesh of the group's ranks without axes. */
void tshi_mesh_set(tsh_mesh *mesh, tsh_group *group);
/* Gives the group a mesh of its own, with one axis. */
void tshi_group_own_mesh(tsh_group *group, const char *name);
/* Adds the call to group->recent and returns its number, from 1. Collectives and messages are numbered separately. */
uint64_t tshi_group_note(tsh_group *group, const tshi_comm_call *call);
/* Logs the recent calls: "#3 all_reduce float32 [8], ...". */
void tshi_group_log_recent_calls(const tsh_group *group);

#endif
