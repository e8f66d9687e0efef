/* tensor: dense, row-major arrays of which each rank of a mesh holds a part.
 *
 * A tensor belongs to a mesh and has one layout for each of the mesh's axes. tsh_tensor_shape is the shape of the whole
 * tensor, tsh_tensor_local_shape that of this rank's part. A rank outside the mesh holds an empty part.
 *
 * Thread safety: the world's thread, apart from the queries that docs/threads.md names. */
#ifndef TSHARD_TENSOR_H
#define TSHARD_TENSOR_H

#include "tshard/device.h"
#include "tshard/layout.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One whole of a global shape, of which each rank of its mesh holds a part. */
typedef struct tsh_tensor tsh_tensor;

/* Element type, GLOBAL shape, and a layout for each axis of the mesh (REPLICATED where left out). */
typedef struct tsh_tensor_config {
    tsh_dtype dtype;
    int ndim; /* 0 (a scalar: shape is {0} then) to TSH_MAX_DIMS */
    int64_t shape[TSH_MAX_DIMS];
    tsh_layout layout[TSH_MAX_AXES];
} tsh_tensor_config;

/* A zeroed tensor with this rank's part of the global shape, in the memory of the mesh's device. The caller has one
 * reference. The mesh must outlive it. Not collective. TSH_ERR_ARGUMENT, _SHAPE, _OVERFLOW, _MEMORY. */
TSH_API tsh_status tsh_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
/* As tsh_tensor_create, with values that depend on an element's index in the whole alone: the same at any layout. Along
 * a PARTIAL axis the first rank holds the values, the other ranks hold zeros; along a LOCAL axis each rank's part
 * counts as a whole.
 *   full    value, cast to the dtype
 *   arange  start + i step for element i in row-major order: in float64, rounded once; of an integer dtype in int64,
 *           with whole numbers alone (TSH_ERR_ARGUMENT), all of which fit the dtype (TSH_ERR_OVERFLOW)
 * tsh_tensor_create_uniform and tsh_tensor_create_normal are like them. */
TSH_API tsh_status tsh_tensor_create_full(const tsh_mesh *mesh, const tsh_tensor_config *config, double value,
                                          tsh_tensor **out);
TSH_API tsh_status tsh_tensor_create_arange(const tsh_mesh *mesh, const tsh_tensor_config *config, double start,
                                            double step, tsh_tensor **out);
/* Give one reference more, and take one. The program has one of each tensor that it creates, clones, receives or makes
 * from parts. What a getter or a function of a tape returns is borrowed (a gradient, a weight, a result): its release
 * is refused in the log with words that say which tensor it is, and so is a second release. */
TSH_API tsh_tensor *tsh_tensor_retain(tsh_tensor *tensor);
TSH_API void tsh_tensor_release(tsh_tensor *tensor);
/* A copy with memory of its own and the same layouts, without a gradient. */
TSH_API tsh_status tsh_tensor_clone(const tsh_tensor *tensor, tsh_tensor **out);

/* The element type, and the number of dims. */
TSH_API tsh_dtype tsh_tensor_dtype(const tsh_tensor *tensor);
TSH_API int tsh_tensor_ndim(const tsh_tensor *tensor);
/* The global shape: ndim sizes of the whole tensor; valid as long as the tensor. */
TSH_API const int64_t *tsh_tensor_shape(const tsh_tensor *tensor);
/* The local shape: ndim sizes of the part that this rank holds, valid as long as the tensor; its elements; its
 * bytes. */
TSH_API const int64_t *tsh_tensor_local_shape(const tsh_tensor *tensor);
TSH_API int64_t tsh_tensor_local_numel(const tsh_tensor *tensor);
TSH_API size_t tsh_tensor_local_nbytes(const tsh_tensor *tensor);
/* The box of the global tensor that this rank holds; all lengths are 0 on a rank outside the mesh. Along LOCAL axes
 * nothing is known of the peers: the box is as if they were REPLICATED. */
TSH_API tsh_box tsh_tensor_box(const tsh_tensor *tensor);
TSH_API const tsh_mesh *tsh_tensor_mesh(const tsh_tensor *tensor);
/* The layout along the axis of `group`; REPLICATED for a group that is no axis of the tensor's mesh. */
TSH_API tsh_layout tsh_tensor_layout(const tsh_tensor *tensor, const tsh_group *group);
/* The elements in device memory, row-major (host memory on a CPU). A write through the pointer is not recorded:
 * backward and an optimizer's master weights go on with what was made from the earlier values. NULL when tsh_backward
 * has freed them, and where a layer's parameter, of which this is the first use, finds no memory. */
TSH_API void *tsh_tensor_data(const tsh_tensor *tensor);

