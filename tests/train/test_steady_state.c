/* A training step that has run before allocates nothing: neither by malloc nor for tensors. */
#include "support/mallocs.h"

#include "support/language.h"
#include "support/ranks.h"

#include <criterion/criterion.h>

enum { WARM_UP = 3, STEPS = 10 };

static void one_step(tshi_rank *r, tshi_language *l) {
    double loss, norm;
    char words[TSHI_TEST_WORDS] = "";
    tsh_status status = tshi_language_gradients(l, &loss, &norm, words);
    tshi_check(r, status == TSH_OK, "%s", words);
    tshi_check_ok(r, tshi_language_update(l));
}

typedef struct setting {
    const char *axes;
    tsh_zero_level level;
    bool recompute;
} setting;

static void steps(tshi_rank *r, void *arg) {
    const setting *s = arg;
    tshi_language l;
    if (!tshi_check_ok(r, tshi_language_create_sharded(r->world, s->axes, s->level, &l))) return;
    l.recompute = s->recompute;
    int64_t before = mallocs;
    for (int i = 0; i < WARM_UP; i++) one_step(r, &l);
    tshi_check(r, mallocs > before, "the counter does not count: the first step takes memory for its tape");
    before = mallocs;
    tsh_memory_stats start = tsh_device_stats(tsh_world_device(r->world));
    for (int i = 0; i < STEPS; i++) one_step(r, &l);
    tsh_memory_stats end = tsh_device_stats(tsh_world_device(r->world));
    tshi_check(r, mallocs == before, "%d steps made %lld calls of malloc", STEPS, (long long)(mallocs - before));
    tshi_check(r, end.allocations == start.allocations, "%d steps took new tensor memory %llu times", STEPS,
               (unsigned long long)(end.allocations - start.allocations));
    tshi_check(r, end.requests > start.requests, "no tensor was made in %d steps", STEPS);
    tshi_check(r, end.bytes_in_use == start.bytes_in_use, "%zu bytes in use became %zu", start.bytes_in_use,
               end.bytes_in_use);
    tshi_language_destroy(&l);
}

Test(steady_state, one_rank_takes_no_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, steps, &(setting){"data=1,model=1", TSH_ZERO_NOTHING, false}));
}

Test(steady_state, two_ranks_take_no_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, steps, &(setting){"data=1,model=2", TSH_ZERO_NOTHING, false}));
}

Test(steady_state, a_mesh_of_four_takes_no_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, steps, &(setting){"data=2,model=2", TSH_ZERO_NOTHING, false}));
}

Test(steady_state, sharded_ranks_take_no_memory, .timeout = 120) {
    for (int level = TSH_ZERO_OPTIMIZER; level <= TSH_ZERO_PARAMETERS; level++) {
        setting s = {"data=2,model=2", (tsh_zero_level)level, false};
        cr_assert_str_empty(tshi_test_run(4, steps, &s));
    }
}

Test(steady_state, segments_that_run_again_take_no_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, steps, &(setting){"data=2,model=2", TSH_ZERO_NOTHING, true}));
    cr_assert_str_empty(tshi_test_run(2, steps, &(setting){"data=2,model=1", TSH_ZERO_GRADIENTS, true}));
    cr_assert_str_empty(tshi_test_run(2, steps, &(setting){"data=2,model=1", TSH_ZERO_PARAMETERS, true}));
}
