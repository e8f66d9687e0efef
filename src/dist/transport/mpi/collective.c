/* Collectives over MPI: the phases of a call.
 *
 *   phase            ends when                                   next
 *   TSHI_AT_ENTRY    all members have entered the barrier        COMPARING if the hashes differ, nothing is to be moved
 *                                                                or TSHARD_CHECK is set; COUNTING for an all_to_all
 * with
 *                                                                unequal parts; else the move
 *   TSHI_COMPARING   all signatures are gathered                 an error, or COUNTING, or the move
 *   TSHI_COUNTING    all counts of an all_to_all are gathered    an error, or the move
 *   TSHI_EXCHANGING  all messages of the exchange have ended     TSHI_IDLE
 *
 * The move is a blocking call of MPI (move.c), an exchange of messages (exchange.c), or calls of two levels (levels.h).
 * Invariant: all members take the same phases unless the world breaks. It holds because each transition depends only on
 * values that the entry barrier or a gather has given to all members. */
#include "base/cpu.h"
#include "dist/collectives/levels.h"
#include "dist/registry.h"
#include "dist/transport/mpi/mpi.h"

#include <stdio.h>
#include <string.h>

/* Polls of the call before the first poll for failures. */
#define SPINS        4000
#define SPINS_SHARED 20
#define POLLS        4
#define LOOK_EVERY   64u /* calls */

/* --- the hash of a call ------------------------------------------------------------------------------------------- */

/* The hash that all members must agree on. A call that cannot be made hashes its rank in, so that it differs from all
 * others. */
static uint64_t identity_of(const tsh_group *group, const tshi_mpi_op *op) {
    const tshi_signature *signature = &op->signature;
    uint64_t h = tshi_fingerprint_add(TSHI_FINGERPRINT, (uint64_t)signature->kind << 32 | (uint32_t)signature->root);
    h = tshi_fingerprint_add(tshi_fingerprint_add(h, (uint64_t)signature->count), signature->check);
    if (op->call.failed != TSH_OK) return tshi_fingerprint_add(h, UINT64_C(1) + (uint64_t)group->rank);
    bool equal = op->call.op == TSH_COLLECTIVE_ALL_TO_ALL && op->regular;
    return equal ? tshi_fingerprint_add(h, (uint64_t)op->call.in_counts[0]) : h;
}

static bool equal_parts(const tsh_group *group, const tshi_comm_call *call) {
    if (call->op != TSH_COLLECTIVE_ALL_TO_ALL || call->failed != TSH_OK) return true;
    for (int i = 0; i < group->size; i++) {
        if (call->in_counts[i] != call->in_counts[0] || call->out_counts[i] != call->in_counts[0]) return false;
    }
    return true;
}

/* --- beginning and moving ----------------------------------------------------------------------------------------- */

/* Allocates the counts of all members, for an all_to_all with unequal parts. */
static bool make_matrix(const tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    size_t p = (size_t)group->size;
    if (!mg->matrix) mg->matrix = tshi_calloc(&group->world->allocator, 2 * p * p, sizeof *mg->matrix);
    return mg->matrix != NULL;
}

/* Allocates the memory that the call needs, as far as this rank knows before the entry barrier. */
static tsh_status prepare(tsh_group *group, tshi_mpi_op *op) {
    op->scratch = NULL;
    if (!op->regular && !make_matrix(group)) return TSH_ERR_MEMORY;
    bool pair = tshi_exchange_is_pair(group);
    tsh_status status = pair || op->async || !tshi_move_fits(group) ? tshi_exchange_begin(group) : TSH_OK;
    return status == TSH_OK && !pair ? tshi_move_prepare(group) : status;
}

/* Ends the call: op->outcome becomes `status`, with the message of tsh_error_message(). */
void tshi_mpi_op_end(tsh_group *group, tsh_status status) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (op->scratch) group->world->host->ops->memory.release(group->world->host, op->scratch);
    tshi_free(&group->world->allocator, op->kept);
    op->scratch = op->kept = NULL;
    for (int i = 0; i < 2; i++) {
        tshi_tensor_release(op->held[i]);
        op->held[i] = NULL;
    }
    op->phase = TSHI_IDLE;
    tshi_failure_keep(&op->outcome, status);
}

/* Copies the counts: the call may outlive the caller's, or those of its work. */
static void keep_counts(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_comm_call *call = &mg->op.call;
    size_t p = (size_t)group->size;
    const int64_t *first = call->counts ? call->counts : call->in_counts;
    if (call->failed != TSH_OK || !first || first == mg->kept) return;
    memcpy(mg->kept, first, p * sizeof *mg->kept);
    if (call->out_counts) memcpy(mg->kept + p, call->out_counts, p * sizeof *mg->kept);
    if (call->counts)
        call->counts = mg->kept;
    else
        call->in_counts = mg->kept;
    call->out_counts = call->out_counts ? mg->kept + p : NULL;
}

