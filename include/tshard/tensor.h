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

/* A tensor of a global shape; each rank of its mesh holds a part. */
typedef struct tsh_tensor tsh_tensor;

/* Element type, GLOBAL shape, and a layout for each axis of the mesh (by default REPLICATED). */
typedef struct tsh_tensor_config {
    tsh_dtype dtype;
    int ndim; /* 0 (a scalar, with shape {0}) to TSH_MAX_DIMS */
    int64_t shape[TSH_MAX_DIMS];
    tsh_layout layout[TSH_MAX_AXES];
} tsh_tensor_config;

/* A zeroed tensor with this rank's part of the global shape, in the memory of the mesh's device. The caller has one
 * reference. The mesh must outlive it. Not collective. TSH_ERR_ARGUMENT, _SHAPE, _OVERFLOW, _MEMORY. */
TSH_API tsh_status tsh_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
/* As tsh_tensor_create, with values that depend only on an element's global index, not on the layouts. Along a PARTIAL
 * axis the first rank holds the values, the other ranks hold zeros; along a LOCAL axis each rank's part counts as a
 * whole tensor.
 *   full    value, cast to the dtype
 *   arange  start + i step for element i in row-major order: in float64, rounded once; for an integer dtype in int64:
 *           start and step must be whole (TSH_ERR_ARGUMENT), and all values must fit (TSH_ERR_OVERFLOW)
 * See also tsh_tensor_create_uniform and tsh_tensor_create_normal. */
TSH_API tsh_status tsh_tensor_create_full(const tsh_mesh *mesh, const tsh_tensor_config *config, double value,
                                          tsh_tensor **out);
TSH_API tsh_status tsh_tensor_create_arange(const tsh_mesh *mesh, const tsh_tensor_config *config, double start,
                                            double step, tsh_tensor **out);
/* Add a reference, and drop one. The program has one of each tensor that it creates, clones, receives or makes from
 * parts. The result of a getter or of a function of a tape is borrowed (a gradient, a weight, a result): its release is
 * refused with an error in the log that names the tensor, and so is a second release. */
TSH_API tsh_tensor *tsh_tensor_retain(tsh_tensor *tensor);
TSH_API void tsh_tensor_release(tsh_tensor *tensor);
/* A copy in new memory with the same layouts, without a gradient. */
TSH_API tsh_status tsh_tensor_clone(const tsh_tensor *tensor, tsh_tensor **out);

/* The element type, and the number of dims. */
TSH_API tsh_dtype tsh_tensor_dtype(const tsh_tensor *tensor);
TSH_API int tsh_tensor_ndim(const tsh_tensor *tensor);
/* The global shape: ndim sizes of the whole tensor; valid as long as the tensor. */
TSH_API const int64_t *tsh_tensor_shape(const tsh_tensor *tensor);
/* The local shape: ndim sizes of this rank's part, valid as long as the tensor; the elements and the bytes of that
 * part. */
TSH_API const int64_t *tsh_tensor_local_shape(const tsh_tensor *tensor);
TSH_API int64_t tsh_tensor_local_numel(const tsh_tensor *tensor);
TSH_API size_t tsh_tensor_local_nbytes(const tsh_tensor *tensor);
/* The box of the global tensor that this rank holds; all lengths are 0 on a rank outside the mesh. LOCAL axes count as
 * REPLICATED. */
TSH_API tsh_box tsh_tensor_box(const tsh_tensor *tensor);
TSH_API const tsh_mesh *tsh_tensor_mesh(const tsh_tensor *tensor);
/* The layout along the axis of `group`; REPLICATED for a group that is not an axis of the tensor's mesh. */
TSH_API tsh_layout tsh_tensor_layout(const tsh_tensor *tensor, const tsh_group *group);
/* The elements in device memory, row-major (host memory on a CPU). A write through the pointer is not recorded:
 * backward and an optimizer's master weights then work with values computed from the earlier elements. NULL when
 * tsh_backward has freed the tensor, and when there is no memory for a layer's parameter at its first use. */
