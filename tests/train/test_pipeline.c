/* Pipelines: stages on meshes of their own, micro-batches on one tape, and the rank that fails, dies or stops. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/world.h"
#include "support/clock.h"
#include "support/pipeline.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(pipeline, .timeout = 300);

/* --- equal to one rank -------------------------------------------------------------------------------------------- */

static tshi_pipeline_config small(int stages, int data, int model, int micro_batches) {
    return (tshi_pipeline_config){.stages = stages,
                                  .data = data,
                                  .model = model,
                                  .micro_batches = micro_batches,
                                  .rows = 7,
                                  .features = 4,
                                  .hidden = 5};
}

static void every_order(tshi_rank *r, void *arg) {
    tshi_pipeline_config c = *(tshi_pipeline_config *)arg;
    for (c.micro_batches = 1; c.micro_batches <= 5 && !r->failed; c.micro_batches++) {
        for (int way = 0; way < 4 && !r->failed; way++) {
            c.forwards_first = way & 1;
            c.sums = way & 2;
            tshi_pipeline_check_step(r, &c);
        }
    }
}

static void check_shapes(int data) {
    for (int stages = 1; stages <= 3; stages++) {
        for (int model = 1; model <= 2; model++) {
            tshi_pipeline_config c = small(stages, data, model, 0);
            const char *words = tshi_test_run(stages * data * model, every_order, &c);
            cr_assert_str_empty(words, "%d stages, model=%d: %s", stages, model, words);
        }
    }
}

Test(pipeline, has_the_gradients_of_one_rank) {
    check_shapes(1);
}

/* Micro-batches of 1 row leave one of two ranks without any. */
Test(pipeline, has_them_with_data_parallelism_too) {
    check_shapes(2);
}

/* --- memory and messages ------------------------------------------------------------------------------------------ */

/* The most bytes that a step has in use beyond those before it. */
static size_t step_bytes(tshi_rank *r, const tshi_pipeline_config *c) {
    tsh_device *device = tsh_world_device(r->world);
    tshi_pipeline p = {.before = NULL};
    size_t bytes = 0;
    if (tshi_pipeline_open(r, c, &p)) {
        for (int step = 0; step < 2; step++) { /* the first one makes the gradients of parameters */
            size_t before = tsh_device_stats(device).bytes_in_use;
            tsh_device_reset_peak(device);
            tshi_check_ok(r, tshi_pipeline_gradients(&p));
            tshi_check_ok(r, tsh_tape_reset(p.tape));
            bytes = tsh_device_stats(device).bytes_peak - before;
        }
    }
    tshi_pipeline_close(&p);
    return bytes;
}

static tshi_pipeline_config large(int stages, int micro_batches) {
    return (tshi_pipeline_config){.stages = stages,
                                  .data = 1,
                                  .model = 1,
                                  .micro_batches = micro_batches,
                                  .rows = 200 * micro_batches,
                                  .features = 8,
                                  .hidden = 64};
}

/* Stage s of S holds at most S - s micro-batches, and of messages that a receiver has not taken yet one for each of
 * those and for each of those that the stage before holds. */
static void holds_few(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_pipeline_config one = large(3, 1), many = large(3, 8), all = many;
    all.forwards_first = true;
    size_t most = step_bytes(r, &one), got = step_bytes(r, &many), without = step_bytes(r, &all);
    size_t held = (size_t)(3 - r->rank), message = 200 * 8 * sizeof(double) + 64;
    tshi_check(r, got <= held * most + (2 * held + 1) * message, "rank %d: %zu bytes of 8 micro-batches, %zu of one",
               r->rank, got, most);
    tshi_check(r, without > 5 * most, "rank %d: %zu bytes of all forwards, %zu of one", r->rank, without, most);
    tsh_barrier(tsh_world_group(r->world));
}

Test(pipeline, holds_as_many_micro_batches_as_stages_follow) {
    cr_assert_str_empty(tshi_test_run(3, holds_few, NULL));
}

/* No stage waits for one that it sends to, in either order: 2 MiB are more than any backend sends before it is
 * asked. */
static void large_messages(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_pipeline_config c = {
        .stages = 3, .data = 1, .model = 1, .micro_batches = 4, .rows = 4 * 65536, .features = 4, .hidden = 1};
    for (int way = 0; way < 2; way++) {
        c.forwards_first = way;
        step_bytes(r, &c);
    }
}

Test(pipeline, waits_for_no_receiver) {
    cr_assert_str_empty(tshi_test_run(3, large_messages, NULL));
}

/* A step needs new memory only where more messages than in any step before wait for their receivers. */
static void steady(tshi_rank *r, void *arg) {
    tshi_pipeline p = {.before = NULL};
    tshi_pipeline_config c = small(2, 1, 2, 5);
    uint64_t allocations = 0;
    int late = 0;
    (void)arg;
    if (tshi_pipeline_open(r, &c, &p)) {
        for (int step = 0; step < 50; step++) {
            tshi_check_ok(r, tshi_pipeline_gradients(&p));
            tshi_check_ok(r, tsh_optimizer_step(p.optimizer));
            tsh_optimizer_zero_grad(p.optimizer);
            tshi_check_ok(r, tsh_tape_reset(p.tape));
            uint64_t now = tsh_device_stats(tsh_world_device(r->world)).allocations;
            late += step > 1 && now > allocations;
            allocations = now;
        }
        tshi_check(r, late < 10, "%d of 50 steps needed new memory", late);
    }
    tshi_pipeline_close(&p);
}

