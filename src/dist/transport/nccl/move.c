/* Calls in NCCL's terms. Even parts use its collectives; uneven parts, and collectives that it does not have, are
 * groups of its calls. */
#include "dist/transport/nccl/nccl.h"

typedef struct move {
    const tshi_nccl_library *nccl;
    const tsh_group *group;
    const tshi_comm_call *call;
    ncclComm_t comm;
    cudaStream_t stream;
    ncclDataType_t type;
    size_t wide, bytes; /* NCCL's elements in one of ours; the bytes of one of ours */
    void *buffer;       /* in device memory, for barriers */
} move;

/* Complex numbers are pairs of floats, which sums and copies need not know. */
static void set_type(move *m, tsh_dtype dtype) {
    static const ncclDataType_t types[TSH_DTYPE_COUNT] = {
        [TSH_FLOAT32] = ncclFloat32, [TSH_FLOAT64] = ncclFloat64,   [TSH_BFLOAT16] = ncclBfloat16,
        [TSH_FLOAT16] = ncclFloat16, [TSH_INT32] = ncclInt32,       [TSH_INT64] = ncclInt64,
        [TSH_UINT8] = ncclUint8,     [TSH_COMPLEX64] = ncclFloat32, [TSH_COMPLEX128] = ncclFloat64,
    };
    m->type = types[dtype];
    m->wide = tshi_dtype_is_complex(dtype) ? 2 : 1;
    m->bytes = tsh_dtype_size(dtype);
}

bool tshi_nccl_reduces(tsh_dtype dtype, tsh_reduce_op op) {
    if (op == TSH_REDUCE_BAND || op == TSH_REDUCE_BOR || op == TSH_REDUCE_BXOR) return false;
    return !tshi_dtype_is_complex(dtype) || op == TSH_REDUCE_SUM || op == TSH_REDUCE_AVG;
}

static ncclRedOp_t reduction(tsh_reduce_op op) {
    switch (op) {
    case TSH_REDUCE_PROD: return ncclProd;
    case TSH_REDUCE_MIN: return ncclMin;
    case TSH_REDUCE_MAX: return ncclMax;
    case TSH_REDUCE_AVG: return ncclAvg;
    default: return ncclSum;
    }
}

static size_t elements(const move *m, int64_t count) {
    return (size_t)count * m->wide;
}

/* The address `count` elements behind base, which may be NULL. */
static void *at(const move *m, const void *base, int64_t count) {
    return (void *)((uintptr_t)base + (size_t)count * m->bytes);
}

static bool even(const move *m) {
    for (int i = 1; i < m->group->size; i++) {
        if (m->call->counts[i] != m->call->counts[0]) return false;
    }
    return true;
}

static ncclResult_t end_group(const move *m, ncclResult_t result) {
    ncclResult_t ended = m->nccl->group_end();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t copy(const move *m, int64_t count, const void *from, void *to) {
    size_t bytes = (size_t)count * m->bytes;
    if (from == to || bytes == 0) return ncclSuccess;
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, m->stream);
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t all_gather(const move *m) {
    const tshi_comm_call *call = m->call;
    if (even(m)) {
        return m->nccl->all_gather(call->in, call->out, elements(m, call->counts[0]), m->type, m->comm, m->stream);
    }
    char *to = call->out;
    ncclResult_t result = m->nccl->group_start();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < m->group->size && result == ncclSuccess; i++) {
        const void *from = i == m->group->rank ? call->in : to;
        size_t n = elements(m, call->counts[i]);
        if (n) result = m->nccl->broadcast(from, to, n, m->type, i, m->comm, m->stream);
        to += (size_t)call->counts[i] * m->bytes;
    }
    return end_group(m, result);
}

static ncclResult_t reduce_scatter(const move *m) {
    const tshi_comm_call *call = m->call;
    ncclRedOp_t op = reduction(call->reduce);
    if (even(m)) {
        return m->nccl->reduce_scatter(call->in, call->out, elements(m, call->counts[0]), m->type, op, m->comm,
                                       m->stream);
    }
    const char *from = call->in;
    ncclResult_t result = m->nccl->group_start();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < m->group->size && result == ncclSuccess; i++) {
        /* Only the root's output is written. */
        void *to = i == m->group->rank ? call->out : (void *)(uintptr_t)from;
        size_t n = elements(m, call->counts[i]);
        if (n) result = m->nccl->reduce(from, to, n, m->type, op, i, m->comm, m->stream);
        from += (size_t)call->counts[i] * m->bytes;
    }
    return end_group(m, result);
}

