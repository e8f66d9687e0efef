/* The state of worlds and groups over tagged messages. */
#include "dist/tagged/tagged.h"

#define SPINS 4000

tsh_status tshi_tagged_open(tsh_world *world, tshi_tagged *tagged, const tshi_message_ops *ops, int64_t longest) {
    tagged->ops = ops;
    tagged->longest = longest;
    tagged->left = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *tagged->left);
    return tagged->left ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_tagged_joined(tsh_world *world) {
    tshi_tagged *tagged = tshi_tagged_of(world);
    tagged->oversubscribed = tshi_machine_oversubscribed(world);
    world->spins = tagged->oversubscribed ? 0 : SPINS;
}

void tshi_tagged_close(tsh_world *world, tshi_tagged *tagged) {
    tshi_pool_clear(&tagged->messages, &world->allocator);
    tshi_free(&world->allocator, tagged->left);
}

tsh_status tshi_tagged_fail(tsh_group *group, tsh_status status) {
    return tshi_control_stick(group->world, status, "%s", tsh_error_message());
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

static void group_free(const tsh_world *world, tshi_tagged_group *tg) {
    tshi_schedule_close(&tg->call);
    tshi_free(&world->allocator, tg->sent);
    tshi_free(&world->allocator, tg);
}

tsh_status tshi_tagged_group_prepare(tsh_group *group, size_t bytes) {
    tsh_world *world = group->world;
    tshi_tagged_group *tg = tshi_calloc(&world->allocator, 1, bytes);
    if (!tg) return TSH_ERR_MEMORY;
    tg->call = (tshi_schedule){.ops = tshi_tagged_of(world)->ops,
                               .apart = !tshi_ranks_share_machine(world, group->ranks, group->size)};
    tsh_status status = tshi_schedule_open(&tg->call, group);
    tg->sent = tshi_calloc(&world->allocator, (size_t)group->size, sizeof *tg->sent);
    if (status == TSH_OK && tg->sent) {
        group->state = tg;
        return TSH_OK;
    }
    group_free(world, tg);
    return TSH_ERR_MEMORY;
}

void tshi_tagged_group_close(tsh_group *group, bool usable) {
    tshi_tagged_group *tg = group->state;
    if (tg->call.phase == TSHI_IDLE || (usable && tshi_schedule_stop(&tg->call))) group_free(group->world, tg);
    group->state = NULL;
}
