#include "support/collectives.h"
#include "support/values.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#define MOST_RANKS 64

/* True: calls are started and waited for instead. */
static _Thread_local bool started;

void tshi_try_started(bool on) {
    started = on;
}

/* The status of a call that was started, having asked a few times whether it is done. */
static tsh_status end_of(tsh_status status, tsh_work **started_work) {
    tsh_work *work = *started_work;
    bool done = false;
    for (int i = 0; i < 3 && status == TSH_OK && !done; i++) status = tsh_work_test(work, &done);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}

static tsh_status all_reduce(tsh_group *group, tsh_tensor *x, tsh_reduce_op op) {
    tsh_work *work;
    if (!started) return tsh_all_reduce(group, x, op);
    return end_of(tsh_all_reduce_async(group, x, op, &work), &work);
}

static tsh_status all_gather(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts) {
    tsh_work *work;
    if (!started) return tsh_all_gather_into_tensor(group, in, out, counts);
    return end_of(tsh_all_gather_into_tensor_async(group, in, out, counts, &work), &work);
}

static tsh_status reduce_scatter(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, tsh_reduce_op op,
                                 const int64_t *counts) {
    tsh_work *work;
    if (!started) return tsh_reduce_scatter_tensor(group, in, out, counts, op);
    return end_of(tsh_reduce_scatter_tensor_async(group, in, out, counts, op, &work), &work);
}

static tsh_status broadcast(tsh_group *group, tsh_tensor *x, int root) {
    tsh_work *work;
    if (!started) return tsh_broadcast(group, x, root);
    return end_of(tsh_broadcast_async(group, x, root, &work), &work);
}

static tsh_status all_to_all(tsh_group *group, tsh_tensor *out, const int64_t *out_counts, const tsh_tensor *in,
                             const int64_t *in_counts) {
    tsh_work *work;
    if (!started) return tsh_all_to_all(group, in, in_counts, out, out_counts);
    return end_of(tsh_all_to_all_async(group, in, in_counts, out, out_counts, &work), &work);
}

static tsh_status reduce_to_root(tsh_group *group, tsh_tensor *x, tsh_reduce_op op, int root) {
    tsh_work *work;
    if (!started) return tsh_reduce_to_root(group, x, op, root);
    return end_of(tsh_reduce_to_root_async(group, x, op, root, &work), &work);
}

static tsh_status gather_to_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                 int root) {
    tsh_work *work;
    if (!started) return tsh_gather_to_root(group, in, out, counts, root);
    return end_of(tsh_gather_to_root_async(group, in, out, counts, root, &work), &work);
}

static tsh_status scatter_from_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                    int root) {
    tsh_work *work;
    if (!started) return tsh_scatter_from_root(group, in, out, counts, root);
    return end_of(tsh_scatter_from_root_async(group, in, out, counts, root, &work), &work);
}

static tsh_status barrier(tsh_group *group) {
    tsh_work *work;
    if (!started) return tsh_barrier(group);
    return end_of(tsh_barrier_async(group, &work), &work);
}

static tsh_status all_gather_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in) {
    tsh_work *work;
    if (!started) return tsh_all_gather_list(group, in, outs);
    return end_of(tsh_all_gather_list_async(group, in, outs, &work), &work);
}

static tsh_status reduce_scatter_list(tsh_group *group, tsh_tensor *out, tsh_tensor *const *ins, tsh_reduce_op op) {
    tsh_work *work;
    const tsh_tensor *const *given = (const tsh_tensor *const *)ins;
    if (!started) return tsh_reduce_scatter_list(group, given, out, op);
    return end_of(tsh_reduce_scatter_list_async(group, given, out, op, &work), &work);
}

static tsh_status all_to_all_list(tsh_group *group, tsh_tensor *const *outs, tsh_tensor *const *ins) {
    tsh_work *work;
    const tsh_tensor *const *given = (const tsh_tensor *const *)ins;
    if (!started) return tsh_all_to_all_list(group, given, outs);
    return end_of(tsh_all_to_all_list_async(group, given, outs, &work), &work);
}

static const char *const spread_names[TSHI_SPREAD_COUNT] = {"balanced", "uneven", "all on the last"};

/* counts[i] of n over p ranks. */
static void spread_counts(tshi_spread spread, int64_t n, int p, int64_t *counts) {
    int64_t left = n;
    for (int i = 0; i < p; i++) {
        tsh_split(n, p, i, NULL, &counts[i]);
        /* Some more than half of the rest, then nothing, ... */
        if (spread == TSHI_UNEVEN) counts[i] = i % 2 ? 0 : left / 2 + left % 2;
        if (spread == TSHI_LAST_ONLY) counts[i] = 0;
        if (spread != TSHI_BALANCED && i == p - 1) counts[i] = left;
        left -= counts[i];
    }
}

