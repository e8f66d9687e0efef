#include "dist/control/relay_turn.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BEAT_EVERY 1.0
/* Seconds. After news TCP finds a lost segment by the acknowledgements of later ones, sooner than by a timer. */
#define BEAT_SOON  50e-3
#define SOON_LASTS 1.0
/* Seconds: the relay of an oversubscribed machine may not run for a while. */
#define LEAST_SILENCE 5.0
#define LOOK_EVERY    50e-3
/* Milliseconds between two reads of the page while a packet waits until its rank has room for it. */
#define BUSY_MS 1
/* Seconds that the relay waits before it sends that a rank has left: one farewell tells of all that leave then. */
#define LEFT_AFTER    0.1
#define LONGEST_LEAVE 2.0
/* Seconds after LONGEST_LEAVE in which the other end may still receive the farewell. */
#define LONGEST_FAREWELL 0.5

/* --- the page ----------------------------------------------------------------------------------------------------- */

/* The link brings this rank's news. It is sent the news of all other ranks. */
static bool is_behind(const tshi_relay *relay, const tshi_relay_link *l, int rank) {
    return relay->toward[relay->plan.roster.node[rank]] == l->node;
}

static bool is_gone(const tshi_page *page, int rank) {
    uint32_t state = tshi_page_state(page, rank);
    return state == TSHI_STUCK || state == TSHI_DEAD || atomic_load(&page->record[rank].left) != 0;
}

static void fail_machine(tshi_relay *relay, int node, tshi_rank_state state, const char *words) {
    tshi_page *page = relay->plan.page;
    for (int i = 0; i < relay->plan.roster.size; i++) {
        tshi_rank_record *r = &page->record[i];
        uint32_t now = tshi_page_state(page, i);
        if (relay->plan.roster.node[i] != node || is_gone(page, i)) continue;
        /* The reason of a rank that has failed is kept. */
        if (now == TSHI_ALIVE) snprintf(r->reason, sizeof r->reason, "%s", words);
        tshi_page_set_state(page, i, now, state);
    }
}

/* The machine at the other end is marked first, so that it becomes the cause, then all machines behind it. */
static void fail_link(tshi_relay *relay, const tshi_relay_link *l, tshi_rank_state state, const char *why) {
    char name[TSHI_LINE], words[TSHI_MESSAGE_SIZE];
    tshi_machine_name(&relay->plan.roster, l->node, name, sizeof name);
    snprintf(words, sizeof words, "%s cannot be reached: %s", name, why);
    fail_machine(relay, l->node, state, words);
    for (int node = 0; node < relay->plan.roster.nodes; node++) {
        if (relay->toward[node] != l->node || node == l->node) continue;
        snprintf(words, sizeof words, "machine %s is reached over %.240s, which cannot be reached: %s",
                 relay->plan.roster.host[node], name, why);
        fail_machine(relay, node, state, words);
    }
}

static void look_for_deaths(tshi_relay *relay) {
    if (relay->now < relay->next_look) return;
    relay->next_look = relay->now + LOOK_EVERY;
    tshi_deaths_poll(&relay->deaths);
}

/* --- packets ------------------------------------------------------------------------------------------------------ */

static void append(tshi_kept_packets *list, tshi_kept_packet *kept) {
    kept->next = NULL;
    if (list->first)
        list->last->next = kept;
    else
        list->first = kept;
    list->last = kept;
}

static void remove_first(tshi_kept_packets *list) {
    tshi_kept_packet *first = list->first;
    list->first = first->next;
    free(first);
}

static void keep_packet(tshi_relay *relay, tshi_kept_packets *list, const tshi_packet *packet) {
    tshi_kept_packet *kept = malloc(sizeof *kept);
    if (kept) {
        kept->packet = *packet;
        append(list, kept);
    } else {
        fail_machine(relay, relay->plan.roster.node[packet->to], TSHI_STUCK, "the relay has no memory for a message");
    }
}

static bool deliver(const tshi_relay *relay, const tshi_packet *packet) {
    return tshi_packet_add(&relay->plan.queues[packet->to], packet);
}

/* Packets of a rank may overtake each other: each says where its bytes belong. */
static void deliver_kept(tshi_relay *relay) {
    tshi_kept_packet *kept = relay->undelivered.first;
    relay->undelivered = (tshi_kept_packets){0};
    while (kept) {
        tshi_kept_packet *next = kept->next;
        if (deliver(relay, &kept->packet)) {
            atomic_fetch_sub(&relay->plan.page->record[kept->packet.to].undelivered, 1);
            free(kept);
        } else {
            append(&relay->undelivered, kept);
        }
        kept = next;
    }
}