/* Writes "float32 [4,16] of [8,16] data=SHARD(0) model=REPLICATED" into text, always terminated (size > 0): the local
 * shape, the global one where it differs, and the layouts, as SHARD(0,1) with a split order. A text that does not fit
 * ends with "...". Returns text. */
TSH_API char *tsh_tensor_describe(const tsh_tensor *tensor, char *text, size_t size);

/* Copy this rank's part from or to host memory; count must be the tensor's tsh_tensor_local_numel. A read waits for the
 * device, and returns a failure that its kernels have found by then. */
TSH_API tsh_status tsh_tensor_write(tsh_tensor *tensor, const void *from, int64_t count);
TSH_API tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count);
/* Copy this rank's part out of the whole tensor (global shape, row-major, in host memory). Along a PARTIAL axis the
 * first rank takes the values, the other ranks zeros. TSH_ERR_LAYOUT for a tensor that is LOCAL along an axis. */
TSH_API tsh_status tsh_tensor_write_whole(tsh_tensor *tensor, const void *whole);
/* Writes the elements `box` of a whole tensor, row-major and of the tensor's dtype, into `values`; a status other than
 * TSH_OK ends the call that asked for them. */
typedef tsh_status tsh_values_fn(void *user, const tsh_box *box, void *values);
/* Writes this rank's part as tsh_tensor_write_whole does, with elements that fn writes: it is called for one box of
 * this rank's part after another, each of at most 8 MiB. Returns fn's failure, after which the boxes before it are
 * written. */
TSH_API tsh_status tsh_tensor_write_boxes(tsh_tensor *tensor, tsh_values_fn *fn, void *user);
/* Set every element of this rank's part to value. */
TSH_API tsh_status tsh_tensor_fill(tsh_tensor *tensor, double value);
/* The element of a tensor that has one, as a double. NAN, with the message set, for a tensor of more elements, on a
 * rank that does not hold the element, and for one that is PARTIAL, of which a rank has a term alone: tsh_full or
 * tsh_reduce adds these. Of a LOCAL tensor it is this rank's own value. Not collective. Waits as tsh_tensor_read. */
TSH_API double tsh_tensor_item(const tsh_tensor *tensor);

/* --- global tensors ----------------------------------------------------------------------------------------------- */

/* As tsh_tensor_create_full, with random numbers of the world's next stream, uniform in [low, high) or normal; of a
 * dtype that the device computes with. Not collective, but every rank of the world makes the same call, also a rank
 * that the mesh leaves out. */
TSH_API tsh_status tsh_tensor_create_uniform(const tsh_mesh *mesh, const tsh_tensor_config *config, double low,
                                             double high, tsh_tensor **out);
TSH_API tsh_status tsh_tensor_create_normal(const tsh_mesh *mesh, const tsh_tensor_config *config, double mean,
                                            double deviation, tsh_tensor **out);

/* A global tensor from the part of it that each rank of the mesh has: *out has `layouts`, one for each axis, and shares
 * the memory of `local`, which is LOCAL along every axis and whose local shape is the part's. shape: the global shape,
 * the same on every rank; NULL: along each sharded dim the sum of the parts. The parts must be those of
 * tsh_tensor_create, also where sizes do not divide: otherwise every rank of the mesh gets an error that names the
 * first rank with another part, and what its part is. Dtypes, layouts and shapes are compared as well; values are not.
 * Along an axis that stays LOCAL the ranks have wholes of their own, of any shapes.
 * The caller has one reference. Collective over the mesh, waits; a rank outside it needs `shape`. TSH_ERR_ARGUMENT,
 * _LAYOUT, _SHAPE, _DTYPE, _OVERFLOW; _STATE for a tensor that a tape owns. */
TSH_API tsh_status tsh_from_local(const tsh_tensor *local, const tsh_layout *layouts, const int64_t *shape,
                                  tsh_tensor **out);

/* The whole tensor (global shape, row-major) in host memory, of the tensor's dtype. Every rank of the mesh makes the
 * same call; a rank outside it may, and gets nothing. Values are copied as tsh_redistribute moves them; a PARTIAL
 * tensor is summed, and of a PARTIAL tensor that is written one rank along the axis holds the values, its peers hold
 * zeros. `root` is a rank of tsh_mesh_members; on the other ranks `whole` is not used. TSH_ERR_LAYOUT for a tensor that
 * is LOCAL along an axis, or whose ranks share units for uses of their own. Collective over the mesh, waits.
 *   read_whole     whole on every rank = tensor
 *   gather_whole   whole on root = tensor
 *   scatter_whole  tensor = whole on root; tsh_tensor_write_whole, without communication, takes it from every rank */
