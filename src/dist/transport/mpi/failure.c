/* The failures of a world over MPI: failures that ranks report, ranks that leave, MPI errors, and the deadline. */
#include "dist/collectives/signal.h"
#include "dist/transport/mpi/mpi.h"

#include <sched.h>
#include <stdio.h>

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

/* Writes "rank 3 did not come within 2 s; rank 3 is stopped". */
static void say_late(const tsh_group *group, bool sure, const char *ranks, const char *stopped, char *text, size_t n) {
    double seconds = group->world->timeout;
    bool comes = tshi_mpi_group_of(group)->call.phase <= TSHI_ENTERING && ranks[0];
    if (comes && !sure && group->size > TSHI_MOST_DIRECT)
        snprintf(text, n, "one of the others did not come within %g s%s", seconds, stopped);
    else if (comes)
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
    const char *name = tsh_collective_name(message ? message->call.op : mg->call.call.op);
    unsigned long long number = message ? message->message_number : mg->call.signature.number;
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
    if (status != TSH_OK || mg->call.phase == TSHI_IDLE) return status;
    for (int i = 0; i < group->size; i++) {
        if (!tshi_mpi_has_left(group->world, group->ranks[i], TSHI_GRACE)) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s #%llu",
                         group->ranks[i], tsh_collective_name(mg->call.call.op), (unsigned long long)group->calls);
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
    const tshi_schedule *call = &tshi_mpi_group_of(group)->call;
    tshi_waits_begin(waits, message ? message->message_number : call->signature.number);
    for (int i = 0; i < group->size; i++) {
        bool waits_for =
            message ? message->call.root == TSH_ANY_RANK || message->call.root == i : tshi_schedule_await(call, i);
        if (waits_for) tshi_waits_add(waits, group->ranks[i]);
    }
    tshi_waits_publish(waits);
}

bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since) {
    tsh_world *world = group->world;
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tshi_schedule *op = &tshi_mpi_group_of(group)->call;
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

/* A member has begun to recover, and discards the messages of this call. */
static bool some_member_recovers(const tsh_group *group) {
    const tshi_machine *m = &group->world->machine;
    for (int i = 0; i < group->size; i++) {
        if (tshi_reached(&m->page->record[group->ranks[i]].recover, m->steps + 1)) return true;
    }
    return false;
}

/* Messages between the memory of callers, in TSHI_MOVING, are under way between members that have all made the call:
 * the call ends all the same, or when a member recovers. In other phases some member may have seen the failure before
 * it made the call, so that the call does not end; a call that does ends within TSHI_GRACE. */
static bool may_stop(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    double now = tshi_clock();
    if (mg->call.stopped) return true;
    if (mg->call.phase == TSHI_MOVING) return some_member_recovers(group);
    if (mg->trouble_seen == 0) mg->trouble_seen = now;
    return now - mg->trouble_seen >= TSHI_GRACE;
}

/* In a broken world, or without the member that has left, messages may never end: this waits for them only briefly. */
static void abandon(tsh_group *group) {
    tshi_schedule *call = &tshi_mpi_group_of(group)->call;
    double end = tshi_clock() + TSHI_GRACE;
    while (!tshi_schedule_stop(call)) {
        if (tshi_clock() >= end) return;
        sched_yield();
    }
    tshi_schedule_end(call, TSH_ERR_STATE);
}

tsh_status tshi_mpi_give_up(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_schedule *call = &tshi_mpi_group_of(group)->call;
    tshi_failure why;
    bool lasts = world->machine.broken != TSH_OK || tshi_mpi_failure(world) == TSH_OK;
    if (!lasts && call->phase != TSHI_IDLE && !(may_stop(group) && tshi_schedule_stop(call))) return TSH_OK;
    tshi_failure_keep(&why, tshi_mpi_stop(group));
    if (lasts)
        abandon(group);
    else
        tshi_schedule_end(call, TSH_ERR_STATE);
    return tshi_failure_report(&why);
}

tsh_status tshi_mpi_poll_call(tsh_group *group, double since) {
    tshi_mpi_poll(group->world);
    tsh_status status = tshi_mpi_group_failure(group);
    bool late = tshi_mpi_late(group, NULL, since);
    if (status != TSH_OK) status = tshi_mpi_give_up(group);
    if (status != TSH_OK || !late) return status;
    tshi_failure why;
    tshi_failure_keep(&why, tshi_mpi_time_out(group, NULL));
    abandon(group);
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
