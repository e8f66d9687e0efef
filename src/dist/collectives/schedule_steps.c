/* Steps of messages: posting, testing and giving up.
 *
 * Invariant: a step uses the requests of step - window only after that step has ended. */
#include "dist/collectives/schedule.h"

bool tshi_steps_reserve(const tshi_schedule *m, size_t bytes, void **memory, size_t *room) {
    const tsh_allocator *allocator = &m->group->world->allocator;
    if (bytes <= *room) return true;
    tshi_free(allocator, *memory);
    *memory = tshi_calloc(allocator, 1, bytes);
    *room = *memory ? bytes : 0;
    return *memory != NULL;
}

static int requests_a_step(const tshi_schedule *m) {
    return 2 * (m->group->size - 1);
}

static tshi_request *requests_of(const tshi_schedule *m, int64_t step) {
    return m->request + step % m->steps.window * requests_a_step(m);
}

/* --- posting ------------------------------------------------------------------------------------------------------ */

static tshi_request *next_request(tshi_schedule *m, int64_t step, int member, bool receives) {
    tshi_request *request = requests_of(m, step) + m->posted++;
    *request = (tshi_request){.member = member, .active = true, .receives = receives};
    return request;
}

tsh_status tshi_step_send(tshi_schedule *m, int64_t step, int member, const void *data, size_t bytes) {
    if (!bytes) return TSH_OK;
    return m->ops->send(m->group, member, m->number, data, bytes, next_request(m, step, member, false));
}

tsh_status tshi_step_receive(tshi_schedule *m, int64_t step, int member, void *data, size_t room) {
    if (!room) return TSH_OK;
    return m->ops->receive(m->group, member, m->number, data, room, next_request(m, step, member, true));
}

tsh_status tshi_steps_begin(tshi_schedule *m) {
    size_t requests = (size_t)m->steps.window * (size_t)requests_a_step(m);
    m->steps.begun = m->steps.done = 0;
    bool good = tshi_steps_reserve(m, requests * sizeof *m->request, (void **)(void *)&m->request, &m->request_room);
    return good ? TSH_OK : TSH_ERR_MEMORY;
}

static bool may_post(const tshi_schedule *m) {
    const tshi_schedule_steps *s = &m->steps;
    if (s->begun >= s->count || s->begun - s->done >= s->window) return false;
    return !s->may_post || s->may_post(m, s->begun);
}

static tsh_status post_next(tshi_schedule *m) {
    tshi_request *request = requests_of(m, m->steps.begun);
    for (int i = 0; i < requests_a_step(m); i++) request[i].active = false;
    m->posted = 0;
    return m->steps.post(m, m->steps.begun++);
}

/* --- testing ------------------------------------------------------------------------------------------------------ */

/* Each test of a message under way lets the transport progress, so one such test is enough. */
static tsh_status test_step(tshi_schedule *m, int64_t step, bool *ended) {
    tshi_request *request = requests_of(m, step);
    tsh_status status = TSH_OK;
    *ended = true;
    for (int i = 0; i < requests_a_step(m) && *ended && status == TSH_OK; i++) {
        if (!request[i].active) continue;
        status = m->ops->test(m->group->world, &request[i]);
        *ended = !request[i].active;
    }
    return status;
}

tsh_status tshi_steps_advance(tshi_schedule *m) {
    tshi_schedule_steps *s = &m->steps;
    tsh_status status = TSH_OK;
    bool ended = true;
    while (status == TSH_OK && ended && s->done < s->count) {
        while (status == TSH_OK && may_post(m)) status = post_next(m);
        if (status == TSH_OK) status = test_step(m, s->done, &ended);
        if (status != TSH_OK || !ended) break;
        if (s->finish) s->finish(m, s->done);
        s->done++;
    }
    return status;
}

bool tshi_schedule_await(const tshi_schedule *m, int member) {
    if (m->phase == TSHI_IDLE || m->steps.done == m->steps.begun) return false;
    const tshi_request *request = requests_of(m, m->steps.done);
    for (int i = 0; i < requests_a_step(m); i++) {
        if (request[i].active && request[i].member == member) return true;
    }
    return false;
}

/* The receive posted last comes first, so that no message is taken by the receive after its own. */
static void cancel_receives(tshi_schedule *m) {
    for (int64_t step = m->steps.begun - 1; step >= m->steps.done; step--) {
        tshi_request *request = requests_of(m, step);
        for (int i = requests_a_step(m) - 1; i >= 0; i--) {
            if (request[i].active && request[i].receives) m->ops->cancel(m->group->world, &request[i]);
        }
    }
}

bool tshi_schedule_stop(tshi_schedule *m) {
    bool all = true;
    if (m->phase == TSHI_IDLE) return true;
    if (!m->stopped) cancel_receives(m);
    m->stopped = true;
    for (int64_t step = m->steps.done; step < m->steps.begun; step++) {
        tshi_request *request = requests_of(m, step);
        for (int i = 0; i < requests_a_step(m); i++) {
            if (request[i].active) m->ops->test(m->group->world, &request[i]);
            all = all && !request[i].active;
        }
    }
    return all;
}
