/* Tensors from the inside. */
#ifndef TSHI_TENSOR_H
#define TSHI_TENSOR_H

#include "device/device.h"
#include "layout/box.h"
#include "tshard/tensor.h"

/* Where the elements of a storage come from whose memory is empty: a deferred tensor's before its first use, a sharded
 * parameter's between uses. */
typedef struct tshi_value_source tshi_value_source;
struct tshi_value_source {
    /* Called before a call reads the elements, which then stay until a call of the tape uses other memory of a source.
     * `step` and `call` number the tape's steps and calls. May be collective. */
    tsh_status (*materialize)(tshi_value_source *source, uint64_t step, uint64_t call);
    /* Frees a source that its storage owns (deferred.c); NULL where the storage does not own it. */
    void (*free)(tshi_value_source *source);
    /* The version of the tensor's elements; NULL: that of the storage. */
    uint16_t (*version)(const tshi_value_source *source, const tsh_tensor *tensor);
    /* materialize would bring others than those in memory; NULL: never. */
    bool (*stale)(const tshi_value_source *source);
};

/* Device memory shared by the tensors that view it. */
typedef struct tshi_storage tshi_storage;
struct tshi_storage {
    tsh_device *device;
    void *data; /* NULL until a source has materialized it */
    int references;
    tshi_value_source *source; /* or NULL */
    tshi_storage *whole;       /* whose memory this is a part of (tshi_tensor_part), or NULL */
    uint16_t version;          /* times that its elements have been written (tshi_data_to_write), modulo 2^16 */
};

struct tsh_tensor {
    void *next;                /* in the device's list of free handles, or with TSHARD_CHECK=1 of all handles */
    tsh_tensor *newer, *older; /* in the device's list of live tensors */
    int references;            /* 0: the handle is free; its shape and dtype are as they were */
    int held;                  /* references of the program, which may release no more than these */
    tsh_device *device;        /* whose pool has the handle; NULL: its world has been destroyed */
    tsh_dtype dtype;
    tsh_shape shape;
    int64_t numel;
    const tsh_mesh *mesh;
    tsh_layout layout[TSH_MAX_AXES];
    uint64_t form;         /* tshi_tensor_form; 0: it has no number yet */
    tshi_storage *storage; /* NULL once backward has freed it */
    size_t offset;         /* bytes into the storage */

    const char *name;                          /* in a list of parameters, which has the text; or NULL */
    bool taped;                                /* a tape owns it, and its step has not ended */
    bool ended;                                /* a tape owned it, and its step has ended */
    bool computed;                             /* a recorded call made it in this step: it is not a leaf */
    struct tshi_gradient *gradient;            /* what autograd keeps for it (autograd/grad/state.h), or NULL */
    void (*gradient_free)(tsh_tensor *tensor); /* frees the gradient with the tensor */
};

/* --- shape and elements ------------------------------------------------------------------------------------------- */

/* A number of the tensor's metadata: tensors of a device that have the same one have the same dtype, mesh, shape and
 * layouts. Equal metadata may have several numbers. */
static inline uint64_t tshi_tensor_form(tsh_tensor *tensor) {
    if (!tensor->form) tensor->form = ++tensor->device->forms;
    return tensor->form;
}
/* The layouts of a gradient of x: those of x, with REPLICATED in place of PARTIAL, for all terms of a sum have the same
 * gradient. */
void tshi_gradient_layout(const tsh_tensor *x, tsh_layout layout[TSH_MAX_AXES]);
/* This rank's part of the whole, in blocks for kernels that are keyed by global index: how many there are (more
 * than one only where two dims are sharded, neither of them the first, or three), and the block with this number, which
 * begins at local element *offset. Both depend on layouts alone. */
int64_t tshi_tensor_blocks(const tsh_tensor *tensor);
tshi_block tshi_tensor_block(const tsh_tensor *tensor, int64_t number, int64_t *offset);
/* Where the tensor is; LOCAL along no axis. */
tshi_placement tshi_tensor_placement(const tsh_tensor *tensor);
/* Writes "float32 [8,16] data=SHARD(0)", with only the global shape, which every rank knows, into text; returns
 * text. */
char *tshi_tensor_describe_whole(const tsh_tensor *tensor, char *text, size_t size);
/* The product of dims [from, to). */
static inline int64_t tshi_dims_between(const int64_t *dims, int from, int to) {
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= dims[d];
    return n;
}
/* Products of the dims before d and after d of the local shape. */
static inline int64_t tshi_outer(const tsh_tensor *tensor, int d) {
    return tshi_dims_between(tensor->shape.local, 0, d);
}
static inline int64_t tshi_inner(const tsh_tensor *tensor, int d) {
    return tshi_dims_between(tensor->shape.local, d + 1, tensor->shape.ndim);
}
/* The local part as a matrix: the product of all dims but the last, and the last; a scalar is 1 x 1. */
static inline int64_t tshi_rows(const tsh_tensor *tensor) {
    return tshi_outer(tensor, tensor->shape.ndim - 1);
}
static inline int64_t tshi_cols(const tsh_tensor *tensor) {
    return tensor->shape.ndim ? tensor->shape.local[tensor->shape.ndim - 1] : 1;
}

