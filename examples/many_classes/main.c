#define _POSIX_C_SOURCE 200809L
#include "many_classes.h"
#include "program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct run {
    const options *o;
    model *m;
    tsh_world *world;
    float *x;        /* [batch, inputs] */
    int64_t *labels; /* [batch] */
    double *times;   /* [2, steps] seconds: of steps, of their matrix products alone */
    bool speaks, terminal;
    double start, last_progress, loss_sum; /* the last since the last line */
    int64_t line_step;
    double accuracy, best;
} run;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* --- what is printed ---------------------------------------------------------------------------------------------- */

static void print_progress(FILE *file, const run *r, int64_t step, double loss) {
    double spent = now() - r->start;
    fprintf(file, "step %*lld/%lld   loss %.4f   %6.0f samples/s   %.0f s left",
            snprintf(NULL, 0, "%lld", (long long)r->o->steps), (long long)step, (long long)r->o->steps, loss,
            (double)(step * r->o->batch) / fmax(spent, 1e-9), spent / (double)step * (double)(r->o->steps - step));
}

static void report_step(run *r, int64_t step, double loss) {
    int64_t every = r->o->json || r->o->steps < 20 ? 1 : r->o->steps / 20;
    r->loss_sum += loss;
    if (!r->speaks) return;
    double mean = r->loss_sum / (double)(step - r->line_step);
    if (r->terminal && (now() - r->last_progress > 0.2 || step == r->o->steps)) {
        fputs("\r\033[K", stderr);
        if (step < r->o->steps) print_progress(stderr, r, step, mean);
        fflush(stderr);
        r->last_progress = now();
    }
    if (step % every != 0 && step != r->o->steps) return;
    if (r->terminal) fputs("\r\033[K", stderr);
    if (r->o->json) {
        printf("{\"step\": %lld, \"loss\": %.9g}\n", (long long)step, mean);
    } else {
        print_progress(stdout, r, step, mean);
        putchar('\n');
    }
    r->loss_sum = 0;
    r->line_step = step;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median in milliseconds, without the first times where there are more: these take memory. Sorts them. */
static double median_ms(double *times, int64_t count) {
    int64_t skipped = count > 6 ? 3 : count / 2;
    qsort(times + skipped, (size_t)(count - skipped), sizeof *times, compare);
    return 1e3 * times[skipped + (count - skipped) / 2];
}

static void report_end(const run *r) {
    const options *o = r->o;
    const memory bytes = model_memory(r->m);
    double step_ms = median_ms(r->times, o->steps),
           products_ms = o->products ? median_ms(r->times + o->steps, o->steps) : 0;
    if (!r->speaks) return;
    if (o->json) {
        printf("{\"accuracy\": %.6g, \"best\": %.6g, \"step_ms\": %.4f, ", r->accuracy, r->best, step_ms);
        if (o->products)
            printf("\"products_ms\": %.4f, \"products_share\": %.4f, ", products_ms, products_ms / step_ms);
        printf(
            "\"peak_bytes\": %zu, \"model_bytes\": %zu, \"parameter_bytes\": %zu, \"classes\": %lld, \"ranks\": %d}\n",
            bytes.peak, bytes.with_states, bytes.parameters, (long long)o->classes, tsh_world_size(r->world));
        return;
    }
    printf("accuracy %.4f, where %.4f is possible; %.2f ms a step", r->accuracy, r->best, step_ms);
    if (o->products) printf(", of which the matrix products take %.2f", products_ms);
    printf("; a rank's tensors have %.1f MB at most, %.2f times parameters, gradients and optimizer\n",
           1e-6 * (double)bytes.peak, (double)bytes.peak / (double)bytes.with_states);
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* The first twentieth up to the highest rate, then down to zero. */
static double rate_at(const options *o, int64_t step) {
    double done = (double)step / (double)o->steps;
    return o->lr * fmin(20 * (done + 1 / (double)o->steps), 1 - done);
}

static bool time_products(run *r, int64_t step) {
    double begin = now();
    bool good = model_products(r->m);
    r->times[r->o->steps + step] = now() - begin;
    return good;
}

static bool train(run *r) {
    const options *o = r->o;
    bool good = true;
    r->start = now();
    for (int64_t step = 0; good && step < o->steps; step++) {
        double loss = 0;
        good = samples_draw(o, step * o->batch, r->x, r->labels);
        double begin = now();
        if (good) good = model_step(r->m, r->x, r->labels, rate_at(o, step), &loss);
        r->times[step] = now() - begin;
        if (good && o->products) good = time_products(r, step);
        if (good) report_step(r, step + 1, loss);
    }
    return good;
}

/* On samples that follow those of the training. */
static bool evaluate(run *r) {
    const options *o = r->o;
    int64_t batches = (o->evaluate + o->batch - 1) / o->batch, right = 0;
    double best = 0;
    bool good = true;
    for (int64_t i = 0; good && i < batches; i++) {
        good = samples_draw(o, (o->steps + i) * o->batch, r->x, r->labels) &&
               model_evaluate(r->m, r->x, r->labels, &right);
        for (int64_t b = 0; good && r->speaks && b < o->batch; b++)
            best += samples_best(o, r->x + b * o->inputs, r->labels[b]);
    }
    r->accuracy = (double)right / (double)(batches * o->batch);
    r->best = best / (double)(batches * o->batch);
    return good;
}

static bool run_all(tsh_world *world, const options *o) {
    bool speaks = tsh_world_rank(world) == 0;
    run r = {.o = o, .world = world, .speaks = speaks, .terminal = speaks && isatty(STDERR_FILENO)};
    r.x = calloc((size_t)(o->batch * o->inputs), sizeof *r.x);
    r.labels = calloc((size_t)o->batch, sizeof *r.labels);
    r.times = calloc(2 * (size_t)o->steps, sizeof *r.times);
    bool good = r.x && r.labels && r.times;
    if (!good) fprintf(stderr, "many_classes: no memory for a batch\n");
    if (good) r.m = model_create(world, o);
    good = r.m && train(&r) && evaluate(&r);
    if (good) report_end(&r);
    model_destroy(r.m);
    free(r.times);
    free(r.labels);
    free(r.x);
    return good;
}

int main(int argc, char **argv) {
    options o;
    tsh_world *world = program_begin("many_classes");
    if (!world) return 1;
    int code = options_parse(argc, argv, tsh_world_rank(world) == 0, &o);
    if (code < 0) code = run_all(world, &o) ? 0 : 1;
    return program_end("many_classes", world, code);
}
