/* The matrix products of linear layers and nothing else, through the libraries that tshard uses: what its
 * layers are compared with. float32 on a CPU: each by the library that was faster for it in a trial. */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "tshard/layers.h"

/* One layer's part on this rank: x [batch, in], weight [out, in]. */
typedef struct products_layer {
    int64_t batch, in, out;
} products_layer;

typedef struct products products;

/* Every layer gets buffers of its own for x, weight, y and their gradients, in the same memory as tshard's tensors,
 * filled. On failure tsh_error_message() says why. Not collective, but every rank makes the call. */
tsh_status products_create(const tsh_mesh *mesh, tsh_dtype dtype, const products_layer *layers, int n, products **out);
void products_destroy(products *p);
/* y = x W^T layer by layer, then back from the last: dx = dy W, dW = dy^T x. */
tsh_status products_run(const products *p);
/* Floating-point operations of one run. */
double products_flops(const products *p);

#endif
