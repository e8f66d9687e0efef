/* NCCL on the host: calls, which match when each rank's is at the head of its stream. */
#include "standin/nccl_state.h"
#include "standin/runtime.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local int depth;
static _Thread_local batch *batches;
static _Thread_local ncclComm_t aborts; /* of the group */

/* --- matching calls, under both locks ----------------------------------------------------------------------------- */

static bool alike(const part *a, const part *b) {
    bool reduces = a->kind != BROADCAST && a->kind != ALL_GATHER;
    bool rooted = a->kind == BROADCAST || a->kind == REDUCE;
    return a->kind == b->kind && a->count == b->count && a->type == b->type && (!reduces || a->op == b->op) &&
           (!rooted || a->root == b->root);
}

static void meet_collective(part *p) {
    part *all[MOST_RANKS] = {NULL};
    int here = 0, size = p->comm->size;
    for (part *q = p->comm->clique->launched; q; q = q->next_launched) {
        if (q->kind >= SEND || q->number != p->number) continue;
        all[q->comm->rank] = q;
        here++;
        if (!alike(p, q)) standin_nccl_die("ranks of a collective do not agree");
    }
    if (here < size) return;
    standin_nccl_move(all, size);
    for (int r = 0; r < size; r++) all[r]->done = true;
}

/* The oldest that is not done of one pair and direction: the list is newest first. */
static part *oldest(clique *c, int kind, int from, int to) {
    part *found = NULL;
    for (part *q = c->launched; q; q = q->next_launched) {
        int rank = q->comm->rank;
        if ((int)q->kind != kind || q->done) continue;
        if (kind == SEND ? rank == from && q->root == to : rank == to && q->root == from) found = q;
    }
    return found;
}

static void meet_message(part *p) {
    int from = p->kind == SEND ? p->comm->rank : p->root, to = p->kind == SEND ? p->root : p->comm->rank;
    for (;;) {
        part *send = oldest(p->comm->clique, SEND, from, to), *recv = oldest(p->comm->clique, RECV, from, to);
        if (!send || !recv || p->done) return;
        if (send->count != recv->count || send->type != recv->type)
            standin_nccl_die("a message does not fit its receive");
        memcpy(recv->out, send->in, send->count * standin_nccl_size(send->type));
        send->done = recv->done = true;
    }
}

static bool batch_ready(void *data) {
    batch *b = data;
    bool done = true;
    standin_open();
    pthread_mutex_lock(&standin_nccl_lock);
    for (part *p = b->first; p && !b->launched; p = p->next) {
        if (p->kind < SEND) p->number = ++b->comm->calls;
        p->next_launched = b->comm->clique->launched;
        b->comm->clique->launched = p;
    }
    b->launched = true;
    for (part *p = b->first; p && !b->comm->aborted; p = p->next) {
        if (!p->done && standin_nccl_apart())
            standin_nccl_progress_apart(p);
        else if (!p->done && p->kind < SEND)
            meet_collective(p);
        else if (!p->done)
            meet_message(p);
        done = done && p->done;
    }
    done = done || b->comm->aborted;
    pthread_mutex_unlock(&standin_nccl_lock);
    standin_close();
    return done;
}

static void batch_drop(void *data) {
    batch *b = data;
    pthread_mutex_lock(&standin_nccl_lock);
    while (b->first) {
        part *p = b->first, **link = &b->comm->clique->launched;
        while (*link && *link != p) link = &(*link)->next_launched;
        if (*link) *link = p->next_launched;
        b->first = p->next;
        free(p);
    }
    if (b->captured) b->comm->captured--;
    standin_nccl_release(b->comm);
    pthread_mutex_unlock(&standin_nccl_lock);
    free(b);
}

