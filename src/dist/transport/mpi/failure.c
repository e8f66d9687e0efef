/* The failures of a world over MPI: failures that ranks report, ranks that leave, MPI errors, and the deadline. */
#include "dist/collectives/signal.h"
#include "dist/transport/mpi/mpi.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define DEATH_EVERY 0.02 /* seconds */

void tshi_mpi_poll(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    double now = tshi_clock();
    tshi_signal_poll(world);
    if (now - mpi->looked < DEATH_EVERY) return;
    mpi->looked = now;
    tshi_machine_poll(world);
}

bool tshi_mpi_has_left(const tsh_world *world, int rank, double seconds) {
    double *left = &tshi_mpi_of(world)->left[rank];
    if (!tshi_control_has_left(world, rank)) return false;
    if (*left == 0) *left = tshi_clock();
    return tshi_clock() - *left >= seconds;
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING] = "", words[TSHI_MESSAGE_SIZE];
    int length = 0;
    MPI_Error_string(error, text, &length);
    snprintf(words, sizeof words, "%.40s: MPI error %d: %.400s", what, error, text);
    tshi_mpi_skip_finalize();
    return tshi_control_stick(world, TSH_ERR_SYSTEM, words);
}

/* Writes "rank 3 did not come within 2 s; rank 3 is stopped"; without shared memory the missing rank is unknown. */
static void say_late(const tsh_group *group, bool sure, const char *ranks, const char *stopped, char *text, size_t n) {
    const tshi_mpi_group *mg = group->state;
    double seconds = group->world->timeout;
    bool comes = mg->op.phase == TSHI_AT_ENTRY || mg->op.phase == TSHI_IDLE;
    if (!mg->block && comes && mg->op.phase == TSHI_AT_ENTRY)
        snprintf(text, n, "one of the others did not come within %g s", seconds);
    else if (comes && ranks[0])
        snprintf(text, n, "%s did not come within %g s%s", ranks, seconds, stopped);
    else
        snprintf(text, n, "not done within %g s%s%s%s", seconds, stopped, sure && !stopped[0] ? "; waits for " : "",
                 sure && !stopped[0] ? ranks : "");
}

tsh_status tshi_mpi_time_out(tsh_group *group, const tsh_work *message) {
    tsh_world *world = group->world;
    tshi_waits *waits = &world->machine.waits;
    const tshi_mpi_group *mg = group->state;
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE / 2], stopped[TSHI_LINE / 2], late[TSHI_LINE + 64];
    tshi_mpi_publish_wait(group, message);
    bool sure = tshi_waits_name(waits, ranks, sizeof ranks, stopped, sizeof stopped);
    say_late(group, sure, ranks, stopped, late, sizeof late);
    const char *name = tsh_collective_name(message ? message->call.op : mg->op.call.op);
    unsigned long long number = message ? message->message_number : mg->op.signature.number;
    snprintf(words, sizeof words, "%s #%llu: %s", name, number, late);
    tshi_waits_leave(waits);
    if (tshi_deadline_report(world, words)) tshi_group_log_recent_calls(group);
    tshi_mpi_skip_finalize();
    return tshi_control_failure(world);
}

tsh_status tshi_mpi_failure(tsh_world *world) {
    if (!tshi_control_has_failed(world)) return TSH_OK;
    for (int i = 0; i < world->size; i++) {
        if (tshi_control_is_lost(world, i)) tshi_mpi_skip_finalize();
    }
    return tshi_control_failure(world);
}

tsh_status tshi_mpi_check_peers(tsh_group *group, bool look, bool waits) {
    tsh_world *world = group->world;
    if (look) tshi_mpi_poll(world);
    tsh_status status = tshi_mpi_failure(world);
    for (int i = 0; waits && status == TSH_OK && i < group->size; i++) {
        if (!tshi_mpi_has_left(world, group->ranks[i], TSHI_GRACE)) continue;
        status = tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world)", group->ranks[i]);
    }
    return status;
}

tsh_status tshi_mpi_group_failure(tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    tsh_status status = tshi_mpi_failure(group->world);
    if (status != TSH_OK || mg->op.phase == TSHI_IDLE) return status;
    /* A shared entry barrier shows which members have entered. Elsewhere messages of a rank that has left may still be
     * in flight. */
    double seconds = mg->op.phase == TSHI_AT_ENTRY && mg->block ? 0 : TSHI_GRACE;
    for (int i = 0; i < group->size; i++) {
        if (!tshi_mpi_has_left(group->world, group->ranks[i], seconds)) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s #%llu",
                         group->ranks[i], tsh_collective_name(mg->op.call.op), (unsigned long long)group->calls);
    }
    return TSH_OK;
}

