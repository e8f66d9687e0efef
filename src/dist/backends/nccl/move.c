/* Calls in NCCL's terms. Even parts are its own collectives; uneven ones, and those it has not, are groups of its
 * calls. */
#include "dist/backends/nccl/nccl.h"

typedef struct move {
    const tshi_nccl_library *nccl;
    const tsh_group *group;
    const tshi_call *call;
    ncclComm_t comm;
    cudaStream_t stream;
    ncclDataType_t type;
    size_t wide, bytes; /* NCCL's elements in one of ours; the bytes of one of ours */
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
    if (op == TSH_BAND || op == TSH_BOR || op == TSH_BXOR) return false;
    return !tshi_dtype_is_complex(dtype) || op == TSH_SUM || op == TSH_AVG;
}

static ncclRedOp_t reduction(tsh_reduce_op op) {
    switch (op) {
    case TSH_PROD: return ncclProd;
    case TSH_MIN: return ncclMin;
    case TSH_MAX: return ncclMax;
    case TSH_AVG: return ncclAvg;
    default: return ncclSum;
    }
}

static size_t elements(const move *m, int64_t count) {
    return (size_t)count * m->wide;
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
    const tshi_call *call = m->call;
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
    const tshi_call *call = m->call;
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

static ncclResult_t all_to_all(const move *m) {
    const tshi_call *call = m->call;
    const char *from = call->in;
    char *to = call->out;
    ncclResult_t result = m->nccl->group_start();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < m->group->size && result == ncclSuccess; i++) {
        size_t sends = elements(m, call->in_counts[i]), takes = elements(m, call->out_counts[i]);
        if (sends) result = m->nccl->send(from, sends, m->type, i, m->comm, m->stream);
        if (takes && result == ncclSuccess) result = m->nccl->recv(to, takes, m->type, i, m->comm, m->stream);
        from += (size_t)call->in_counts[i] * m->bytes;
        to += (size_t)call->out_counts[i] * m->bytes;
    }
    return end_group(m, result);
}

/* The root's side of gather and scatter: one message to or from each of the others. */
static ncclResult_t with_all(const move *m, char *whole, bool gathers) {
    ncclResult_t result = m->nccl->group_start();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < m->group->size && result == ncclSuccess; i++) {
        size_t n = elements(m, m->call->counts[i]);
        if (n && i != m->group->rank) {
            result = gathers ? m->nccl->recv(whole, n, m->type, i, m->comm, m->stream)
                             : m->nccl->send(whole, n, m->type, i, m->comm, m->stream);
        }
        whole += (size_t)m->call->counts[i] * m->bytes;
    }
    return end_group(m, result);
}

static char *own_part(const move *m, const void *whole) {
    const char *part = whole;
    for (int i = 0; i < m->group->rank; i++) part += (size_t)m->call->counts[i] * m->bytes;
    return (char *)(uintptr_t)part;
}

static ncclResult_t gather(const move *m) {
    const tshi_call *call = m->call;
    int64_t mine = call->counts[m->group->rank];
    if (m->group->rank == call->root) {
        ncclResult_t result = copy(m, mine, call->in, own_part(m, call->out));
        return result == ncclSuccess ? with_all(m, call->out, true) : result;
    }
    if (mine == 0) return ncclSuccess;
    return m->nccl->send(call->in, elements(m, mine), m->type, call->root, m->comm, m->stream);
}

static ncclResult_t scatter(const move *m) {
    const tshi_call *call = m->call;
    int64_t mine = call->counts[m->group->rank];
    if (m->group->rank == call->root) {
        ncclResult_t result = copy(m, mine, own_part(m, call->in), call->out);
        return result == ncclSuccess ? with_all(m, (char *)(uintptr_t)call->in, false) : result;
    }
    if (mine == 0) return ncclSuccess;
    return m->nccl->recv(call->out, elements(m, mine), m->type, call->root, m->comm, m->stream);
}

ncclResult_t tshi_nccl_move(const tshi_nccl *nccl, const tsh_group *group, const tshi_call *call, ncclComm_t comm,
                            cudaStream_t stream) {
    move m = {.nccl = nccl->library, .group = group, .call = call, .comm = comm, .stream = stream};
    set_type(&m, call->op == TSH_COLLECTIVE_BARRIER ? TSH_FLOAT32 : call->dtype);
    size_t n = elements(&m, call->count);
    ncclRedOp_t op = reduction(call->reduce);
    switch (call->op) {
    case TSH_COLLECTIVE_ALL_REDUCE:
        return n ? m.nccl->all_reduce(call->in, call->out, n, m.type, op, comm, stream) : ncclSuccess;
    case TSH_COLLECTIVE_REDUCE:
        return n ? m.nccl->reduce(call->in, call->out, n, m.type, op, call->root, comm, stream) : ncclSuccess;
    case TSH_COLLECTIVE_BROADCAST:
        return n ? m.nccl->broadcast(call->in, call->out, n, m.type, call->root, comm, stream) : ncclSuccess;
    case TSH_COLLECTIVE_ALL_GATHER: return all_gather(&m);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return reduce_scatter(&m);
    case TSH_COLLECTIVE_ALL_TO_ALL: return all_to_all(&m);
    case TSH_COLLECTIVE_GATHER: return gather(&m);
    case TSH_COLLECTIVE_SCATTER: return scatter(&m);
    case TSH_COLLECTIVE_BARRIER:
        return m.nccl->all_reduce(nccl->word, nccl->word, 1, ncclFloat32, ncclSum, comm, stream);
    case TSH_COLLECTIVE_SEND: return m.nccl->send(call->in, n, m.type, call->root, comm, stream);
    case TSH_COLLECTIVE_RECV: return m.nccl->recv(call->out, n, m.type, call->root, comm, stream);
    default: return ncclInvalidUsage;
    }
}
