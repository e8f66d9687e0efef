/* Kept plans: found by the number of the call in its step, or by key. */
#include "autograd/grad/state.h"
#include "autograd/plan/plan.h"
#include "base/hash.h"

#include <string.h>

/* The first PLACES calls of a step have a place each. With more than MOST plans, which happens when sizes keep
 * changing, all plans are dropped. */
enum { PLACES = 1024, BUCKETS = 1024, MOST = 4096 };

typedef struct word_list {
    uint64_t *at;
    int count, room;
} word_list;

typedef struct kept_plan kept_plan;
struct kept_plan {
    kept_plan *next; /* in its bucket */
    word_list key;
    tshi_plan plan;
};

/* The last call with a certain number: its description (write_call), and its plan. */
typedef struct usual_plan {
    kept_plan *kept;
    word_list call;
} usual_plan;

struct tshi_plans {
    const tsh_allocator *allocator;
    usual_plan usual[PLACES];
    kept_plan *bucket[BUCKETS];
    int count;
    uint64_t made;       /* since the tape was created */
    unsigned calls;      /* of this step */
    word_list call, key; /* of the current call */
    tshi_plan draft;
    tsh_tensor **inputs, *copies;
    int inputs_room, copies_room;
};

/* --- life --------------------------------------------------------------------------------------------------------- */

tshi_plans *tshi_plans_new(const tsh_allocator *allocator) {
    tshi_plans *plans = tshi_calloc(allocator, 1, sizeof *plans);
    if (!plans) return NULL;
    plans->allocator = plans->draft.allocator = allocator;
    return plans;
}

static void forget_all(tshi_plans *plans) {
    for (int b = 0; b < BUCKETS; b++) {
        for (kept_plan *kept = plans->bucket[b], *next; kept; kept = next) {
            next = kept->next;
            tshi_free(plans->allocator, kept);
        }
    }
    memset(plans->bucket, 0, sizeof plans->bucket);
    for (int i = 0; i < PLACES; i++) plans->usual[i].kept = NULL;
    plans->count = 0;
}

void tshi_plans_free(tshi_plans *plans) {
    const tsh_allocator *allocator = plans->allocator;
    forget_all(plans);
    for (int i = 0; i < PLACES; i++) tshi_free(allocator, plans->usual[i].call.at);
    tshi_free(allocator, plans->call.at);
    tshi_free(allocator, plans->key.at);
    tshi_free(allocator, plans->draft.step);
    tshi_free(allocator, plans->inputs);
    tshi_free(allocator, plans->copies);
    tshi_free(allocator, plans);
}

void tshi_plans_end_step(tshi_plans *plans) {
    plans->calls = 0;
}

tsh_tensor **tshi_plans_inputs(tshi_plans *plans, int inputs) {
    tsh_status status =
        tshi_grow(plans->allocator, (void **)&plans->inputs, &plans->inputs_room, 2 * inputs, sizeof *plans->inputs);
    return status == TSH_OK ? plans->inputs : NULL;
}

