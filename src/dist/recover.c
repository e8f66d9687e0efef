/* A world fails, and recovers: all ranks go on with one and the same step. */
#include "dist/control/agree.h"
#include "dist/control/control.h"
#include "dist/world.h"

#include <string.h>

void tshi_world_fail_in(tsh_world *world, const char *reason, tshi_tape_step step) {
    if (world->ended || !world->machine.page) return; /* without a page there are no peers */
    tshi_control_fail(world, reason, step);
    for (tsh_group *g = world->groups; g; g = g->next) {
        if (g->ops->wake && g->state) g->ops->wake(g);
    }
}

void tsh_world_fail(tsh_world *world, const char *reason) {
    if (!world || tshi_owner_refuses(&world->owner, "world_fail")) return;
    tshi_world_fail_in(world, reason ? reason : "", (tshi_tape_step){0});
}

bool tshi_world_has_failed(tsh_world *world, tshi_tape_step step) {
    const tshi_group_ops *control = world->control;
    if (!control->check_peers || control->check_peers(world->group->control, false, false) == TSH_OK) return false;
    return !control->fails_later || !control->fails_later(world, step);
}

tsh_status tshi_world_end_cycle(tsh_world *world) {
    char words[TSHI_MESSAGE_SIZE];
    if (!tshi_waits_cycle(&world->machine.waits, words, sizeof words)) return TSH_OK;
    tshi_world_fail_in(world, words, (tshi_tape_step){0});
    return tshi_fail(TSH_ERR_MISMATCH, "%s", words);
}

/* The position in half steps, so that a step under way counts; 0 where this rank has no such tape. */
static int64_t position_of(const tshi_steps *s) {
    return s ? (int64_t)(2 * s->ended + s->open + 1) : 0;
}

/* A step that is open on all ranks goes on. Otherwise this rank skips it and all steps up to that of the furthest rank.
 * A rank that has not made the tape skips no step of it. */
static void skip_to(tshi_steps *s, int64_t furthest, int64_t least) {
    s->behind = furthest == least ? 0 : (uint64_t)furthest / 2 - s->ended;
}

/* The oldest of this rank's tapes that are younger than the one of this number, or NULL. */
static tshi_steps *next_tape(const tsh_world *world, int64_t number) {
    tshi_steps *found = NULL;
    for (tshi_steps *s = world->steps; s && (int64_t)s->tape > number; s = s->next) found = s;
    return found;
}

enum { STREAM, TAPES, POSITION, LEAST, NEXT_TAPE, FIGURES }; /* maxima over the ranks; negated, minima */

static void take_maxima(void *mine, const void *theirs, size_t bytes) {
    int64_t *most = mine;
    const int64_t *others = theirs;
    for (size_t i = 0; i < bytes / sizeof *most; i++) most[i] = others[i] > most[i] ? others[i] : most[i];
}

/* The failure reached the ranks in different steps, after different numbers of random streams and tapes: all go on with
 * those of the furthest rank. One reduction for each tape that some rank has: it finds the tape after that, too. */
static tsh_status catch_up(tsh_world *world) {
    int64_t tape = 0;
    while (tape != INT64_MAX) {
        tshi_steps *next = next_tape(world, tape), *s = next_tape(world, tape - 1);
        if (s == next) s = NULL;
        int64_t position = position_of(s),
                most[FIGURES] = {(int64_t)world->next_stream, (int64_t)world->tapes, position, -position,
                                 next ? -(int64_t)next->tape : -INT64_MAX};
        tsh_status status = tshi_control_reduce(world->group, "world_recover", TSH_OK, most, sizeof most, take_maxima);
        if (status != TSH_OK) return status;
        world->next_stream = (uint64_t)most[STREAM];
        world->tapes = (uint64_t)most[TAPES];
        if (s) skip_to(s, most[POSITION], -most[LEAST]);
        tape = -most[NEXT_TAPE];
    }
    return TSH_OK;
}

void tshi_groups_stop(tsh_world *world) {
    for (tsh_group *g = world->groups; g; g = g->next) {
        tshi_group_forget(g, "the world recovered meanwhile");
        if (g->ops->stop && g->state) g->ops->stop(g);
    }
}

void tshi_groups_restart(tsh_world *world) {
    for (tsh_group *g = world->groups; g; g = g->next) {
        if (g->ops->restart && g->state) g->ops->restart(g);
    }
}

/* Between the first barrier and the last no rank is in a call. Peers may move data of this rank's started calls until
 * they have come to the first. */
tsh_status tshi_recover_groups(tsh_world *world) {
    const tshi_machine *m = &world->machine;
    if (!m->page) return TSH_OK;
    if (m->broken != TSH_OK) return tshi_fail(m->broken, "%s", m->broken_words);
    tsh_status status = tshi_control_barrier(world);
    if (status != TSH_OK) return status;
    tshi_groups_stop(world);
    status = tshi_control_barrier(world);
    if (status != TSH_OK) return status;
    tshi_groups_restart(world);
    tshi_control_revive(world);
    return tshi_control_barrier(world);
}

tsh_status tshi_recover_control(tsh_world *world) {
    return world->control->recover ? world->control->recover(world) : tshi_recover_groups(world);
}

tsh_status tsh_world_recover(tsh_world *world) {
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "world_recover: world is NULL");
    tsh_status status = tshi_owner_enter(&world->owner, "world_recover");
    if (status != TSH_OK) return status;
    status = world->data->recover ? world->data->recover(world) : tshi_recover_groups(world);
    if (status == TSH_OK && world->size > 1) status = catch_up(world);
    if (status == TSH_OK) world->recoveries++;
    tshi_owner_leave(&world->owner);
    return status;
}
