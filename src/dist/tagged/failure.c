/* The failures of a world over tagged messages: failures that ranks report, ranks that leave, and the deadline. */
#include "dist/tagged/tagged.h"

#include <sched.h>
#include <stdio.h>

#define DEATH_EVERY 0.02 /* seconds */
/* Seconds for which the messages of a member that recovers may still be in flight, behind the news of it. */
#define GRACE_OF_MOVING 0.05

void tshi_tagged_poll(tsh_world *world) {
    tshi_tagged *tagged = tshi_tagged_of(world);
    double now = tshi_clock();
    tshi_signal_poll(world);
    if (now - tagged->looked < DEATH_EVERY) return;
    tagged->looked = now;
    tshi_machine_poll(world);
    if (tagged->ops->look) tagged->ops->look(world);
}

bool tshi_tagged_has_left(const tsh_world *world, int rank, double seconds) {
    double *left = &tshi_tagged_of(world)->left[rank];
    if (!tshi_control_has_left(world, rank)) return false;
    if (*left == 0) *left = tshi_clock();
    return tshi_clock() - *left >= seconds;
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

static void lose(tsh_world *world) {
    const tshi_message_ops *ops = tshi_tagged_of(world)->ops;
    if (ops->lose) ops->lose(world);
}

static void publish_wait(tsh_group *group, const tsh_work *message) {
    tshi_waits *waits = &group->world->machine.waits;
    const tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    tshi_waits_begin(waits, message ? message->message_number : call->signature.number);
    for (int i = 0; i < group->size; i++) {
        bool waits_for =
            message ? message->call.root == TSH_ANY_RANK || message->call.root == i : tshi_schedule_await(call, i);
        if (waits_for) tshi_waits_add(waits, group->ranks[i]);
    }
    tshi_waits_publish(waits);
}

/* Writes "rank 3 did not come within 2 s; rank 3 is stopped". */
static void say_late(const tsh_group *group, bool sure, const char *ranks, const char *stopped, char *text, size_t n) {
    double seconds = group->world->timeout;
    bool comes = tshi_tagged_group_of(group)->call.phase <= TSHI_ENTERING && ranks[0];
    if (comes && !sure && group->size > TSHI_MOST_DIRECT)
        snprintf(text, n, "one of the others did not come within %g s%s", seconds, stopped);
    else if (comes)
        snprintf(text, n, "%s did not come within %g s%s", ranks, seconds, stopped);
    else
        snprintf(text, n, "not done within %g s%s%s%s", seconds, stopped, sure && !stopped[0] ? "; waits for " : "",
                 sure && !stopped[0] ? ranks : "");
}

static tshi_deadline deadline_of(const tsh_group *group, const tsh_work *message, double since) {
    const tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    const char *name = tsh_collective_name(message ? message->call.op : call->call.op);
    unsigned long long number = message ? message->message_number : call->signature.number;
    tshi_deadline deadline = tshi_deadline_since(group->world, since, name, number);
    if (!message) deadline.group = group;
    return deadline;
}

static tsh_status time_out(tsh_group *group, const tsh_work *message) {
    tsh_world *world = group->world;
    tshi_waits *waits = &world->machine.waits;
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE], stopped[TSHI_LINE], late[2 * TSHI_LINE + 64];
    publish_wait(group, message);
    const tshi_deadline wait = deadline_of(group, message, 0);
    bool sure = tshi_deadline_name(world, &wait, ranks, stopped);
    say_late(group, sure, ranks, stopped, late, sizeof late);
    snprintf(words, sizeof words, "%s #%llu: %.480s", wait.name, wait.number, late);
    tshi_waits_leave(waits);
    if (tshi_deadline_report(world, words)) tshi_group_log_recent_calls(group);
    lose(world);
    return tshi_control_failure(world);
}

tsh_status tshi_tagged_failure(tsh_world *world) {
    if (!tshi_control_has_failed(world)) return TSH_OK;
    for (int i = 0; i < world->size; i++) {
        if (tshi_control_is_lost(world, i)) lose(world);
    }
    return tshi_control_failure(world);
}

tsh_status tshi_tagged_check_peers(tsh_group *group, bool look, bool waits) {
    tsh_world *world = group->world;
    if (look) tshi_tagged_poll(world);
    tsh_status status = tshi_tagged_failure(world);
    for (int i = 0; waits && status == TSH_OK && i < group->size; i++) {
        if (!tshi_tagged_has_left(world, group->ranks[i], TSHI_GRACE)) continue;
        status = tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world)", group->ranks[i]);
    }
    return status;
}

tsh_status tshi_tagged_group_failure(tsh_group *group) {
    const tshi_tagged_group *tg = group->state;
    tsh_status status = tshi_tagged_failure(group->world);
    if (status != TSH_OK || tg->call.phase == TSHI_IDLE) return status;
    for (int i = 0; i < group->size; i++) {
        if (!tshi_tagged_has_left(group->world, group->ranks[i], TSHI_GRACE)) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s #%llu",
                         group->ranks[i], tsh_collective_name(tg->call.call.op), (unsigned long long)group->calls);
    }
    return TSH_OK;
}