/* The connection over which that machine is reached; NULL if it has ended. */
static tshi_relay_link *link_to(const tshi_relay *relay, int node) {
    for (int i = 0; i < relay->n; i++) {
        tshi_relay_link *l = &relay->links[i];
        if (l->fd >= 0 && !l->said_farewell && l->node == relay->toward[node]) return l;
    }
    return NULL;
}

static void keep_undelivered(tshi_relay *relay, const tshi_packet *packet) {
    atomic_fetch_add(&relay->plan.page->record[packet->to].undelivered, 1);
    keep_packet(relay, &relay->undelivered, packet);
}

static void pass_on(tshi_relay *relay, const tshi_packet *packet) {
    int node = relay->plan.roster.node[packet->to];
    tshi_relay_link *l = node == relay->node ? NULL : link_to(relay, node);
    if (l)
        keep_packet(relay, &l->packets, packet);
    else if (node == relay->node && !deliver(relay, packet))
        keep_undelivered(relay, packet);
}

static void take_packets(tshi_relay *relay) {
    tshi_packet packet;
    while (tshi_packet_take(&relay->plan.queues[relay->plan.roster.size], &packet)) {
        pass_on(relay, &packet);
    }
}

/* --- one connection ----------------------------------------------------------------------------------------------- */

static void close_link(tshi_relay_link *l) {
    tshi_socket_close(&l->fd, 1);
}

static void lose_link(tshi_relay *relay, tshi_relay_link *l, const char *why) {
    close_link(l);
    if (!l->said_farewell) fail_link(relay, l, TSHI_DEAD, why);
}

static bool is_rank(const tshi_relay *relay, int rank) {
    return rank >= 0 && rank < relay->plan.roster.size;
}

/* The link brings packets of the ranks behind it to all others. */
static bool take_packet(tshi_relay *relay, const tshi_relay_link *l, const tshi_packet *packet) {
    if (!is_rank(relay, packet->from) || !is_rank(relay, packet->to)) return false;
    if (!is_behind(relay, l, packet->from) || is_behind(relay, l, packet->to)) return false;
    pass_on(relay, packet);
    return true;
}

/* all: all ranks behind the link have left, or never will. Otherwise they go on without this machine. */
static void take_farewell(tshi_relay *relay, tshi_relay_link *l, bool all) {
    tshi_page *page = relay->plan.page;
    for (int i = 0; i < relay->plan.roster.size; i++) {
        if (!is_behind(relay, l, i) || is_gone(page, i)) continue;
        if (all)
            tshi_page_leave(page, i);
        else
            atomic_store(&page->record[i].unreachable, 1);
    }
    close_link(l);
}

/* False for a message that no relay sends on this link. */
static bool take_news(tshi_relay *relay, tshi_relay_link *l, const tshi_news *news) {
    int rank = news->rank.rank;
    switch (news->kind) {
    case TSHI_NEWS_FAREWELL: take_farewell(relay, l, news->all_left); return true;
    case TSHI_NEWS_PACKET: return take_packet(relay, l, &news->packet);
    case TSHI_NEWS_RANK:
        if (!is_rank(relay, rank) || !is_behind(relay, l, rank)) return false;
        tshi_page_apply(relay->plan.page, &news->rank);
        return true;
    default: return news->machine == l->node;
    }
}

static void take_bytes(tshi_relay *relay, tshi_relay_link *l) {
    size_t done = 0;
    int n = 1;
    while (n > 0 && l->fd >= 0 && done < l->received) {
        tshi_news news;
        n = tshi_news_read(l->in + done, l->received - done, &news);
        if (n > 0 && !take_news(relay, l, &news)) n = -1;
        if (n > 0) done += (size_t)n;
    }
    l->received -= done;
    memmove(l->in, l->in + done, l->received);
    if (n < 0) lose_link(relay, l, "it sent an invalid message");
}

/* take_bytes leaves less than one message in the buffer, so there is always room to receive. */
static void read_link(tshi_relay *relay, tshi_relay_link *l) {
    ssize_t n = recv(l->fd, l->in + l->received, sizeof l->in - l->received, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        char why[TSHI_LINE];
        snprintf(why, sizeof why, "its connection ended%s%s%s", n < 0 ? " (" : "", n < 0 ? strerror(errno) : "",
                 n < 0 ? ")" : "");
        lose_link(relay, l, why);
        return;
    }
    l->last_received = relay->now;
    l->received += (size_t)n;
    take_bytes(relay, l);
}