/* work: the call that is started; NULL: the caller waits for it. */
static tsh_status begin(tsh_group *group, const tshi_comm_call *call, const tsh_work *work) {
    tsh_world *world = group->world;
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    /* Without shared memory a peer that has seen the failure does not enter this barrier, so this rank must not
     * either. */
    if (tshi_control_has_failed(world)) {
        tsh_status status = tshi_mpi_failure(world);
        if (status != TSH_OK) return status;
    }
    op->call = *call;
    op->async = work != NULL || mpi->watched;
    op->given_up = false;
    op->trouble_seen = 0;
    op->regular = equal_parts(group, call);
    if (call->failed == TSH_OK) op->call.failed = prepare(group, op);
    tshi_failure_keep(&op->outcome, op->call.failed);
    tshi_signature_of_call(&op->signature, group, &op->call, group->calls + 1);
    op->identity = identity_of(group, op);
    if (work) {
        keep_counts(group);
        op->held[0] = work->in ? tshi_tensor_retain(work->in) : NULL;
        op->held[1] = work->out ? tshi_tensor_retain(work->out) : NULL;
    }
    int error = tshi_entry_arrive(group);
    /* After the arrival, so that this bookkeeping overlaps with its way to the peers. */
    tshi_group_note(group, call);
    return error == MPI_SUCCESS ? TSH_OK : tshi_mpi_error(world, tsh_collective_name(call->op), error);
}

static bool end_error(tsh_group *group, int error) {
    tshi_mpi_op_end(group,
                    tshi_mpi_error(group->world, tsh_collective_name(tshi_mpi_group_of(group)->op.call.op), error));
    return true;
}

/* Breaks the world: the peers have begun the call and need this rank's part. */
static tsh_status lack_memory(tsh_world *world) {
    static const char words[] = "no memory for a call that other ranks have begun";
    return tshi_control_stick(world, TSH_ERR_MEMORY, words);
}

static bool advance_exchange(tsh_group *group) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    int64_t before = op->step + op->done;
    int error = tshi_exchange_advance(group);
    if (error != MPI_SUCCESS) return end_error(group, error);
    if (op->done == op->steps) tshi_mpi_op_end(group, TSH_OK);
    return op->phase == TSHI_IDLE || op->step + op->done != before;
}

/* A recovery finishes calls that have been given up; no member still waits for the levels of such a call. */
static void move_in_levels(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_comm_call *call = &op->call;
    tsh_device *host = group->world->host;
    tsh_status status = op->given_up ? TSH_ERR_STATE : tshi_levels_run(group, call);
    if (status == TSH_OK && tshi_collectives[call->op].reduces && call->reduce == TSH_REDUCE_AVG)
        tshi_mpi_divide(host, call->dtype, tshi_elements_out(group, call), group->size, call->out);
    tshi_mpi_op_end(group, status);
}

/* Moves the data: in two levels or in a blocking call of MPI if all members wait for this call and the counts fit, else
 * in an exchange. */
static bool move(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    op->phase = TSHI_EXCHANGING;
    if (!op->async && tshi_levels_take(group, &op->call)) {
        move_in_levels(group);
        return true;
    }
    bool pair = tshi_exchange_is_pair(group);
    if (pair || op->async || !tshi_move_fits(group)) {
        tsh_status status = !pair || op->async ? tshi_exchange_begin(group) : TSH_OK;
        if (status != TSH_OK) {
            tshi_mpi_op_end(group, lack_memory(group->world));
            return true;
        }
        return advance_exchange(group);
    }
    tshi_mpi_publish_wait(group, NULL);
    tshi_watch_pass(group);
    int error = tshi_move_run(group);
    tshi_watch_pass(group);
    tshi_mpi_awake(group);
    if (error != MPI_SUCCESS) return end_error(group, error);
    tshi_mpi_op_end(group, TSH_OK);
    return true;
}

/* --- comparing and counting --------------------------------------------------------------------------------------- */

static bool compare_start(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    tshi_detail *mine = mg->detail;
    bool failed = op->call.failed != TSH_OK;
    mine->signature = op->signature;
    if (failed) mine->signature.kind = TSHI_KIND_FAILED;
    snprintf(mine->text, sizeof mine->text, "%s", failed ? op->outcome.words : "");
    op->phase = TSHI_COMPARING;
    int bytes = (int)sizeof *mine;
    int error = MPI_Iallgather(mine, bytes, MPI_BYTE, mine + 1, bytes, MPI_BYTE, mg->comm, &op->request);
    return error == MPI_SUCCESS ? true : end_error(group, error);
}

