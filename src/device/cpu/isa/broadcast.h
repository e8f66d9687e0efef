/* Iterates over the rows of a broadcast: all dims but the innermost. */
#ifndef TSHI_CPU_BROADCAST_H
#define TSHI_CPU_BROADCAST_H

#include "device/kernels.h"

/* Offsets of a row in elements; `left` rows remain, this one included. */
typedef struct tshi_broadcast_row {
    int64_t left, x, y, z;
    int64_t at[TSHI_BROADCAST_RUNS];
} tshi_broadcast_row;

static inline tshi_broadcast_row tshi_broadcast_first(const tshi_broadcast *o) {
    tshi_broadcast_row r = {.left = o->n[0] > 0};
    for (int k = 1; k < o->runs; k++) r.left *= o->n[k];
    return r;
}

static inline void tshi_broadcast_next(const tshi_broadcast *o, tshi_broadcast_row *r) {
    r->left--;
    r->z += o->n[0];
    for (int k = 1; k < o->runs; k++) {
        r->x += o->x[k];
        r->y += o->y[k];
        if (++r->at[k] < o->n[k]) return;
        r->at[k] = 0;
        r->x -= o->n[k] * o->x[k];
        r->y -= o->n[k] * o->y[k];
    }
}

#endif
