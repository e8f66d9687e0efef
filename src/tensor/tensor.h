/* Private functions of tensors. */
#ifndef TSHI_TENSOR_H
#define TSHI_TENSOR_H

#include "device/device.h"
#include "layout/box.h"
#include "tshard/tensor.h"

/* Fills the memory of a storage that has none: a deferred tensor before its first use, a sharded parameter between
 * uses, or values in host memory. */
typedef struct tshi_value_source tshi_value_source;
struct tshi_value_source {
    /* Called before a call reads the elements, which then stay until a call of the tape uses other memory of a source.
     * `step` and `call` are the numbers of the tape's step and call. May be collective. */
    tsh_status (*materialize)(tshi_value_source *source, uint64_t step, uint64_t call);
    /* Frees a source that its storage owns, whose values stay once they are in memory; else NULL. */
    void (*free)(tshi_value_source *source);
    /* The version of the tensor's elements; NULL: the storage's version. */
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
    tshi_storage *whole;       /* the storage that this is a part of (tshi_tensor_part), or NULL */
    uint16_t version;          /* counts writes of its elements (tshi_data_to_write), modulo 2^16 */
};

struct tsh_tensor {
    void *next;                /* in the device's list of free handles, or with TSHARD_CHECK=1 of all handles */
    tsh_tensor *newer, *older; /* in the device's list of live tensors */
    int references;            /* 0: the handle is free; its shape and dtype are as they were */
    int program_refs;          /* references of the program, which may release no more than these */
    tsh_device *device;        /* owns the handle's pool; NULL: the world has been destroyed */
    tsh_dtype dtype;
    int64_t numel;
    const tsh_mesh *mesh;
    uint64_t form;         /* tshi_tensor_form; 0: it has no number yet */
    tshi_storage *storage; /* NULL once backward has freed it */
    size_t offset;         /* bytes into the storage */

    const char *name;                          /* in a list of parameters, which owns the text; or NULL */
    bool parameter;                            /* a layer or a list has it */
    bool listed;                               /* a list has had it */
    bool taped;                                /* a tape owns it, and its step has not ended */
    bool ended;                                /* a tape owned it, and its step has ended */
    bool computed;                             /* a recorded call made it in this step: it is not a leaf */
    struct tshi_gradient *gradient;            /* its gradient's state (autograd/grad/state.h), or NULL */
    void (*gradient_free)(tsh_tensor *tensor); /* frees the gradient with the tensor */
    bool may_quantize;                         /* only its layer reads it, which takes groups, too */
    bool rows_move;                            /* with may_quantize: no bias is split as its rows are */
    const struct tshi_quant_format *quant;     /* the uint8 elements are groups of this format; NULL: they are not */
    unsigned term_axes;                        /* of an adapter's factor: bits of the axes that split the weight only */
    unsigned cut_axes;                         /* bits of the axes for whose cut points the tensor has a reference */

    /* A new tensor's members up to here are zeros (tensor.c). Layouts past the mesh's axes may be anything. */
    tsh_shape shape;
    tsh_layout layout[TSH_MAX_AXES];
};

/* --- shape and elements ------------------------------------------------------------------------------------------- */

/* A number of the tensor's metadata: tensors of a device that have the same one have the same dtype, mesh, shape and
 * layouts. Equal metadata may have several numbers. */
static inline uint64_t tshi_tensor_form(tsh_tensor *tensor) {
    if (!tensor->form) tensor->form = ++tensor->device->forms;
    return tensor->form;
}
/* The layouts of x's gradient: those of x, with REPLICATED in place of PARTIAL, for all terms of a sum have the same
 * gradient. */
void tshi_gradient_layout(const tsh_tensor *x, tsh_layout layout[TSH_MAX_AXES]);
/* This rank's part, in blocks for kernels that are keyed by global index: the number of blocks (more than one only if
 * two dims are sharded and neither is the first, or if three are), and a block, which begins at local element *offset.
 * Both depend only on the layouts. */