static int64_t start_of(const int64_t *counts, int rank) {
    int64_t start = 0;
    for (int i = 0; i < rank; i++) start += counts[i];
    return start;
}

static tsh_tensor *vector_on(tshi_rank *r, const tsh_group *group, tsh_dtype dtype, int64_t n) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = 1, .shape = {n}};
    tsh_tensor *tensor = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_group_mesh(group), &config, &tensor));
    return tensor;
}

/* A view of n elements of x from `start` on. */
static tsh_tensor *part_of(tshi_rank *r, const tsh_tensor *x, int64_t start, int64_t n) {
    tsh_shape shape = {.ndim = 1, .local = {n}, .global = {n}};
    tsh_tensor *part = NULL;
    tshi_check_ok(r, tshi_tensor_view(x, &shape, x->layout, (size_t)start * tsh_dtype_size(x->dtype), &part));
    if (part) part->program_refs = 1; /* the caller's, as that of vector_on */
    return part;
}

/* Element i of every rank's whole, reduced over the group; values depend on the group rank. */
static tshi_number reduced(tsh_dtype dtype, tsh_reduce_op reduce, int p, int64_t i) {
    tshi_number sum = tshi_value(dtype, reduce, 0, i);
    for (int k = 1; k < p; k++) sum = tshi_reduce_numbers(reduce, sum, tshi_value(dtype, reduce, k, i));
    if (reduce == TSH_REDUCE_AVG) sum = (tshi_number){sum.re / p, sum.im / p};
    return sum;
}

static void put_values(tsh_tensor *x, tsh_reduce_op reduce, int rank, int64_t first) {
    for (int64_t i = 0; i < x->numel; i++) {
        tshi_put(x->dtype, tshi_data(x), i, tshi_value(x->dtype, reduce, rank, first + i));
    }
}

static bool wrong(tshi_rank *r, const char *op, const tsh_tensor *x, int64_t i) {
    return tshi_check(r, false, "%s %s of %d ranks: element %lld of %lld is wrong", op, tsh_dtype_name(x->dtype),
                      r->size, (long long)i, (long long)x->numel);
}

bool tshi_try_all_reduce(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    tsh_tensor *x = vector_on(r, group, dtype, n);
    if (!x) return false;
    put_values(x, reduce, rank, 0);
    bool good = tshi_check_ok(r, all_reduce(group, x, reduce));
    for (int64_t i = 0; i < n && good; i++) {
        if (!tshi_is(dtype, tshi_data(x), i, reduced(dtype, reduce, p, i))) good = wrong(r, "all_reduce", x, i);
    }
    tsh_tensor_release(x);
    return good;
}

bool tshi_try_all_gather(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread,
                         bool in_place) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t counts[MOST_RANKS];
    spread_counts(spread, n, p, counts);
    int64_t start = start_of(counts, rank);
    tsh_tensor *out = vector_on(r, group, dtype, n);
    if (!out) return false;
    tsh_tensor *in = in_place ? part_of(r, out, start, counts[rank]) : vector_on(r, group, dtype, counts[rank]);
    bool good = in != NULL;
    if (good) put_values(in, TSH_REDUCE_SUM, 0, start);
    good = good && tshi_check_ok(r, all_gather(group, out, in, spread ? counts : NULL));
    for (int64_t i = 0; i < n && good; i++) {
        if (!tshi_is(dtype, tshi_data(out), i, tshi_value(dtype, TSH_REDUCE_SUM, 0, i))) {
            good = wrong(r, spread_names[spread], out, i);
        }
    }
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    return good;
}

bool tshi_try_reduce_scatter(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n,
                             tshi_spread spread, bool in_place) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t counts[MOST_RANKS];
    spread_counts(spread, n, p, counts);
    int64_t start = start_of(counts, rank);
    tsh_tensor *in = vector_on(r, group, dtype, n);
    if (!in) return false;
    tsh_tensor *out = in_place ? part_of(r, in, start, counts[rank]) : vector_on(r, group, dtype, counts[rank]);
    put_values(in, reduce, rank, 0);
    bool good = out && tshi_check_ok(r, reduce_scatter(group, out, in, reduce, spread ? counts : NULL));
    for (int64_t i = 0; good && i < counts[rank]; i++) {
        if (!tshi_is(dtype, tshi_data(out), i, reduced(dtype, reduce, p, start + i))) {
            good = wrong(r, "reduce_scatter", out, i);
        }
    }
    /* What is not this rank's part stays as it was. */
    for (int64_t i = 0; good && i < n; i++) {
        bool mine = in_place && i >= start && i < start + counts[rank];
        if (!mine && !tshi_is(dtype, tshi_data(in), i, tshi_value(dtype, reduce, rank, i))) {
            good = wrong(r, "reduce_scatter's input", in, i);
        }
    }
    tsh_tensor_release(out);
    tsh_tensor_release(in);
    return good;
}