Test(pipeline, needs_no_new_memory_in_a_steady_step) {
    cr_assert_str_empty(tshi_test_run(4, steady, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* A rank of two stages of two ranks fails, or gets a signal, before it begins micro-batch m. */
typedef struct story {
    int rank, m, signal;
} story;

static void strike(tshi_pipeline *p, int m, void *arg) {
    const story *s = arg;
    if (p->r->rank != s->rank || m != s->m) return;
    if (s->signal)
        raise(s->signal);
    else
        tsh_reshape(p->tape, p->x[0], 1, (int64_t[]){1000});
}

/* The step fails on all ranks with the words of the one, and the next step has the right gradients. */
static void fails(tshi_rank *r, void *arg) {
    const story *s = arg;
    char words[32];
    tshi_pipeline p = {.before = NULL}, alone = {.before = NULL};
    tshi_pipeline_config c = small(2, 1, 2, 4);
    snprintf(words, sizeof words, "rank %d: reshape", s->rank);
    if (tshi_pipeline_open(r, &c, &p) && tshi_pipeline_open_alone(r, &c, &alone) &&
        tshi_check_ok(r, tshi_pipeline_gradients(&alone))) {
        double start = tshi_now();
        p.before = strike;
        p.arg = arg;
        tshi_check_status(r, tshi_pipeline_gradients(&p), r->rank == s->rank ? TSH_ERR_SHAPE : TSH_ERR_PEER, words);
        tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
        tshi_check_ok(r, tsh_tape_reset(p.tape));
        p.before = NULL;
        tsh_optimizer_zero_grad(p.optimizer);
        tshi_check_ok(r, tshi_pipeline_gradients(&p));
        tshi_pipeline_check_gradients(&p, &alone, 0);
        tshi_check_ok(r, tsh_tape_reset(p.tape));
    }
    tshi_pipeline_close(&alone);
    tshi_pipeline_close(&p);
}

Test(pipeline, fails_on_all_ranks_and_goes_on) {
    for (int rank = 0; rank < 4; rank++) {
        for (int m = 0; m < 4; m += 3) {
            story s = {rank, m, 0};
            const char *words = tshi_test_run(4, fails, &s);
            cr_assert_str_empty(words, "rank %d fails before micro-batch %d: %s", rank, m, words);
        }
    }
}

/* A rank that fails when the other stages have ended their backwards: the norm, which all ranks sum, says so before an
 * optimizer's step that some would take and some not. */
static void fails_late(tshi_rank *r, void *arg) {
    tshi_pipeline p = {.before = NULL};
    tshi_pipeline_config c = small(2, 1, 2, 4);
    (void)arg;
    if (tshi_pipeline_open(r, &c, &p) && tshi_check_ok(r, tshi_pipeline_gradients(&p)) &&
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)))) {
        if (r->rank == 1)
            tsh_reshape(p.tape, p.x[0], 1, (int64_t[]){1000});
        else
            tshi_check_status(r, tsh_clip_grad_norm(p.list, 1, NULL), TSH_ERR_PEER, "rank 1: reshape");
        tshi_check_ok(r, tsh_tape_reset(p.tape));
        tsh_optimizer_zero_grad(p.optimizer);
        tshi_check_ok(r, tshi_pipeline_gradients(&p));
        tshi_check_ok(r, tsh_clip_grad_norm(p.list, 1, NULL));
        tshi_check_ok(r, tsh_tape_reset(p.tape));
    }
    tshi_pipeline_close(&p);
}

Test(pipeline, steps_on_all_stages_or_none) {
    cr_assert_str_empty(tshi_test_run(4, fails_late, NULL));
}

static void is_lost(tshi_rank *r, void *arg) {
    const story *s = arg;
    char words[32];
    tshi_pipeline p = {.before = NULL};
    tshi_pipeline_config c = small(2, 1, 2, 4);
    snprintf(words, sizeof words, "rank %d ", s->rank);
    if (!tshi_pipeline_open(r, &c, &p)) return;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    r->world->timeout = s->signal == SIGSTOP ? 0.3 : r->world->timeout;
    p.before = strike;
    p.arg = arg;
    double start = tshi_now();
    tsh_status status = tshi_pipeline_gradients(&p);
    tshi_check(r, status == TSH_ERR_PEER || status == TSH_ERR_TIMEOUT, "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_tape_message(p.tape), words), "%s", tsh_tape_message(p.tape));
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
    tshi_pipeline_close(&p);
}

static void expect_lost(int signal) {
    for (int rank = 0; rank < 4; rank++) {
        for (int m = 0; m < 4; m += 3) {
            story s = {rank, m, signal};
            tshi_outcome outcomes[4];
            tshi_test_options options = {.ranks = 4};
            tshi_test_run_with(&options, is_lost, &s, outcomes, NULL);
            for (int i = 0; i < 4; i++) {
                if (i == rank)
                    cr_assert_eq(outcomes[i].signal, SIGKILL);
                else
                    cr_assert_str_empty(outcomes[i].words, "rank %d, signal %d to rank %d before micro-batch %d: %s", i,
                                        signal, rank, m, outcomes[i].words);
            }
        }
    }
}

Test(pipeline, ends_when_a_rank_is_killed) {
    expect_lost(SIGKILL);
}

Test(pipeline, ends_when_a_rank_is_stopped) {
    expect_lost(SIGSTOP);
}