int64_t tshi_tensor_blocks(const tsh_tensor *tensor);
tshi_block tshi_tensor_block(const tsh_tensor *tensor, int64_t number, int64_t *offset);
/* The placement of a tensor that is not LOCAL along any axis. */
tshi_placement tshi_tensor_placement(const tsh_tensor *tensor);
/* Writes "float32 [8,16] data=SHARD(0)", with only the global shape, which every rank knows, into text; returns
 * text. */
char *tshi_tensor_describe_whole(const tsh_tensor *tensor, char *text, size_t size);
/* That text, or tsh_tensor_describe's, as an argument of a message, in memory of the enclosing block. */
#define TSHI_WHOLE_TEXT(tensor)  tshi_tensor_describe_whole((tensor), (char[TSHI_LINE]){""}, TSHI_LINE)
#define TSHI_TENSOR_TEXT(tensor) tsh_tensor_describe((tensor), (char[160]){""}, 160)
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

/* --- values by global index --------------------------------------------------------------------------------------- */

/* This rank's index is 0 along every PARTIAL axis: it holds the values, other ranks hold zeros. */
bool tshi_tensor_is_first_term(const tsh_tensor *tensor);
/* TSH_ERR_ARGUMENT unless a normal distribution with mean a and deviation b exists, or a uniform one in [a, b). */
tsh_status tshi_check_distribution(const char *what, bool normal, double a, double b);
/* Fills this rank's part with random numbers by global index (device/kernels.h): uniform in [a, b), or normal with mean
 * a and deviation b. Only the first term of a PARTIAL tensor changes. */
void tshi_tensor_draw(tsh_tensor *tensor, bool normal, uint64_t seed, uint64_t stream, double a, double b);

