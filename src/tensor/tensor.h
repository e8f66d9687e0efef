/* Tensors from the inside. */
#ifndef TSHI_TENSOR_H
#define TSHI_TENSOR_H

#include "device/device.h"
#include "layout/layout.h"
#include "tshard/tensor.h"

/* Device memory shared by the tensors that view it. */
typedef struct tshi_storage {
    tsh_device *device;
    void *data;
    int references;
} tshi_storage;

/* What sums gradients of leaves over the ranks of one axis later than backward would: src/train has it, and
 * autograd/tape.h says how backward hands the leaves' gradients over. */
typedef struct tshi_schedule {
    const struct tshi_schedule_ops *ops;
    /* Wait for the sums under way. Not TSH_OK, with words: the gradients are not to be had. */
    tsh_status (*settle)(struct tshi_schedule *schedule);
    int axis;
    double weight; /* of a loss in the objective */
} tshi_schedule;

struct tsh_tensor {
    int references;
    tsh_dtype dtype;
    tshi_shape shape;
    int64_t numel;
    const tsh_mesh *mesh;
    tsh_layout layout[TSH_MAX_AXES];
    tshi_storage *storage; /* NULL once backward has freed it */
    size_t offset;         /* bytes into the storage */

    /* The gradient's bookkeeping; autograd writes these. */
    bool requires_grad;
    bool retain_grad;   /* of an intermediate, past backward */
    bool grad_stale;    /* grad is memory to reuse, its values are not to be read */
    bool grad_unsummed; /* the schedule has not summed it yet */
    tsh_tensor *grad;
    tsh_tensor *kept_grad;   /* with retain_grad: the sum over the backwards of this step, which `grad` starts anew */
    tshi_schedule *schedule; /* sums this leaf's gradient, or that of the leaf that this tensor is a copy of */
    int place;               /* the leaf's, in the schedule */
    uint64_t generation;     /* of the tape's step that `node` and `moves` belong to */
    int node;                /* index of the node that made it, -1 for a leaf */
    tsh_tensor *moves;       /* first of the transitions made of it in this step */
    tsh_tensor *next_move;
    int move_axis; /* along which this tensor was made from another */
};

/* --- what is asked of a tensor ------------------------------------------------------------------------------------ */

/* The layouts of a gradient of x: x's own, but REPLICATED for PARTIAL, since all terms of a sum have the same one. */
void tshi_gradient_layout(const tsh_tensor *x, tsh_layout layout[TSH_MAX_AXES]);
/* The part of the whole that is here, in blocks for kernels that are keyed by global index: how many there are (more
 * than one only where two dims are sharded, neither of them the first, or three), and the block with this number, which
 * begins at local element *offset. Both depend on layouts alone. */
int64_t tshi_tensor_blocks(const tsh_tensor *tensor);
tshi_block tshi_tensor_block(const tsh_tensor *tensor, int64_t number, int64_t *offset);
/* Products of the dims before d and after d of the local shape. */
int64_t tshi_outer(const tsh_tensor *tensor, int d);
int64_t tshi_inner(const tsh_tensor *tensor, int d);
/* The local part as a matrix: the product of all dims but the last, and the last; a scalar is 1 x 1. */
int64_t tshi_rows(const tsh_tensor *tensor);
int64_t tshi_cols(const tsh_tensor *tensor);

/* --- lifetime ----------------------------------------------------------------------------------------------------- */

/* A tensor with memory of its own, NOT zeroed; shape and layout as given (resolved). */
tsh_status tshi_tensor_new(const tsh_mesh *mesh, tsh_dtype dtype, const tshi_shape *shape,
                           const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* n elements in one dim, LOCAL along every axis, not zeroed: room for intermediate results. */
tsh_status tshi_tensor_scratch(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
/* The same in symmetric memory, `offset` bytes into it; NULL where there is no room. */
tsh_tensor *tshi_tensor_symmetric(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, size_t *offset);
/* A tensor that shares x's memory from `offset` bytes (within x) on. */
tsh_status tshi_tensor_view(const tsh_tensor *x, const tshi_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out);
/* Give up the memory, keep the description. */
void tshi_tensor_drop_storage(tsh_tensor *tensor);
/* Nobody else views this memory. */
bool tshi_tensor_sole_owner(const tsh_tensor *tensor);

/* NULL for no tensor, and for one without memory. */
static inline void *tshi_data(const tsh_tensor *t) {
    return t && t->storage ? (char *)t->storage->data + t->offset : NULL;
}

/* The device of a tensor's memory: its table has the kernels. */
static inline tsh_device *tshi_device_of(const tsh_tensor *t) {
    return t->mesh->device;
}

#endif