static bool has_room(const tshi_relay_link *l) {
    return sizeof l->out - l->size >= TSHI_NEWS_MOST;
}

static void write_news(tshi_relay *relay, tshi_relay_link *l, const tshi_news *news) {
    size_t bytes = tshi_news_write(news, l->out + l->size);
    l->size += bytes;
    relay->written[news->kind]++;
    relay->written_bytes += bytes;
}

static void fill_packets(tshi_relay *relay, tshi_relay_link *l) {
    while (l->packets.first && has_room(l)) {
        write_news(relay, l, &(tshi_news){.kind = TSHI_NEWS_PACKET, .packet = l->packets.first->packet});
        remove_first(&l->packets);
    }
}

/* For a rank of another machine: what that machine's relay has sent. */
static uint64_t agreement_of(const tshi_relay *relay, int rank) {
    const tshi_page *page = relay->plan.page;
    bool own = relay->plan.roster.node[rank] == relay->node;
    return own ? tshi_page_told_agreement(page, rank) : atomic_load(&page->record[rank].agreement);
}

/* The record is as it was sent last. A change of `left` alone waits, as farewells may soon say it of many ranks at
 * once. */
static bool is_told(const tshi_relay *relay, tshi_relay_link *l, int rank) {
    const tshi_rank_record *r = &relay->plan.page->record[rank];
    const tshi_told *before = &l->told[rank];
    if (atomic_load(&r->state) != before->state || atomic_load(&r->recover) != before->recover) return false;
    if (agreement_of(relay, rank) != before->agreement) return false;
    if ((uint16_t)atomic_load(&r->wait) != before->wait) return false;
    if (atomic_load(&r->left) == before->left) return true;
    if (l->tell_left == 0) l->tell_left = relay->now + LEFT_AFTER;
    return relay->now < l->tell_left;
}

/* Appends the ranks whose record differs from told[] to the send buffer, until it is full. */
static void fill_news(tshi_relay *relay, tshi_relay_link *l) {
    for (; l->next < relay->plan.roster.size && has_room(l); l->next++) {
        int rank = (l->first + l->next) % relay->plan.roster.size;
        if (is_behind(relay, l, rank) || is_told(relay, l, rank)) continue;
        tshi_news news = {.kind = TSHI_NEWS_RANK};
        tshi_page_read(relay->plan.page, rank, &news.rank);
        news.rank.agreement = agreement_of(relay, rank);
        take_packets(relay);
        if (l->packets.first) return;
        l->told[rank] = (tshi_told){.agreement = news.rank.agreement,
                                    .recover = news.rank.recover,
                                    .state = (uint8_t)news.rank.state,
                                    .left = (uint8_t)news.rank.left,
                                    .wait = (uint16_t)news.rank.wait};
        write_news(relay, l, &news);
        l->news_at = relay->now;
        if (l->next_beat > relay->now + BEAT_SOON) l->next_beat = relay->now + BEAT_SOON;
    }
    if (l->next == relay->plan.roster.size && relay->now >= l->tell_left) l->tell_left = 0;
}

static bool has_more(const tshi_relay *relay, const tshi_relay_link *l) {
    return l->fd >= 0 && !l->said_farewell && (l->packets.first || l->next < relay->plan.roster.size);
}

static void beat(tshi_relay *relay, tshi_relay_link *l) {
    if (relay->now < l->next_beat || l->size > 0) return;
    const tshi_news news = {.kind = TSHI_NEWS_BEAT, .machine = relay->node};
    l->next_beat = relay->now + (relay->now < l->news_at + SOON_LASTS ? BEAT_SOON : BEAT_EVERY);
    write_news(relay, l, &news);
}

