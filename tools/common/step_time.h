/* The model of a step's time: what a rank does in a step, on a machine, in seconds. Pure arithmetic: calls are added one
 * after another in any order, and the parts are sums. */
#ifndef TOOLS_STEP_TIME_H
#define TOOLS_STEP_TIME_H

#include "common/machine.h"

#include <stdint.h>

/* Parts of a step, seconds. */
typedef struct step_time {
    const machine *m;
    double products, attention, kernels, calls; /* calls: the host's time for functions of the tape */
    double exposed, hidden; /* communication that the rank waits for; that goes on while it computes */
    double flops;           /* of products and attention */
    char missing[160];      /* the first work that the machine file has no rate for, or empty */
} step_time;

/* `calls` products, of any number: form is forward (Y = X W^T), dx (dX = dY W) or dw (dW = dY^T X); X is [m, k], W
 * [n, k], Y [m, n] in all of them. */
typedef struct step_product {
    const char *form, *dtype;
    int64_t m, n, k;
} step_product;
void step_time_product(step_time *t, const step_product *p, double calls);

typedef struct step_attention {
    bool backward, causal;
    const char *dtype;
    int64_t batch, queries, keys, heads, dim;
} step_attention;
void step_time_attention(step_time *t, const step_attention *a, double calls);
/* Floating-point operations of the products in one call; a causal one needs the scores that are seen. */
double step_attention_flops(const step_attention *a);

/* bytes: read and written in one call. */
void step_time_kernel(step_time *t, const char *family, const char *dtype, double bytes, double calls);

/* Functions of the tape that were called, forward or backward. */
void step_time_functions(step_time *t, double calls);

/* bytes: of one call, those of the larger buffer of a rank. under_way: operations that the rank computes while the
 * call is under way; 0: it waits at once. To be added after all that is computed. */
typedef struct step_collective {
    const char *kind, *axis;
    int ranks;
    double bytes, under_way;
} step_collective;
void step_time_collective(step_time *t, const step_collective *c, double calls);
/* Seconds of one call, or 0 where the machine file knows no such network. */
double step_collective_seconds(const machine *m, const step_collective *c);

/* What a collective of `ranks` multiplies bytes and latency by: the bytes a rank's link carries of a call's, as nccl-tests
 * count them, and the messages that follow one another. */
double step_bus_factor(const char *kind, int ranks);
double step_rounds(const char *kind, int ranks);

double step_seconds(const step_time *t);

#endif
