/* Point to point. Each member has an inbox in the group's block: a ring of letters that all peers write to, so that its
 * size is that of one member, not of all pairs. A letter holds small data. Larger data waits in the sender's heap: up
 * to a page in a cell, so that the sender need not wait, beyond that where it is, until the receiver has fetched it and
 * has marked the cell. The receiver keeps letters that no receive has asked for yet, in their order. */
#include "dist/transport/shm/shm.h"

#include <string.h>

#define CELL_BYTES 4096
#define CELLS      16 /* of a page; bounds what is buffered for receivers that are late */
#define CELL_ROOM  (CELL_BYTES - sizeof(tshi_cell))
#define SLIPS      64   /* cells without room for data, made at a time */
#define MOST_KEPT  1024 /* letters kept, beyond which senders are asked to wait for their receivers */

/* READ: the receiver is about to copy from the sender's memory. WITHDRAWN: the sender has ended its call, in
 * trouble. */
enum { CELL_FREE, CELL_SENT, CELL_READ, CELL_TAKEN, CELL_REFUSED, CELL_WITHDRAWN };
enum { BY_LETTER, BY_CELL, BY_HEAP };

/* In the sender's heap. */
typedef struct tshi_cell {
    alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t sleepers;
    uint32_t kind; /* of what the receiver wanted instead, REFUSED */
    int64_t count;
    struct tshi_cell *next; /* the sender's own: free slips */
} tshi_cell;

typedef struct kept_letter {
    tshi_letter letter;
    struct kept_letter *next;
} kept_letter;

struct tshi_mailbox {
    uint64_t next_in; /* number of the next letter in this rank's inbox */
    char *cells;      /* [CELLS] of CELL_BYTES, made when first needed */
    int next_cell;
    tshi_cell *free_slips;
    void *slips[64]; /* blocks of SLIPS */
    int slip_blocks;
    kept_letter *kept, *kept_end;
    int kept_count;
    tshi_pool spare;           /* of kept_letter */
    struct tshi_mailbox *next; /* of those whose group is closed */
};

static tshi_inbox *inbox_at(const tsh_group *group, int member) {
    const tshi_shm_group *lg = group->state;
    return (tshi_inbox *)(void *)((char *)tshi_member_at(lg, member) + lg->inbox_at);
}

static tshi_mailbox *mailbox_of(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    if (!lg->mailbox) lg->mailbox = tshi_calloc(&group->world->allocator, 1, sizeof *lg->mailbox);
    return lg->mailbox;
}

static uint64_t offset_of(const tsh_group *group, const void *data) {
    const tsh_world *world = group->world;
    return (uint64_t)((const char *)data - world->machine.heap[world->rank]);
}