static void flush(tshi_relay_link *l) {
    while (l->sent < l->size) {
        ssize_t n = send(l->fd, l->out + l->sent, l->size - l->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0 && errno != EINTR) return; /* read_link reports the error once it has read the peer's last messages */
        if (n > 0) l->sent += (size_t)n;
    }
    l->size = l->sent = 0;
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

/* Every rank that is not behind the link has left, or never will. */
static bool all_have_left(const tshi_relay *relay, const tshi_relay_link *l) {
    for (int i = 0; i < relay->plan.roster.size; i++) {
        if (!is_gone(relay->plan.page, i) && !is_behind(relay, l, i)) return false;
    }
    return true;
}

/* Sends the farewell, after this rank has left: when all ranks on this side have, or else at leave_by. */
static void part(tshi_relay *relay, tshi_relay_link *l) {
    if (l->said_farewell || relay->leave_by == 0) return;
    bool all = all_have_left(relay, l);
    if (!all && relay->now <= relay->leave_by) return;
    take_packets(relay);
    if (has_more(relay, l) || !has_room(l)) return;
    write_news(relay, l, &(const tshi_news){.kind = TSHI_NEWS_FAREWELL, .all_left = all});
    l->said_farewell = true;
}

/* --- a turn ------------------------------------------------------------------------------------------ */

/* What the datagrams say does not matter. Without a descriptor table of its own the thread may lose the socket to the
 * program. */
static void read_bell(tshi_relay *relay, short events) {
    char byte;
    if (events & ~POLLIN) relay->bell = -1;
    while (relay->bell >= 0 && recv(relay->bell, &byte, 1, MSG_DONTWAIT) >= 0) continue;
}

/* Milliseconds for which the relay may sleep. It says so before it checks a last time. */
static int longest_sleep(tshi_relay *relay, int longest) {
    tshi_page *page = relay->plan.page;
    for (int i = 0; i < relay->n; i++) {
        if (relay->links[i].size == 0 && has_more(relay, &relay->links[i])) return 0;
    }
    atomic_exchange(&page->relay_sleeps, relay->bell >= 0);
    if (atomic_load(&page->changed) != relay->seen) return 0;
    if (tshi_packet_is_there(&relay->plan.queues[relay->plan.roster.size])) return 0;
    return relay->undelivered.first && longest > BUSY_MS ? BUSY_MS : longest;
}

static int wait_for_any(tshi_relay *relay, int longest) {
    int live = 0;
    for (int i = 0; i < relay->n; i++) {
        const tshi_relay_link *l = &relay->links[i];
        short events = l->sent < l->size ? POLLIN | POLLOUT : POLLIN;
        relay->polls[i] = (struct pollfd){.fd = l->fd, .events = events};
        live += l->fd >= 0;
    }
    relay->polls[relay->n] = (struct pollfd){.fd = relay->bell, .events = POLLIN};
    if (!live) return 0;
    poll(relay->polls, (nfds_t)relay->n + 1, longest_sleep(relay, longest));
    atomic_store(&relay->plan.page->relay_sleeps, 0);
    read_bell(relay, relay->polls[relay->n].revents);
    return live;
}

/* The first cause of all failures is sent first, so it becomes the first cause at the other end as well. */
static void compare_page(tshi_relay *relay) {
    uint32_t changed = atomic_load_explicit(&relay->plan.page->changed, memory_order_acquire);
    uint32_t cause = atomic_load(&relay->plan.page->cause);
    for (int i = 0; i < relay->n; i++) {
        tshi_relay_link *l = &relay->links[i];
        bool due = l->tell_left > 0 && relay->now >= l->tell_left;
        if (changed == relay->seen && !due) continue;
        l->first = cause ? (int)cause - 1 : 0;
        l->next = 0;
    }
    relay->seen = changed;
}

/* Gives up a link on which nothing has come for the silence. relay->now was taken before poll(), so time for which this
 * process itself was stopped does not count: what has come meanwhile is read first. */
static void end_silent(tshi_relay *relay, tshi_relay_link *l) {
    double most = relay->plan.silence > LEAST_SILENCE ? relay->plan.silence : LEAST_SILENCE;
    char why[TSHI_LINE];
    if (relay->now - l->last_received < most) return;
    snprintf(why, sizeof why, "nothing has come from it for %.3g s", most);
    close_link(l);
    if (!l->said_farewell) fail_link(relay, l, TSHI_STUCK, why);
}

bool tshi_relay_turn(tshi_relay *relay, double now, int longest) {
    relay->now = now;
    if (wait_for_any(relay, longest) == 0) return false;
    if (relay->leave_by == 0 && atomic_load(&relay->leaving)) relay->leave_by = relay->now + LONGEST_LEAVE;
    for (int i = 0; i < relay->n; i++) {
        tshi_relay_link *l = &relay->links[i];
        bool comes = (relay->polls[i].revents & ~POLLOUT) != 0;
        if (l->fd >= 0 && comes) read_link(relay, l);
        if (l->fd >= 0) end_silent(relay, l);
    }
    look_for_deaths(relay);
    compare_page(relay);
    deliver_kept(relay);
    take_packets(relay);
    for (int i = 0; i < relay->n; i++) {
        tshi_relay_link *l = &relay->links[i];
        if (l->fd < 0) continue;
        beat(relay, l);
        if (!l->said_farewell) fill_packets(relay, l);
        if (!l->said_farewell && !l->packets.first) fill_news(relay, l);
        part(relay, l);
        flush(l);
    }
    return relay->leave_by == 0 || relay->now < relay->leave_by + LONGEST_FAREWELL;
}

/* --- making and freeing ------------------------------------------------------------------------------------------ */

static int compare_numbers(const void *left, const void *right) {
    const int *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static tsh_status allocate(tshi_relay *relay, const tshi_machine_links *links) {
    const tsh_allocator *allocator = relay->plan.allocator;
    size_t size = (size_t)relay->plan.roster.size, n = 0, items;
    for (int i = 0; i < links->nodes; i++) n += links->connection[i] >= 0;
    if (n == 0) n = 1; /* no memory has no address */
    tsh_status status = tshi_size_mul(n, size, &items);
    if (status != TSH_OK) return status;
    relay->toward = tshi_calloc(allocator, (size_t)links->nodes, sizeof *relay->toward);
    relay->links = tshi_calloc(allocator, n, sizeof *relay->links);
    relay->told = tshi_calloc(allocator, items, sizeof *relay->told);
    relay->polls = tshi_calloc(allocator, n + 1, sizeof *relay->polls);
    relay->kept = tshi_calloc(allocator, n + 1, sizeof *relay->kept);
    relay->ranks = tshi_calloc(allocator, size, sizeof *relay->ranks);
    bool good = relay->toward && relay->links && relay->told && relay->polls && relay->kept && relay->ranks;
    return good ? TSH_OK : TSH_ERR_MEMORY;
}

static void list_ranks(tshi_relay *relay) {
    relay->deaths = (tshi_deaths){
        .page = relay->plan.page, .file = relay->plan.file, .own = relay->plan.roster.rank, .ranks = relay->ranks};
    for (int i = 0; i < relay->plan.roster.size; i++) {
        if (relay->plan.roster.node[i] == relay->node) relay->ranks[relay->deaths.count++] = i;
    }
}

static void add_links(tshi_relay *relay, const tshi_machine_links *links) {
    double now = tshi_clock();
    for (int i = 0; i < links->nodes; i++) relay->toward[i] = tshi_links_toward(links, i);
    for (int i = 0; i < links->nodes; i++) {
        if (links->connection[i] < 0) continue;
        tshi_relay_link *l = &relay->links[relay->n];
        l->fd = links->connection[i];
        l->node = i;
        l->last_received = now;
        l->told = relay->told + (size_t)relay->n++ * (size_t)relay->plan.roster.size;
        relay->kept[relay->n_kept++] = l->fd;
    }
    if (relay->plan.file >= 0) relay->kept[relay->n_kept++] = relay->plan.file;
    qsort(relay->kept, (size_t)relay->n_kept, sizeof *relay->kept, compare_numbers);
}

void tshi_relay_free(tshi_relay *relay) {
    const tsh_allocator *allocator = relay->plan.allocator;
    for (int i = 0; i < relay->n; i++) {
        while (relay->links[i].packets.first) remove_first(&relay->links[i].packets);
    }
    while (relay->undelivered.first) remove_first(&relay->undelivered);
    tshi_free(allocator, relay->toward);
    tshi_free(allocator, relay->links);
    tshi_free(allocator, relay->told);
    tshi_free(allocator, relay->polls);
    tshi_free(allocator, relay->kept);
    tshi_free(allocator, relay->ranks);
    tshi_free(allocator, relay);
}

tsh_status tshi_relay_new(const tshi_relay_plan *plan, const tshi_machine_links *links, tshi_relay **out) {
    tshi_relay *relay = tshi_calloc(plan->allocator, 1, sizeof *relay);
    *out = NULL;
    if (!relay) return TSH_ERR_MEMORY;
    relay->plan = *plan;
    relay->node = links->node;
    relay->bell = -1;
    tsh_status status = allocate(relay, links);
    if (status == TSH_OK) {
        list_ranks(relay);
        add_links(relay, links);
        *out = relay;
    } else {
        tshi_relay_free(relay);
    }
    return status;
}

void tshi_relay_close_links(tshi_relay *relay) {
    for (int i = 0; i < relay->n; i++) close_link(&relay->links[i]);
}
