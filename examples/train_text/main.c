/* train_text: trains a language model of bytes. Batches, the loop of training, and the text that it writes. */
#include "program.h"
#include "progress.h"
#include "resume.h"
#include "train_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fill inputs [batch, context] and targets [batch] with the step's windows of the text and the symbols that follow
 * them. An epoch has a window at each byte, in a shuffled order, the same at any number of ranks. */
static void text_batch(const text *t, const options *o, int64_t step, int64_t *inputs, int64_t *targets) {
    const tsh_batches windows = {.items = t->length - o->context, .batch = o->batch, .seed = o->seed};
    for (int64_t b = 0; b < o->batch; b++) {
        const unsigned char *window = t->symbols + tsh_batches_item(&windows, step * o->batch + b);
        for (int64_t c = 0; c < o->context; c++) inputs[b * o->context + c] = window[c];
        targets[b] = window[o->context];
    }
}

/* The first twentieth up to the highest rate, then down to zero. */
static double rate_at(const options *o, int64_t step) {
    double done = (double)step / (double)o->steps;
    return o->lr * fmin(20 * (done + 1 / (double)o->steps), 1 - done);
}

static bool train(model *m, const text *t, const options *o, progress *p) {
    int64_t *inputs = calloc((size_t)o->batch * (size_t)o->context, sizeof *inputs);
    int64_t *targets = calloc((size_t)o->batch, sizeof *targets);
    bool good = inputs && targets;
    if (!good) fprintf(stderr, "train_text: no memory for a batch\n");
    int64_t first_step = 0;
    if (good && o->resume) good = model_load(m, t, &first_step);
    if (good && o->resume && p->speaks && !o->json) printf("resumed after step %lld\n", (long long)first_step);
    progress_begin(p, first_step);
    for (int64_t step = first_step; good && step < o->steps; step++) {
        double loss;
        text_batch(t, o, step, inputs, targets);
        good = model_step(m, inputs, targets, rate_at(o, step), &loss);
        if (good) progress_step(p, step + 1, loss);
        bool due = o->save && ((step + 1) % o->every == 0 || step + 1 == o->steps);
        if (good && due) good = model_save(m, t, step + 1);
    }
    good = model_finish_save(m) && good;
    free(inputs);
    free(targets);
    return good;
}

static int64_t draw(const float *probabilities, int64_t n, double uniform) {
    int64_t chosen = 0;
    for (; chosen < n - 1 && uniform >= (double)probabilities[chosen]; chosen++)
        uniform -= (double)probabilities[chosen];
    return chosen;
}

/* Continue the text from its first bytes. Every rank predicts with the same random numbers; one rank prints. */
static bool write_text(model *m, const text *t, const options *o, bool speaks) {
    int64_t *window = calloc((size_t)o->context, sizeof *window);
    bool good = window != NULL;
    if (good && speaks) printf("\nIt goes on from the text's first %lld bytes:\n\n", (long long)o->context);
    for (int64_t i = 0; good && i < o->context; i++) {
        window[i] = t->symbols[i];
        if (speaks) putchar(t->letter[window[i]]);
    }
    for (int64_t i = 0; good && i < o->sample; i++) {
        const float *probabilities = model_predict(m, window);
        good = probabilities != NULL;
        if (!good) break;
        double uniform = (double)(random_bits(~o->seed, (uint64_t)i) >> 11) * 0x1p-53;
        int64_t symbol = draw(probabilities, t->vocabulary, uniform);
        memmove(window, window + 1, (size_t)(o->context - 1) * sizeof *window);
        window[o->context - 1] = symbol;
        if (speaks) putchar(t->letter[symbol]);
    }
    if (good && speaks) putchar('\n');
    free(window);
    return good;
}

static bool run(tsh_world *world, const options *o) {
    text t;
    bool speaks = tsh_world_rank(world) == 0;
    progress p = {.unit = "tokens",
                  .per_step = o->batch,
                  .steps = o->steps,
                  .ranks = tsh_world_size(world),
                  .json = o->json,
                  .speaks = speaks};
    if (!text_read("train_text", world, o->text, o->context, &t)) return false;
    if (speaks && !o->json) {
        printf("%lld bytes, %lld distinct; a loss of %.4f would be guessing\n", (long long)t.length,
               (long long)t.vocabulary, log((double)t.vocabulary));
    }
    model *m = model_create(world, o, t.vocabulary);
    bool good = m && (!o->save || run_can_save("train_text", o->save)) && train(m, &t, o, &p);
    if (good && !o->json && o->sample > 0) good = write_text(m, &t, o, speaks);
    model_destroy(m);
    text_free(&t);
    return good;
}

int main(int argc, char **argv) {
    options o;
    tsh_world *world = program_begin("train_text");
    if (!world) return 1;
    int code = options_parse(argc, argv, tsh_world_rank(world) == 0, &o);
    if (code < 0) code = run(world, &o) ? 0 : 1;
    return program_end("train_text", world, code);
}
