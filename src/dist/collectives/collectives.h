/* What each collective means, for all transports: a const descriptor for each collective, and what follows from it: the
 * data that two ranks exchange, what the ranks of a group compare, and the text of a mismatch. */
#ifndef TSHI_COLLECTIVES_H
#define TSHI_COLLECTIVES_H

#include "base/hash.h"
#include "dist/world.h"

/* The elements that a rank has at one side of a call. */
typedef enum tshi_extent {
    TSHI_NONE,
    TSHI_WHOLE, /* call->count */
    TSHI_PART,  /* call->counts[rank], of the whole */
    TSHI_LISTED /* a part for each rank: call->in_counts, call->out_counts */
} tshi_extent;

typedef enum tshi_role { TSHI_ALL, TSHI_ROOT } tshi_role;

/* The caller's arguments. A call on one tensor has it as `in` and as `out`. */
typedef struct tshi_arguments {
    tsh_collective op;
    const tsh_tensor *in;
    tsh_tensor *out;
    const int64_t *counts; /* all_to_all: of out */
    const int64_t *in_counts;
    tsh_reduce_op reduce;
    int root;
} tshi_arguments;

typedef struct tshi_collective {
    const char *name;
    tshi_extent in, out;
    uint64_t ring; /* a ring algorithm sends this multiple of T (p - 1) / p bytes; 0: the bytes for the rank's peers */
    tshi_role contributes, receives; /* send and recv: the root is the other rank */
    bool reduces;
} tshi_collective;

extern const tshi_collective tshi_collectives[TSH_COLLECTIVE_COUNT];

static inline bool tshi_is_rooted(tsh_collective op) {
    return tshi_collectives[op].contributes == TSHI_ROOT || tshi_collectives[op].receives == TSHI_ROOT;
}

static inline bool tshi_is_message(tsh_collective op) {
    return op == TSH_COLLECTIVE_SEND || op == TSH_COLLECTIVE_RECV;
}

/* --- check.c ------------------------------------------------------------------------------------------------------ */

/* "sum", ... */
const char *tshi_reduction_name(tsh_reduce_op reduce);
/* The reduction makes sense for the dtype, on any transport. */
bool tshi_reduces(tsh_dtype dtype, tsh_reduce_op reduce);
/* Makes a zeroed call of a->op the one that the arguments describe, or marks it failed with the message set. */
void tshi_check_call(const tsh_group *group, const tshi_arguments *a, tshi_comm_call *call);
tsh_status tshi_check_tensor(const tsh_group *group, tsh_collective op, const tsh_tensor *tensor, const char *what);

/* --- collectives.c ------------------------------------------------------------------------------------------------ */

/* Runs the call. `early` is an error from before this rank had arguments: it then takes part only so that its peers
 * get the error. */
tsh_status tshi_collective_run(tsh_group *group, const tshi_arguments *arguments, tsh_status early);
tsh_status tshi_collective_start(tsh_group *group, const tshi_arguments *arguments, tsh_work **out);
/* Takes part in a call that this rank cannot make, so that its peers get `status` and tsh_error_message(). */
tsh_status tshi_call_failed(tsh_group *group, tsh_collective op, tsh_status status);

/* --- descriptor.c: the elements that ranks exchange --------------------------------------------------------------- */

/* Elements [start, start + count) of a call's `in` or `out`. */
typedef struct tshi_span {
    int64_t start, count;
} tshi_span;

/* What this rank contributes to member `to`, in call->in, and what it receives from member `from`, in call->out. In a
 * reduction each rank reduces what it receives with what it contributes to itself. */
tshi_span tshi_span_to(const tsh_group *group, const tshi_comm_call *call, int to);
tshi_span tshi_span_from(const tsh_group *group, const tshi_comm_call *call, int from);
/* Elements of call->in and of call->out that this rank uses. */
int64_t tshi_elements_in(const tsh_group *group, const tshi_comm_call *call);
int64_t tshi_elements_out(const tsh_group *group, const tshi_comm_call *call);

static inline int64_t tshi_sum(const int64_t *counts, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return sum;
}

/* --- compare.c: what the ranks of a group compare ----------------------------------------------------------------- */

/* Bytes of one side of a mismatch; a longer text is cut. */
#define TSHI_SIDE (TSHI_LINE / 2 + 80)

