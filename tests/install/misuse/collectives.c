/* Calls that the ranks do not make alike, or that cannot be made. */
#include "misuse.h"

#include <stdlib.h>
#include <unistd.h>

static void different_calls(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 1, 4, 0);
    say(j->rank ? tsh_barrier(j->group) : tsh_all_reduce(j->group, x, TSH_REDUCE_SUM));
}

static void different_order(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 1, 4, 0);
    for (int i = 0; i < 2; i++)
        say(i == j->rank ? tsh_broadcast(j->group, x, 0) : tsh_all_reduce(j->group, x, TSH_REDUCE_SUM));
}

static void different_sizes(job *j) {
    say(tsh_all_reduce(j->group, ones(j, TSH_FLOAT32, 1, 4 + j->rank, 0), TSH_REDUCE_SUM));
}

static void different_dtypes(job *j) {
    say(tsh_all_reduce(j->group, ones(j, j->rank ? TSH_FLOAT32 : TSH_INT32, 1, 4, 0), TSH_REDUCE_SUM));
}

static void different_roots(job *j) {
    say(tsh_broadcast(j->group, ones(j, TSH_FLOAT32, 1, 4, 0), j->rank));
}

static void one_returns(job *j) {
    if (!j->rank) say(tsh_barrier(j->group));
}

static void one_exits(job *j) {
    if (j->rank) _exit(0);
    say(tsh_barrier(j->group));
}

static void one_fails(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 2, 2, 2);
    tsh_tensor *y = j->rank ? tsh_add(j->tape, x, NULL) : x;
    if (!j->rank) say(tsh_all_reduce(j->group, y, TSH_REDUCE_SUM));
}

static void one_is_late(job *j) {
    if (j->rank) usleep(1500000);
    say(tsh_barrier(j->group));
}

static void one_is_slow(job *j) {
    if (j->rank) usleep(800000);
    say(tsh_barrier(j->group));
}

static void root_out_of_range(job *j) {
    say(tsh_broadcast(j->group, ones(j, TSH_FLOAT32, 1, 4, 0), 7));
}

static void counts_of_less(job *j) {
    const int64_t counts[] = {1, 1};
    say(tsh_all_gather_into_tensor(j->group, ones(j, TSH_FLOAT32, 1, 1, 0), ones(j, TSH_FLOAT32, 1, 4, 0), counts));
}

static void no_work(job *j) {
    say(tsh_all_reduce_async(j->group, ones(j, TSH_FLOAT32, 1, 4, 0), TSH_REDUCE_SUM, NULL));
}

static void no_tensor(job *j) {
    say(tsh_all_reduce(j->group, NULL, TSH_REDUCE_SUM));
}

static void no_group(job *j) {
    say(tsh_all_reduce(NULL, ones(j, TSH_FLOAT32, 1, 4, 0), TSH_REDUCE_SUM));
}

static void bits_of_floats(job *j) {
    say(tsh_all_reduce(j->group, ones(j, TSH_FLOAT32, 1, 4, 0), TSH_REDUCE_BAND));
}

static void send_to_none(job *j) {
    say(tsh_send(j->group, ones(j, TSH_FLOAT32, 1, 4, 0), 9));
}

const misuse collective_rows[] = {
    {"different_calls", TWO, "", "TSH_ERR_MISMATCH", different_calls, false},
    {"different_order", TWO, "", "broadcast float32 [4] root 0 #2", different_order, false},
    {"different_sizes", TWO, "", "all_reduce float32 [5] sum #2", different_sizes, false},
    {"different_dtypes", TWO, "", "all_reduce int32 [4] sum #2", different_dtypes, false},
    {"different_roots", TWO, "", "broadcast float32 [4] root 1 #2", different_roots, false},
    {"one_returns_early", TWO, "", "rank 1 has left the world; barrier #2 waits for it", one_returns, false},
    {"one_exits", TWO, "", "rank 1", one_exits, false},
    {"one_fails", TWO, "", "rank 1: add: input 1 is NULL", one_fails, false},
    {"one_is_late", TWO, "TSHARD_TIMEOUT=0.5", "TSH_ERR_TIMEOUT", one_is_late, false},
    {"one_is_slow", TWO, "TSHARD_WARN=0.2", "s for rank 1", one_is_slow, false},
    {"root_out_of_range", BOTH, "", "broadcast: ", root_out_of_range, false},
    {"counts_of_less", BOTH, "", "all_gather: the counts add up to", counts_of_less, false},
    {"no_work", BOTH, "", "all_reduce: work is NULL", no_work, false},
    {"no_tensor", BOTH, "", "all_reduce: tensor is NULL", no_tensor, false},
    {"call_without_group", BOTH, "", "all_reduce: group is NULL", no_group, false},
    {"bits_of_floats", BOTH, "", "band is for integers, not for float32", bits_of_floats, false},
    {"send_to_none", BOTH, "", "send: ", send_to_none, false},
    {0}};
