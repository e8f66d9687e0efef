/* One call of any kind, as test_random_failures draws it. */
#ifndef TSHI_TEST_CALLS_H
#define TSHI_TEST_CALLS_H

#include "dist/transport/shm/shm.h"
#include "support/collectives.h"

#include <stdio.h>

typedef struct call {
    tsh_collective op; /* SEND: each rank to the next; RECV: from the one before */
    tsh_dtype dtype;
    tsh_reduce_op reduce;
    int64_t n;
    int root;
    bool started, without_tensor;
    bool fails_inside; /* called while the call is under way */
    bool behind;       /* follows a started call, without a wait between them */
} call;

static bool is_message(const call *c) {
    return c->op == TSH_COLLECTIVE_SEND || c->op == TSH_COLLECTIVE_RECV;
}

static bool reduces(tsh_collective op) {
    return op == TSH_COLLECTIVE_ALL_REDUCE || op == TSH_COLLECTIVE_REDUCE || op == TSH_COLLECTIVE_REDUCE_SCATTER;
}

static bool rooted(tsh_collective op) {
    return op == TSH_COLLECTIVE_BROADCAST || op == TSH_COLLECTIVE_REDUCE || op == TSH_COLLECTIVE_GATHER ||
           op == TSH_COLLECTIVE_SCATTER;
}

/* The tensors of a call; NULL where the op has none on this rank. */
static void make_tensors(tshi_rank *r, const tsh_group *g, const call *c, tsh_tensor **in, tsh_tensor **out) {
    int64_t in_parts = 1, out_parts = 1, p = tsh_group_size(g);
    bool root = tsh_group_rank(g) == c->root;
    switch (c->op) {
    case TSH_COLLECTIVE_BARRIER: return;
    case TSH_COLLECTIVE_ALL_GATHER: out_parts = p; break;
    case TSH_COLLECTIVE_REDUCE_SCATTER: in_parts = p; break;
    case TSH_COLLECTIVE_ALL_TO_ALL: in_parts = out_parts = p; break;
    case TSH_COLLECTIVE_GATHER: out_parts = root ? p : 0; break;
    case TSH_COLLECTIVE_SCATTER: in_parts = root ? p : 0; break;
    default: break;
    }
    if (in_parts) *in = tshi_test_vector(r, c->dtype, c->n * in_parts);
    if (out_parts) *out = tshi_test_vector(r, c->dtype, c->n * out_parts);
}

static tsh_status begin(tsh_group *g, const call *c, tsh_tensor *in, tsh_tensor *out, tsh_work **work) {
    switch (c->op) {
    case TSH_COLLECTIVE_ALL_REDUCE: return tsh_all_reduce_async(g, in, c->reduce, work);
    case TSH_COLLECTIVE_ALL_GATHER: return tsh_all_gather_into_tensor_async(g, in, out, NULL, work);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return tsh_reduce_scatter_tensor_async(g, in, out, NULL, c->reduce, work);
    case TSH_COLLECTIVE_BROADCAST: return tsh_broadcast_async(g, in, c->root, work);
    case TSH_COLLECTIVE_ALL_TO_ALL: return tsh_all_to_all_async(g, in, NULL, out, NULL, work);
    case TSH_COLLECTIVE_REDUCE: return tsh_reduce_to_root_async(g, in, c->reduce, c->root, work);
    case TSH_COLLECTIVE_GATHER: return tsh_gather_to_root_async(g, in, out, NULL, c->root, work);
    case TSH_COLLECTIVE_SCATTER: return tsh_scatter_from_root_async(g, in, out, NULL, c->root, work);
    default: return tsh_barrier_async(g, work);
    }
}

static tsh_status run(tsh_group *g, const call *c, tsh_tensor *in, tsh_tensor *out) {
    switch (c->op) {
    case TSH_COLLECTIVE_ALL_REDUCE: return tsh_all_reduce(g, in, c->reduce);
    case TSH_COLLECTIVE_ALL_GATHER: return tsh_all_gather_into_tensor(g, in, out, NULL);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return tsh_reduce_scatter_tensor(g, in, out, NULL, c->reduce);
    case TSH_COLLECTIVE_BROADCAST: return tsh_broadcast(g, in, c->root);
    case TSH_COLLECTIVE_ALL_TO_ALL: return tsh_all_to_all(g, in, NULL, out, NULL);
    case TSH_COLLECTIVE_REDUCE: return tsh_reduce_to_root(g, in, c->reduce, c->root);
    case TSH_COLLECTIVE_GATHER: return tsh_gather_to_root(g, in, out, NULL, c->root);
    case TSH_COLLECTIVE_SCATTER: return tsh_scatter_from_root(g, in, out, NULL, c->root);
    default: return tsh_barrier(g);
    }
}

/* The status of the first of two calls that failed. */
static tsh_status pass_on(tshi_rank *r, const call *c, tsh_tensor *in, tsh_tensor *out) {
    tsh_group *g = tsh_world_group(r->world);
    tsh_work *sending = NULL, *receiving = NULL;
    char words[TSHI_TEST_WORDS] = "";
    tsh_status status = tsh_send_async(g, in, (r->rank + 1) % r->size, &sending);
    tsh_status other = tsh_recv_async(g, out, (r->rank + r->size - 1) % r->size, &receiving);
    if (c->fails_inside) tsh_world_fail(r->world, "no more");
    if (other == TSH_OK) other = tsh_work_wait(receiving);
    if (other != TSH_OK) snprintf(words, sizeof words, "%s", tsh_error_message());
    if (status == TSH_OK) status = tsh_work_wait(sending);
    tsh_work_release(sending);
    tsh_work_release(receiving);
    /* Makes the message of the returned status the last one. */
    if (other != TSH_OK) tshi_fail(other, "%s", words);
    return other != TSH_OK ? other : status;
}

static tsh_status wait_for_call(tshi_rank *r, tsh_group *group, const call *c, tsh_tensor *in, tsh_tensor *out) {
    tsh_work *work = NULL;
    if (!c->started && !c->fails_inside) return run(group, c, in, out);
    tsh_status status = begin(group, c, in, out, &work);
    if (c->fails_inside) tsh_world_fail(r->world, "no more");
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}

/* The last message is that of the returned status. */
static tsh_status call_behind(tshi_rank *r, tsh_group *group, const call *c, tsh_tensor *in, tsh_tensor *out) {
    char words[TSHI_TEST_WORDS] = "";
    tsh_work *first = NULL;
    tsh_status started = tsh_barrier_async(group, &first), status = wait_for_call(r, group, c, in, out);
    if (status != TSH_OK) snprintf(words, sizeof words, "%s", tsh_error_message());
    if (started == TSH_OK) started = tsh_work_wait(first);
    tsh_work_release(first);
    if (status != TSH_OK) return tshi_fail(status, "%s", words);
    return started;
}

static tsh_status make_call(tshi_rank *r, tsh_group *group, const call *drawn) {
    tsh_tensor *in = NULL, *out = NULL;
    call c = *drawn;
    c.root %= tsh_group_size(group);
    make_tensors(r, group, &c, &in, &out);
    if (c.without_tensor) {
        tsh_tensor_release(in);
        tsh_tensor_release(out);
        in = out = NULL;
    }
    tsh_status status = is_message(&c) ? pass_on(r, &c, in, out)
                        : c.behind     ? call_behind(r, group, &c, in, out)
                                       : wait_for_call(r, group, &c, in, out);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    return status;
}

#endif