TSH_API void *tsh_tensor_data(const tsh_tensor *tensor);

/* Writes "float32 [4,16] of [8,16] data=SHARD(0) model=REPLICATED" into text, always terminated (size > 0): the local
 * shape, the global one where it differs, and the layouts, as SHARD(0,1) with a split order. A text that does not fit
 * ends with "...". Returns text. */
TSH_API char *tsh_tensor_describe(const tsh_tensor *tensor, char *text, size_t size);

/* Copy this rank's part from or to host memory; count must be the tensor's tsh_tensor_local_numel. A read waits for the
 * device, and returns a failure that its kernels have found so far. */
TSH_API tsh_status tsh_tensor_write(tsh_tensor *tensor, const void *from, int64_t count);
TSH_API tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count);
/* Copy this rank's part from the whole tensor (global shape, row-major, in host memory). Along a PARTIAL axis the first
 * rank takes the values, the other ranks zeros. TSH_ERR_LAYOUT for a tensor that is LOCAL along an axis. */
TSH_API tsh_status tsh_tensor_write_whole(tsh_tensor *tensor, const void *whole);
/* Writes the elements of `box` of the whole tensor, row-major, in the tensor's dtype, to `values`; a status other than
 * TSH_OK ends the calling function. */
typedef tsh_status tsh_values_fn(void *user, const tsh_box *box, void *values);
/* As tsh_tensor_write_whole, with elements from fn, which is called for one box of this rank's part after another, each
 * of at most 8 MiB. When fn fails, its status is returned, and earlier boxes have been written. */
TSH_API tsh_status tsh_tensor_write_boxes(tsh_tensor *tensor, tsh_values_fn *fn, void *user);
/* Set every element of this rank's part to value. */
TSH_API tsh_status tsh_tensor_fill(tsh_tensor *tensor, double value);
/* The element of a one-element tensor, as a double. NAN, with the message set, for other sizes, on a rank that does not
 * hold the element, and for a PARTIAL tensor, whose terms tsh_full or tsh_reduce adds. For a LOCAL tensor, this rank's
 * own value. Not collective. Waits as tsh_tensor_read. */
TSH_API double tsh_tensor_item(const tsh_tensor *tensor);

/* DLPack, with which NumPy, PyTorch and others share arrays in host memory (https://dmlc.github.io/dlpack). The struct
 * is the unversioned one, from before DLPack 1.0: a capsule "dltensor" in Python. Not collective.
 *   to_dlpack     *out describes this rank's part, row-major, without a copy, and holds a reference to the tensor. The
 *                 receiver calls its deleter once, on the world's thread, before the world is destroyed. Writing
 *                 through *out is like writing through tsh_tensor_data. A parameter that tsh_data_parallel_create
 *                 splits afterwards gets other memory, and *out keeps the former. TSH_ERR_UNSUPPORTED for a tensor on a
 *                 GPU, TSH_ERR_STATE for one that a tape owns, TSH_ERR_MEMORY.
 *   write_dlpack  copies an array of the tensor's dtype and local shape, with any strides, into this rank's part, which
 *                 the array must not overlap; the array stays the caller's. There is no call that shares an array's
 *                 memory instead, because the ranks of a machine read each other's tensors in place, in memory that all
 *                 of them map. TSH_ERR_DTYPE, _SHAPE, _MEMORY; TSH_ERR_UNSUPPORTED for an array that is not in host
 *                 memory. */
struct DLManagedTensor;
TSH_API tsh_status tsh_tensor_to_dlpack(tsh_tensor *tensor, struct DLManagedTensor **out);
TSH_API tsh_status tsh_tensor_write_dlpack(tsh_tensor *tensor, const struct DLManagedTensor *from);

/* --- global tensors ----------------------------------------------------------------------------------------------- */

/* As tsh_tensor_create_full, with random numbers of the world's next stream, uniform in [low, high) or normal; in a
 * dtype that the device computes with. Not collective, but every rank of the world makes the same call, also one
 * outside the mesh. */