static tsh_status compare(const tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    const tshi_detail *all = mg->detail + 1;
    if (mg->op.call.failed != TSH_OK) return tshi_failure_report(&mg->op.outcome);
    return tshi_compare_signatures(group, &all->signature, sizeof *all,
                                   offsetof(tshi_detail, text) - offsetof(tshi_detail, signature));
}

/* Gathers the counts of an all_to_all: for each rank a row of those it sends, then a row of those it expects. */
static bool count_start(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    const tshi_comm_call *call = &mg->op.call;
    size_t p = (size_t)group->size;
    mg->op.regular = false;
    if (!make_matrix(group)) {
        tshi_mpi_op_end(group, lack_memory(group->world));
        return true;
    }
    int64_t *rows = mg->matrix + 2 * p * (size_t)group->rank;
    memcpy(rows, call->in_counts, p * sizeof *rows);
    memcpy(rows + p, call->out_counts, p * sizeof *rows);
    mg->op.phase = TSHI_COUNTING;
    int error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, mg->matrix, 2 * group->size, MPI_INT64_T, mg->comm,
                               &mg->op.request);
    return error == MPI_SUCCESS ? true : end_error(group, error);
}

/* --- phases ------------------------------------------------------------------------------------------------------- */

/* A member is STUCK or DEAD: it will not take part in the rest of the call. */
static bool given_up(tsh_group *group) {
    bool failed = tshi_control_has_failed(group->world);
    for (int i = 0; failed && i < group->size; i++) {
        if (tshi_control_is_lost(group->world, group->ranks[i])) return true;
    }
    return false;
}

static bool pass_entry(tsh_group *group, int verdict) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    if (verdict & TSHI_ENTRY_STOPPED) {
        op->phase = TSHI_AT_ENTRY; /* tshi_mpi_poll_call finds the reason on the control page */
        return false;
    }
    if (!mg->block && given_up(group)) {
        tshi_mpi_op_end(group, tshi_mpi_failure(group->world));
        return true;
    }
    mg->moved = mg->entered;
    op->async = (verdict & TSHI_ENTRY_ASYNC) != 0;
    bool watched = tshi_mpi_of(group->world)->watched;
    if (verdict & TSHI_ENTRY_DIFFER || watched) {
        op->regular = op->regular && !(verdict & TSHI_ENTRY_IRREGULAR) && !(verdict & TSHI_ENTRY_DIFFER);
        return compare_start(group);
    }
    if (op->call.op == TSH_COLLECTIVE_ALL_TO_ALL && verdict & TSHI_ENTRY_IRREGULAR) return count_start(group);
    return move(group);
}

static bool end_compare(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tsh_status status = compare(group);
    if (status != TSH_OK) {
        tshi_mpi_op_end(group, status);
        return true;
    }
    if (op->call.op == TSH_COLLECTIVE_ALL_TO_ALL && !op->regular) return count_start(group);
    return move(group);
}

static bool end_count(tsh_group *group) {
    tsh_status status =
        tshi_compare_counts(group, tshi_mpi_group_of(group)->matrix, 2 * (size_t)group->size * sizeof(int64_t));
    if (status == TSH_OK) return move(group);
    tshi_mpi_op_end(group, status);
    return true;
}

