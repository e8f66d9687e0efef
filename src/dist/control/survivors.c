#include "dist/control/survivors.h"
#include "dist/control/control.h"
#include "dist/control/entrance.h"
#include "dist/rendezvous/sockets.h"

#include <string.h>

/* Seconds between two looks at the page, from its own machine and from others. */
#define LOOK_EVERY 1e-3
#define ASK_EVERY  10e-3
/* Seconds after which the first machine probes a rank that has not come, although it knows of no failure. */
#define DOUBT_AFTER 0.5
/* Seconds that a machine may be silent, unless TSHARD_SILENCE is less. */
#define LONGEST_SILENCE 5.0
/* Seconds that the first machine answers at the end of a phase. */
#define LONGEST_NEWS 5.0

static bool is_here(const tsh_world *world, int rank) {
    return world->machine.node[rank] == 0;
}

static bool spans_machines(const tshi_survivors *s) {
    return s->world->machine.nodes > 1;
}

/* --- ranks that are gone ------------------------------------------------------------------------------------------ */

/* The first rank of this machine, which relays news of the others, has ended. */
static bool hears_nothing(const tsh_world *world) {
    const tshi_machine *m = &world->machine;
    return m->ranks[0] != world->rank && tshi_deaths_has_ended(&m->deaths, m->ranks[0]);
}

/* A rank of another machine. Where the relays only know that its machine cannot be reached, and where they know
 * nothing, a probe tells. */
static bool is_gone_there(tshi_survivors *s, int rank, bool may_be_silent) {
    const tsh_world *world = s->world;
    uint32_t state = tshi_page_state(world->machine.page, rank);
    bool cut_off = strncmp(world->machine.page->record[rank].reason, TSHI_MACHINE, strlen(TSHI_MACHINE)) == 0;
    bool unheard = (state != TSHI_ALIVE && cut_off) || hears_nothing(world);
    double since = tshi_clock() - s->since;
    if (state == TSHI_DEAD && !cut_off) return true;
    if (!unheard && since < DOUBT_AFTER) return false;
    switch (tshi_probe_poll(world, rank, s->silence, &s->probes[rank])) {
    case TSHI_PROBE_ENDED: return true;
    case TSHI_PROBE_SILENT: return !may_be_silent;
    case TSHI_PROBE_ALIVE: return false;
    default: return unheard && !may_be_silent && since > s->silence;
    }
}