TSH_API tsh_status tsh_tensor_create_uniform(const tsh_mesh *mesh, const tsh_tensor_config *config, double low,
                                             double high, tsh_tensor **out);
TSH_API tsh_status tsh_tensor_create_normal(const tsh_mesh *mesh, const tsh_tensor_config *config, double mean,
                                            double deviation, tsh_tensor **out);

/* Cut points of a dim, such as those between the rows for each rank's experts: along any axis of `parts` ranks in the
 * mesh's world, the layout TSH_SHARD_CUTS(d, *cuts) gives rank i the items [offsets[i], offsets[i + 1]) of dim d.
 * offsets[parts + 1] starts at 0, ascends, and ends at the dim's size; two equal neighbours make an empty part. Equal
 * offsets give the same *cuts on every rank. Cut points exist until tsh_cuts_release has been called as often as
 * tsh_cuts_create, and no tensor has them any more. Every rank that uses cut points creates them; not collective.
 * TSH_ERR_ARGUMENT, _STATE, _MEMORY. */
TSH_API tsh_status tsh_cuts_create(const tsh_mesh *mesh, int parts, const int64_t *offsets, uint64_t *cuts);
/* Does nothing for NULL, for 0, and for cut points that have been released already. */
TSH_API void tsh_cuts_release(const tsh_mesh *mesh, uint64_t cuts);

/* A global tensor from the parts that the ranks of the mesh have: *out has `layouts`, one for each axis, and shares the
 * memory of `local`, which is LOCAL along every axis and whose local shape is the part's. shape: the global shape, the
 * same on every rank; NULL, but not with SHARD_NEXT: along each sharded dim the sum of the parts. The parts must have
 * the shapes that tsh_tensor_create would give them: otherwise every rank of the mesh gets an error that names the
 * first rank with a different part, and its shape. Dtypes, layouts and shapes are compared as well; values are not.
 * Along an axis that stays LOCAL, ranks may have tensors of different shapes. The caller has one reference. Collective
 * over the mesh, waits; a rank outside it needs `shape`. TSH_ERR_ARGUMENT, _LAYOUT, _SHAPE, _DTYPE, _OVERFLOW; _STATE
 * for a tensor that a tape owns. */
TSH_API tsh_status tsh_from_local(const tsh_tensor *local, const tsh_layout *layouts, const int64_t *shape,
                                  tsh_tensor **out);

/* The whole tensor (global shape, row-major) in host memory, of the tensor's dtype. Every rank of the mesh makes the
 * same call; a rank outside it may, and gets nothing. A PARTIAL tensor is summed when it is read; when it is written,
 * one rank along the axis holds the values, its peers hold zeros. `root` is a rank of tsh_mesh_members; on the other
 * ranks `whole` is not used. TSH_ERR_LAYOUT for a tensor that is LOCAL or SHARED_OWN along an axis. Collective over the
 * mesh, waits.
 *   read_whole     whole on every rank = tensor
 *   gather_whole   whole on root = tensor
 *   scatter_whole  tensor = whole on root; tsh_tensor_write_whole takes it from every rank, without communication */
TSH_API tsh_status tsh_tensor_read_whole(const tsh_tensor *tensor, void *whole);
TSH_API tsh_status tsh_tensor_gather_whole(const tsh_tensor *tensor, int root, void *whole);
TSH_API tsh_status tsh_tensor_scatter_whole(tsh_tensor *tensor, int root, const void *whole);

/* Coupling with a program that has its own decomposition: each rank of `group` passes any box of the whole, with its
 * elements row-major in host memory; for an empty box values may be NULL. group has all ranks of the tensor's mesh,
 * such as the world's group; a rank outside the mesh passes its empty tensor. Layouts as for tsh_tensor_gather_whole.
 * The boxes may change from call to call; the exchange of known boxes is not planned again. Collective over group,
 * waits. An error on every rank, with nothing moved: TSH_ERR_RANGE for a box that leaves the shape, TSH_ERR_MISMATCH
 * for tensors that differ by rank.
 *   write_parts   tensor = the boxes, which must cover the whole and not overlap (else TSH_ERR_SHAPE, which names the
 *                 ranks)
 *   read_parts    values = the tensor's elements in the box; boxes may overlap, as halos do, and leave gaps */
