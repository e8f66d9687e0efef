#define _POSIX_C_SOURCE 200809L
#include "program.h"
#include "train_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What one rank says about the training: a line now and then, and on a terminal a last line that is always fresh. */
typedef struct report {
    const options *o;
    int ranks;
    bool speaks, terminal;
    double start, last_line, last_progress; /* times */
    int64_t first_step, line_step;          /* of this run, of the last line */
    double loss_sum;                        /* since then */
} report;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void print_progress(FILE *file, const report *r, int64_t step, double loss, double tokens_per_s) {
    double left = (now() - r->start) / (double)(step - r->first_step) * (double)(r->o->steps - step);
    fprintf(file, "step %*lld/%lld   loss %.4f   %6.0f tokens/s   %.0f s left",
            snprintf(NULL, 0, "%lld", (long long)r->o->steps), (long long)step, (long long)r->o->steps, loss,
            tokens_per_s, left);
}

static void report_step(report *r, int64_t step, double loss) {
    if (!r->speaks) return;
    int64_t every = r->o->json || r->o->steps < 20 ? 1 : r->o->steps / 20;
    r->loss_sum += loss;
    double time = now(), since = (double)(step - r->line_step);
    double tokens_per_s = since * (double)r->o->batch / fmax(time - r->last_line, 1e-9);
    if (r->terminal && (time - r->last_progress > 0.2 || step == r->o->steps)) {
        fputs("\r\033[K", stderr);
        if (step < r->o->steps) print_progress(stderr, r, step, r->loss_sum / since, tokens_per_s);
        fflush(stderr);
        r->last_progress = time;
    }
    if (step % every != 0 && step != r->o->steps) return;
    if (r->terminal) fputs("\r\033[K", stderr);
    if (r->o->json) {
        printf("{\"step\": %lld, \"loss\": %.9g, \"tokens_per_s\": %.1f, \"ranks\": %d}\n", (long long)step,
               r->loss_sum / since, tokens_per_s, r->ranks);
    } else {
        print_progress(stdout, r, step, r->loss_sum / since, tokens_per_s);
        putchar('\n');
    }
    r->loss_sum = 0;
    r->line_step = step;
    r->last_line = time;
}

/* Fill inputs [batch, context] and targets [batch] with the step's windows of the text and the symbols that follow
 * them. Which windows depends on the seed and their number alone, so any number of ranks sees the same batches. */
static void text_batch(const text *t, const options *o, int64_t step, int64_t *inputs, int64_t *targets) {
    for (int64_t b = 0; b < o->batch; b++) {
        uint64_t bits = random_bits(o->seed, (uint64_t)(step * o->batch + b));
        const unsigned char *window = t->symbols + bits % (uint64_t)(t->length - o->context);
        for (int64_t c = 0; c < o->context; c++) inputs[b * o->context + c] = window[c];
        targets[b] = window[o->context];
    }
}

/* The first twentieth up to the highest rate, then down to zero. */
static double rate_at(const options *o, int64_t step) {
    double done = (double)step / (double)o->steps;
    return o->lr * fmin(20 * (done + 1 / (double)o->steps), 1 - done);
}

static bool train(model *m, const text *t, const options *o, report *r) {
    int64_t *inputs = calloc((size_t)o->batch * (size_t)o->context, sizeof *inputs);
    int64_t *targets = calloc((size_t)o->batch, sizeof *targets);
    bool good = inputs && targets;
    if (!good) fprintf(stderr, "train_text: no memory for a batch\n");
    if (good && o->resume) good = model_load(m, t, &r->first_step);
    if (good && o->resume && r->speaks && !o->json) printf("resumed after step %lld\n", (long long)r->first_step);
    r->line_step = r->first_step;
    r->start = r->last_line = now();
    for (int64_t step = r->first_step; good && step < o->steps; step++) {
        double loss;
        text_batch(t, o, step, inputs, targets);
        good = model_step(m, inputs, targets, rate_at(o, step), &loss);
        if (good) report_step(r, step + 1, loss);
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
    report r = {.o = o, .ranks = tsh_world_size(world), .speaks = speaks, .terminal = speaks && isatty(STDERR_FILENO)};
    if (!text_read("train_text", o->text, o->context, tsh_world_rank(world), &t)) return false;
    if (speaks && !o->json) {
        printf("%lld bytes, %lld distinct; a loss of %.4f would be guessing\n", (long long)t.length,
               (long long)t.vocabulary, log((double)t.vocabulary));
    }
    model *m = model_create(world, o, t.vocabulary);
    bool good = m && train(m, &t, o, &r);
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
