/* A rank's part as blocks, for kernels that are keyed by global index. */
#include "tensor/tensor.h"

static bool is_sharded(const tsh_tensor *tensor, int d) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tshi_layout_reaches(tensor->layout[a], d)) return true;
    }
    return false;
}

/* The last sharded dim before `end`, or -1. */
static int last_sharded(const tsh_tensor *tensor, int end) {
    int d = end - 1;
    while (d >= 0 && !is_sharded(tensor, d)) d--;
    return d;
}

/* A block covers the last sharded dim with all inner dims, for the outer rows that are contiguous in the global tensor:
 * those of the sharded dim before it. Each index of the dims before that dim is a separate block. */
int64_t tshi_tensor_blocks(const tsh_tensor *tensor) {
    int middle = last_sharded(tensor, last_sharded(tensor, tensor->shape.ndim));
    return middle > 0 ? tshi_dims_between(tensor->shape.local, 0, middle) : 1;
}

/* The global row, counted over the dims before d, at which block `number` begins. */
static int64_t first_row(const tsh_tensor *tensor, int middle, int d, int64_t number) {
    const tsh_shape *s = &tensor->shape;
    int64_t row = 0, stride = 1;
    for (int e = d - 1; e >= 0; e--) {
        int64_t index = e < middle ? number % s->local[e] : 0;
        if (e < middle) number /= s->local[e];
        row += (index + tshi_shape_start(tensor->mesh, s, tensor->layout, e)) * stride;
        stride *= s->global[e];
    }
    return row;
}

tshi_block tshi_tensor_block(const tsh_tensor *tensor, int64_t number, int64_t *offset) {
    const tsh_shape *s = &tensor->shape;
    int last = last_sharded(tensor, s->ndim), middle = last_sharded(tensor, last);
    *offset = 0;
    if (s->ndim == 0) return (tshi_block){.outer = 1, .n = 1, .inner = 1, .global_n = 1};
    int d = last < 0 ? 0 : last, from = middle < 0 ? 0 : middle;
    *offset = number * tshi_dims_between(s->local, from, s->ndim);
    return (tshi_block){.outer = tshi_dims_between(s->local, from, d),
                        .n = s->local[d],
                        .inner = tshi_dims_between(s->local, d + 1, s->ndim),
                        .outer_start = first_row(tensor, from, d, number),
                        .start = tshi_shape_start(tensor->mesh, s, tensor->layout, d),
                        .global_n = s->global[d]};
}