/* A call as its ranks publish it. Two signatures of one call have the same kind, root, count and check. */
typedef struct tshi_signature {
    uint32_t kind;   /* collective, dtype and reduction, or one of TSHI_KIND_* */
    uint32_t number; /* of the call, for messages */
    int32_t root;
    int64_t count;
    int64_t part;   /* the rank's own share, for messages */
    uint64_t check; /* a hash of the counts, or of the text */
} tshi_signature;

#define TSHI_KIND_TEXT   0xffu /* ranks compare a text; nothing moves */
#define TSHI_KIND_FAILED 0xfeu /* the call cannot be made here, for the reason in the text */

static inline uint32_t tshi_kind_of(const tshi_comm_call *call) {
    return (uint32_t)call->op | (uint32_t)call->dtype << 8 | (uint32_t)call->reduce << 16;
}

static inline uint64_t tshi_hash_counts(const int64_t *counts, int n) {
    uint64_t h = TSHI_FINGERPRINT;
    for (int i = 0; i < n; i++) h = tshi_fingerprint_add(h, (uint64_t)counts[i]);
    return h;
}

static inline void tshi_signature_of_call(tshi_signature *signature, const tsh_group *group, const tshi_comm_call *call,
                                          uint64_t number) {
    signature->kind = tshi_kind_of(call);
    signature->number = (uint32_t)number;
    signature->root = call->root;
    signature->count = call->count;
    signature->part = call->counts ? call->counts[group->rank] : 0;
    signature->check = call->counts ? tshi_hash_counts(call->counts, group->size) : 0;
}
void tshi_signature_of_text(tshi_signature *signature, const char *text, uint64_t number);

static inline bool tshi_signatures_equal(const tshi_signature *a, const tshi_signature *b) {
    return a->kind == b->kind && a->count == b->count && a->root == b->root && a->check == b->check;
}

/* "all_reduce float32 [8] sum #3", or of a text "group_create 0,1 #3". Returns `line`. */
char *tshi_signature_describe(const tshi_signature *signature, const char *text, char *line, size_t size);

/* The verdict on the members' signatures, which lie `stride` bytes apart, each with its text `text_at` bytes behind its
 * start. TSH_ERR_PEER with the text of a member that failed, or TSH_ERR_MISMATCH with both sides. It depends
 * only on the signatures, so that every member reaches the same one. */
tsh_status tshi_compare_signatures(const tsh_group *group, const tshi_signature *signatures, size_t stride,
                                   size_t text_at);

/* TSH_ERR_MISMATCH with the calls of two members. */
tsh_status tshi_signature_mismatch(const tsh_group *group, int a, const tshi_signature *first, const char *first_text,
                                   int b, const tshi_signature *other, const char *other_text);

/* The verdict on the counts of an all_to_all, which lie `stride` bytes apart: of each member what it sends to each,
 * then what it expects of each. */
tsh_status tshi_compare_counts(const tsh_group *group, const int64_t *counts, size_t stride);

/* --- levels.c: groups over several machines with several members on each ------------------------------------------ */

/* The call runs in two levels when all members wait for it; the same on all members. */
bool tshi_levels_take(const tsh_group *group, const tshi_comm_call *call);
/* Runs a call that all members have compared. Between machines each byte travels once for each machine that needs it.
 * An error of one member becomes an error of all: a member takes every step, after a failure as one that cannot make
 * it. Collective over the group, waits. */
tsh_status tshi_levels_run(tsh_group *group, const tshi_comm_call *call);

/* --- messages ----------------------------------------------------------------------------------------------------- */

static inline tsh_dtype tshi_kind_dtype(uint32_t kind) {
    return (tsh_dtype)(kind >> 8 & 0xff);
}

/* Bytes that a message of that kind carries. */
static inline size_t tshi_message_bytes(uint32_t kind, int64_t count) {
    return (size_t)count * tsh_dtype_size(tshi_kind_dtype(kind));
}

/* A receive takes what was sent: the kinds differ only in `send` and `recv`. */
static inline bool tshi_message_fits(uint32_t sent, int64_t sent_count, const tshi_comm_call *receive) {
    return (sent ^ tshi_kind_of(receive)) >> 8 == 0 && sent_count == receive->count;
}

/* TSH_ERR_MISMATCH with both sides. after: " (an earlier call)", or "". */
tsh_status tshi_message_mismatch(const tsh_group *group, int sender, const tshi_signature *sent, int receiver,
                                 const tshi_signature *wanted, const char *after);

#endif