tsh_status tshi_mpi_stop(tsh_group *group) {
    char words[TSHI_MESSAGE_SIZE];
    tsh_status status = tshi_mpi_failure(group->world);
    if (status != TSH_OK) return status;
    status = tshi_mpi_group_failure(group);
    snprintf(words, sizeof words, "%s", tsh_error_message());
    return tshi_control_break(group->world, status, words);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

void tshi_mpi_doze(double waited) {
    if (waited < 2e-3) {
        sched_yield();
        return;
    }
    tshi_sleep(waited < 1 ? 50e-6 : 500e-6);
}

void tshi_mpi_end_receive(MPI_Request *request, double deadline) {
    int done = 0;
    if (*request == MPI_REQUEST_NULL) return;
    MPI_Cancel(request);
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && tshi_clock() < deadline) {
        sched_yield();
    }
}

void tshi_mpi_publish_wait(tsh_group *group, const tsh_work *message) {
    tshi_waits *waits = &group->world->machine.waits;
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_waits_begin(waits, message ? message->message_number : op->signature.number);
    for (int i = 0; i < group->size; i++) {
        /* After the entry barrier every member takes part in the rest of the call. */
        bool waits_for = op->phase == TSHI_AT_ENTRY ? tshi_entry_lacks(group, i) : op->phase != TSHI_IDLE;
        if (message) waits_for = message->call.root == TSH_ANY_RANK || message->call.root == i;
        if (waits_for) tshi_waits_add(waits, group->ranks[i]);
    }
    tshi_waits_publish(waits);
}

bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since) {
    tsh_world *world = group->world;
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    const char *name = tsh_collective_name(message ? message->call.op : op->call.op);
    tshi_deadline deadline =
        tshi_deadline_since(world, since, name, message ? message->message_number : op->signature.number);
    if (mpi->waiting_since != since) {
        mpi->waiting_since = since;
        mpi->next_warning = deadline.next_warning;
        tshi_mpi_publish_wait(group, message);
    }
    deadline.next_warning = mpi->next_warning;
    double now = tshi_clock();
    if (now < deadline.end && now < deadline.next_warning) return false;
    tshi_mpi_publish_wait(group, message);
    bool late = tshi_deadline_passed(world, &deadline, ranks, stopped);
    mpi->next_warning = deadline.next_warning;
    return late;
}

tsh_status tshi_mpi_poll_call(tsh_group *group, double since) {
    const tshi_mpi_group *mg = group->state;
    const tshi_mpi_op *op = &mg->op;
    tshi_mpi_poll(group->world);
    tsh_status status = tshi_mpi_group_failure(group);
    bool late = tshi_mpi_late(group, NULL, since);
    if (status == TSH_OK && !late) return TSH_OK;
    bool free = op->phase == TSHI_IDLE || tshi_entry_withdraw(group);
    if (!free && (!late || (op->phase == TSHI_AT_ENTRY && mg->block))) return TSH_OK;
    tshi_failure why;
    tshi_failure_keep(&why, status != TSH_OK && free ? tshi_mpi_stop(group) : tshi_mpi_time_out(group, NULL));
    tshi_mpi_give_up(group);
    return tshi_failure_report(&why);
}

tsh_status tshi_mpi_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_status status = TSH_OK;
    if (!work || !tshi_is_message(work->call.op)) {
        status = tshi_mpi_poll_call(group, since);
    } else {
        tshi_mpi_poll(group->world); /* a failure ends the message in tshi_mpi_message_progress */
        if (tshi_mpi_late(group, work, since)) status = tshi_mpi_time_out(group, work);
    }
    if (status == TSH_OK) tshi_mpi_doze(tshi_clock() - since);
    return status;
}

void tshi_mpi_end_wait(tsh_world *world) {
    if (world->machine.broken == TSH_OK)
        tshi_waits_end(&world->machine.waits);
    else
        tshi_waits_leave(&world->machine.waits);
}

void tshi_mpi_awake(tsh_group *group) {
    tshi_mpi_end_wait(group->world);
}