bool tshi_try_broadcast(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, int root) {
    tsh_tensor *x = vector_on(r, group, dtype, n);
    if (!x) return false;
    put_values(x, TSH_REDUCE_SUM, tsh_group_rank(group), 0);
    bool good = tshi_check_ok(r, broadcast(group, x, root));
    for (int64_t i = 0; i < n && good; i++) {
        if (!tshi_is(dtype, tshi_data(x), i, tshi_value(dtype, TSH_REDUCE_SUM, root, i)))
            good = wrong(r, "broadcast", x, i);
    }
    tsh_tensor_release(x);
    return good;
}

/* Elements from rank i to rank j. */
static int64_t sent(int64_t n, int p, int i, int j, bool uneven) {
    if (!uneven) return n / p;
    return (i + 2 * j) % 3 == 0 ? 0 : (n / p) * (1 + (i + j) % 2) + j;
}

bool tshi_try_all_to_all(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, bool uneven) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t in_counts[MOST_RANKS] = {0}, out_counts[MOST_RANKS] = {0};
    for (int i = 0; i < p; i++) {
        in_counts[i] = sent(n, p, rank, i, uneven);
        out_counts[i] = sent(n, p, i, rank, uneven);
    }
    tsh_tensor *in = vector_on(r, group, dtype, start_of(in_counts, p));
    tsh_tensor *out = vector_on(r, group, dtype, start_of(out_counts, p));
    if (!in || !out) return false;
    put_values(in, TSH_REDUCE_SUM, rank, 0);
    bool good = tshi_check_ok(r, all_to_all(group, out, uneven ? out_counts : NULL, in, uneven ? in_counts : NULL));
    for (int i = 0; i < p; i++) {
        int64_t before = 0, at = start_of(out_counts, i);
        for (int j = 0; j < rank; j++) before += sent(n, p, i, j, uneven);
        for (int64_t k = 0; good && k < out_counts[i]; k++) {
            if (!tshi_is(dtype, tshi_data(out), at + k, tshi_value(dtype, TSH_REDUCE_SUM, i, before + k))) {
                good = wrong(r, "all_to_all", out, at + k);
            }
        }
    }
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    return good;
}

bool tshi_try_reduce(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n, int root) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    tsh_tensor *x = vector_on(r, group, dtype, n);
    if (!x) return false;
    put_values(x, reduce, rank, 0);
    bool good = tshi_check_ok(r, reduce_to_root(group, x, reduce, root));
    for (int64_t i = 0; i < n && good; i++) {
        tshi_number wanted = rank == root ? reduced(dtype, reduce, p, i) : tshi_value(dtype, reduce, rank, i);
        if (!tshi_is(dtype, tshi_data(x), i, wanted)) good = wrong(r, "reduce", x, i);
    }
    tsh_tensor_release(x);
    return good;
}

bool tshi_try_gather(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread, bool in_place,
                     int root) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t counts[MOST_RANKS];
    spread_counts(spread, n, p, counts);
    int64_t start = start_of(counts, rank);
    tsh_tensor *out = rank == root ? vector_on(r, group, dtype, n) : NULL;
    tsh_tensor *in = out && in_place ? part_of(r, out, start, counts[rank]) : vector_on(r, group, dtype, counts[rank]);
    bool good = in && (out || rank != root);
    if (good) put_values(in, TSH_REDUCE_SUM, 0, start);
    bool equal = spread == TSHI_BALANCED && n % p == 0;
    good = good && tshi_check_ok(r, gather_to_root(group, out, in, equal ? NULL : counts, root));
    for (int64_t i = 0; i < n && good && out; i++) {
        if (!tshi_is(dtype, tshi_data(out), i, tshi_value(dtype, TSH_REDUCE_SUM, 0, i)))
            good = wrong(r, "gather", out, i);
    }
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    return good;
}