/* --- values of the whole ------------------------------------------------------------------------------------------ */

/* This rank's index is 0 along every PARTIAL axis: it holds the values of a sum whose other terms are zeros. */
bool tshi_tensor_is_first_term(const tsh_tensor *tensor);
/* TSH_ERR_ARGUMENT unless a normal distribution with mean a and deviation b exists, or a uniform one in [a, b). */
tsh_status tshi_check_distribution(const char *what, bool normal, double a, double b);
/* Fill this rank's part with random numbers by global index (device/kernels.h): uniform in [a, b), or normal with mean
 * a and deviation b. Only the first term of a PARTIAL tensor changes. */
void tshi_tensor_draw(tsh_tensor *tensor, bool normal, uint64_t seed, uint64_t stream, double a, double b);

/* The values that a tensor starts with, by global index. */
typedef struct tshi_initial {
    enum { TSHI_STARTS_CONSTANT, TSHI_STARTS_UNIFORM, TSHI_STARTS_NORMAL } kind; /* a; in [a, b); mean a, deviation b */
    double a, b;
    uint64_t seed, stream;
    bool has_zero_row; /* of the whole's first dim */
    int64_t zero_row;
} tshi_initial;

/* Writes the initial values of this rank's part. */
void tshi_tensor_start(tsh_tensor *tensor, const tshi_initial *initial);
/* A tensor that starts with zeros and has no memory until its first use (tshi_tensor_materialize, or a call of a
 * tape). */