TSH_API tsh_status tsh_tensor_read_whole(const tsh_tensor *tensor, void *whole);
TSH_API tsh_status tsh_tensor_gather_whole(const tsh_tensor *tensor, int root, void *whole);
TSH_API tsh_status tsh_tensor_scatter_whole(tsh_tensor *tensor, int root, const void *whole);

/* Coupling with a program that has a decomposition of its own: each rank of `group` names its box of the whole, of any
 * place and size, and has its elements row-major in host memory; an empty box has none, and values may be NULL. group
 * has all ranks of the tensor's mesh, such as the world's group; a rank outside the mesh passes its empty tensor.
 * Layouts as for tsh_tensor_gather_whole, values are moved as tsh_redistribute moves them. The boxes may change from
 * call to call; a call that repeats earlier ones plans nothing anew. Collective over group, waits. An error on every
 * rank, with nothing moved: TSH_ERR_RANGE for a box that leaves the shape, TSH_ERR_MISMATCH for tensors that differ by
 * rank.
 *   write_parts   tensor = the boxes, which cover the whole and do not overlap (else TSH_ERR_SHAPE, which names ranks)
 *   read_parts    values = the tensor's elements in the box; boxes may overlap, as halos do, and leave some out */
TSH_API tsh_status tsh_tensor_write_parts(tsh_tensor *tensor, tsh_group *group, const tsh_box *box, const void *values);
TSH_API tsh_status tsh_tensor_read_parts(const tsh_tensor *tensor, tsh_group *group, const tsh_box *box, void *values);

/* Zeroed members take the defaults. */
typedef struct tsh_print_config {
    int root;           /* the rank of tsh_mesh_members that writes */
    int precision;      /* significant digits of a float, up to 17; 6, or 3 in 16 bits */
    int64_t threshold;  /* a tensor of more elements is abbreviated; 1000. INT64_MAX: none is */
    int64_t edge_items; /* indices at each end of an abbreviated dim; 3 */
    int line_width;     /* columns; 75 */
} tsh_print_config;

/* Write the values of a global tensor and a newline, in NumPy's brackets and aligned in columns; a PARTIAL tensor is
 * summed. Only elements that are written are moved. to: on the root, NULL for stdout; not used on the other ranks.
 * config may be NULL; it is the same on every rank. TSH_ERR_LAYOUT for a tensor that is LOCAL along an axis;
 * TSH_ERR_IO, only on the root, when it cannot write. Collective over the mesh, waits; a rank outside it may call, and
 * does nothing. */
TSH_API tsh_status tsh_tensor_print(const tsh_tensor *tensor, FILE *to, const tsh_print_config *config);

/* --- gradients ---------------------------------------------------------------------------------------------------- */

/* Keep the gradient of an intermediate tensor for tsh_tensor_grad after backward. Each further backward over the step
 * adds to it, as to that of a leaf. */
TSH_API tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor);

/* Require a gradient: the tensor becomes a leaf. TSH_ERR_DTYPE for a dtype that is no float. */
TSH_API tsh_status tsh_tensor_require_grad(tsh_tensor *tensor);
/* The accumulated gradient, laid out as the tensor (PARTIAL: replicated; LOCAL: a contribution), owned by the tensor.
 * NULL before any backward has reached the tensor. When a tsh_data_parallel sums it, the call waits for the sum; NULL,
 * with a message, when the sum has failed or has not been started. */
TSH_API tsh_tensor *tsh_tensor_grad(const tsh_tensor *tensor);
/* The gradient of a leaf [rows, cols] becomes sparse. While only lookups (tsh_lookup, tsh_take_rows, layers of these)
 * use the leaf as it is, its gradient is the rows that they have used, each once, and an optimizer's step updates only
 * these rows and their states. After any other use, or a sum over ranks, the gradient has all rows. TSH_ERR_ARGUMENT
 * for a tensor that is no such leaf, _OVERFLOW, _MEMORY. */
TSH_API tsh_status tsh_tensor_set_sparse_grad(tsh_tensor *leaf);
/* A sparse gradient: count x cols elements, in order of *rows [count], the indices of the rows in this rank's part, in
 * the host's memory until the gradient changes. NULL where there is no gradient or it has all rows; tsh_tensor_grad is
 * NULL, with a message, where it is sparse. */
TSH_API tsh_tensor *tsh_tensor_sparse_grad(const tsh_tensor *tensor, int64_t *count, const int64_t **rows);
/* Clear the gradient: the next backward sets it. The memory is kept. */
TSH_API void tsh_tensor_zero_grad(tsh_tensor *tensor);

#ifdef __cplusplus
}
#endif

#endif