bool tshi_try_scatter(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread, bool in_place,
                      int root) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t counts[MOST_RANKS];
    spread_counts(spread, n, p, counts);
    int64_t start = start_of(counts, rank);
    tsh_tensor *in = rank == root ? vector_on(r, group, dtype, n) : NULL;
    tsh_tensor *out = in && in_place ? part_of(r, in, start, counts[rank]) : vector_on(r, group, dtype, counts[rank]);
    if (in) put_values(in, TSH_REDUCE_SUM, 0, 0);
    bool equal = spread == TSHI_BALANCED && n % p == 0;
    bool good = out && tshi_check_ok(r, scatter_from_root(group, out, in, equal ? NULL : counts, root));
    for (int64_t i = 0; good && i < counts[rank]; i++) {
        if (!tshi_is(dtype, tshi_data(out), i, tshi_value(dtype, TSH_REDUCE_SUM, 0, start + i))) {
            good = wrong(r, "scatter", out, i);
        }
    }
    tsh_tensor_release(out);
    tsh_tensor_release(in);
    return good;
}

/* --- a tensor for each rank --------------------------------------------------------------------------------------- */

/* p vectors of counts[i] elements, NULL and a note on failure. */
static bool list_make(tshi_rank *r, tsh_group *group, tsh_dtype dtype, const int64_t *counts, tsh_tensor **list) {
    bool good = true;
    for (int i = 0; i < tsh_group_size(group); i++) {
        list[i] = vector_on(r, group, dtype, counts[i]);
        good = good && list[i];
    }
    return good;
}

static void list_free(const tsh_group *group, tsh_tensor **list) {
    for (int i = 0; i < tsh_group_size(group); i++) tsh_tensor_release(list[i]);
}

/* x holds what rank's whole has from `first` on. */
static bool holds(tshi_rank *r, const char *op, const tsh_tensor *x, tsh_reduce_op reduce, int rank, int64_t first) {
    for (int64_t i = 0; i < x->numel; i++) {
        if (!tshi_is(x->dtype, tshi_data(x), i, tshi_value(x->dtype, reduce, rank, first + i))) {
            return wrong(r, op, x, i);
        }
    }
    return true;
}

static bool try_gather_list(tshi_rank *r, tsh_group *group, tsh_dtype dtype, const int64_t *counts) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    tsh_tensor *outs[MOST_RANKS], *in = vector_on(r, group, dtype, counts[rank]);
    bool good = list_make(r, group, dtype, counts, outs) && in;
    if (good) put_values(in, TSH_REDUCE_SUM, rank, 0);
    good = good && tshi_check_ok(r, all_gather_list(group, outs, in));
    for (int i = 0; good && i < p; i++) good = holds(r, "all_gather_list", outs[i], TSH_REDUCE_SUM, i, 0);
    list_free(group, outs);
    tsh_tensor_release(in);
    return good;
}

static bool try_scatter_list(tshi_rank *r, tsh_group *group, tsh_dtype dtype, const int64_t *counts) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    tsh_tensor *ins[MOST_RANKS], *out = vector_on(r, group, dtype, counts[rank]);
    bool good = list_make(r, group, dtype, counts, ins) && out;
    for (int i = 0; good && i < p; i++) put_values(ins[i], TSH_REDUCE_SUM, rank, start_of(counts, i));
    good = good && tshi_check_ok(r, reduce_scatter_list(group, out, ins, TSH_REDUCE_SUM));
    for (int64_t i = 0; good && i < counts[rank]; i++) {
        tshi_number wanted = reduced(dtype, TSH_REDUCE_SUM, p, start_of(counts, rank) + i);
        if (!tshi_is(dtype, tshi_data(out), i, wanted)) good = wrong(r, "reduce_scatter_list", out, i);
    }
    for (int i = 0; good && i < p; i++) {
        good = holds(r, "reduce_scatter_list's input", ins[i], TSH_REDUCE_SUM, rank, start_of(counts, i));
    }
    list_free(group, ins);
    tsh_tensor_release(out);
    return good;
}

static bool try_exchange_list(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int64_t in_counts[MOST_RANKS] = {0}, out_counts[MOST_RANKS] = {0};
    tsh_tensor *ins[MOST_RANKS], *outs[MOST_RANKS];
    for (int i = 0; i < p; i++) {
        in_counts[i] = sent(n, p, rank, i, true);
        out_counts[i] = sent(n, p, i, rank, true);
    }
    bool good = list_make(r, group, dtype, in_counts, ins);
    good = list_make(r, group, dtype, out_counts, outs) && good;
    for (int i = 0; good && i < p; i++) put_values(ins[i], TSH_REDUCE_SUM, rank, 1000 * i);
    good = good && tshi_check_ok(r, all_to_all_list(group, outs, ins));
    for (int i = 0; good && i < p; i++) good = holds(r, "all_to_all_list", outs[i], TSH_REDUCE_SUM, i, 1000 * rank);
    list_free(group, ins);
    list_free(group, outs);
    return good;
}

