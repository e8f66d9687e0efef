/* Moving the data of a collective that all ranks wait for, in a blocking call of MPI, whose counts are ints. */
#include "dist/transport/mpi/mpi.h"

static void *at(const tsh_group *group, const void *base, int64_t elements) {
    return (void *)((uintptr_t)base + (size_t)elements * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype));
}

static MPI_Datatype type_of(const tsh_group *group) {
    return tshi_mpi_type(tshi_mpi_group_of(group)->op.call.dtype);
}

static MPI_Op reduction_of(const tsh_group *group) {
    const tshi_comm_call *call = &tshi_mpi_group_of(group)->op.call;
    return tshi_mpi_reduction(tshi_mpi_of(group->world), call->dtype, call->reduce);
}

/* --- one part a rank ---------------------------------------------------------------------------------------------- */

static void to_ints(const int64_t *counts, int n, int *out, int *starts) {
    int start = 0;
    for (int i = 0; i < n; i++) {
        out[i] = (int)counts[i];
        starts[i] = start;
        start += out[i];
    }
}

static int all_gather(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    const tshi_comm_call *call = &mg->op.call;
    int *counts = mg->counts, *starts = counts + group->size, n = (int)call->counts[group->rank];
    MPI_Datatype type = type_of(group);
    const void *in = call->in;
    if (in == at(group, call->out, tshi_sum(call->counts, group->rank))) in = MPI_IN_PLACE;
    if (mg->op.regular) return MPI_Allgather(in, n, type, call->out, n, type, mg->comm);
    to_ints(call->counts, group->size, counts, starts);
    return MPI_Allgatherv(in, n, type, call->out, counts, starts, type, mg->comm);
}

static int reduce_scatter(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    const tshi_comm_call *call = &mg->op.call;
    MPI_Datatype type = type_of(group);
    MPI_Op op = reduction_of(group);
    if (mg->op.regular) {
        return MPI_Reduce_scatter_block(call->in, mg->op.out, (int)call->counts[0], type, op, mg->comm);
    }
    to_ints(call->counts, group->size, mg->counts, mg->counts + group->size);
    return MPI_Reduce_scatter(call->in, mg->op.out, mg->counts, type, op, mg->comm);
}

static int all_to_all(tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    const tshi_comm_call *call = &mg->op.call;
    int n = (int)call->in_counts[0];
    return MPI_Alltoall(call->in, n, type_of(group), call->out, n, type_of(group), mg->comm);
}

/* --- the whole on each rank --------------------------------------------------------------------------------------- */

static int all_reduce(tsh_group *group, int64_t start, int n) {
    const tshi_mpi_group *mg = group->state;
    void *out = at(group, mg->op.call.out, start);
    return MPI_Allreduce(MPI_IN_PLACE, out, n, type_of(group), reduction_of(group), mg->comm);
}

static int broadcast(tsh_group *group, int64_t start, int n) {
    const tshi_mpi_group *mg = group->state;
    return MPI_Bcast(at(group, mg->op.call.out, start), n, type_of(group), mg->op.call.root, mg->comm);
}

static int reduce(tsh_group *group, int64_t start, int n) {
    const tshi_mpi_group *mg = group->state;
    const tshi_comm_call *call = &mg->op.call;
    const void *in = at(group, mg->op.scratch ? mg->op.scratch : call->in, start);
    void *out = at(group, call->out, start);
    if (call->root == group->rank && in == out) in = MPI_IN_PLACE;
    return MPI_Reduce(in, out, n, type_of(group), reduction_of(group), call->root, mg->comm);
}

/* The blocking calls. Counts beyond MPI's ints: a `whole` call runs chunk by chunk; a `parts` call is made as an
 * exchange instead, which MPI's own calls with lists of counts are as well. Collectives without an entry are always
 * exchanges. */
static const struct {
    int (*parts)(tsh_group *group);
    int (*whole)(tsh_group *group, int64_t start, int n);
} calls[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {.whole = all_reduce},         [TSH_COLLECTIVE_ALL_GATHER] = {.parts = all_gather},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {.parts = reduce_scatter}, [TSH_COLLECTIVE_BROADCAST] = {.whole = broadcast},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {.parts = all_to_all},         [TSH_COLLECTIVE_REDUCE] = {.whole = reduce},
};

/* --- before and after --------------------------------------------------------------------------------------------- */

bool tshi_move_fits(const tsh_group *group) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    int64_t chunk = tshi_mpi_of(group->world)->chunk, n;
    if (!calls[op->call.op].parts) return calls[op->call.op].whole != NULL;
    if (op->call.in_counts) return op->regular && op->call.in_counts[0] <= chunk / group->size;
    n = tshi_sum(op->call.counts, group->size);
    return n > 0 && n <= chunk;
}

/* MPICH 4.0 crashes in an in-place MPI_Reduce whose root is not 0. */
static bool shuns_in_place(const tsh_group *group, const tshi_comm_call *call) {
#ifdef MPICH_VERSION
    return call->op == TSH_COLLECTIVE_REDUCE && group->rank == call->root && call->root != 0;
#else
    (void)group;
    (void)call;
    return false;
#endif
}

static tsh_status allocate(const tsh_group *group, int64_t count, void **out) {
    tsh_device *host = group->world->host;
    *out = host->ops->memory.alloc(host, (size_t)count * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype));
    return *out ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_move_prepare(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    const tshi_comm_call *call = &op->call;
    op->out = call->out;
    if (shuns_in_place(group, call)) return allocate(group, call->count, &op->scratch);
    if (call->op != TSH_COLLECTIVE_REDUCE_SCATTER) return TSH_OK;
    /* MPI forbids a result inside the input, which dist.h allows, even an empty one: scratch memory takes the
     * result. */
    int64_t part = call->counts[group->rank];
    size_t size = tsh_dtype_size(call->dtype);
    const char *in = call->in, *out = call->out;
    if (!part) op->out = mg->kept;
    if (!part || out + (size_t)part * size <= in || in + (size_t)call->count * size <= out) return TSH_OK;
    tsh_status status = allocate(group, part, &op->scratch);
    op->out = op->scratch;
    return status;
}

static bool all_equal(const int64_t *counts, int n) {
    for (int i = 1; i < n; i++) {
        if (counts[i] != counts[0]) return false;
    }
    return true;
}

static void copy(const tsh_group *group, const void *from, void *to, int64_t n) {
    size_t bytes = (size_t)n * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype);
    if (bytes) group->world->host->ops->copy.within(group->world->host, bytes, from, to);
}

int tshi_move_run(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_comm_call *call = &op->call;
    int error = MPI_SUCCESS;
    int64_t chunk = tshi_mpi_of(group->world)->chunk, n = tshi_elements_out(group, call);
    if (call->counts) op->regular = all_equal(call->counts, group->size);
    if (call->op == TSH_COLLECTIVE_REDUCE && op->scratch) copy(group, call->in, op->scratch, call->count);
    if (calls[call->op].parts) error = calls[call->op].parts(group);
    for (int64_t start = 0; calls[call->op].whole && start < call->count && error == MPI_SUCCESS; start += chunk) {
        error = calls[call->op].whole(group, start, (int)(call->count - start < chunk ? call->count - start : chunk));
    }
    if (error != MPI_SUCCESS || !tshi_collectives[call->op].reduces) return error;
    if (call->reduce == TSH_REDUCE_AVG) tshi_mpi_divide(group->world->host, call->dtype, n, group->size, op->out);
    if (op->out == op->scratch && n) copy(group, op->scratch, call->out, n);
    return MPI_SUCCESS;
}