bool tshi_mpi_advance(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    int error = MPI_SUCCESS, done = 0;
    if (op->phase == TSHI_AT_ENTRY) {
        int verdict = tshi_entry_poll(group, &error);
        if (error != MPI_SUCCESS) return end_error(group, error);
        return verdict ? pass_entry(group, verdict) : false;
    }
    if (op->phase == TSHI_EXCHANGING) return advance_exchange(group);
    if (op->phase == TSHI_IDLE) return false;
    error = MPI_Test(&op->request, &done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS) return end_error(group, error);
    if (!done) return false;
    return op->phase == TSHI_COMPARING ? end_compare(group) : end_count(group);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* Copies the data of a call that a recovery may finish: members that have passed the entry barrier need this rank's
 * part, and the caller's memory is no longer available then. */
static bool keep_data(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_comm_call *call = &op->call;
    if (call->failed != TSH_OK || op->kept) return true;
    size_t element = tsh_dtype_size(call->dtype), in_bytes = (size_t)tshi_elements_in(group, call) * element,
           out_bytes = (size_t)tshi_elements_out(group, call) * element;
    uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out, low = in < out ? in : out;
    bool apart = !in_bytes || !out_bytes || in + in_bytes <= out || out + out_bytes <= in;
    char *kept = tshi_calloc(&group->world->allocator, 1, in_bytes + out_bytes + 1);
    if (!kept) return false;
    bool redirects = op->out == call->out;
    if (in_bytes) memcpy(kept + (apart ? 0 : in - low), call->in, in_bytes);
    if (!apart) memcpy(kept + (out - low), call->out, out_bytes);
    op->kept = kept;
    call->in = kept + (apart ? 0 : in - low);
    call->out = kept + (apart ? in_bytes : out - low);
    if (redirects) op->out = call->out;
    return true;
}

void tshi_mpi_give_up(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (op->phase == TSHI_IDLE || tshi_entry_is_over(group)) return;
    if (op->phase == TSHI_EXCHANGING) {
        tshi_exchange_abandon(group);
        return;
    }
    op->given_up = true;
    keep_counts(group);
    if (!keep_data(group)) lack_memory(group->world);
}

static tsh_status wait_slowly(tsh_group *group) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tsh_world *world = group->world;
    double since = tshi_clock(), moved = since;
    while (op->phase != TSHI_IDLE) {
        if (tshi_mpi_advance(group)) {
            moved = tshi_clock();
            continue;
        }
        tsh_status status = tshi_mpi_poll_call(group, since);
        if (status != TSH_OK) {
            tshi_mpi_awake(group);
            return status;
        }
        if (world->pending) tshi_world_progress(world);
        tshi_mpi_doze(tshi_clock() - moved);
    }
    tshi_mpi_awake(group);
    return tshi_failure_report(&op->outcome);
}

static tsh_status wait_op(tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    int spins = tshi_mpi_of(group->world)->oversubscribed ? SPINS_SHARED : SPINS;
    for (int i = 0; i < spins && !group->world->pending; i++) {
        if (tshi_mpi_advance(group)) i = 0;
        if (mg->op.phase == TSHI_IDLE) return mg->op.outcome.status;
        if (i > 64 && mg->block && mg->op.phase == TSHI_AT_ENTRY) tshi_cpu_pause();
    }
    return wait_slowly(group);
}

static tsh_status mpi_run(tsh_group *group, const tshi_comm_call *call) {
    tsh_status status = begin(group, call, NULL);
    return status == TSH_OK ? wait_op(group) : status;
}

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

static tsh_status mpi_start(tsh_work *work) {
    if (tshi_is_message(work->call.op)) return tshi_mpi_message_start(work);
    return begin(work->group, &work->call, work);
}

static void mpi_progress(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (tshi_is_message(work->call.op)) {
        tshi_mpi_message_progress(work);
        return;
    }
    /* Several polls: each call of MPI processes only some of the messages that have arrived. */
    for (int idle = 0; idle < POLLS && op->phase != TSHI_IDLE; idle++) {
        if (tshi_mpi_advance(group)) idle = -1;
    }
    if (op->phase == TSHI_IDLE) {
        tshi_work_end(work, tshi_failure_report(&op->outcome));
        return;
    }
    if (++mpi->looks % LOOK_EVERY != 0 && !tshi_control_has_failed(group->world)) return;
    tsh_status status = tshi_mpi_group_failure(group);
    if (status == TSH_OK || !tshi_entry_withdraw(group)) return;
    tshi_mpi_give_up(group);
    tshi_work_end(work, tshi_mpi_stop(group));
}

/* Between machines only: on one machine the host's cores move the data, and do not compute meanwhile. */
static bool mpi_overlaps(const tsh_group *group) {
    return !tshi_mpi_group_of(group)->block;
}

/* MPI is given host memory only. */
static bool mpi_stages(const tsh_group *group, const tshi_comm_call *call) {
    (void)group;
    (void)call;
    return true;
}

const tshi_group_ops tshi_mpi_ops = {
    .name = "mpi",
    .place = TSHI_MPI_PLACE,
    .overlaps = mpi_overlaps,
    .stages = mpi_stages,
    .probe = tshi_mpi_probe,
    .world_open = tshi_mpi_world_open,
    .world_join = tshi_mpi_world_join,
    .rdma = tshi_mpi_rdma,
    .recover = tshi_mpi_recover,
    .leave = tshi_mpi_leave,
    .world_close = tshi_mpi_world_close,
    .prepare = tshi_mpi_group_prepare,
    .open = tshi_mpi_group_open,
    .close = tshi_mpi_group_close,
    .check_peers = tshi_mpi_check_peers,
    .restart = tshi_entry_renew,
    .fails_later = tshi_control_fails_later,
    .run = mpi_run,
    .start = mpi_start,
    .progress = mpi_progress,
    .drop = tshi_mpi_message_drop,
    .nap = tshi_mpi_nap,
    .awake = tshi_mpi_awake,
};
