#include "dist/control/channel.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "dist/control/control.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Polls without a pause instruction, and yields before the first sleep. */
#define EAGER_POLLS 64
#define YIELDS      64
/* Seconds: the longest sleep, which is also the time between two polls for deaths. */
#define LONGEST_NAP 50e-3
#define FIRST_POLL  40e-3

/* A packet that came before this rank waited for it. */
typedef struct tshi_early_packet {
    struct tshi_early_packet *next;
    tshi_packet packet;
} tshi_early_packet;

/* A message on its way in. */
typedef struct arrival {
    int from; /* world rank */
    uint32_t number;
    unsigned char *out;
    size_t room, received, total;
    bool any; /* a packet has come, so `total` is known */
} arrival;

static tshi_packet_queue *own_queue(const tsh_world *world) {
    return &world->machine.channel.queue[world->rank];
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_channel_begin(tshi_channel_call *call, tsh_group *group, const char *name) {
    const tsh_world *world = group->world;
    if (group->epoch != world->machine.steps) {
        group->epoch = world->machine.steps;
        group->messages_made = 0;
    }
    uint64_t number = tshi_fingerprint_add(tshi_fingerprint_add(TSHI_FINGERPRINT, group->id), group->messages_made);
    *call = (tshi_channel_call){.group = group,
                                .name = name,
                                .number = group->calls,
                                .message = group->messages_made,
                                .agreement = tshi_agreement(group->epoch, number)};
    tshi_page_set_agreement(world->machine.page, world->rank, call->agreement);
    return tshi_control_has_failed(world) ? tshi_control_failure(group->world) : TSH_OK;
}

void tshi_channel_end(tshi_channel_call *call) {
    const tsh_world *world = call->group->world;
    call->group->messages_made = call->message + 1;
    tshi_page_set_agreement(world->machine.page, world->rank, tshi_agreement(call->group->epoch, 0));
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* A wait stands (tshi_waits.stands) while this rank has no works in flight that a peer may wait for. */
static void publish_wait(const tshi_channel_call *call, int rank) {
    char text[TSHI_LINE];
    tsh_world *world = call->group->world;
    tshi_waits *waits = &world->machine.waits;
    const tshi_place *place = world->device ? &world->device->place : NULL;
    tshi_waits_begin(waits, world->machine.channel.waits);
    tshi_waits_add(waits, rank);
    snprintf(text, sizeof text, "%.100s #%llu", call->name, call->number);
    if (place && place->function)
        tshi_append(text, sizeof text, ", in %s%.40s", place->backward ? "backward of " : "", place->function);
    tshi_waits_say(waits, text, world->pending == 0);
    tshi_waits_publish(waits);
}

static void log_calls(const tshi_channel_call *call) {
    char text[TSHI_LINE];
    const tsh_group *group = call->group;
    tshi_group_log_recent_calls(group);
    for (int i = 0; i < group->size; i++) {
        if (!tshi_waits_call(&group->world->machine.waits, group->ranks[i], text, sizeof text)) continue;
        tshi_log(&group->world->log, TSH_LOG_WARNING, "rank %d waits in: %s", group->ranks[i], text);
    }
}

static tsh_status time_out(const tshi_channel_call *call, const char *ranks, const char *stopped) {
    char words[TSHI_MESSAGE_SIZE];
    tsh_world *world = call->group->world;
    snprintf(words, sizeof words, "%.80s #%llu: %.180s did not come within %g s%.180s", call->name, call->number, ranks,
             world->timeout, stopped);
    if (tshi_deadline_report(world, words)) log_calls(call);
    return tshi_control_failure(world);
}

static tsh_status check_wait(tshi_channel_call *call, int rank) {
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    tsh_world *world = call->group->world;
    publish_wait(call, rank);
    tsh_status status = tshi_world_end_cycle(world);
    if (status == TSH_OK) status = tshi_deadline_compare(world, &call->deadline);
    if (status != TSH_OK || !tshi_deadline_passed(world, &call->deadline, ranks, stopped)) return status;
    return time_out(call, ranks, stopped);
}

/* What a waiting rank knows of the one that it waits for, before it empties its queue. */
typedef struct sight {
    bool failed; /* a rank has failed */
    bool absent; /* it is in another call, or in none */
    bool left;   /* or its packets cannot come any more */
} sight;

/* A rank of this machine has written its record itself. That of another one may not be known, unless the rank has begun
 * to recover, and its packets may still wait for room in this rank's queue. */
static sight look_at(const tshi_channel_call *call, int rank) {
    const tsh_world *world = call->group->world;
    const tshi_machine *m = &world->machine;
    sight s = {.failed = tshi_control_has_failed(world)};
    atomic_thread_fence(memory_order_seq_cst);
    const tshi_rank_record *r = &m->page->record[rank];
    uint64_t agreement = atomic_load(&r->agreement);
    bool known = m->node[rank] == m->node[world->rank] || agreement >> 32 == call->agreement >> 32;
    s.absent = (known && agreement != call->agreement) || atomic_load(&r->recover) != m->steps;
    s.left = tshi_control_has_left(world, rank) || atomic_load(&r->unreachable);
    if (atomic_load(&m->page->record[world->rank].undelivered) != 0) s.absent = s.left = false;
    return s;
}

static tsh_status leaver_error(tshi_channel_call *call, int rank) {
    call->peer_left = true;
    if (tshi_control_has_left(call->group->world, rank))
        return tshi_fail(TSH_ERR_PEER, "rank %d has left the world; %.80s #%llu waits for it", rank, call->name,
                         call->number);
    return tshi_fail(
        TSH_ERR_PEER,
        "rank %d cannot be reached, since ranks on the way to it have left the world; %.80s #%llu waits for it", rank,
        call->name, call->number);
}

/* The error of a call that waits for that rank, which was so before this rank emptied its queue. */
static tsh_status poll_wait(tshi_channel_call *call, int rank, sight s) {
    tsh_world *world = call->group->world;
    double now = tshi_clock();
    tsh_status status = TSH_OK;
    if (s.failed && (s.absent || world->machine.broken != TSH_OK))
        status = tshi_control_failure(world);
    else if (s.failed)
        status = tshi_control_lasting_failure(world);
    if (status != TSH_OK) return tshi_control_add_call(world, status, call->name, call->number);
    if (now < call->next_poll) return TSH_OK;
    call->next_poll = now + LONGEST_NAP;
    tshi_signal_poll(world);
    tshi_machine_poll(world);
    return s.left ? leaver_error(call, rank) : check_wait(call, rank);
}

static double nap_seconds(const tshi_channel_call *call) {
    const tsh_world *world = call->group->world;
    if (world->pending) return tshi_world_nap(call->since);
    return tshi_control_has_failed(world) ? TSHI_LONGEST_NAP : LONGEST_NAP;
}

static void begin_to_wait(tshi_channel_call *call, int rank) {
    tsh_world *world = call->group->world;
    double now = tshi_clock();
    world->machine.channel.waits++;
    call->next_poll = now + FIRST_POLL;
    if (call->since == 0) {
        call->since = now;
        call->deadline = tshi_deadline_since(world, now, call->name, call->number);
        call->deadline.group = call->group;
        call->deadline.agrees = true;
    }
    publish_wait(call, rank);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static bool fits(const arrival *in, const tshi_channel_call *call, const tshi_packet *packet) {
    return packet->from == in->from && packet->group == call->group->id && packet->number == in->number;
}

static void store(arrival *in, const tshi_packet *packet) {
    size_t at = packet->at, length = packet->length;
    in->any = true;
    in->total = packet->total;
    in->received += length;
    if (at >= in->room) return;
    memcpy(in->out + at, packet->data, length < in->room - at ? length : in->room - at);
}

static bool has_arrived(const arrival *in) {
    return in->any && in->received >= in->total;
}

static tsh_status keep(tsh_world *world, const tshi_packet *packet) {
    tshi_channel *channel = &world->machine.channel;
    tshi_early_packet *early = tshi_pool_take(&channel->spare, &world->allocator, sizeof *early);
    if (!early) return tshi_control_stick(world, TSH_ERR_MEMORY, "no memory for a message of another rank");
    early->packet = *packet;
    early->next = channel->first;
    channel->first = early;
    return TSH_OK;
}

/* Empties this rank's queue. in: the message that it waits for, or NULL. */
static tsh_status take_packets(const tshi_channel_call *call, arrival *in) {
    tsh_world *world = call->group->world;
    tshi_packet packet;
    tsh_status status = TSH_OK;
    while (status == TSH_OK && tshi_packet_take(own_queue(world), &packet)) {
        if (packet.epoch != world->machine.steps) continue;
        if (in && fits(in, call, &packet))
            store(in, &packet);
        else
            status = keep(world, &packet);
    }
    return status;
}

/* Takes what has come early, and drops what is of another epoch. */
static void take_early(const tshi_channel_call *call, arrival *in) {
    tsh_world *world = call->group->world;
    tshi_channel *channel = &world->machine.channel;
    for (tshi_early_packet **link = &channel->first; *link;) {
        tshi_early_packet *early = *link;
        bool stale = early->packet.epoch != world->machine.steps, wanted = !stale && fits(in, call, &early->packet);
        if (wanted) store(in, &early->packet);
        if (stale || wanted) {
            *link = early->next;
            tshi_pool_give(&channel->spare, early);
        } else {
            link = &early->next;
        }
    }
}

static bool comes_soon(const tsh_world *world) {
    const tshi_packet_queue *queue = own_queue(world);
    for (int i = 0; i < world->spins; i++) {
        if (tshi_packet_is_there(queue)) return true;
        if (i > EAGER_POLLS) tshi_cpu_pause();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (tshi_packet_is_there(queue)) return true;
        if (world->pending) return false;
        sched_yield();
    }
    return false;
}

/* Sleeps until a packet comes, and polls. A message may come while this rank finds that its sender has left. */
static tsh_status wait_slowly(tshi_channel_call *call, arrival *in) {
    tsh_world *world = call->group->world;
    tsh_status status = TSH_OK;
    begin_to_wait(call, in->from);
    while (status == TSH_OK && !has_arrived(in)) {
        if (world->pending) tshi_world_progress(world);
        tshi_packet_doze(own_queue(world), (long)(nap_seconds(call) * 1e9));
        sight s = look_at(call, in->from);
        status = take_packets(call, in);
        if (status == TSH_OK && !has_arrived(in)) status = poll_wait(call, in->from, s);
    }
    tshi_waits_end(&world->machine.waits);
    return status;
}

tsh_status tshi_channel_receive(tshi_channel_call *call, int member, void *out, size_t room, size_t *bytes) {
    tsh_world *world = call->group->world;
    arrival in = {.from = call->group->ranks[member], .number = call->message, .out = out, .room = room};
    tsh_status status = TSH_OK;
    if (world->machine.channel.first) take_early(call, &in);
    while (status == TSH_OK && !has_arrived(&in)) {
        status = comes_soon(world) ? take_packets(call, &in) : wait_slowly(call, &in);
    }
    *bytes = in.total;
    return status;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void wake_relay_for(tsh_world *world, const tshi_packet_queue *queue) {
    if (queue == &world->machine.channel.queue[world->size]) tshi_page_wake_relay(world->machine.page);
}

/* Waits for room in the queue to rank `rank`. This rank empties its own queue meanwhile: the other one may be waiting
 * for room in it. */
static tsh_status wait_for_room(tshi_channel_call *call, int rank, tshi_packet_queue *queue,
                                const tshi_packet *packet) {
    tsh_world *world = call->group->world;
    tsh_status status = TSH_OK;
    begin_to_wait(call, rank);
    while (status == TSH_OK && !tshi_packet_add(queue, packet)) {
        wake_relay_for(world, queue);
        if (world->pending) tshi_world_progress(world);
        sight s = look_at(call, rank);
        status = take_packets(call, NULL);
        tshi_packet_doze(own_queue(world), (long)(TSHI_SHORTEST_NAP * 1e9));
        if (status == TSH_OK) status = poll_wait(call, rank, s);
    }
    tshi_waits_end(&world->machine.waits);
    return status;
}

static tshi_packet_queue *queue_to(const tsh_world *world, int rank) {
    const tshi_machine *m = &world->machine;
    return &m->channel.queue[m->node[rank] == m->node[world->rank] ? rank : world->size];
}

tsh_status tshi_channel_send(tshi_channel_call *call, int member, const void *data, size_t bytes) {
    tsh_world *world = call->group->world;
    tshi_packet packet = {.from = world->rank,
                          .to = call->group->ranks[member],
                          .group = call->group->id,
                          .epoch = world->machine.steps,
                          .number = call->message,
                          .total = (uint32_t)bytes};
    tshi_packet_queue *queue = queue_to(world, packet.to);
    tsh_status status = TSH_OK;
    size_t at = 0;
    do {
        packet.at = (uint32_t)at;
        packet.length = (uint32_t)(bytes - at < TSHI_PACKET_BYTES ? bytes - at : TSHI_PACKET_BYTES);
        memcpy(packet.data, (const char *)data + at, packet.length);
        at += packet.length;
        if (!tshi_packet_add(queue, &packet)) status = wait_for_room(call, packet.to, queue, &packet);
    } while (status == TSH_OK && at < bytes);
    wake_relay_for(world, queue);
    world->machine.channel.sent++;
    world->machine.channel.sent_bytes += bytes;
    return status;
}

tsh_status tshi_channel_open(tsh_world *world) {
    tshi_pool *spare = &world->machine.channel.spare;
    for (int i = 0; i < TSHI_PACKET_SLOTS; i++) {
        void *early = tshi_calloc(&world->allocator, 1, sizeof(tshi_early_packet));
        if (!early) return TSH_ERR_MEMORY;
        tshi_pool_give(spare, early);
    }
    return TSH_OK;
}

void tshi_channel_close(tsh_world *world) {
    tshi_channel *channel = &world->machine.channel;
    for (tshi_early_packet *early = channel->first; early; early = channel->first) {
        channel->first = early->next;
        tshi_pool_give(&channel->spare, early);
    }
    tshi_pool_clear(&channel->spare, &world->allocator);
}
