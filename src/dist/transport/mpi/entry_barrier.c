/* The entry barrier of a group, before each call.
 *
 * On one machine each member writes a word of its own, which includes a hash of its call, and reads the words of all
 * members: one cache line travels each way at the same time, the least that a barrier can cost.
 *
 *   this member sees                                          it then
 *   all words of this barrier, no mark                        passes: writes `passed`
 *   a failure, or the mark in any word                        marks its own word
 *   after its mark: `passed` of any member                    passes
 *   after its mark: each word is marked or not of this        gives up
 *     barrier, for SETTLE_SECONDS
 *   after its mark: an unmarked word of this barrier          waits; gives up after TSHI_GRACE
 *
 * Invariant: all members pass a barrier or none does. The first member that passes has seen no mark, so its own word is
 * unmarked, and a member that wants to give up waits until it sees that member's `passed`. The exception is a member
 * that is dead or stopped for TSHI_GRACE between its reads and `passed`.
 *
 * Across machines the barrier is a non-blocking call of MPI that combines the bitwise or of { hash, ~hash, flags }: the
 * hashes are equal if the first two have no common bit. */
#include "dist/transport/mpi/mpi.h"

#include <string.h>

/* A word: a hash of the call, the barrier's number, TSHI_ENTRY_ASYNC and _IRREGULAR, and the mark. */
#define MARK         UINT64_C(1)
#define NUMBER_SHIFT 4
#define NUMBER_MASK  UINT64_C(0xfffffff0)
#define HASH_SHIFT   32

/* Up to this many members use an all_gather: the barrier ends one message after the last member has entered, without
 * progress in between. */
#define MOST_DIRECT 8

/* Long enough for a word to become visible to all members. */
#define SETTLE_SECONDS 1e-3

static int flags_of(const tshi_mpi_op *op) {
    return (op->async ? TSHI_ENTRY_ASYNC : 0) | (op->regular ? 0 : TSHI_ENTRY_IRREGULAR);
}

static inline bool at_entry(const tshi_mpi_group *mg, uint64_t word) {
    return ((word ^ mg->word) & NUMBER_MASK) == 0;
}

static inline uint64_t word_of(const tshi_mpi_group *mg, int rank) {
    return atomic_load_explicit(&mg->block->member[rank].arrived[mg->entered & 1], memory_order_acquire);
}

static void say(const tsh_group *group, tshi_mpi_group *mg, uint64_t word) {
    mg->word = word;
    atomic_store_explicit(&mg->block->member[group->rank].arrived[mg->entered & 1], word, memory_order_release);
}

int tshi_entry_arrive(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    mg->entered++;
    op->phase = TSHI_AT_ENTRY;
    if (mg->block) {
        mg->stopping = 0;
        say(group, mg,
            op->identity << HASH_SHIFT | (mg->entered << NUMBER_SHIFT & NUMBER_MASK) | (uint64_t)flags_of(op));
        return MPI_SUCCESS;
    }
    op->mine[0] = op->identity;
    op->mine[1] = ~op->identity;
    op->mine[2] = (uint64_t)flags_of(op);
    return tshi_entry_call(group, op->mine, &op->request);
}

int tshi_entry_call(tsh_group *group, const uint64_t mine[3], MPI_Request *request) {
    tshi_mpi_group *mg = group->state;
    if (group->size > MOST_DIRECT) return MPI_Iallreduce(mine, mg->all, 3, MPI_UINT64_T, MPI_BOR, mg->comm, request);
    return MPI_Iallgather(mine, 3, MPI_UINT64_T, mg->all, 3, MPI_UINT64_T, mg->comm, request);
}

/* --- passing ------------------------------------------------------------------------------------------------------ */

/* The words of the members that have entered, combined. */
typedef struct words {
    bool all; /* all members have entered */
    uint64_t flags, unlike;
} words;

static inline words read_words(const tsh_group *group, const tshi_mpi_group *mg) {
    words said = {.all = true};
    for (int i = 0; i < group->size; i++) {
        uint64_t word = word_of(mg, i);
        if (!at_entry(mg, word)) {
            said.all = false;
            continue;
        }
        said.flags |= word;
        said.unlike |= word ^ mg->word;
    }
    return said;
}

static inline int pass(const tsh_group *group, const tshi_mpi_group *mg, const words *said) {
    atomic_store_explicit(&mg->block->member[group->rank].passed, mg->entered, memory_order_release);
    return TSHI_ENTRY_PASSED | (int)(said->flags & (TSHI_ENTRY_ASYNC | TSHI_ENTRY_IRREGULAR)) |
           (said->unlike >> HASH_SHIFT ? TSHI_ENTRY_DIFFER : 0);
}

