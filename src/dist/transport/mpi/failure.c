/* The failures of a world over MPI: those that ranks report, ranks that leave, errors of MPI, the deadline. */
#include "dist/collectives/signal.h"
#include "dist/transport/mpi/mpi.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define TAG_NOTICE    0
#define DEATH_EVERY   0.02 /* seconds */
#define LONGEST_DOUBT 0.5  /* about a deadlock */
#define TELL_SECONDS  0.1  /* the most seconds that sending notices may take: small messages leave by themselves */

/* --- notices ------------------------------------------------------------------------------------------------------ */

static void remember(tsh_world *world, tshi_mpi_peer *peer, const char *words) {
    if (!peer->words) peer->words = tshi_calloc(&world->allocator, 1, TSHI_MESSAGE_SIZE);
    if (peer->words) snprintf(peer->words, TSHI_MESSAGE_SIZE, "%s", words);
}

void tshi_mpi_lose(tsh_world *world, int rank, const char *words) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_mpi_peer *peer = &mpi->peer[rank];
    char text[TSHI_MESSAGE_SIZE];
    bool failed = peer->failed == mpi->epoch + 1 && peer->words; /* it has said why, before */
    snprintf(text, sizeof text, "%.420s%s%s", failed ? peer->words : "", failed ? "; then " : "", words);
    mpi->troubled = peer->broken = true;
    remember(world, peer, text);
}

static void take(tsh_world *world, const tshi_notice *notice, int rank) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_mpi_peer *peer = &mpi->peer[rank];
    mpi->troubled = true;
    if (notice->kind == TSHI_NOTICE_LEFT) {
        peer->left = tshi_clock();
        return;
    }
    if (notice->kind == TSHI_NOTICE_BROKEN) peer->broken = true;
    if (notice->kind == TSHI_NOTICE_FAILED) peer->failed = notice->epoch + 1;
    peer->step = notice->step;
    remember(world, peer, notice->words);
}

void tshi_mpi_poll(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    int done = 1;
    while (mpi->ready && done) {
        MPI_Status from;
        if (MPI_Test(&mpi->inbox_request, &done, &from) != MPI_SUCCESS) return;
        if (!done) return;
        mpi->inbox.words[TSHI_MESSAGE_SIZE - 1] = '\0';
        take(world, &mpi->inbox, from.MPI_SOURCE);
        MPI_Irecv(&mpi->inbox, (int)sizeof mpi->inbox, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTICE, mpi->notices,
                  &mpi->inbox_request);
    }
}

void tshi_mpi_look_around(tsh_group *group) {
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    double now = tshi_clock();
    tshi_mpi_poll(group->world);
    tshi_signal_look(group->world);
    if (now - mpi->looked < DEATH_EVERY) return;
    mpi->looked = now;
    tshi_entry_look_for_deaths(group);
}

static bool all_sent(tsh_world *world, tshi_outbox *box) {
    double since = tshi_clock();
    int done = 0;
    while (MPI_Testall(world->size, box->request, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !done) {
        if (tshi_clock() - since > TELL_SECONDS) return false;
        sched_yield();
    }
    return true;
}

void tshi_mpi_tell(tsh_world *world, tshi_notice_kind kind, const char *words, tshi_tape_step step) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_outbox *box = &mpi->outbox[kind];
    if (!mpi->ready || !all_sent(world, box)) return;
    box->notice.kind = (uint32_t)kind;
    box->notice.epoch = mpi->epoch;
    box->notice.step = step;
    snprintf(box->notice.words, sizeof box->notice.words, "%s", words);
    for (int i = 0; i < world->size; i++) {
        if (i == world->rank) continue;
        MPI_Isend(&box->notice, (int)sizeof box->notice, MPI_BYTE, i, TAG_NOTICE, mpi->notices, &box->request[i]);
    }
    all_sent(world, box);
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_break(tsh_world *world, tsh_status status, const char *words) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    if (mpi->broken == TSH_OK) {
        mpi->broken = status;
        snprintf(mpi->broken_words, sizeof mpi->broken_words, "%s", words);
    }
    return tshi_fail(mpi->broken, "%s", mpi->broken_words);
}

tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING] = "", words[TSHI_MESSAGE_SIZE];
    int length = 0;
    MPI_Error_string(error, text, &length);
    snprintf(words, sizeof words, "%.40s: MPI error %d: %.400s", what, error, text);
    if (tshi_mpi_of(world)->broken == TSH_OK) tshi_mpi_tell(world, TSHI_NOTICE_BROKEN, words, (tshi_tape_step){0});
    tshi_mpi_distrust();
    return tshi_mpi_break(world, TSH_ERR_SYSTEM, words);
}

/* Writes "rank 3 did not come within 2 s; rank 3 is stopped", or less where the ranks share no memory. */
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

