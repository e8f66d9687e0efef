/* A world of the ranks that live, after others have died, and of those that join. */
#include "base/hash.h"
#include "dist/control/control.h"
#include "dist/control/entrance.h"
#include "dist/control/survivors.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Seconds for the first attempt to build the new world; each further one takes twice as long, up to LONGEST_ATTEMPT. A
 * member that dies before it has joined costs an attempt. */
#define FIRST_ATTEMPT          1.0
#define FIRST_BETWEEN_MACHINES 2.0
#define LONGEST_ATTEMPT        80.0
#define PER_RANK               0.05

/* --- the new world ------------------------------------------------------------------------------------------------ */

static int node_of(const tsh_world *old, int rank) {
    return old->machine.node ? old->machine.node[rank] : 0;
}

/* The number of newcomer i's machine in the new world, if a member or an earlier newcomer is there; else -1. */
static int known_node(const tsh_world *old, const tshi_survivors *s, const tshi_roster *out, int i) {
    const tshi_newcomer *who = s->newcomers.rank;
    if (who[i].node == 0) return 0;
    for (int k = 0; k < s->count; k++) {
        if (node_of(old, s->ranks[k]) == who[i].node) return out->node[k];
    }
    for (int k = 0; k < i; k++) {
        if (who[k].node == who[i].node) return out->node[s->count + k];
    }
    return -1;
}

/* Numbers the machines of the members: the one whose ranks have decided stays 0, and the others follow in the order of
 * their lowest members. The newcomers are the last ranks. */
static tsh_status place_members(const tsh_world *old, const tshi_survivors *s, tshi_roster *out) {
    tshi_process self;
    tsh_status status = tshi_process_self(&self);
    if (status != TSH_OK) return status;
    out->nodes = 1;
    memcpy(out->host[0], old->hosts ? old->hosts[0] : self.host, sizeof *out->host);
    out->rank = s->own;
    for (int i = 0; i < s->count; i++) {
        int node = node_of(old, s->ranks[i]), before = 0;
        while (before < i && node_of(old, s->ranks[before]) != node) before++;
        out->node[i] = before < i ? out->node[before] : node == 0 ? 0 : out->nodes++;
        if (node && before == i) memcpy(out->host[out->node[i]], old->hosts[node], sizeof *out->host);
    }
    for (int i = 0; i < s->newcomers.count; i++) {
        int node = known_node(old, s, out, i);
        out->node[s->count + i] = node < 0 ? out->nodes++ : node;
        if (node < 0) memcpy(out->host[out->nodes - 1], s->newcomers.rank[i].host, sizeof *out->host);
    }
    return TSH_OK;
}

/* A world of one rank may have the key of another one on the machine: what follows it gets a new one. */
static tsh_status take_settings(const tsh_world *old, const tshi_survivors *s, tshi_roster *roster,
                                tshi_settings *out) {
    static const char purpose[] = "continue";
    const tsh_world_config config = {.blas_threads = old->blas_threads_asked};
    *out = *old->settings;
    out->local_known = false;
    out->size = roster->size;
    out->seed = old->seed;
    if (s->port) out->port = s->port;
    tshi_hmac(old->settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, &s->round, sizeof s->round, roster->key);
    if (old->size == 1 && !tshi_random_bytes(roster->key, sizeof roster->key))
        return tshi_fail_errno(errno, "world_continue: random numbers");
    tshi_roster_settings(roster, out);
    tshi_settings_share_cores(&config, out);
    return TSH_OK;
}