tsh_status tshi_tensor_defer(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
/* The initial values of a deferred tensor, which the caller may change; NULL for a tensor that has memory, and for a
 * part of a deferred one. */
tshi_initial *tshi_tensor_initial(const tsh_tensor *tensor);
/* Adds the tensor's initial values to the fingerprint; a tensor without them adds a 0. */
uint64_t tshi_tensor_initial_fingerprint(const tsh_tensor *tensor, uint64_t fingerprint);
/* Called before code outside of a tape's calls uses the tensor's memory: gives a deferred tensor memory and values.
 * TSH_ERR_STATE for a view of a sharded parameter whose values are not there, or not those of its slices any more.
 * to_write: for any such view. */
tsh_status tshi_tensor_materialize(const tsh_tensor *tensor);
tsh_status tshi_tensor_materialize_to_write(const tsh_tensor *tensor);

/* This rank's first element, of a real dtype, as a double, whatever the layouts; NAN, with the message set, on
 * failure. */
double tshi_tensor_element(const tsh_tensor *tensor);

/* Most bytes of a piece, which waits in host memory on its way to a device or a file. */
#define TSHI_PIECE ((size_t)8 << 20)
/* Call fn for this rank's part, piece by piece in the order of its memory: with the piece's box in the whole, and host
 * memory with its elements, which fn writes, or reads. Pieces without an element of `within` (NULL: the whole) are left
 * out. Return the first failure, fn's or the device's. */
tsh_status tshi_tensor_write_pieces(tsh_tensor *tensor, tsh_values_fn *fn, void *user);
tsh_status tshi_tensor_read_pieces(const tsh_tensor *tensor, const tsh_box *within, tsh_values_fn *fn, void *user);

/* Copy the elements `box` of a whole, `size` bytes each, between two row-major arrays in host memory, which hold the
 * boxes from_box and to_box of it. */
void tshi_copy_box(int ndim, size_t size, const tsh_box *box, const void *from, const tsh_box *from_box, void *to,
                   const tsh_box *to_box);

/* Where the elements `box` are in memory that holds memory_box, if they are one run; else NULL. */
char *tshi_box_place(int ndim, size_t size, const tsh_box *box, void *memory, const tsh_box *memory_box);
/* The elements `box`, row-major, as one run: in the memory, which holds memory_box, or else copied to `buffer`. */
const void *tshi_gather_box(int ndim, size_t size, const tsh_box *box, const void *memory, const tsh_box *memory_box,
                            void *buffer);

/* --- lifetime ----------------------------------------------------------------------------------------------------- */

/* tsh_tensor_retain and tsh_tensor_release for references that the library holds for itself, such as that which each
 * function below gives with a new tensor. References that the program may release are counted in tensor->held as
 * well, by the function that gives one to the program. */
static inline tsh_tensor *tshi_tensor_retain(tsh_tensor *tensor) {
    if (tensor) tensor->references++;
    return tensor;
}
/* Frees a tensor whose last reference tshi_tensor_release has taken. */
void tshi_tensor_free(tsh_tensor *tensor);
static inline void tshi_tensor_release(tsh_tensor *tensor) {
    if (tensor && --tensor->references <= 0) tshi_tensor_free(tensor);
}
/* TSH_ERR_ARGUMENT for NULL, TSH_ERR_STATE for a tensor without memory, with the reason: it has been released, its step
 * has ended, its world has been destroyed, or backward has freed its memory. `what` is the call, `which` the tensor. */
tsh_status tshi_tensor_check(const tsh_tensor *tensor, const char *what, const char *which);
static inline bool tshi_tensor_is_free(const tsh_tensor *tensor) {
    return tensor->references <= 0;
}
/* Writes how many of the device's tensors are alive into text, with some of their names, parameters first; "" where
 * none is alive. */
char *tshi_tensors_alive(const tsh_device *device, char *text, size_t size);
/* Takes the memory of all live tensors, whose world ends. With TSHARD_CHECK=1 their handles are never used again. */
void tshi_tensors_end(tsh_device *device);

/* Checks the configuration, and resolves its shape and layouts. */
tsh_status tshi_tensor_resolve(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_shape *shape,
                               tsh_layout layout[TSH_MAX_AXES]);
/* tsh_tensor_create. */
tsh_status tshi_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
/* A tensor with memory of its own, NOT zeroed; shape and layout as given (resolved). */
tsh_status tshi_tensor_new(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                           const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* tshi_tensor_new, unloaded: the memory is still to be taken (tshi_tensor_load). */
tsh_status tshi_tensor_new_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                                    const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* n elements in one dim, LOCAL along every axis, not zeroed, for intermediate results. */
tsh_status tshi_tensor_scratch(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
tsh_status tshi_tensor_scratch_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
/* As tshi_tensor_scratch, counted as communication. */
tsh_status tshi_tensor_buffer(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
/* As tshi_tensor_scratch, in symmetric memory, `offset` bytes into it; NULL where there is no room. */
tsh_tensor *tshi_tensor_symmetric(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, size_t *offset);
/* tshi_tensor_view with a version of its own, of elements that only x shows. */
tsh_status tshi_tensor_part(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out);
/* A tensor that shares x's memory from `offset` bytes (within x) on. */
tsh_status tshi_tensor_view(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out);
/* The tensor gives up its memory and keeps its description. */
void tshi_tensor_drop_storage(tsh_tensor *tensor);
/* Gives a tensor without storage the memory of `share`, which has as many bytes, or, where that is NULL, memory of its
 * own, not zeroed. */
tsh_status tshi_tensor_renew_storage(tsh_tensor *tensor, const tsh_tensor *share);
/* The tensor takes the view's shape, layouts and memory, and releases its own memory. */
void tshi_tensor_become(tsh_tensor *tensor, const tsh_tensor *view);
/* Releases the storage's memory for all tensors that share it; they keep their offsets. */
void tshi_tensor_unload(const tsh_tensor *tensor);
/* Gives a storage without memory so many bytes, not zeroed, for all tensors that share it. */
tsh_status tshi_tensor_load(const tsh_tensor *tensor, size_t bytes, tsh_memory_purpose purpose);
/* A tensor's version changes when its elements are written by anything but the call that made the tensor: what was
 * computed from the earlier version is stale. 0 without memory. */
static inline uint16_t tshi_tensor_version(const tsh_tensor *tensor) {
    const tshi_storage *storage = tensor->storage;
    if (!storage) return 0;
    return storage->source && storage->source->version ? storage->source->version(storage->source, tensor)
                                                       : storage->version;
}
static inline bool tshi_tensor_is_loaded(const tsh_tensor *tensor) {
    return tensor->storage && tensor->storage->data;
}
/* The caller has the only reference, and no other tensor views the memory. */
bool tshi_tensor_sole_owner(const tsh_tensor *tensor);

/* NULL for NULL, and for a tensor without memory. */
static inline void *tshi_data(const tsh_tensor *t) {
    return t && t->storage && t->storage->data ? (char *)t->storage->data + t->offset : NULL;
}

/* tshi_data for a caller that is about to write the elements: a program's call, a load, a collective, an optimizer's
 * step. A call's own functions (autograd/op.h) write its output and gradients, and all other writers come through
 * here. */
static inline void *tshi_data_to_write(const tsh_tensor *t) {
    if (t && t->storage) t->storage->version++;
    return tshi_data(t);
}

/* The device of a tensor's memory: its table has the kernels. */
static inline tsh_device *tshi_device_of(const tsh_tensor *t) {
    return t->mesh->device;
}

#endif