tsh_status tshi_mpi_time_out(tsh_group *group, const tsh_work *message, const char *what) {
    tsh_world *world = group->world;
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tshi_mpi_group *mg = group->state;
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE / 2], stopped[TSHI_LINE / 2], late[TSHI_LINE + 64];
    tshi_mpi_post_wait(group, message);
    bool sure = tshi_waits_name(&mpi->waits, ranks, sizeof ranks, stopped, sizeof stopped);
    say_late(group, sure, ranks, stopped, late, sizeof late);
    unsigned long long number = message ? message->post : mg->op.post.number;
    snprintf(words, sizeof words, "%.160s #%llu: %s", what, number, late);
    tshi_waits_leave(&mpi->waits);
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    tshi_group_log_ring(group);
    if (mpi->broken == TSH_OK) tshi_mpi_tell(world, TSHI_NOTICE_BROKEN, words, (tshi_tape_step){0});
    tshi_mpi_distrust();
    return tshi_mpi_break(world, TSH_ERR_TIMEOUT, words);
}

static const char *words_of(const tshi_mpi_peer *peer) {
    return peer->words ? peer->words : "it failed";
}

tsh_status tshi_mpi_trouble(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    char words[TSHI_MESSAGE_SIZE];
    if (mpi->broken != TSH_OK) return tshi_fail(mpi->broken, "%s", mpi->broken_words);
    if (!mpi->troubled) return TSH_OK;
    for (int i = 0; i < world->size; i++) {
        if (!mpi->peer[i].broken) continue;
        snprintf(words, sizeof words, "rank %d: %.480s", i, words_of(&mpi->peer[i]));
        tshi_mpi_distrust();
        return tshi_mpi_break(world, TSH_ERR_PEER, words);
    }
    const tshi_mpi_peer *me = &mpi->peer[world->rank];
    if (me->failed == mpi->epoch + 1) {
        return tshi_fail(TSH_ERR_STATE, "this rank failed (%s): tsh_world_recover is due", words_of(me));
    }
    for (int i = 0; i < world->size; i++) {
        if (mpi->peer[i].failed != mpi->epoch + 1) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d: %s", i, words_of(&mpi->peer[i]));
    }
    return TSH_OK;
}

tsh_status tshi_mpi_heard(tsh_group *group, bool look, bool waits) {
    tsh_world *world = group->world;
    if (look)
        tshi_mpi_look_around(group);
    else
        tshi_mpi_poll(world);
    tsh_status status = tshi_mpi_trouble(world);
    for (int i = 0; waits && status == TSH_OK && i < group->size; i++) {
        double left = tshi_mpi_of(world)->peer[group->ranks[i]].left;
        if (left == 0 || tshi_clock() - left < TSHI_GRACE) continue;
        status = tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world)", group->ranks[i]);
    }
    return status;
}

tsh_status tshi_mpi_group_trouble(tsh_group *group) {
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_mpi_group *mg = group->state;
    tsh_status status = tshi_mpi_trouble(group->world);
    if (status != TSH_OK || !mpi->troubled || mg->op.phase == TSHI_IDLE) return status;
    /* A shared entry barrier knows whether all members had entered; otherwise their part may still arrive. */
    double latest = tshi_clock() - (mg->op.phase == TSHI_AT_ENTRY && mg->block ? 0 : TSHI_GRACE);
    for (int i = 0; i < group->size; i++) {
        double left = mpi->peer[group->ranks[i]].left;
        if (left == 0 || left > latest) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s #%llu",
                         group->ranks[i], tsh_collective_name(mg->op.call.op), (unsigned long long)group->calls);
    }
    return TSH_OK;
}

tsh_status tshi_mpi_stop(tsh_group *group) {
    char words[TSHI_MESSAGE_SIZE];
    tsh_status status = tshi_mpi_trouble(group->world);
    if (status != TSH_OK) return status;
    status = tshi_mpi_group_trouble(group);
    snprintf(words, sizeof words, "%s", tsh_error_message());
    return tshi_mpi_break(group->world, status, words);
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

void tshi_mpi_post_wait(tsh_group *group, const tsh_work *message) {
    tshi_waits *waits = &tshi_mpi_of(group->world)->waits;
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_waits_begin(waits, message ? message->post : op->post.number);
    for (int i = 0; i < group->size; i++) {
        /* Behind the entry barrier every member takes part in the rest of the call. */
        bool waits_for = op->phase == TSHI_AT_ENTRY ? tshi_entry_lacks(group, i) : op->phase != TSHI_IDLE;
        if (message) waits_for = message->call.root == TSH_ANY_RANK || message->call.root == i;
        if (waits_for) tshi_waits_add(waits, group->ranks[i]);
    }
    tshi_waits_post(waits);
}

void tshi_mpi_post_recovery(tsh_world *world) {
    tshi_waits *waits = &tshi_mpi_of(world)->waits;
    tshi_waits_begin(waits, 0);
    for (int i = 0; i < world->size; i++) tshi_waits_add(waits, i);
    tshi_waits_post(waits);
}

static void warn(const tsh_group *group, const tsh_work *message, double waited, const char *ranks,
                 const char *stopped) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const char *name = message ? tsh_collective_name(message->call.op) : op->text;
    unsigned long long number = message ? message->post : op->post.number;
    tshi_log(&group->world->log, TSH_LOG_WARNING, "%.160s #%llu: rank %d has waited %.1f s for %s%s",
             name ? name : tsh_collective_name(op->call.op), number, group->world->rank, waited,
             ranks[0] ? ranks : "the others", stopped);
}

bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since) {
    tsh_world *world = group->world;
    tshi_mpi *mpi = tshi_mpi_of(world);
    char ranks[TSHI_LINE / 2], stopped[TSHI_LINE / 2];
    double now = tshi_clock(), waited = now - since, doubt = fmin(world->timeout / 4, LONGEST_DOUBT);
    if (mpi->waiting_since != since) {
        mpi->waiting_since = since;
        mpi->next_word = since + tshi_word_after(world);
        tshi_mpi_post_wait(group, message);
    }
    if (waited < world->timeout && now < mpi->next_word) return false;
    tshi_mpi_post_wait(group, message);
    bool sure = tshi_waits_name(&mpi->waits, ranks, sizeof ranks, stopped, sizeof stopped) || !mpi->waits.rows;
    if (waited >= world->timeout + (sure ? 0 : doubt)) return true;
    if (now < mpi->next_word) return false;
    mpi->next_word = now + waited;
    warn(group, message, waited, ranks, stopped);
    return false;
}

tsh_status tshi_mpi_look(tsh_group *group, double since) {
    const tshi_mpi_group *mg = group->state;
    const tshi_mpi_op *op = &mg->op;
    tshi_mpi_look_around(group);
    tsh_status status = tshi_mpi_group_trouble(group);
    bool late = tshi_mpi_late(group, NULL, since);
    if (status == TSH_OK && !late) return TSH_OK;
    bool free = op->phase == TSHI_IDLE || tshi_entry_withdraw(group);
    if (!free && (!late || (op->phase == TSHI_AT_ENTRY && mg->block))) return TSH_OK;
    tshi_failure why;
    tshi_failure_keep(&why,
                      status != TSH_OK && free
                          ? tshi_mpi_stop(group)
                          : tshi_mpi_time_out(group, NULL, op->text ? op->text : tsh_collective_name(op->call.op)));
    tshi_mpi_give_up(group);
    return tshi_failure_report(&why);
}

tsh_status tshi_mpi_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_status status = TSH_OK;
    if (!work || !tshi_is_message(work->call.op)) {
        status = tshi_mpi_look(group, since);
    } else {
        tshi_mpi_look_around(group); /* what has failed ends the message in its progress */
        if (tshi_mpi_late(group, work, since)) {
            status = tshi_mpi_time_out(group, work, tsh_collective_name(work->call.op));
        }
    }
    if (status == TSH_OK) tshi_mpi_doze(tshi_clock() - since);
    return status;
}

/* The notice of a rank that fails takes a while to reach its peers. */
void tshi_mpi_end_wait(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    if (mpi->broken == TSH_OK)
        tshi_waits_end(&mpi->waits);
    else
        tshi_waits_leave(&mpi->waits);
}

void tshi_mpi_awake(tsh_group *group) {
    tshi_mpi_end_wait(group->world);
}

bool tshi_mpi_fails_later(const tsh_world *world, tshi_tape_step step) {
    const tshi_mpi *mpi = tshi_mpi_of(world);
    if (mpi->broken != TSH_OK) return false;
    for (int i = 0; i < world->size; i++) {
        const tshi_mpi_peer *peer = &mpi->peer[i];
        bool failed = peer->failed == mpi->epoch + 1;
        if (peer->broken || (failed && !tshi_step_is_later(peer->step, step))) return false;
    }
    return true;
}

void tshi_mpi_fail(tsh_world *world, const char *reason, tshi_tape_step step) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_notice notice = {.kind = TSHI_NOTICE_FAILED, .epoch = mpi->epoch, .step = step};
    if (mpi->broken != TSH_OK || mpi->peer[world->rank].failed == mpi->epoch + 1) return;
    snprintf(notice.words, sizeof notice.words, "%s", reason);
    take(world, &notice, world->rank);
    tshi_mpi_tell(world, TSHI_NOTICE_FAILED, reason, step);
}