static bool is_gone(tshi_survivors *s, int rank, bool may_be_silent) {
    tsh_world *world = s->world;
    if (rank == world->rank) return false;
    if (tshi_control_has_left(world, rank)) return true;
    if (is_here(world, rank)) return tshi_deaths_has_ended(&world->machine.deaths, rank);
    return is_gone_there(s, rank, may_be_silent);
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

/* On another machine, where no rank of the first one has answered since then: TSH_OK while one may. */
static tsh_status check_first_machine(tshi_survivors *s, double since) {
    const tsh_world *world = s->world;
    bool ended = true, silent = true;
    for (int i = 0; i < world->size; i++) {
        if (!is_here(world, i)) continue;
        tshi_probe_state state = tshi_probe_poll(world, i, s->silence, &s->probes[i]);
        ended = ended && state == TSHI_PROBE_ENDED;
        silent = silent && (state == TSHI_PROBE_ENDED || state == TSHI_PROBE_SILENT);
    }
    if (ended)
        return tshi_fail(TSH_ERR_PEER,
                         "world_continue: the ranks of rank 0's machine, which decide who goes on, have all ended, or "
                         "have gone on without rank %d: it can only destroy its world and end",
                         world->rank);
    if (!silent && tshi_clock() < since + s->wait + s->silence) return TSH_OK;
    return tshi_fail(TSH_ERR_TIMEOUT,
                     "world_continue: the ranks of rank 0's machine, which decide who goes on, cannot be reached at "
                     "%s:%d: this rank ends",
                     world->settings->address, world->settings->port);
}

static tsh_status ask(tshi_survivors *s, tshi_standing_change change, uint32_t round) {
    double since = tshi_clock();
    tsh_status status = TSH_OK;
    while (status == TSH_OK && !tshi_meeting_ask(s->world, change, round, s->step, s->page)) {
        status = check_first_machine(s, since);
        tshi_sleep(ASK_EVERY);
    }
    return status;
}

static tsh_status read_page(tshi_survivors *s, tshi_standing_change change, uint32_t round) {
    tsh_world *world = s->world;
    tshi_signal_poll(world);
    if (!is_here(world, world->rank)) return ask(s, change, round);
    if (change != TSHI_LOOK) tshi_standings_change(world->machine.page, world->rank, change, round, s->step);
    tshi_standings_read(world->machine.page, s->page);
    return TSH_OK;
}

static tsh_status check_standing(const tshi_survivors *s) {
    int rank = s->world->rank;
    bool lost = s->page->rank[rank].standing == TSHI_LOST;
    if (!lost && s->page->turn % TSHI_PHASES != TSHI_CONFIRMED) return TSH_OK;
    if (!lost) return tshi_fail(TSH_ERR_STATE, "world_continue: the world has been continued");
    return tshi_fail(TSH_ERR_STATE,
                     "world_continue: the other ranks have declared rank %d lost, since it did not come, and have gone "
                     "on without it: it can only destroy its world and end",
                     rank);
}

/* The rank is a member of the round, or LOST. */
static bool is_settled(tshi_survivors *s, int rank, bool over) {
    uint32_t now = s->page->rank[rank].standing;
    if (now == TSHI_LOST || tshi_is_member(now, s->round)) return true;
    if (!over && !is_gone(s, rank, false)) return false;
    return atomic_compare_exchange_strong(&s->world->machine.page->record[rank].standing, &now, TSHI_LOST);
}

/* The first port that a rank chooses for the round is that of all. */
static void choose_port(const tshi_survivors *s) {
    tshi_page *page = s->world->machine.page;
    uint64_t now = atomic_load(&page->port), round = (uint64_t)s->round + 1;
    if (now >> 32 < round)
        atomic_compare_exchange_strong(&page->port, &now, round << 32 | (uint64_t)tshi_tcp_free_port());
}

/* On the first machine: ends the round's gathering when all ranks are settled. */
static void settle(tshi_survivors *s) {
    tshi_page *page = s->world->machine.page;
    bool over = tshi_clock() > s->since + s->wait, settled = true;
    uint32_t now = tshi_turn(s->round, TSHI_GATHERING);
    if (spans_machines(s)) tshi_meeting_serve(s->world, &s->meeting);
    for (int i = 0; i < s->world->size; i++) settled = is_settled(s, i, over) && settled;
    if (!settled) return;
    choose_port(s); /* of ranks on several machines, as they may be when others have joined */
    atomic_compare_exchange_strong(&page->turn, &now, tshi_turn(s->round, TSHI_BUILDING));
}

static void list_members(tshi_survivors *s) {
    s->count = 0;
    s->first_step = INT64_MAX;
    s->last_step = INT64_MIN;
    s->port = (int)s->page->port;
    s->newcomers = s->page->newcomers;
    for (int i = 0; i < s->world->size; i++) {
        int64_t step = s->page->rank[i].completed;
        if (!tshi_is_member(s->page->rank[i].standing, s->round)) continue;
        if (i == s->world->rank) s->own = s->count;
        s->ranks[s->count++] = i;
        if (step < s->first_step) s->first_step = step;
        if (step > s->last_step) s->last_step = step;
    }
}

/* On the first machine: answers until all members of other machines know the turn that this rank has read; while it
 * builds the new world, it does not answer. */
static void tell_others(tshi_survivors *s) {
    double end = tshi_clock() + LONGEST_NEWS;
    for (int i = 0; i < s->count && spans_machines(s) && tshi_clock() < end;) {
        uint32_t heard = atomic_load(&s->world->machine.page->record[s->ranks[i]].heard);
        if (is_here(s->world, s->ranks[i]) || heard >= s->page->turn || is_gone(s, s->ranks[i], true)) {
            i++;
            continue;
        }
        tshi_meeting_serve(s->world, &s->meeting);
        tshi_sleep(LOOK_EVERY);
    }
}

/* On rank 0, before it comes to the round. */
static void bring_newcomers(tshi_survivors *s) {
    tshi_page *page = s->world->machine.page;
    if (!s->world->entrance || s->brought == s->round + 1) return;
    s->brought = s->round + 1;
    tshi_entrance_list(s->world, s->world->entrance, &page->newcomers);
    atomic_store(&page->newcomers_round, s->brought);
}

/* The only rank of a world decides by itself. */
static tsh_status gather_alone(tshi_survivors *s) {
    s->round = s->brought++;
    s->ranks[0] = s->own = 0;
    s->count = 1;
    s->first_step = s->last_step = s->step;
    if (s->world->entrance) tshi_entrance_list(s->world, s->world->entrance, &s->newcomers);
    s->port = tshi_tcp_free_port();
    return TSH_OK;
}

tsh_status tshi_survivors_gather(tshi_survivors *s) {
    if (s->world->size == 1) return gather_alone(s);
    bool here = is_here(s->world, s->world->rank);
    s->since = tshi_clock();
    for (;;) {
        tsh_status status = read_page(s, TSHI_LOOK, 0);
        if (status == TSH_OK) status = check_standing(s);
        if (status != TSH_OK) return status;
        bool building = s->page->turn % TSHI_PHASES == TSHI_BUILDING;
        if (s->round != s->page->turn / TSHI_PHASES) s->since = tshi_clock();
        s->round = s->page->turn / TSHI_PHASES;
        if (building && tshi_is_member(s->page->rank[s->world->rank].standing, s->round)) break;
        if (!building) bring_newcomers(s);
        if (!building) status = read_page(s, TSHI_COME, s->round);
        if (status != TSH_OK) return status;
        if (here && s->page->turn == tshi_turn(s->round, TSHI_GATHERING)) settle(s);
        tshi_sleep(here ? LOOK_EVERY : ASK_EVERY);
    }
    list_members(s);
    if (here) tell_others(s);
    return TSH_OK;
}

/* --- building ----------------------------------------------------------------------------------------------------- */

/* On the first machine: ends the round when all members have built, or one never will. */
static void conclude(tshi_survivors *s, double deadline) {
    tshi_page *page = s->world->machine.page;
    bool over = tshi_clock() > deadline, all = true, good = true;
    uint32_t now = tshi_turn(s->round, TSHI_BUILDING);
    if (spans_machines(s)) tshi_meeting_serve(s->world, &s->meeting);
    for (int i = 0; i < s->count && good; i++) {
        if (s->page->rank[s->ranks[i]].standing == tshi_built_in(s->round)) continue;
        all = false;
        good = !over && !is_gone(s, s->ranks[i], true);
    }
    if (all || !good)
        atomic_compare_exchange_strong(
            &page->turn, &now, all ? tshi_turn(s->round, TSHI_CONFIRMED) : tshi_turn(s->round + 1, TSHI_GATHERING));
}

tsh_status tshi_survivors_confirm(tshi_survivors *s, bool built, double deadline, bool *confirmed) {
    *confirmed = built;
    if (s->world->size == 1) return TSH_OK;
    bool here = is_here(s->world, s->world->rank);
    tshi_standing_change change = built ? TSHI_BUILT : TSHI_FAILED_TO_BUILD;
    for (*confirmed = false;;) {
        tsh_status status = read_page(s, change, s->round);
        if (status != TSH_OK) return status;
        if (s->page->turn != tshi_turn(s->round, TSHI_BUILDING)) break;
        if (here) conclude(s, deadline);
        change = TSHI_LOOK;
        tshi_sleep(here ? LOOK_EVERY : ASK_EVERY);
    }
    *confirmed = s->page->turn == tshi_turn(s->round, TSHI_CONFIRMED);
    if (*confirmed && here) tell_others(s);
    return TSH_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

tsh_status tshi_survivors_open(tsh_world *world, int64_t step, double wait, tshi_survivors *out) {
    *out = (tshi_survivors){.world = world, .step = step, .wait = wait};
    out->ranks = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *out->ranks);
    out->page = tshi_calloc(&world->allocator, 1, tshi_standings_bytes(world->size));
    out->probes = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *out->probes);
    if (!out->ranks || !out->page || !out->probes) return TSH_ERR_MEMORY;
    double silence = world->settings->silence;
    out->silence = silence < LONGEST_SILENCE ? silence : LONGEST_SILENCE;
    if (spans_machines(out) && world->entrance) tshi_entrance_pause(world->entrance);
    return spans_machines(out) && is_here(world, world->rank) ? tshi_meeting_open(world, &out->meeting) : TSH_OK;
}

void tshi_survivors_close(tshi_survivors *s) {
    if (!s->world) return;
    tshi_meeting_close(s->world, &s->meeting);
    for (int i = 0; s->probes && i < s->world->size; i++) tshi_probe_end(&s->probes[i]);
    tshi_free(&s->world->allocator, s->probes);
    tshi_free(&s->world->allocator, s->ranks);
    tshi_free(&s->world->allocator, s->page);
}
