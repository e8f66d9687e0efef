/* many_classes: trains a classifier of very many classes, whose weights are split over all ranks. */
#include "many_classes.h"
#include "program.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 3 }; /* the first steps, whose times are not counted */

typedef struct run {
    const options *o;
    model *m;
    tsh_world *world;
    float *x;        /* [batch, inputs] */
    int64_t *labels; /* [batch] */
    double *times;   /* [2, steps] seconds: of steps, of only their matrix products */
    progress progress;
    double accuracy, best;
} run;

/* --- what is printed ---------------------------------------------------------------------------------------------- */

static void report_end(const run *r) {
    const options *o = r->o;
    const memory bytes = model_memory(r->m);
    double step_ms = 1e3 * median_seconds(r->times, o->steps, WARM_UP),
           products_ms = o->products ? 1e3 * median_seconds(r->times + o->steps, o->steps, WARM_UP) : 0;
    if (!r->progress.speaks) return;
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
    if (o->products) printf(", including %.2f for the matrix products", products_ms);
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
    double begin = seconds_now();
    bool good = model_products(r->m);
    r->times[r->o->steps + step] = seconds_now() - begin;
    return good;
}

static bool train(run *r) {
    const options *o = r->o;
    bool good = true;
    progress_begin(&r->progress, 0);
    for (int64_t step = 0; good && step < o->steps; step++) {
        double loss = 0;
        good = samples_draw(o, step * o->batch, r->x, r->labels);
        double begin = seconds_now();
        if (good) good = model_step(r->m, r->x, r->labels, rate_at(o, step), &loss);
        r->times[step] = seconds_now() - begin;
        if (good && o->products) good = time_products(r, step);
        if (good) progress_step(&r->progress, step + 1, loss);
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
        for (int64_t b = 0; good && r->progress.speaks && b < o->batch; b++)
            best += samples_best(o, r->x + b * o->inputs, r->labels[b]);
    }
    r->accuracy = (double)right / (double)(batches * o->batch);
    r->best = best / (double)(batches * o->batch);
    return good;
}

static bool run_all(tsh_world *world, const options *o) {
    run r = {.o = o, .world = world};
    r.progress = (progress){.unit = "samples",
                            .per_step = o->batch,
                            .steps = o->steps,
                            .ranks = tsh_world_size(world),
                            .json = o->json,
                            .speaks = tsh_world_rank(world) == 0};
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