static bool any_passed(const tsh_group *group, const tshi_mpi_group *mg) {
    for (int i = 0; i < group->size; i++) {
        if (atomic_load_explicit(&mg->block->member[i].passed, memory_order_acquire) == mg->entered) return true;
    }
    return false;
}

/* The word of a member that has entered is unmarked. */
static bool any_may_pass(const tsh_group *group, const tshi_mpi_group *mg) {
    for (int i = 0; i < group->size; i++) {
        uint64_t word = word_of(mg, i);
        if (at_entry(mg, word) && !(word & MARK)) return true;
    }
    return false;
}

/* The verdict of a barrier that some member gives up, 0 while it is undecided. A member that does not mark its word
 * within TSHI_GRACE is dead or stopped, so the world is about to break, and waiting longer gains nothing. */
static int outcome_of_stop(const tsh_group *group, tshi_mpi_group *mg) {
    double now = tshi_clock();
    if (mg->stopping == 0) {
        mg->stopping = now;
        say(group, mg, mg->word | MARK);
    }
    if (any_passed(group, mg)) {
        words said = read_words(group, mg);
        return pass(group, mg, &said);
    }
    if (now - mg->stopping < SETTLE_SECONDS) return 0;
    return any_may_pass(group, mg) && now - mg->stopping < TSHI_GRACE ? 0 : TSHI_ENTRY_STOPPED;
}

int tshi_entry_poll(tsh_group *group, int *error) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    int done = 0;
    if (mg->block) {
        words said = read_words(group, mg);
        if (said.flags & MARK) return outcome_of_stop(group, mg);
        return said.all ? pass(group, mg, &said) : 0;
    }
    *error = MPI_Test(&op->request, &done, MPI_STATUS_IGNORE);
    if (*error != MPI_SUCCESS || !done) return 0;
    uint64_t all[3] = {0};
    for (int i = 0; i < (group->size > MOST_DIRECT ? 1 : group->size); i++) {
        for (int k = 0; k < 3; k++) all[k] |= mg->all[3 * i + k];
    }
    return TSHI_ENTRY_PASSED | (int)all[2] | (all[0] & all[1] ? TSHI_ENTRY_DIFFER : 0);
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

bool tshi_entry_withdraw(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    if (op->phase == TSHI_AT_ENTRY && mg->block) return outcome_of_stop(group, mg) == TSHI_ENTRY_STOPPED;
    /* An exchange that has begun is finished despite a failure, since its requests read and write the caller's memory.
     * It cannot be finished if the world is broken or a member has left. */
    if (op->phase == TSHI_EXCHANGING) {
        return group->world->machine.broken != TSH_OK || tshi_mpi_failure(group->world) == TSH_OK;
    }
    /* Without shared memory a member cannot withdraw its arrival. If the barrier has not been passed TSHI_GRACE after
     * this rank saw the failure, some member saw it before it entered, and does not enter. In a later phase, a member
     * that has failed since has most likely done its part within TSHI_GRACE. */
    double now = tshi_clock();
    if (op->trouble_seen == 0) op->trouble_seen = now;
    return now - op->trouble_seen >= TSHI_GRACE;
}

bool tshi_entry_is_over(const tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    return mg->op.phase == TSHI_AT_ENTRY && mg->block && !any_may_pass(group, mg);
}

bool tshi_entry_lacks(const tsh_group *group, int member) {
    const tshi_mpi_group *mg = group->state;
    return !mg->block || !at_entry(mg, word_of(mg, member));
}

const char *tshi_entry_stopped(const tsh_group *group, char *text, size_t size) {
    const tshi_mpi_group *mg = group->state;
    text[0] = '\0';
    for (int i = 0; mg->block && i < group->size; i++) {
        if (i == group->rank || !tshi_process_stopped(group->world->machine.waits.process[group->ranks[i]])) continue;
        tshi_append(text, size, "; rank %d is stopped", group->ranks[i]);
    }
    return text;
}

void tshi_entry_renew(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    mg->entered = mg->moved = mg->word = 0;
    mg->stopping = 0;
    if (!mg->block) return;
    tshi_entry_member *me = &mg->block->member[group->rank];
    atomic_store(&me->arrived[0], 0);
    atomic_store(&me->arrived[1], 0);
    atomic_store(&me->passed, 0);
}