/* For a launch of the graph that it was captured in. */
static void *batch_again(void *data) {
    const batch *b = data;
    batch *new = calloc(1, sizeof *new);
    pthread_mutex_lock(&standin_nccl_lock);
    if (b->comm->closed) standin_nccl_die("a graph is launched whose communicator is gone");
    *new = (batch){.comm = b->comm, .stream = b->stream};
    b->comm->uses++;
    part **link = &new->first;
    for (const part *p = b->first; p; p = p->next) {
        *link = malloc(sizeof **link);
        **link = *p;
        (*link)->next = NULL;
        link = &(*link)->next;
    }
    pthread_mutex_unlock(&standin_nccl_lock);
    return new;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Once it is queued it may run, and be gone, at once: only a graph keeps it. */
static void queue_batch(batch *b) {
    ncclComm_t comm = b->comm;
    bool captured, captures = b->captures;
    if (!standin_queue_again(b->stream, batch_ready, batch_again, b, batch_drop, &captured))
        standin_nccl_die("a stream that is none");
    if (captured != captures) standin_nccl_die("a capture begins or ends while a call is enqueued");
    if (!captured) return;
    pthread_mutex_lock(&standin_nccl_lock);
    b->captured = true;
    comm->captured++;
    pthread_mutex_unlock(&standin_nccl_lock);
}

void standin_nccl_enqueue(ncclComm_t comm) {
    while (comm->waiting && comm->busy <= comm->due) {
        batch *b = comm->waiting;
        comm->waiting = b->next;
        queue_batch(b);
    }
}

/* NCCL's own thread comes to the calls of a group some time after it has ended. */
static void flush(void) {
    for (batch *b = batches; b; b = b->next) {
        b->comm->busy = 2 + (int)standin_choose(6);
        b->comm->due = (int)standin_choose((uint32_t)b->comm->busy + 1);
        b->comm->asked = 0;
    }
    batch *first = NULL; /* of the calls, which are there newest first */
    while (batches) {
        batch *b = batches;
        batches = b->next;
        b->next = first;
        first = b;
    }
    while (first) {
        batch *b = first, **last = &b->comm->waiting;
        first = b->next;
        b->next = NULL;
        while (*last) last = &(*last)->next;
        *last = b;
        standin_nccl_enqueue(b->comm);
    }
}

ncclResult_t ncclGroupStart(void) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclGroupStart", ncclInternalError, &result)) return result;
    depth++;
    return ncclSuccess;
}

/* Calls that are not made: those of a group that fails in its end, and of a communicator that is aborted before. */
static void forget(batch **list) {
    while (*list) {
        batch *b = *list;
        *list = b->next;
        b->launched = true;
        batch_drop(b);
    }
}

void standin_nccl_forget(ncclComm_t comm) {
    forget(&comm->waiting);
}

bool standin_nccl_abort_later(ncclComm_t comm) {
    if (depth == 0) return false;
    comm->next_abort = aborts;
    aborts = comm;
    return true;
}

static void end_aborts(void) {
    while (aborts) {
        ncclComm_t comm = aborts;
        aborts = comm->next_abort;
        standin_nccl_reclaim(comm);
    }
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result;
    if (depth == 0) standin_nccl_die("a group ends that has not begun");
    bool failed = standin_nccl_fails("ncclGroupEnd", ncclSystemError, &result);
    if (--depth > 0) return failed ? result : ncclSuccess;
    end_aborts();
    if (failed) {
        forget(&batches);
        return result;
    }
    bool any = batches != NULL;
    flush();
    return any ? ncclInProgress : ncclSuccess;
}

typedef struct span {
    const char *at;
    size_t bytes;
} span;

static span reads(const part *p) {
    size_t bytes = p->count * standin_nccl_size(p->type);
    if (p->kind == RECV || (p->kind == BROADCAST && p->root != p->comm->rank)) return (span){NULL, 0};
    return (span){p->in, p->kind == REDUCE_SCATTER ? bytes * (size_t)p->comm->size : bytes};
}