/* A tensor's initial values, by global index. */
typedef struct tshi_initial {
    enum { TSHI_STARTS_CONSTANT, TSHI_STARTS_UNIFORM, TSHI_STARTS_NORMAL } kind; /* a; in [a, b); mean a, deviation b */
    double a, b;
    uint64_t seed, stream;
    bool has_zero_row; /* zero_row, of the global first dim, is zeros */
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
/* *found: one of this rank's elements is NaN, or NaN or infinite. False for integers, without memory and during a graph
 * capture. Waits for a GPU. */
typedef enum tshi_strange { TSHI_NAN, TSHI_NOT_FINITE } tshi_strange;
tsh_status tshi_tensor_look_for(tshi_strange strange, const tsh_tensor *x, bool *found);

/* The most bytes of a piece, which is staged in host memory on its way to a device or a file. */
#define TSHI_PIECE ((size_t)8 << 20)
/* This rank's part, piece by piece in memory order:
 *     tshi_pieces p = tshi_pieces_to_read(tensor, NULL);
 *     while (tshi_pieces_next(&p)) p.status = use(&p.box, p.values);
 *     return p.status;
 * A loop ends with tshi_pieces_next, which frees the staging: a failure in `status`, the loop's or the device's, stops
 * it. A zeroed struct has no pieces. */
typedef struct tshi_pieces {
    tsh_box box;  /* of the piece, in the global tensor */
    void *values; /* the piece's elements in host memory, to read or to write */
    int64_t count;
    tsh_status status;
    const tsh_tensor *tensor;
    const tsh_box *within; /* pieces outside it are skipped; NULL: none */
    bool writes;
    int64_t done; /* elements before the piece */
    tsh_box own;  /* this rank's part */
    char *memory, *staging;
} tshi_pieces;

tshi_pieces tshi_pieces_to_write(tsh_tensor *tensor);
tshi_pieces tshi_pieces_to_read(const tsh_tensor *tensor, const tsh_box *within);
bool tshi_pieces_next(tshi_pieces *p);

/* TSH_ERR_LAYOUT, with `what` and the tensor, where it is LOCAL along an axis. */
tsh_status tshi_tensor_check_global(const tsh_tensor *tensor, const char *what);

/* Copies the elements of `box`, `size` bytes each, between two row-major arrays in host memory that hold from_box and
 * to_box. */
void tshi_copy_box(int ndim, size_t size, const tsh_box *box, const void *from, const tsh_box *from_box, void *to,
                   const tsh_box *to_box);

/* The place of the elements of `box` in memory that holds memory_box, if they are contiguous there; else NULL. */
char *tshi_box_place(int ndim, size_t size, const tsh_box *box, void *memory, const tsh_box *memory_box);
/* The elements of `box`, contiguous and row-major: in place in memory that holds memory_box, or a copy in `buffer`. */
const void *tshi_gather_box(int ndim, size_t size, const tsh_box *box, const void *memory, const tsh_box *memory_box,
                            void *buffer);

/* --- lifetime ----------------------------------------------------------------------------------------------------- */

/* tsh_tensor_retain and tsh_tensor_release for the library's own references, such as the one that each function below
 * returns with a new tensor. A function that gives a reference to the program also counts it in
 * tensor->program_refs. */
static inline tsh_tensor *tshi_tensor_retain(tsh_tensor *tensor) {
    if (tensor) tensor->references++;
    return tensor;
}
/* Take and release the tensor's references to the cut points of its layouts. */
void tshi_tensor_retain_cuts(tsh_tensor *tensor);
void tshi_tensor_release_cuts(tsh_tensor *tensor);
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
/* Writes the number of the device's live tensors into text, with some of their names, parameters first; "" if there are
 * none. */
char *tshi_tensors_alive(const tsh_device *device, char *text, size_t size);
/* Takes the memory of all live tensors when their world ends. With TSHARD_CHECK=1 their handles are never used
 * again. */
void tshi_tensors_end(tsh_device *device);

/* Checks the configuration, and resolves its shape and layouts. */
tsh_status tshi_tensor_resolve(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_shape *shape,
                               tsh_layout layout[TSH_MAX_AXES]);
/* tsh_tensor_create. */
tsh_status tshi_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
/* A tensor with memory of its own, NOT zeroed; shape and layout as given (resolved). */
tsh_status tshi_tensor_new(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                           const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* The number of elements of this rank's part: none on a rank outside the mesh. TSH_ERR_OVERFLOW past INT64_MAX. */
tsh_status tshi_tensor_count(const tsh_mesh *mesh, const tsh_shape *shape, int64_t *numel);
/* tshi_tensor_new with the result of tshi_tensor_count. */
tsh_status tshi_tensor_new_counted(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape, int64_t numel,
                                   const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* tshi_tensor_new without memory, for a later tshi_tensor_load. */
tsh_status tshi_tensor_new_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                                    const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out);
/* n elements in one dim, LOCAL along every axis, not zeroed, for intermediate results. */
tsh_status tshi_tensor_scratch(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
tsh_status tshi_tensor_scratch_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
/* As tshi_tensor_scratch, counted as communication. */
tsh_status tshi_tensor_buffer(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out);
/* tshi_tensor_view with its own version, for elements that only x views. */
tsh_status tshi_tensor_part(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out);
/* A tensor that shares x's memory from `offset` bytes (within x) on. */
tsh_status tshi_tensor_view(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out);
/* Drops the tensor's memory; its shape and layouts stay. */
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
/* A tensor's version changes whenever anything but the call that made it writes its elements: results computed from an
 * earlier version are stale. 0 without memory. */
static inline uint16_t tshi_tensor_version(const tsh_tensor *tensor) {
    const tshi_storage *storage = tensor->storage;
    if (!storage) return 0;
    return storage->source && storage->source->version ? storage->source->version(storage->source, tensor)
                                                       : storage->version;
}
/* True when the elements are in memory only during a tape's calls. */
static inline bool tshi_tensor_is_transient(const tsh_tensor *tensor) {
    const tshi_value_source *source = tensor->storage ? tensor->storage->source : NULL;
    return source && !source->free;
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

/* tshi_data for a caller that writes the elements: a program's call, a load, a collective, an optimizer's step. All
 * writers use it except an operation's functions (autograd/op.h), for their output and gradients. */
static inline void *tshi_data_to_write(const tsh_tensor *t) {
    if (t && t->storage) t->storage->version++;
    return tshi_data(t);
}

/* The device of a tensor's memory. */
static inline tsh_device *tshi_device_of(const tsh_tensor *t) {
    return t->mesh->device;
}

#endif