/* Returns the error of a call that is given up. A member that has left breaks the world. */
static tsh_status stop(tsh_group *group) {
    tsh_status status = tshi_tagged_failure(group->world);
    if (status != TSH_OK) return status;
    status = tshi_tagged_group_failure(group);
    return tshi_control_break(group->world, status, "%s", tsh_error_message());
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

void tshi_tagged_doze(double waited) {
    if (waited < 2e-3) {
        sched_yield();
        return;
    }
    tshi_sleep(waited < 1 ? 50e-6 : 500e-6);
}

void tshi_tagged_end_receive(tsh_world *world, tshi_request *request, double deadline) {
    const tshi_message_ops *ops = tshi_tagged_of(world)->ops;
    if (!request->active) return;
    ops->cancel(world, request);
    while (ops->test(world, request) == TSH_OK && request->active && tshi_clock() < deadline) sched_yield();
}

/* True if the wait that began at `since` has passed the deadline; before that it warns. message: the message waited
 * for; NULL: the group's call. */
static bool is_late(tsh_group *group, const tsh_work *message, double since) {
    tsh_world *world = group->world;
    tshi_tagged *tagged = tshi_tagged_of(world);
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    tshi_deadline deadline = deadline_of(group, message, since);
    if (tagged->waiting_since != since) {
        tagged->waiting_since = since;
        tagged->next_warning = deadline.next_warning;
        publish_wait(group, message);
    }
    deadline.next_warning = tagged->next_warning;
    double now = tshi_clock();
    tshi_deadline_publish(world, &deadline);
    if (now < deadline.end && now < deadline.next_warning) return false;
    publish_wait(group, message);
    bool late = tshi_deadline_passed(world, &deadline, ranks, stopped);
    tagged->next_warning = deadline.next_warning;
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
 * the call ends all the same, or soon after a member recovers. In other phases some member may have seen the failure
 * before it made the call, so that the call does not end; a call that does ends within TSHI_GRACE. */
static bool may_stop(tsh_group *group) {
    tshi_tagged_group *tg = group->state;
    double now = tshi_clock();
    if (tg->call.stopped) return true;
    if (tg->trouble_seen == 0) tg->trouble_seen = now;
    if (tg->call.phase == TSHI_MOVING) return some_member_recovers(group) && now - tg->trouble_seen >= GRACE_OF_MOVING;
    return now - tg->trouble_seen >= TSHI_GRACE;
}

/* Takes what has come: this rank may not have run for longer than a grace. True if that ends the call. */
static bool ends_by_itself(tsh_group *group) {
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    tshi_tagged *tagged = tshi_tagged_of(group->world);
    do tagged->moved = false;
    while ((tshi_schedule_advance(call) || tagged->moved) && call->phase != TSHI_IDLE);
    return call->phase == TSHI_IDLE;
}

/* In a broken world, or without the member that has left, messages may never end: this waits for them only briefly. */
static void abandon(tsh_group *group) {
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    double end = tshi_clock() + TSHI_GRACE;
    while (!tshi_schedule_stop(call)) {
        if (tshi_clock() >= end) return;
        sched_yield();
    }
    tshi_schedule_end(call, TSH_ERR_STATE);
}

tsh_status tshi_tagged_give_up(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    tshi_failure why;
    bool lasts = world->machine.broken != TSH_OK || tshi_tagged_failure(world) == TSH_OK;
    if (!lasts && call->phase != TSHI_IDLE) {
        if (ends_by_itself(group) || !may_stop(group) || !tshi_schedule_stop(call)) return TSH_OK;
    }
    tshi_failure_keep(&why, stop(group));
    if (lasts)
        abandon(group);
    else
        tshi_schedule_end(call, TSH_ERR_STATE);
    return tshi_failure_report(&why);
}

/* A member may never come to this call, since it waits in another one; its first messages have no memory of callers. */
static tsh_status compare_wait(tsh_group *group, double since) {
    const tshi_deadline wait = deadline_of(group, NULL, since);
    bool enters = tshi_tagged_group_of(group)->call.phase == TSHI_ENTERING;
    return enters ? tshi_deadline_compare(group->world, &wait) : TSH_OK;
}

tsh_status tshi_tagged_poll_call(tsh_group *group, double since) {
    tshi_failure why;
    tshi_tagged_poll(group->world);
    tsh_status status = tshi_tagged_group_failure(group);
    bool late = is_late(group, NULL, since);
    if (status != TSH_OK) return tshi_tagged_give_up(group);
    status = late ? time_out(group, NULL) : compare_wait(group, since);
    if (status == TSH_OK) return TSH_OK;
    tshi_failure_keep(&why, status);
    abandon(group);
    return tshi_failure_report(&why);
}

tsh_status tshi_tagged_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_status status = TSH_OK;
    if (!work || !tshi_is_message(work->call.op)) {
        status = tshi_tagged_poll_call(group, since);
    } else {
        tshi_tagged_poll(group->world); /* a failure ends the message in tshi_tagged_message_progress */
        if (is_late(group, work, since)) status = time_out(group, work);
    }
    tshi_tagged *tagged = tshi_tagged_of(group->world);
    if (status == TSH_OK && !tagged->moved) tshi_tagged_doze(tshi_clock() - since);
    tagged->moved = false;
    return status;
}

void tshi_tagged_awake(tsh_group *group) {
    tsh_world *world = group->world;
    if (world->machine.broken == TSH_OK)
        tshi_waits_end(&world->machine.waits);
    else
        tshi_waits_leave(&world->machine.waits);
}
