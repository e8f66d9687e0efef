/* Ranks over NCCL's stand-in: threads, each with a GPU of its own, whose queues run as late as CUDA allows. */
#ifndef TSHARD_NCCL_RANKS_H
#define TSHARD_NCCL_RANKS_H

#include "dist/transport/nccl/nccl.h"
#include "standin/nccl.h"
#include "standin/standin.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* managed: in memory that the host may look into. */
static inline void begin(int gpus, bool managed) {
    setenv("TSHARD_TEST_DEVICE", "cuda", 1);
    setenv("TSHARD_CUDA_MANAGED", managed ? "1" : "0", 1);
    standin_reset();
    standin_lazy(true);
    standin_gpus(gpus);
}

static inline void expect_nothing_left(const char *where) {
    char text[256];
    standin_live(text, sizeof text);
    /* NCCL itself stays open, once it has been. */
    cr_assert(!text[0] || !strcmp(text, "1 library"), "%s leaves %s", where, text);
}

/* All checks hold, and everything has been given back. */
static inline void run_ranks(int ranks, bool managed, tshi_rank_fn *fn, void *arg) {
    begin(ranks, managed);
    const char *words = tshi_test_run_threads(ranks, fn, arg);
    cr_assert_str_empty(words, "%d ranks: %s", ranks, words);
    expect_nothing_left("a world");
}

/* The world of this configuration does not come about. */
static inline void no_world(tshi_rank *r, void *arg) {
    (void)r;
    (void)arg;
}

static inline bool sums(tshi_rank *r, tsh_group *group) {
    float got[3] = {0};
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float wanted = (float)tsh_group_size(group);
    tsh_tensor_fill(x, 1);
    bool good = tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM)) &&
                tshi_check_ok(r, tsh_tensor_read(x, got, 3)) &&
                tshi_check(r, got[2] == wanted, "%g, not %g", (double)got[2], (double)wanted);
    tsh_tensor_release(x);
    return good;
}

/* The nth call of `name` fails, once, for every n that is reached up to `most`: all ranks come to an end and leave
 * nothing. Returns the first n that is not reached, or most + 1. */
static inline uint64_t fail_each(const char *name, int most, tshi_rank_fn *life) {
    uint64_t n = 1;
    const tshi_test_options options = {.ranks = 2, .threads = true, .world_timeout = "10"};
    for (; n <= (uint64_t)most; n++) {
        begin(2, false);
        standin_fail(name, n, 0);
        const char *words = tshi_test_run_with(&options, life, NULL, NULL, NULL);
        cr_expect(!strstr(words, "not done within"), "%s, call %d: %s", name, (int)n, words);
        expect_nothing_left(name);
        if (!standin_failed()) break;
    }
    return n;
}

static inline void every_call_may_fail(const char *const *names, size_t count, int most, tshi_rank_fn *life) {
    for (size_t i = 0; i < count; i++) {
        cr_expect_gt(fail_each(names[i], most, life), 1, "%s is never called", names[i]);
    }
}

/* A message from each of two ranks to the other one: a life for every_call_may_fail. */
static inline void both_ways(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = NULL, *y = NULL;
    tsh_work *work = NULL;
    int64_t got[5];
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {5}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(r->world), &config, &x);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(r->world), &config, &y);
    if (status == TSH_OK) status = tsh_tensor_fill(x, r->rank + 1);
    if (status == TSH_OK) status = tsh_send_async(group, x, 1 - r->rank, &work);
    if (status == TSH_OK) status = tsh_recv(group, y, 1 - r->rank, NULL);
    if (status == TSH_OK) status = tsh_work_wait(work);
    if (status == TSH_OK) status = tsh_tensor_read(y, got, 5);
    if (status == TSH_OK) tshi_check(r, got[4] == 2 - r->rank, "%lld", (long long)got[4]);
    if (status != TSH_OK) tsh_world_fail(r->world, tsh_error_message());
    tshi_check_ok(r, status);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

static inline void nap(long microseconds) {
    const struct timespec time = {.tv_nsec = 1000 * microseconds};
    nanosleep(&time, NULL);
}

#endif