tsh_tensor *tshi_plans_copies(tshi_plans *plans, int inputs) {
    tsh_status status =
        tshi_grow(plans->allocator, (void **)&plans->copies, &plans->copies_room, inputs, sizeof *plans->copies);
    return status == TSH_OK ? plans->copies : NULL;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static bool same_words(const word_list *a, const word_list *b) {
    return a->count == b->count && memcmp(a->at, b->at, (size_t)a->count * sizeof *a->at) == 0;
}

/* The list's memory, for at least `room` words; NULL with the message set. */
static uint64_t *start_words(tshi_plans *plans, word_list *list, int room) {
    list->count = 0;
    return tshi_grow(plans->allocator, (void **)&list->at, &list->room, room, sizeof *list->at) == TSH_OK ? list->at
                                                                                                          : NULL;
}

static void end_words(word_list *list, const uint64_t *end) {
    list->count = (int)(end - list->at);
}

static uint64_t *put_bytes(uint64_t *at, const void *from, size_t size) {
    size_t words = (size + 7) / 8;
    if (!words) return at;
    at[words - 1] = 0;
    memcpy(at, from, size);
    return at + words;
}

static uint64_t *put_layout(uint64_t *at, const tsh_layout *l) {
    if (l->kind != TSH_KIND_SHARD) {
        *at++ = (uint64_t)l->kind;
        return at;
    }
    *at++ = (uint64_t)l->kind | (uint64_t)l->dim << 8 | (uint64_t)l->order << 16 | (uint64_t)l->sharing << 24;
    *at++ = (uint64_t)l->units;
    *at++ = (uint64_t)l->blocks;
    *at++ = l->cuts;
    return at;
}

static uint64_t *put_sizes(uint64_t *at, const tsh_shape *shape) {
    for (int d = 0; d < shape->ndim; d++) *at++ = (uint64_t)shape->global[d];
    return at;
}

/* Writes the operation's rules, functions of metadata and params: operations that share them have the same plans. */
static uint64_t *put_op(uint64_t *at, const tsh_call *call) {
    const tsh_op *op = call->op;
    *at++ = (uint64_t)(uintptr_t)op->rules;
    *at++ = (uint64_t)(uintptr_t)op->row_holds;
    *at++ = (uint64_t)call->inputs | (uint64_t)(unsigned)tshi_call_dim(call) << 32 | (uint64_t)op->by_element << 24;
    if (op->map_dim || op->map_split || op->row_holds) {
        *at++ = (uint64_t)(uintptr_t)op->map_dim;
        *at++ = (uint64_t)(uintptr_t)op->map_split;
        at = put_bytes(at, call->params, op->params_size);
    }
    return at;
}

static uint64_t *put_input(uint64_t *at, const tsh_call *call, const tsh_tensor *given, int i, const tshi_goal *goal) {
    uint64_t sums = tshi_gradient_summed_axes(given);
    bool adds = goal->deterministic && goal->recording && tshi_requires_grad(given);
    *at++ = (uint64_t)given->dtype | (uint64_t)call->in[i]->dtype << 8 | (uint64_t)given->shape.ndim << 16 |
            (uint64_t)given->computed << 24 | (uint64_t)adds << 25 | sums << 32;
    at = put_sizes(at, &given->shape);
    for (int a = 0; a < given->mesh->axes; a++) at = put_layout(at, &given->layout[a]);
    return at;
}

/* Words for a tensor's dtypes, sizes and layouts. */
enum { TENSOR_WORDS = 1 + TSH_MAX_DIMS + 4 * TSH_MAX_AXES };

static uint64_t *put_want(uint64_t *at, const tshi_want *want) {
    *at++ = want ? (uint64_t)want->parameters << 32 | (uint64_t)(unsigned)(want->axis + 2) : 0;
    return want && want->axis >= 0 ? put_layout(at, &want->out) : at;
}

static tsh_status write_key(tshi_plans *plans, const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal) {
    uint64_t *at =
        start_words(plans, &plans->key, 16 + (call->inputs + 1) * TENSOR_WORDS + (int)(call->op->params_size / 8));
    if (!at) return TSH_ERR_MEMORY;
    at = put_op(at, call);
    *at++ = given[0]->mesh->number;
    at = put_want(at, goal->want);
    *at++ = (uint64_t)goal->dtype | (uint64_t)goal->shape->ndim << 8;
    at = put_sizes(at, goal->shape);
    for (int i = 0; i < call->inputs; i++) at = put_input(at, call, given[i], i, goal);
    end_words(&plans->key, at);
    return TSH_OK;
}

/* An operation's key begins with its rules; this key has none. */
static tsh_status write_route_key(tshi_plans *plans, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]) {
    uint64_t *at = start_words(plans, &plans->key, 3 + 2 * TENSOR_WORDS);
    if (!at) return TSH_ERR_MEMORY;
    *at++ = 0;
    *at++ = x->mesh->number;
    *at++ = (uint64_t)x->dtype | (uint64_t)x->shape.ndim << 8;
    at = put_sizes(at, &x->shape);
    for (int a = 0; a < x->mesh->axes; a++) at = put_layout(put_layout(at, &x->layout[a]), &to[a]);
    end_words(&plans->key, at);
    return TSH_OK;
}

