/* Made-up samples of many_classes, whose best possible accuracy is known: a vector for each class, and noise. */
#include "many_classes.h"

#include <math.h>
#include <stdlib.h>

/* Class vectors and noise have disjoint streams of random numbers. */
enum { DIRECTIONS = 1, NOISE };

static double uniform(const options *o, uint64_t stream, uint64_t index) {
    return ((double)(random_bits(o->seed + stream * 0x9e3779b97f4a7c15u, index) >> 11) + 0.5) * 0x1p-53;
}

/* Box and Muller's cosine. */
static double normal(const options *o, uint64_t stream, uint64_t index) {
    double radius = sqrt(-2 * log(uniform(o, stream, 2 * index)));
    return radius * cos(2 * acos(-1) * uniform(o, stream, 2 * index + 1));
}

/* A random unit vector for each class. */
static void direction(const options *o, int64_t class, double *out) {
    double squares = 0;
    for (int64_t i = 0; i < o->inputs; i++) {
        out[i] = normal(o, DIRECTIONS, (uint64_t)(class * o->inputs + i));
        squares += out[i] * out[i];
    }
    for (int64_t i = 0; i < o->inputs; i++) out[i] /= sqrt(squares);
}

bool samples_draw(const options *o, int64_t first, float *x, int64_t *labels) {
    double *d = calloc((size_t)o->inputs, sizeof *d), deviation = o->noise / sqrt((double)o->inputs);
    const tsh_batches classes = {.items = o->drawn, .batch = o->batch, .seed = o->seed}; /* an epoch has each once */
    if (!d) return false;
    for (int64_t b = 0; b < o->batch; b++) {
        int64_t sample = first + b;
        labels[b] = tsh_batches_item(&classes, sample) * (o->classes / o->drawn);
        direction(o, labels[b], d);
        for (int64_t i = 0; i < o->inputs; i++) {
            double noise = deviation * normal(o, NOISE, (uint64_t)(sample * o->inputs + i));
            x[b * o->inputs + i] = (float)(d[i] + noise);
        }
    }
    free(d);
    return true;
}

/* The part of the sphere in n dims that is within the angle of a direction: the integral of sin^(n - 2), over that up
 * to half a turn, by Simpson's rule. */
static double cap(int64_t n, double angle) {
    enum { PIECES = 4000 };
    double part = 0, all = 0;
    for (int i = 0; i <= PIECES; i++) {
        double weight = i == 0 || i == PIECES ? 1 : i % 2 ? 4 : 2;
        part += weight * pow(sin(angle * i / PIECES), (double)n - 2);
        all += weight * pow(sin(acos(-1) * i / PIECES), (double)n - 2);
    }
    return part * angle / (all * acos(-1));
}

double samples_best(const options *o, const float *x, int64_t label) {
    double *d = calloc((size_t)o->inputs, sizeof *d), dot = 0, squares = 0;
    if (!d) return NAN;
    direction(o, label, d);
    for (int64_t i = 0; i < o->inputs; i++) {
        dot += d[i] * (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    free(d);
    double cosine = fmin(fmax(dot / sqrt(squares), -1), 1);
    return pow(1 - fmin(cap(o->inputs, acos(cosine)), 1), (double)o->drawn - 1);
}