TSH_API tsh_status tsh_tensor_write_parts(tsh_tensor *tensor, tsh_group *group, const tsh_box *box, const void *values);
TSH_API tsh_status tsh_tensor_read_parts(const tsh_tensor *tensor, tsh_group *group, const tsh_box *box, void *values);

/* Options of tsh_tensor_print; zeros are the defaults. */
typedef struct tsh_print_config {
    int root;           /* the rank of tsh_mesh_members that writes */
    int precision;      /* significant digits of a float, up to 17; default 6, for 16-bit dtypes 3 */
    int64_t threshold;  /* a tensor with more elements is abbreviated; default 1000 */
    int64_t edge_items; /* indices at each end of an abbreviated dim; default 3 */
    int line_width;     /* columns; default 75 */
} tsh_print_config;

/* Write the values of a global tensor and a newline, in NumPy's brackets and aligned in columns; a PARTIAL tensor is
 * summed. Only the printed elements are sent. to: the root's stream, NULL for stdout; not used on the other ranks.
 * config may be NULL, and is the same on every rank. TSH_ERR_LAYOUT for a tensor that is LOCAL along an axis;
 * TSH_ERR_IO, only on the root, when it cannot write. Collective over the mesh, waits; a rank outside it may make the
 * call, which does nothing there. */
TSH_API tsh_status tsh_tensor_print(const tsh_tensor *tensor, FILE *to, const tsh_print_config *config);

/* --- gradients ---------------------------------------------------------------------------------------------------- */

/* Keep the gradient of an intermediate tensor, for tsh_tensor_grad after backward. Further backwards in the step add to
 * it, as to a leaf's. */
TSH_API tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor);

/* Require a gradient: the tensor becomes a leaf. With `required` false the tensor is frozen: backward computes no
 * gradient of it and communicates none, a gradient that it has is dropped, and every tsh_data_parallel and optimizer
 * that is created afterwards leaves it out. Every rank makes the same call, between steps. TSH_ERR_DTYPE for a dtype
 * that is not a float; TSH_ERR_STATE for a tensor that a tape has made, and for freezing a parameter whose gradient a
 * tsh_data_parallel sums: freeze before creating that. */
TSH_API tsh_status tsh_tensor_require_grad(tsh_tensor *tensor, bool required);
/* The accumulated gradient, in the tensor's layouts (PARTIAL: replicated; LOCAL: a contribution), owned by the tensor.
 * NULL before any backward has reached the tensor; NULL, with a message, when a tsh_data_parallel sums it and the last
 * backward was without sync or has failed. */
TSH_API tsh_tensor *tsh_tensor_grad(const tsh_tensor *tensor);
/* Makes the gradient of a leaf [rows, cols] sparse. While only lookups (tsh_lookup, tsh_take_rows, layers of these) use
 * the leaf in its own layouts, its gradient has only the rows that they have used, each once, and an optimizer's step
 * updates only these rows and their states. After any other use, or a sum over ranks, the gradient has all rows.
 * TSH_ERR_ARGUMENT for another kind of tensor, _OVERFLOW, _MEMORY. */
TSH_API tsh_status tsh_tensor_set_sparse_grad(tsh_tensor *leaf);
/* A sparse gradient [*count, cols]. *rows [*count], in host memory, are the indices of its rows in this rank's part,
 * valid until the gradient changes. NULL when there is no gradient or it has all rows; for a sparse gradient
 * tsh_tensor_grad is NULL, with a message. */
TSH_API tsh_tensor *tsh_tensor_sparse_grad(const tsh_tensor *tensor, int64_t *count, const int64_t **rows);
/* Clear the gradient: the next backward sets it. The memory is kept. */
TSH_API void tsh_tensor_zero_grad(tsh_tensor *tensor);

#ifdef __cplusplus
}
#endif

#endif
