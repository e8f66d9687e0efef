/* A world of the ranks that live, after others have died. */
#include "base/hash.h"
#include "dist/control/control.h"
#include "dist/control/survivors.h"
#include "dist/rendezvous/rendezvous.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Seconds for the first attempt to build the new world; each further one takes twice as long, up to LONGEST_ATTEMPT. A
 * member that dies before it has joined costs an attempt. */
#define FIRST_ATTEMPT          1.0
#define FIRST_BETWEEN_MACHINES 2.0
#define LONGEST_ATTEMPT        80.0
#define PER_RANK               0.05
/* Seconds between the first member that has built the new world and the last one. */
#define LONGEST_LAG 10.0

/* --- the new world ------------------------------------------------------------------------------------------------ */

/* Numbers the machines of the members: the one whose ranks have decided stays 0, and the others follow in the order of
 * their lowest members. */
static void place_members(const tsh_world *old, const tshi_survivors *s, tshi_roster *out) {
    out->nodes = 1;
    memcpy(out->host[0], old->hosts[0], sizeof *out->host);
    out->rank = s->own;
    for (int i = 0; i < s->count; i++) {
        int node = old->machine.node[s->ranks[i]], before = 0;
        while (before < i && old->machine.node[s->ranks[before]] != node) before++;
        out->node[i] = before < i ? out->node[before] : node == 0 ? 0 : out->nodes++;
        if (before == i) memcpy(out->host[out->node[i]], old->hosts[node], sizeof *out->host);
    }
}

static void take_settings(const tsh_world *old, const tshi_survivors *s, tshi_roster *roster, tshi_settings *out) {
    static const char purpose[] = "continue";
    const tsh_world_config config = {.blas_threads = old->blas_threads_asked};
    *out = *old->settings;
    out->local_known = false;
    out->size = s->count;
    if (s->port) out->port = s->port;
    tshi_hmac(old->settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, &s->round, sizeof s->round, roster->key);
    tshi_roster_settings(roster, out);
    tshi_settings_share_cores(&config, out);
}

static tsh_status build(const tsh_world *old, const tshi_survivors *s, double patience, tsh_world **out) {
    const tsh_world_config config = {
        .log = old->caller_log, .allocator = old->allocator, .blas_threads = old->blas_threads_asked};
    tshi_settings settings;
    tshi_roster roster;
    *out = NULL;
    tsh_status status = tshi_roster_init(&roster, s->count, s->count, &old->allocator);
    if (status != TSH_OK) return status;
    place_members(old, s, &roster);
    take_settings(old, s, &roster, &settings);
    tshi_start start = {.config = &config, .settings = &settings, .patience = patience};
    if (s->count > 1) start.roster = &roster;
    status = tshi_world_start(&start, out);
    tshi_roster_free(&roster, &old->allocator);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Zeroed members of the configuration take their defaults. */
static tsh_status check(tsh_world *world, tsh_continue_config *config) {
    const tshi_machine *m = &world->machine;
    if (config->min_ranks < 0 || config->wait < 0 || !(config->wait <= world->timeout * 1e6))
        return tshi_fail(TSH_ERR_ARGUMENT, "world_continue: min_ranks %d, wait %g", config->min_ranks, config->wait);
    if (config->min_ranks == 0) {
        uint64_t least = 1;
        tsh_status status = tshi_setting_number(TSHI_SETTING_MIN_RANKS, &least);
        if (status != TSH_OK) return status;
        config->min_ranks = (int)least;
    }
    if (config->wait == 0) config->wait = world->timeout;
    if (world->size == 1) return tshi_fail(TSH_ERR_STATE, "world_continue: the world has one rank");
    if (!m->page || m->threads || !world->control->renews || world->device != world->host)
        return tshi_fail(TSH_ERR_UNSUPPORTED,
                         "world_continue: ranks go on if they are processes, with tensors on the CPU, "
                         "over the backends local and ucx");
    if (m->nodes > 1 && world->settings->method != TSHI_INIT_ENV && world->settings->method != TSHI_INIT_TCP)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "world_continue: ranks on several machines need env:// or tcp://HOST");
    tshi_machine_poll(world);
    if (m->broken == TSH_OK && tshi_control_lasting_failure(world) == TSH_OK)
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
    if (s->count >= min_ranks) return TSH_OK;
    return tshi_fail(TSH_ERR_PEER, "world_continue: %s lost, and the job needs at least %d ranks",
                     list_lost(old, s, lost, sizeof lost), min_ranks);
}

/* One round after another, until all members of one have built a world. */
static tsh_status settle(tsh_world *old, const tsh_continue_config *config, tshi_survivors *s, tsh_world **out) {
    double patience = old->machine.nodes > 1 ? FIRST_BETWEEN_MACHINES : FIRST_ATTEMPT;
    tsh_status status = tshi_survivors_open(old, config->step, config->wait, s);
    for (bool confirmed = false; status == TSH_OK && !confirmed;
         patience += patience < LONGEST_ATTEMPT ? patience : 0) {
        status = tshi_survivors_gather(s);
        if (status == TSH_OK) status = check_count(old, s, config->min_ranks);
        if (status != TSH_OK) return status;
        double seconds = patience + PER_RANK * s->count, deadline = tshi_clock() + seconds;
        tsh_status built = build(old, s, seconds, out);
        if (built != TSH_OK)
            tshi_log(&old->log, TSH_LOG_INFO, "world_continue: round %" PRIu32 ": %s", s->round, tsh_error_message());
        status = tshi_survivors_confirm(s, built == TSH_OK, deadline + LONGEST_LAG, &confirmed);
        if (confirmed) continue;
        tsh_world_destroy(*out);
        *out = NULL;
    }
    return status;
}

static void tell(const tsh_world *old, const tshi_survivors *s) {
    char lost[TSHI_LINE];
    if (s->own == 0 && s->count < old->size)
        tshi_log(&old->log, TSH_LOG_WARNING, "%s lost: the job goes on with %d rank%s",
                 list_lost(old, s, lost, sizeof lost), s->count, s->count > 1 ? "s" : "");
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
        tell(world, &s);
        (*out)->seed = world->seed;
        if (what) *what = (tsh_continued){world->size, world->rank, s.first_step, s.last_step};
    }
    tshi_survivors_close(&s);
    tshi_owner_leave(&world->owner);
    return status;
}