static char *address_of(const tsh_group *group, int member, uint64_t at) {
    return group->world->machine.heap[group->ranks[member]] + at;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

/* A page to send from, or NULL: all are still on their way. */
static tshi_cell *page_take(tsh_group *group, tshi_mailbox *box) {
    tsh_device *device = group->world->host;
    if (!box->cells) {
        box->cells = device->ops->memory.alloc(device, (size_t)CELLS * CELL_BYTES);
        if (!box->cells) return NULL;
        device->ops->copy.zero(device, (size_t)CELLS * CELL_BYTES, box->cells);
    }
    tshi_cell *cell = (tshi_cell *)(void *)(box->cells + (size_t)box->next_cell * CELL_BYTES);
    if (atomic_load_explicit(&cell->state, memory_order_acquire) == CELL_SENT) return NULL;
    box->next_cell = (box->next_cell + 1) % CELLS;
    return cell;
}

static tshi_cell *slip_take(tsh_group *group, tshi_mailbox *box) {
    tsh_device *device = group->world->host;
    if (!box->free_slips && box->slip_blocks < 64) {
        tshi_cell *block = device->ops->memory.alloc(device, SLIPS * sizeof *block);
        if (!block) return NULL;
        device->ops->copy.zero(device, SLIPS * sizeof *block, block);
        box->slips[box->slip_blocks++] = block;
        for (int i = 0; i < SLIPS; i++) {
            block[i].next = box->free_slips;
            box->free_slips = &block[i];
        }
    }
    tshi_cell *slip = box->free_slips;
    if (slip) box->free_slips = slip->next;
    return slip;
}

static void slip_give(tshi_mailbox *box, tshi_cell *slip) {
    slip->next = box->free_slips;
    box->free_slips = slip;
}

size_t tshi_shm_message_bytes(const tshi_call *send) {
    size_t bytes = tshi_message_bytes(tshi_kind_of(send), send->count);
    if (bytes <= TSHI_LETTER_ROOM) return 0;
    return bytes <= CELL_ROOM ? (size_t)CELLS * CELL_BYTES : SLIPS * sizeof(tshi_cell);
}

/* The turn at which letter `number` may be written; the next one says that it is. */
static uint32_t turn_of(uint64_t number) {
    return (uint32_t)(number / TSHI_LETTERS) * 2;
}

/* Takes the number of a letter in a ring; false while the ring is full. */
static bool letter_take(tshi_inbox *inbox, uint64_t *number) {
    uint64_t tail = atomic_load_explicit(&inbox->tail, memory_order_relaxed);
    for (;;) {
        tshi_letter *letter = &inbox->letter[tail % TSHI_LETTERS];
        uint32_t turn = atomic_load_explicit(&letter->turn, memory_order_acquire);
        int32_t ahead = (int32_t)(turn - turn_of(tail));
        if (ahead < 0) return false;
        if (ahead > 0) {
            tail = atomic_load_explicit(&inbox->tail, memory_order_relaxed);
            continue;
        }
        if (atomic_compare_exchange_weak_explicit(&inbox->tail, &tail, tail + 1, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            *number = tail;
            return true;
        }
    }
}

/* How the data travels, and the cell that it needs. */
static uint32_t choose_way(tsh_group *group, tshi_mailbox *box, const tsh_work *work, bool congested,
                           tshi_cell **cell) {
    size_t bytes = tshi_message_bytes(tshi_kind_of(&work->call), work->call.count);
    bool answered = work->call.ticket;
    *cell = NULL;
    if (bytes <= TSHI_LETTER_ROOM && !congested && !answered) return BY_LETTER;
    if (bytes <= CELL_ROOM && !answered) {
        *cell = page_take(group, box);
        if (*cell) return BY_CELL;
    }
    *cell = slip_take(group, box);
    return BY_HEAP;
}

static void wake_receiver(tshi_inbox *inbox, tshi_letter *letter) {
    if (atomic_fetch_add_explicit(&inbox->sleepers, 0, memory_order_acq_rel) != 0) tshi_wake(&letter->turn);
}

/* False while there is no room. */
static bool post_letter(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    const tshi_call *call = &work->call;
    tshi_inbox *inbox = inbox_at(group, call->root);
    bool congested = atomic_load_explicit(&inbox->congested, memory_order_relaxed) != 0;
    size_t bytes = tshi_message_bytes(tshi_kind_of(call), call->count);
    tshi_cell *cell;
    uint64_t number;
    uint32_t way = choose_way(group, box, work, congested, &cell);
    if (way == BY_HEAP && !cell) return false;
    if (!letter_take(inbox, &number)) {
        if (way == BY_HEAP) slip_give(box, cell);
        return false;
    }
    tshi_letter *letter = &inbox->letter[number % TSHI_LETTERS];
    letter->kind = tshi_kind_of(call);
    letter->way = (uint16_t)way;
    letter->from = (uint16_t)group->rank;
    letter->count = call->count;
    if (cell) {
        letter->cell = offset_of(group, cell);
        letter->at = offset_of(group, way == BY_CELL ? (const void *)(cell + 1) : call->in);
        atomic_store_explicit(&cell->state, CELL_SENT, memory_order_relaxed);
    }
    if (way != BY_HEAP)
        group->world->host->ops->copy.within(group->world->host, bytes, call->in,
                                             cell ? (void *)(cell + 1) : letter->data);
    atomic_store_explicit(&letter->turn, turn_of(number) + 1, memory_order_release);
    wake_receiver(inbox, letter);
    if (way == BY_HEAP)
        work->state = cell;
    else
        work->done = true;
    return true;
}

/* An earlier send to the same rank that has not found room. */
static bool must_queue(const tsh_work *work) {
    for (const tsh_work *w = work->group->messages; w && w != work; w = w->next) {
        if (w->call.op == TSH_COLLECTIVE_SEND && !w->done && !w->state && w->call.root == work->call.root) return true;
    }
    return false;
}

/* Ends a work whose peer makes a call of that kind and count. */
static void mismatch(tsh_work *work, int peer, uint32_t kind, int64_t count) {
    const tsh_group *group = work->group;
    const tshi_post mine = {.kind = tshi_kind_of(&work->call), .count = work->call.count};
    const tshi_post theirs = {.kind = kind, .count = count};
    bool sends = work->call.op == TSH_COLLECTIVE_SEND;
    tshi_work_end(work, sends ? tshi_message_mismatch(group, group->rank, &mine, peer, &theirs, "")
                              : tshi_message_mismatch(group, peer, &theirs, group->rank, &mine, ""));
}

static void send_progress(tsh_work *work) {
    tshi_mailbox *box = ((tshi_shm_group *)work->group->state)->mailbox;
    tshi_cell *slip = work->state;
    if (!slip) {
        if (!must_queue(work)) post_letter(work);
        return;
    }
    uint32_t state = atomic_load_explicit(&slip->state, memory_order_acquire);
    if (state == CELL_SENT || state == CELL_READ) return;
    work->done = true;
    if (state == CELL_REFUSED) mismatch(work, work->call.root, slip->kind, slip->count);
    work->state = NULL;
    slip_give(box, slip);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static void answer(const tsh_group *group, const tshi_letter *letter, uint32_t state) {
    tshi_cell *cell = (tshi_cell *)(void *)address_of(group, letter->from, letter->cell);
    atomic_store_explicit(&cell->state, state, memory_order_release);
    if (atomic_fetch_add_explicit(&cell->sleepers, 0, memory_order_acq_rel) != 0) tshi_wake(&cell->state);
}

/* The send of a small message has returned already, so that its sender gets the mismatch from its next call. The first
 * complaint stands. */
static void complain(const tsh_work *work, const tshi_letter *letter) {
    tsh_group *group = work->group;
    tshi_member *member = tshi_member_at(group->state, letter->from);
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&member->complaint, &none, 1)) return;
    member->complainer = group->rank;
    member->sent = (tshi_post){.kind = letter->kind, .count = letter->count};
    member->wanted = (tshi_post){.kind = tshi_kind_of(&work->call), .count = work->call.count};
    atomic_store_explicit(&member->complaint, 2, memory_order_release);
}

static void refuse(tsh_work *work, const tshi_letter *letter) {
    tsh_group *group = work->group;
    mismatch(work, letter->from, letter->kind, letter->count);
    if (letter->way == BY_HEAP) {
        tshi_cell *cell = (tshi_cell *)(void *)address_of(group, letter->from, letter->cell);
        cell->kind = tshi_kind_of(&work->call);
        cell->count = work->call.count;
        answer(group, letter, CELL_REFUSED);
        return;
    }
    if (letter->way == BY_CELL) answer(group, letter, CELL_TAKEN);
    complain(work, letter);
}

/* This rank may read what the letter's sender holds; otherwise the work has ended as the sender's has. */
static bool claim(tsh_work *work, const tshi_letter *letter) {
    tsh_group *group = work->group;
    tshi_cell *cell = (tshi_cell *)(void *)address_of(group, letter->from, letter->cell);
    uint32_t sent = CELL_SENT;
    if (atomic_compare_exchange_strong(&cell->state, &sent, CELL_READ)) return true;
    tsh_status status = tshi_control_trouble(group->world);
    if (status == TSH_OK) {
        status = tshi_fail(TSH_ERR_PEER, "rank %d has ended its send in trouble", group->ranks[letter->from]);
    }
    tshi_work_end(work, status);
    return false;
}

/* The letter is this receive's. */
static void take(tsh_work *work, const tshi_letter *letter) {
    tsh_group *group = work->group;
    const tshi_call *call = &work->call;
    work->sender = letter->from;
    if (!tshi_message_fits(letter->kind, letter->count, call)) {
        refuse(work, letter);
        return;
    }
    if (letter->way == BY_HEAP && !claim(work, letter)) return;
    const void *from =
        letter->way == BY_LETTER ? letter->data : (const void *)address_of(group, letter->from, letter->at);
    size_t bytes = tshi_message_bytes(letter->kind, letter->count);
    if (bytes) group->world->host->ops->copy.within(group->world->host, bytes, from, call->out);
    if (letter->way != BY_LETTER) answer(group, letter, CELL_TAKEN);
    work->done = true;
}

/* One that has not started has not looked at the kept letters, which come first. */
static inline bool wants(const tsh_work *work, int from) {
    return work->call.op == TSH_COLLECTIVE_RECV && work->started && !work->done &&
           (work->call.root == from || work->call.root == TSH_ANY_RANK);
}

static tsh_status keep(tsh_group *group, tshi_mailbox *box, const tshi_letter *letter) {
    kept_letter *kept = tshi_pool_take(&box->spare, &group->world->allocator, sizeof *kept);
    if (!kept) return TSH_ERR_MEMORY;
    memcpy(&kept->letter, letter, sizeof *letter);
    if (box->kept_end)
        box->kept_end->next = kept;
    else
        box->kept = kept;
    box->kept_end = kept;
    if (++box->kept_count == MOST_KEPT) atomic_store(&inbox_at(group, group->rank)->congested, 1);
    return TSH_OK;
}

/* Passes the letters of this rank's inbox to their receives. Without memory to keep a letter it stays in the inbox. */
static void empty_inbox(tsh_group *group, tshi_mailbox *box) {
    tshi_inbox *inbox = inbox_at(group, group->rank);
    for (;;) {
        tshi_letter *letter = &inbox->letter[box->next_in % TSHI_LETTERS];
        uint32_t full = turn_of(box->next_in) + 1;
        if (atomic_load_explicit(&letter->turn, memory_order_acquire) != full) return;
        tsh_work *work = group->messages;
        while (work && !wants(work, letter->from)) work = work->next;
        if (work)
            take(work, letter);
        else if (keep(group, box, letter) != TSH_OK)
            return;
        atomic_store_explicit(&letter->turn, full + 1, memory_order_release);
        box->next_in++;
    }
}

/* The oldest kept letter that this receive wants. */
static void look_in_kept(tsh_work *work, tshi_mailbox *box) {
    kept_letter **link = &box->kept, *before = NULL;
    while (*link && !wants(work, (*link)->letter.from)) {
        before = *link;
        link = &(*link)->next;
    }
    kept_letter *kept = *link;
    if (!kept) return;
    take(work, &kept->letter);
    *link = kept->next;
    if (box->kept_end == kept) box->kept_end = before;
    if (box->kept_count-- == MOST_KEPT) {
        atomic_store(&inbox_at(work->group, work->group->rank)->congested, 0);
    }
    tshi_pool_give(&box->spare, kept);
}

/* --- for the backend ---------------------------------------------------------------------------------------------- */

static tsh_status heed_complaint(tsh_group *group) {
    tshi_member *me = tshi_member_at(group->state, group->rank);
    if (atomic_load_explicit(&me->complaint, memory_order_acquire) != 2) return TSH_OK;
    tsh_status status =
        tshi_message_mismatch(group, group->rank, &me->sent, me->complainer, &me->wanted, " (an earlier call)");
    atomic_store_explicit(&me->complaint, 0, memory_order_release);
    return status;
}

tsh_status tshi_message_start(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = mailbox_of(group);
    if (!box) return TSH_ERR_MEMORY;
    work->post = tshi_group_note(group, &work->call);
    tsh_status status = heed_complaint(group);
    if (status != TSH_OK) return status;
    if (work->call.op == TSH_COLLECTIVE_RECV) look_in_kept(work, box);
    return TSH_OK;
}

/* Sends a letter, if the ring has room for it. */
static bool send_quickly(tsh_work *work) {
    const tshi_call *call = &work->call;
    tshi_inbox *inbox = inbox_at(work->group, call->root);
    const tshi_letter *letter = &inbox->letter[atomic_load_explicit(&inbox->tail, memory_order_relaxed) % TSHI_LETTERS];
    tshi_claim(letter);
    size_t bytes = tshi_message_bytes(tshi_kind_of(call), call->count);
    if (bytes > TSHI_LETTER_ROOM) return false;
    if (bytes) tshi_claim(letter->data + bytes - 1);
    return !atomic_load_explicit(&inbox->congested, memory_order_relaxed) && post_letter(work);
}

/* The next letter, if it comes soon and is the one that is wanted. */
static bool receive_quickly(tsh_work *work, tshi_mailbox *box) {
    const tshi_shm_group *lg = work->group->state;
    tshi_inbox *inbox = inbox_at(work->group, work->group->rank);
    tshi_letter *letter = &inbox->letter[box->next_in % TSHI_LETTERS];
    uint32_t full = turn_of(box->next_in) + 1;
    for (int polls = 0; atomic_load_explicit(&letter->turn, memory_order_acquire) != full; polls++) {
        if (polls >= lg->spins) return false;
        if (polls > TSHI_EAGER_POLLS) tshi_cpu_pause();
    }
    if (work->call.root != letter->from && work->call.root != TSH_ANY_RANK) return false;
    take(work, letter);
    atomic_store_explicit(&letter->turn, full + 1, memory_order_release);
    box->next_in++;
    return true;
}

bool tshi_message_quick(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_shm_group *lg = group->state;
    tshi_mailbox *box = lg->mailbox;
    const tshi_member *me = tshi_member_at(lg, group->rank);
    if (!box || box->kept || tshi_control_troubled(group->world)) return false;
    if (atomic_load_explicit(&me->complaint, memory_order_relaxed) != 0) return false;
    if (!(work->call.op == TSH_COLLECTIVE_SEND ? send_quickly(work) : receive_quickly(work, box))) return false;
    work->post = tshi_group_note(group, &work->call);
    return true;
}

void tshi_message_progress(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    if (work->call.op == TSH_COLLECTIVE_SEND)
        send_progress(work);
    else
        empty_inbox(group, box);
    if (work->done || !tshi_control_troubled(group->world)) return;
    tsh_status status = tshi_control_trouble(group->world);
    if (status == TSH_OK) return;
    tshi_work_end(work, tshi_message_depart(work, status));
}

tsh_status tshi_message_depart(const tsh_work *work, tsh_status status) {
    const tsh_group *group = work->group;
    tshi_cell *slip = work->state;
    uint32_t sent = CELL_SENT;
    if (work->call.op != TSH_COLLECTIVE_SEND || !slip) return status;
    if (atomic_compare_exchange_strong(&slip->state, &sent, CELL_WITHDRAWN)) return status;
    tshi_failure before;
    tshi_failure_keep(&before, status);
    tshi_shm_await_reader(group->world, group->ranks[work->call.root], &slip->state, CELL_READ, work->call.in,
                          tshi_message_bytes(tshi_kind_of(&work->call), work->call.count));
    return tshi_failure_report(&before);
}

tshi_awaited tshi_message_watch(const tsh_work *work) {
    tsh_group *group = work->group;
    const tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    int rank = work->call.root < 0 ? -1 : group->ranks[work->call.root];
    tshi_awaited watch = {NULL, 0, NULL, rank};
    tshi_cell *slip = work->state;
    if (work->call.op == TSH_COLLECTIVE_RECV && box) {
        tshi_inbox *inbox = inbox_at(group, group->rank);
        watch.word = &inbox->letter[box->next_in % TSHI_LETTERS].turn;
        watch.target = turn_of(box->next_in) + 1;
        watch.sleepers = &inbox->sleepers;
    } else if (slip) {
        watch.word = &slip->state;
        watch.target = CELL_TAKEN;
        watch.sleepers = &slip->sleepers;
    }
    return watch;
}

static void drop_kept(tshi_mailbox *box) {
    while (box->kept) {
        kept_letter *kept = box->kept;
        box->kept = kept->next;
        tshi_pool_give(&box->spare, kept);
    }
    box->kept_end = NULL;
    box->kept_count = 0;
}

void tshi_messages_reset(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    tshi_inbox *inbox = inbox_at(group, group->rank);
    tshi_mailbox *box = lg->mailbox;
    atomic_store(&inbox->tail, 0);
    atomic_store(&inbox->congested, 0);
    atomic_store(&tshi_member_at(lg, group->rank)->complaint, 0);
    for (int i = 0; i < TSHI_LETTERS; i++) atomic_store(&inbox->letter[i].turn, 0);
    if (!box) return;
    drop_kept(box);
    box->next_in = 0;
    for (int i = 0; box->cells && i < CELLS; i++) {
        atomic_store(&((tshi_cell *)(void *)(box->cells + (size_t)i * CELL_BYTES))->state, CELL_FREE);
    }
    box->free_slips = NULL;
    for (int block = 0; block < box->slip_blocks; block++) {
        tshi_cell *slips = box->slips[block];
        for (int i = 0; i < SLIPS; i++) slip_give(box, &slips[i]);
    }
}

/* Receivers may still have to fetch from the cells of a group that is closed here. */
static bool fetched(const tshi_mailbox *box) {
    for (int i = 0; box->cells && i < CELLS; i++) {
        tshi_cell *cell = (tshi_cell *)(void *)(box->cells + (size_t)i * CELL_BYTES);
        if (atomic_load_explicit(&cell->state, memory_order_acquire) == CELL_SENT) return false;
    }
    return true;
}

static void post_free(tsh_world *world, tshi_mailbox *box) {
    tsh_device *device = world->host;
    device->ops->memory.release(device, box->cells);
    for (int i = 0; i < box->slip_blocks; i++) device->ops->memory.release(device, box->slips[i]);
    tshi_free(&world->allocator, box);
}

void tshi_messages_close(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_shm_group *lg = group->state;
    tshi_mailbox *box = lg->mailbox;
    lg->mailbox = NULL;
    if (!box) return;
    drop_kept(box);
    tshi_pool_clear(&box->spare, &world->allocator);
    box->next = tshi_shm_of(world)->mailboxes;
    tshi_shm_of(world)->mailboxes = box;
    tshi_messages_sweep(world, false);
}

void tshi_messages_sweep(tsh_world *world, bool all) {
    tshi_mailbox **link = &tshi_shm_of(world)->mailboxes;
    while (*link) {
        tshi_mailbox *box = *link;
        if (!all && !fetched(box)) {
            link = &box->next;
            continue;
        }
        *link = box->next;
        post_free(world, box);
    }
}
