/* Training with ranks as threads, for ThreadSanitizer and for memory checkers of one process. The losses are those of
 * one rank, and a rank that fails in the middle of a step stops no other rank. */
#include "support/language.h"
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8, MISTAKE = 5 };

typedef struct losses {
    const char *axes;
    double loss[STEPS];
} losses;

/* Rank 0's part of a step that it cannot finish. */
static void fail(tshi_rank *r, tshi_language *l) {
    tsh_embedding_forward(l->tape, l->embedding, l->inputs);
    tsh_linear_forward(l->tape, l->up, l->inputs);
    tshi_check(r, tsh_tape_status(l->tape) == TSH_ERR_SHAPE, "%s", tsh_tape_message(l->tape));
    tshi_check_ok(r, tsh_tape_reset(l->tape));
}

/* Everybody else's. */
static void notice(tshi_rank *r, tshi_language *l) {
    double loss, norm;
    char words[TSHI_TEST_WORDS] = "";
    tsh_status status = tshi_language_gradients(l, &loss, &norm, words);
    tshi_check(r, status == TSH_ERR_PEER && strstr(words, "rank 0: linear_forward"), "%s", words);
}

static void train(tshi_rank *r, void *argument) {
    losses *all = argument;
    tshi_language l;
    char words[TSHI_TEST_WORDS] = "";
    if (!tshi_check_ok(r, tshi_language_create(r->world, all->axes, &l))) return;
    for (int i = 0; i < STEPS && !r->failed; i++) {
        double loss, norm;
        if (i == MISTAKE && r->size > 1) {
            /* A failure reaches calls under way: no rank may be in the step before. */
            tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
            (r->rank == 0 ? fail : notice)(r, &l);
        }
        tsh_status status = tshi_language_gradients(&l, &loss, &norm, words);
        tshi_check(r, status == TSH_OK, "step %d: %s", i, words);
        tshi_check_ok(r, tshi_language_update(&l));
        if (r->rank == 0) all->loss[i] = loss;
    }
    tshi_language_destroy(&l);
}

static void run(int ranks, losses *all) {
    const char *words = tshi_test_run_threads(ranks, train, all);
    if (!words[0]) return;
    fprintf(stderr, "%d ranks: %s\n", ranks, words);
    exit(EXIT_FAILURE);
}

static void compare(int ranks, const losses *all, const losses *one) {
    for (int i = 0; i < STEPS; i++) {
        if (fabs(all->loss[i] - one->loss[i]) <= 1e-5 * one->loss[i]) continue;
        fprintf(stderr, "step %d: a loss of %.9g on %d ranks, %.9g on one\n", i, all->loss[i], ranks, one->loss[i]);
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    losses one = {.axes = "data=1,model=1"}, two = {.axes = "data=1,model=2"}, four = {.axes = "data=2,model=2"};
    run(1, &one);
    run(2, &two);
    run(4, &four);
    compare(2, &two, &one);
    compare(4, &four, &one);
    return EXIT_SUCCESS;
}
