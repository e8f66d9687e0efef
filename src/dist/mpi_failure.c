/* What stops a world over MPI: failures that ranks report, ranks that leave, errors of MPI, the deadline. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/mpi.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TAG_NOTICE   0
#define DEATH_EVERY  0.02 /* seconds */
#define TELL_SECONDS 0.1  /* most that telling may take: small messages go out by themselves */

/* --- notices ------------------------------------------------------------------------------------------------------ */

static void remember(tsh_world *world, tshi_mpi_peer *peer, const char *words) {
    if (!peer->words) peer->words = tshi_calloc(&world->allocator, 1, TSHI_MESSAGE_SIZE);
    if (peer->words) snprintf(peer->words, TSHI_MESSAGE_SIZE, "%s", words);
}

void tshi_mpi_lose(tsh_world *world, int rank, const char *words) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    mpi->troubled = mpi->peer[rank].broken = true;
    remember(world, &mpi->peer[rank], words);
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
    tshi_gate_look_for_deaths(group);
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

void tshi_mpi_tell(tsh_world *world, tshi_notice_kind kind, const char *words) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_outbox *box = &mpi->outbox[kind];
    if (!mpi->ready || !all_sent(world, box)) return;
    box->notice.kind = (uint32_t)kind;
    box->notice.epoch = mpi->epoch;
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
    if (tshi_mpi_of(world)->broken == TSH_OK) tshi_mpi_tell(world, TSHI_NOTICE_BROKEN, words);
    tshi_mpi_distrust();
    return tshi_mpi_break(world, TSH_ERR_SYSTEM, words);
}

tsh_status tshi_mpi_time_out(tsh_group *group, const char *what) {
    tsh_world *world = group->world;
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE];
    const tshi_mpi_group *mg = group->state;
    if (mg->op.phase == TSHI_AT_GATE)
        snprintf(words, sizeof words, "%.200s #%llu: %s did not come within %g s", what,
                 (unsigned long long)mg->op.number, tshi_gate_missing(group, ranks, sizeof ranks), world->timeout);
    else if (mg->op.phase == TSHI_IDLE)
        snprintf(words, sizeof words, "%.200s: not done within %g s", what, world->timeout);
    else
        snprintf(words, sizeof words, "%.200s #%llu: not done within %g s%s", what, (unsigned long long)mg->op.number,
                 world->timeout, tshi_gate_stopped(group, ranks, sizeof ranks));
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    tshi_group_log_ring(group);
    if (tshi_mpi_of(world)->broken == TSH_OK) tshi_mpi_tell(world, TSHI_NOTICE_BROKEN, words);
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
    const tshi_mpi_peer *me = &mpi->peer[world->rank];
    if (me->failed == mpi->epoch + 1) {
        return tshi_fail(TSH_ERR_STATE, "this rank failed (%s): tsh_world_recover is due", words_of(me));
    }
    for (int i = 0; i < world->size; i++) {
        if (!mpi->peer[i].broken) continue;
        snprintf(words, sizeof words, "rank %d: %.480s", i, words_of(&mpi->peer[i]));
        tshi_mpi_distrust();
        return tshi_mpi_break(world, TSH_ERR_PEER, words);
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
    /* A shared gate knows whether all had come; else their part may still arrive. */
    double latest = tshi_clock() - (mg->op.phase == TSHI_AT_GATE && mg->block ? 0 : TSHI_GRACE);
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
    const struct timespec nap = {.tv_nsec = waited < 1 ? 50000 : 500000};
    nanosleep(&nap, NULL);
}

tsh_status tshi_mpi_nap(tsh_group *group, double since) {
    tsh_world *world = group->world;
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    double waited = tshi_clock() - since;
    tshi_mpi_look_around(group);
    tsh_status status = tshi_mpi_group_trouble(group);
    if (status != TSH_OK) {
        return op->phase != TSHI_IDLE && !tshi_gate_withdraw(group) ? TSH_OK : tshi_mpi_stop(group);
    }
    if (waited >= world->timeout) {
        bool message = op->phase == TSHI_IDLE && group->messages;
        return tshi_mpi_time_out(group, tsh_collective_name(message ? group->messages->call.op : op->call.op));
    }
    tshi_mpi_doze(waited);
    return TSH_OK;
}

void tshi_mpi_fail(tsh_world *world, const char *reason) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    tshi_notice notice = {.kind = TSHI_NOTICE_FAILED, .epoch = mpi->epoch};
    if (mpi->broken != TSH_OK || mpi->peer[world->rank].failed == mpi->epoch + 1) return;
    snprintf(notice.words, sizeof notice.words, "%s", reason);
    take(world, &notice, world->rank);
    tshi_mpi_tell(world, TSHI_NOTICE_FAILED, reason);
}