static span writes(const part *p) {
    size_t bytes = p->count * standin_nccl_size(p->type);
    if (p->kind == SEND || (p->kind == REDUCE && p->root != p->comm->rank)) return (span){NULL, 0};
    return (span){p->out, p->kind == ALL_GATHER ? bytes * (size_t)p->comm->size : bytes};
}

static bool overlap(span a, span b) {
    return a.bytes > 0 && b.bytes > 0 && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

/* The overlap that NCCL takes: its rank's part of what all ranks have together lies where it belongs. */
static bool in_place(const part *p) {
    size_t own = p->count * standin_nccl_size(p->type) * (size_t)p->comm->rank;
    if (p->kind == ALL_GATHER) return p->in == (const char *)p->out + own;
    if (p->kind == REDUCE_SCATTER) return p->out == (const char *)p->in + own;
    return p->in == p->out;
}

/* What a call reads and writes is memory of the communicator's GPU, to the last byte. Calls of a group run at once. */
static void check_buffers(const part *p, const batch *b) {
    const span spans[] = {reads(p), writes(p)};
    for (int i = 0; i < 2; i++) {
        if (spans[i].bytes == 0) continue;
        standin_check_memory(spans[i].at, spans[i].bytes);
        if (standin_gpu_of(spans[i].at) != p->comm->gpu) standin_nccl_die("memory of another GPU");
    }
    if (overlap(spans[0], spans[1]) && !in_place(p)) standin_nccl_die("buffers that overlap, and not in place");
    for (const part *q = b->first; q && q != p; q = q->next) {
        if (overlap(spans[1], reads(q)) || overlap(spans[1], writes(q)) || overlap(spans[0], writes(q)))
            standin_nccl_die("calls of one group use the same memory");
    }
}

static ncclResult_t call(const char *name, ncclComm_t comm, cudaStream_t stream, part what) {
    ncclResult_t result;
    if (standin_nccl_fails(name, ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    if (comm->busy || comm->splitting || comm->finalizing) standin_nccl_die("a call before the last is done");
    part *p = malloc(sizeof *p);
    *p = what;
    p->comm = comm;
    if (p->root < 0 || p->root >= comm->size) standin_nccl_die("a peer or a root that is none");
    batch *b = batches;
    while (b && (b->comm != comm || b->stream != stream)) b = b->next;
    if (!b) {
        b = calloc(1, sizeof *b);
        *b = (batch){.comm = comm, .stream = stream, .captures = standin_is_captured(stream), .next = batches};
        comm->uses++;
        batches = b;
    }
    if (b->last)
        b->last->next = p;
    else
        b->first = p;
    b->last = p;
    pthread_mutex_unlock(&standin_nccl_lock);
    if (!standin_stream_is_of(stream, comm->gpu)) standin_nccl_die("a stream of another GPU");
    standin_enter();
    check_buffers(p, b);
    standin_leave();
    if (depth > 0) return ncclSuccess;
    flush();
    return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return call("ncclAllReduce", comm, stream,
                (part){.kind = ALL_REDUCE, .in = in, .out = out, .count = count, .type = type, .op = op});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return call("ncclReduce", comm, stream,
                (part){.kind = REDUCE, .in = in, .out = out, .count = count, .type = type, .op = op, .root = root});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return call("ncclBroadcast", comm, stream,
                (part){.kind = BROADCAST, .in = in, .out = out, .count = count, .type = type, .root = root});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return call("ncclAllGather", comm, stream,
                (part){.kind = ALL_GATHER, .in = in, .out = out, .count = count, .type = type});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return call("ncclReduceScatter", comm, stream,
                (part){.kind = REDUCE_SCATTER, .in = in, .out = out, .count = count, .type = type, .op = op});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return call("ncclSend", comm, stream, (part){.kind = SEND, .in = in, .count = count, .type = type, .root = peer});
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call("ncclRecv", comm, stream, (part){.kind = RECV, .out = out, .count = count, .type = type, .root = peer});
}