/* all_to_all, gather and scatter: a message to and from each rank that exchanges data with this one. */
static ncclResult_t exchange(const move *m) {
    const tshi_comm_call *call = m->call;
    const tsh_group *group = m->group;
    tshi_span own = tshi_span_to(group, call, group->rank), own_to = tshi_span_from(group, call, group->rank);
    ncclResult_t result = copy(m, own.count, at(m, call->in, own.start), at(m, call->out, own_to.start));
    if (result == ncclSuccess) result = m->nccl->group_start();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < group->size && result == ncclSuccess; i++) {
        if (i == group->rank) continue;
        tshi_span to = tshi_span_to(group, call, i), from = tshi_span_from(group, call, i);
        if (to.count) {
            result = m->nccl->send(at(m, call->in, to.start), elements(m, to.count), m->type, i, m->comm, m->stream);
        }
        if (from.count && result == ncclSuccess) {
            result =
                m->nccl->recv(at(m, call->out, from.start), elements(m, from.count), m->type, i, m->comm, m->stream);
        }
    }
    return end_group(m, result);
}

static ncclResult_t all_reduce(const move *m) {
    const tshi_comm_call *call = m->call;
    return m->nccl->all_reduce(call->in, call->out, elements(m, call->count), m->type, reduction(call->reduce), m->comm,
                               m->stream);
}

static ncclResult_t reduce(const move *m) {
    const tshi_comm_call *call = m->call;
    return m->nccl->reduce(call->in, call->out, elements(m, call->count), m->type, reduction(call->reduce), call->root,
                           m->comm, m->stream);
}

static ncclResult_t broadcast(const move *m) {
    const tshi_comm_call *call = m->call;
    return m->nccl->broadcast(call->in, call->out, elements(m, call->count), m->type, call->root, m->comm, m->stream);
}

static ncclResult_t barrier(const move *m) {
    return m->nccl->all_reduce(m->buffer, m->buffer, 1, ncclFloat32, ncclSum, m->comm, m->stream);
}

static ncclResult_t message_send(const move *m) {
    const tshi_comm_call *call = m->call;
    if (call->count == 0) return ncclSuccess;
    return m->nccl->send(call->in, elements(m, call->count), m->type, call->root, m->comm, m->stream);
}

static ncclResult_t message_receive(const move *m) {
    const tshi_comm_call *call = m->call;
    if (call->count == 0) return ncclSuccess;
    return m->nccl->recv(call->out, elements(m, call->count), m->type, call->root, m->comm, m->stream);
}

ncclResult_t tshi_nccl_move(const tshi_nccl *nccl, const tsh_group *group, const tshi_comm_call *call, ncclComm_t comm,
                            cudaStream_t stream) {
    static ncclResult_t (*const moves[TSH_COLLECTIVE_COUNT])(const move *) = {
        [TSH_COLLECTIVE_ALL_REDUCE] = all_reduce,
        [TSH_COLLECTIVE_ALL_GATHER] = all_gather,
        [TSH_COLLECTIVE_REDUCE_SCATTER] = reduce_scatter,
        [TSH_COLLECTIVE_BROADCAST] = broadcast,
        [TSH_COLLECTIVE_ALL_TO_ALL] = exchange,
        [TSH_COLLECTIVE_BARRIER] = barrier,
        [TSH_COLLECTIVE_REDUCE] = reduce,
        [TSH_COLLECTIVE_GATHER] = exchange,
        [TSH_COLLECTIVE_SCATTER] = exchange,
        [TSH_COLLECTIVE_SEND] = message_send,
        [TSH_COLLECTIVE_RECV] = message_receive,
    };
    move m = {.nccl = nccl->library,
              .group = group,
              .call = call,
              .comm = comm,
              .stream = stream,
              .buffer = nccl->barrier_buffer};
    set_type(&m, call->op == TSH_COLLECTIVE_BARRIER ? TSH_FLOAT32 : call->dtype);
    return moves[call->op](&m);
}

ncclResult_t tshi_nccl_move_messages(const tsh_group *group, ncclComm_t comm, cudaStream_t stream) {
    const tshi_nccl *nccl = tshi_nccl_of(group->world);
    ncclResult_t result = nccl->library->group_start();
    if (result != ncclSuccess) return result;
    for (const tsh_work *w = group->messages; w && result == ncclSuccess; w = w->next) {
        if (tshi_nccl_is_held(w)) result = tshi_nccl_move(nccl, group, &w->call, comm, stream);
    }
    ncclResult_t ended = nccl->library->group_end();
    return result == ncclSuccess ? ended : result;
}