/* On rank 0 the newcomers have built it, too. */
static tsh_status build(const tsh_world *old, const tshi_survivors *s, double patience, tsh_world **out) {
    const tsh_world_config config = {
        .log = old->caller_log, .allocator = old->allocator, .blas_threads = old->blas_threads_asked};
    const int size = s->count + s->newcomers.count;
    double deadline = tshi_clock() + patience;
    tshi_settings settings;
    tshi_roster roster;
    *out = NULL;
    tsh_status status = tshi_roster_init(&roster, size, size, &old->allocator);
    if (status != TSH_OK) return status;
    status = place_members(old, s, &roster);
    if (status == TSH_OK) status = take_settings(old, s, &roster, &settings);
    tshi_start start = {.config = &config, .settings = &settings, .patience = patience};
    if (size > 1) start.roster = &roster;
    if (status == TSH_OK && old->entrance)
        tshi_entrance_place(old, old->entrance, &roster, s->count, settings.port, patience);
    if (status == TSH_OK) status = tshi_world_start(&start, out);
    if (status == TSH_OK && old->entrance && !tshi_entrance_built(old, old->entrance, deadline))
        status = tshi_fail(TSH_ERR_PEER, "world_continue: a rank that joins has not built the world");
    tshi_roster_free(&roster, &old->allocator);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* `call` is for such worlds. */
static tsh_status check_world(const tsh_world *world, const char *call) {
    const tshi_machine *m = &world->machine;
    bool renews = world->size == 1 ? world->control == tshi_backend_of_one() : m->page && world->control->renews;
    if (!renews || m->threads || world->device != world->host)
        return tshi_fail(TSH_ERR_UNSUPPORTED,
                         "%s: ranks go on if they are processes, with tensors on the CPU, "
                         "over the backends local and ucx",
                         call);
    if (m->nodes > 1 && world->settings->join_port == 0)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: ranks on several machines need env:// or tcp://HOST", call);
    return TSH_OK;
}

/* Zeroed members of the configuration take their defaults. */
static tsh_status check(tsh_world *world, tsh_continue_config *config) {
    if (config->min_ranks < 0 || config->wait < 0 || !(config->wait <= world->timeout * 1e6))
        return tshi_fail(TSH_ERR_ARGUMENT, "world_continue: min_ranks %d, wait %g", config->min_ranks, config->wait);
    if (config->min_ranks == 0) {
        uint64_t least = 1;
        if (tshi_setting_number(TSHI_SETTING_MIN_RANKS, &least) != TSH_OK) return TSH_ERR_ARGUMENT;
        config->min_ranks = (int)least;
    }
    if (config->wait == 0) config->wait = world->timeout;
    if (world->size == 1 && world->joiners == 0)
        return tshi_fail(TSH_ERR_STATE, "world_continue: the world has one rank");
    tsh_status status = check_world(world, "world_continue");
    if (status != TSH_OK || world->joiners > 0) return status;
    tshi_machine_poll(world);
    if (world->machine.broken == TSH_OK && tshi_control_lasting_failure(world) == TSH_OK)
        return tshi_fail(TSH_ERR_STATE, "world_continue: no rank has died or is lost");
    return TSH_OK;
}

/* "rank 2 of 4 is" or "ranks 0, 2 of 4 are". */
static const char *list_lost(const tsh_world *old, const tshi_survivors *s, char *text, size_t size) {
    bool several = old->size - s->count > 1;
    snprintf(text, size, "rank%s", several ? "s" : "");
    for (int i = 0, next = 0, lost = 0; i < old->size; i++) {
        if (next < s->count && s->ranks[next] == i)
            next++;
        else
            tshi_append(text, size, "%s %d", lost++ ? "," : "", i);
    }
    return tshi_append(text, size, " of %d %s", old->size, several ? "are" : "is");
}

static tsh_status check_count(const tsh_world *old, const tshi_survivors *s, int min_ranks) {
    char lost[TSHI_LINE];
    if (s->count + s->newcomers.count >= min_ranks) return TSH_OK;
    return tshi_fail(TSH_ERR_PEER, "world_continue: %s lost, and the job needs at least %d ranks",
                     list_lost(old, s, lost, sizeof lost), min_ranks);
}

/* One round after another, until all members of one have built a world. */
static tsh_status settle(tsh_world *old, const tsh_continue_config *config, tshi_survivors *s, tsh_world **out) {
    double patience = old->machine.nodes > 1 || old->joiners > 0 ? FIRST_BETWEEN_MACHINES : FIRST_ATTEMPT;
    tsh_status status = tshi_survivors_open(old, config->step, config->wait, s);
    for (bool confirmed = false; status == TSH_OK && !confirmed;
         patience += patience < LONGEST_ATTEMPT ? patience : 0) {
        status = tshi_survivors_gather(s);
        if (status == TSH_OK) status = check_count(old, s, config->min_ranks);
        if (status != TSH_OK) return status;
        double seconds = patience + PER_RANK * (s->count + s->newcomers.count), deadline = tshi_clock() + seconds;
        tsh_status built = build(old, s, seconds, out);
        if (built != TSH_OK)
            tshi_log(&old->log, TSH_LOG_INFO, "world_continue: round %" PRIu32 ": %s", s->round, tsh_error_message());
        status = tshi_survivors_confirm(s, built == TSH_OK, deadline + TSHI_LONGEST_LAG, &confirmed);
        if (confirmed) continue;
        tsh_world_destroy(*out);
        *out = NULL;
    }
    return status;
}

static void tell(const tsh_world *old, const tshi_survivors *s) {
    char lost[TSHI_LINE];
    int joined = s->newcomers.count, size = s->count + joined;
    if (s->own == 0 && s->count < old->size)
        tshi_log(&old->log, TSH_LOG_WARNING, "%s lost: the job goes on with %d rank%s",
                 list_lost(old, s, lost, sizeof lost), size, size > 1 ? "s" : "");
    if (s->own == 0 && joined)
        tshi_log(&old->log, TSH_LOG_INFO, "%d rank%s joined: the job goes on with %d ranks", joined,
                 joined > 1 ? "s have" : " has", size);
}

/* The new world, which is confirmed, takes over from the old one. */
static void hand_over(tsh_world *old, const tshi_survivors *s, tsh_world *new) {
    tell(old, s);
    if (old->entrance) tshi_entrance_confirm(old->entrance);
    new->entrance = old->entrance;
    old->entrance = NULL;
    old->joiners = 0;
}

tsh_status tsh_world_continue(tsh_world *world, const tsh_continue_config *config, tsh_world **out,
                              tsh_continued *what) {
    static const tsh_continue_config empty;
    if (out) *out = NULL;
    if (!world || !out) return tshi_fail(TSH_ERR_ARGUMENT, "world_continue: world and out are required");
    tsh_status status = tshi_owner_enter(&world->owner, "world_continue");
    if (status != TSH_OK) return status;
    tsh_continue_config given = config ? *config : empty;
    tshi_survivors s = {0};
    status = check(world, &given);
    if (status == TSH_OK) status = settle(world, &given, &s, out);
    if (status == TSH_OK) {
        hand_over(world, &s, *out);
        if (what) *what = (tsh_continued){world->size, world->rank, s.first_step, s.last_step, s.newcomers.count};
    }
    tshi_survivors_close(&s);
    tshi_owner_leave(&world->owner);
    return status;
}

/* --- ranks that wait to join -------------------------------------------------------------------------------------- */

static tsh_status look_for_joiners(tsh_world *world, int *count) {
    *count = 0;
    if (world->rank != 0) return TSH_OK;
    tsh_status status =
        world->entrance ? tshi_entrance_reopen(world, world->entrance) : tshi_entrance_open(world, &world->entrance);
    if (status != TSH_OK) return status;
    tshi_entrance_poll(world, world->entrance);
    *count = tshi_entrance_count(world->entrance);
    return TSH_OK;
}

tsh_status tsh_world_joiners(tsh_world *world, int *count) {
    static const int32_t from = 0;
    if (count) *count = 0;
    if (!world || !count) return tshi_fail(TSH_ERR_ARGUMENT, "world_joiners: world and count are required");
    tsh_status status = tshi_owner_enter(&world->owner, "world_joiners");
    if (status != TSH_OK) return status;
    status = check_world(world, "world_joiners");
    if (status == TSH_OK && world->settings->join_port == 0)
        status = tshi_fail(TSH_ERR_UNSUPPORTED, "world_joiners: ranks join jobs with env:// or tcp://HOST");
    if (status == TSH_OK) {
        int32_t waiting = 0;
        status = look_for_joiners(world, &waiting);
        if (world->size > 1)
            status = tshi_group_fetch(world->group, "world_joiners", &from, 1, &waiting, sizeof waiting, status);
        if (status == TSH_OK) *count = world->joiners = waiting;
    }
    tshi_owner_leave(&world->owner);
    return status;
}