bool tshi_try_lists(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread) {
    int64_t counts[MOST_RANKS];
    spread_counts(spread, n, tsh_group_size(group), counts);
    return try_gather_list(r, group, dtype, counts) && try_scatter_list(r, group, dtype, counts) &&
           try_exchange_list(r, group, dtype, n);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* Every other rank receives first, so that the ring is not closed by senders that all wait. */
static bool pass_on(tshi_rank *r, tsh_group *group, const tsh_tensor *out, tsh_tensor *in) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    int next = (rank + 1) % p, before = (rank + p - 1) % p;
    tsh_work *sending = NULL, *receiving = NULL;
    if (started) {
        bool good = tshi_check_ok(r, tsh_send_async(group, out, next, &sending)) &&
                    tshi_check_ok(r, tsh_recv_async(group, in, before, &receiving));
        good = tshi_check_ok(r, end_of(good ? TSH_OK : TSH_ERR_STATE, &receiving)) && good;
        return tshi_check_ok(r, end_of(good ? TSH_OK : TSH_ERR_STATE, &sending)) && good;
    }
    bool first = rank % 2 == 0;
    if (first && !tshi_check_ok(r, tsh_send(group, out, next))) return false;
    if (!tshi_check_ok(r, tsh_recv(group, in, before, NULL))) return false;
    return first || tshi_check_ok(r, tsh_send(group, out, next));
}

bool tshi_try_messages(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n) {
    int p = tsh_group_size(group), rank = tsh_group_rank(group);
    tsh_tensor *out = vector_on(r, group, dtype, n), *in = vector_on(r, group, dtype, n);
    bool good = out && in;
    if (good) put_values(out, TSH_REDUCE_SUM, rank, 0);
    good = good && pass_on(r, group, out, in) && holds(r, "recv", in, TSH_REDUCE_SUM, (rank + p - 1) % p, 0);
    tsh_tensor_release(out);
    tsh_tensor_release(in);
    return good;
}

static bool try_roots(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n) {
    bool good = true;
    for (int root = 0; good && root < tsh_group_size(group); root++) {
        for (int op = 0; good && op < TSH_REDUCE_OP_COUNT; op++) {
            if (!tsh_group_supports(group, TSH_COLLECTIVE_REDUCE, dtype, (tsh_reduce_op)op)) continue;
            good = tshi_try_reduce(r, group, dtype, (tsh_reduce_op)op, n, root);
        }
        for (int s = 0; good && s < 2 * TSHI_SPREAD_COUNT; s++) {
            good = tshi_try_gather(r, group, dtype, n, (tshi_spread)(s / 2), s % 2, root) &&
                   tshi_try_scatter(r, group, dtype, n, (tshi_spread)(s / 2), s % 2, root);
        }
    }
    return good;
}

bool tshi_try_all(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n) {
    bool good = true;
    for (int op = 0; good && op < TSH_REDUCE_OP_COUNT; op++) {
        if (!tsh_group_supports(group, TSH_COLLECTIVE_ALL_REDUCE, dtype, (tsh_reduce_op)op)) continue;
        good = tshi_try_all_reduce(r, group, dtype, (tsh_reduce_op)op, n);
        for (int s = 0; good && s < 2 * TSHI_SPREAD_COUNT; s++) {
            good = tshi_try_reduce_scatter(r, group, dtype, (tsh_reduce_op)op, n, (tshi_spread)(s / 2), s % 2);
        }
    }
    for (int s = 0; good && s < 2 * TSHI_SPREAD_COUNT; s++) {
        good = tshi_try_all_gather(r, group, dtype, n, (tshi_spread)(s / 2), s % 2);
    }
    for (int root = 0; good && root < tsh_group_size(group); root++) {
        good = tshi_try_broadcast(r, group, dtype, n, root);
    }
    good = good && try_roots(r, group, dtype, n);
    good = good && tshi_try_all_to_all(r, group, dtype, n, false) && tshi_try_all_to_all(r, group, dtype, n, true);
    for (int s = 0; good && s < TSHI_SPREAD_COUNT; s++) good = tshi_try_lists(r, group, dtype, n, (tshi_spread)s);
    if (tsh_group_size(group) > 1) good = good && tshi_try_messages(r, group, dtype, n);
    return good && tshi_check_ok(r, barrier(group));
}