/* Describes a call in fewer words than its key: params, and each input's form and gradient state. */
static tsh_status write_call(tshi_plans *plans, const tsh_call *call, const tshi_want *want, bool recording) {
    uint64_t *at = start_words(plans, &plans->call, 8 + 2 * call->inputs + (int)(call->op->params_size / 8));
    if (!at) return TSH_ERR_MEMORY;
    *at++ = (uint64_t)(uintptr_t)call->op;
    *at++ = (uint64_t)call->inputs << 2 | (uint64_t)(want && want->as_stored) << 1 | recording;
    at = put_want(at, want);
    if (call->op->params_size) at = put_bytes(at, call->params, call->op->params_size);
    for (int i = 0; i < call->inputs; i++) {
        tsh_tensor *x = call->in[i];
        const tshi_gradient *g = x->gradient;
        *at++ = tshi_tensor_form(x);
        *at++ = g ? 1u | (unsigned)g->required << 1 | (unsigned)x->computed << 2 | (unsigned)g->arithmetic << 8 |
                        (uint64_t)tshi_gradient_summed_axes(x) << 32
                  : 0;
    }
    end_words(&plans->call, at);
    return TSH_OK;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static kept_plan **kept_bucket(tshi_plans *plans) {
    uint64_t hash = TSHI_FINGERPRINT;
    for (int i = 0; i < plans->key.count; i++) hash = tshi_fingerprint_add(hash, plans->key.at[i]);
    return &plans->bucket[hash % BUCKETS];
}

/* Stores the plan, its steps and its key in one block of memory. */
static tsh_status keep_draft(tshi_plans *plans, kept_plan **place) {
    tshi_plan *draft = &plans->draft;
    tsh_status status = TSH_OK;
    for (int k = 0; k < draft->count && status == TSH_OK; k++) {
        tshi_plan_step *step = &draft->step[k];
        status = tshi_tensor_count(step->mesh, &step->shape, &step->numel);
    }
    if (status != TSH_OK) return status;
    if (plans->count == MOST) forget_all(plans);
    size_t steps = (size_t)draft->count * sizeof *draft->step, key = (size_t)plans->key.count * sizeof *plans->key.at;
    kept_plan *kept = tshi_calloc(plans->allocator, 1, sizeof *kept + steps + key);
    if (!kept) return TSH_ERR_MEMORY;
    kept->plan = (tshi_plan){.step = (tshi_plan_step *)(kept + 1), .count = draft->count, .capacity = draft->count};
    kept->key = (word_list){.at = (uint64_t *)((char *)(kept + 1) + steps), .count = plans->key.count};
    if (steps) memcpy(kept->plan.step, draft->step, steps);
    memcpy(kept->key.at, plans->key.at, key);
    for (int k = 0; k < draft->count; k++) kept->plan.step[k].form = ++draft->step[k].mesh->device->forms;
    kept_plan **bucket = kept_bucket(plans);
    kept->next = *bucket;
    *bucket = kept;
    plans->count++;
    plans->made++;
    *place = kept;
    return TSH_OK;
}

/* The call's place gets the plan of this key, or NULL where none is kept. */
static void find_kept(tshi_plans *plans, usual_plan *usual) {
    usual->call.count = 0;
    if (usual->kept && same_words(&usual->kept->key, &plans->key)) return;
    usual->kept = *kept_bucket(plans);
    while (usual->kept && !same_words(&usual->kept->key, &plans->key)) usual->kept = usual->kept->next;
}

tsh_status tshi_plans_usual(tshi_plans *plans, const tsh_call *call, const tshi_want *want, bool recording,
                            const tshi_plan **plan) {
    const usual_plan *usual = &plans->usual[plans->calls++ % PLACES];
    *plan = NULL;
    if (want && want->asks) return TSH_OK;
    tsh_status status = write_call(plans, call, want, recording);
    if (status == TSH_OK && usual->kept && same_words(&usual->call, &plans->call)) *plan = &usual->kept->plan;
    return status;
}

tsh_status tshi_plans_get(tshi_plans *plans, const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal,
                          const tshi_plan **plan) {
    usual_plan *usual = &plans->usual[(plans->calls - 1) % PLACES];
    tsh_status status = write_key(plans, call, given, goal);
    if (status != TSH_OK) return status;
    find_kept(plans, usual);
    if (!usual->kept) status = tshi_plan_make(call, given, goal, &plans->draft);
    if (status == TSH_OK && !usual->kept) status = keep_draft(plans, &usual->kept);
    if (status != TSH_OK) return status;
    *plan = &usual->kept->plan;
    if (goal->want && goal->want->asks) return TSH_OK;
    if (!start_words(plans, &usual->call, plans->call.count)) return TSH_ERR_MEMORY;
    usual->call.count = plans->call.count;
    memcpy(usual->call.at, plans->call.at, (size_t)plans->call.count * sizeof *plans->call.at);
    return TSH_OK;
}

tsh_status tshi_plans_route(tshi_plans *plans, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                            const tshi_plan **plan) {
    usual_plan *usual = &plans->usual[plans->calls++ % PLACES];
    tsh_status status = write_route_key(plans, x, to);
    if (status != TSH_OK) return status;
    find_kept(plans, usual);
    if (!usual->kept) {
        tshi_plan_step now = tshi_plan_start(x, 0);
        plans->draft.count = 0;
        status = tshi_plan_route(&plans->draft, &now, to);
        if (status == TSH_OK) status = keep_draft(plans, &usual->kept);
    }
    if (status == TSH_OK) *plan = &usual->kept->plan;
    return status;
}

uint64_t tshi_plans_made(const tshi_plans *plans) {
    return plans->made;
}
