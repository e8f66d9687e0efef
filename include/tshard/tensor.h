/* tensor: the tensor itself.
 *
 * A tensor is dense and row-major. It belongs to a mesh and carries one layout for each of the mesh's axes.
 * tsh_tensor_shape is the shape of the whole; tsh_tensor_local_shape of what this rank holds.
 *
 * Thread safety: tsh_tensor_dtype, _ndim, _shape, _local_shape, _local_numel, _local_nbytes and _mesh are any thread's while the tensor lives.
 * All else is the world's thread's, references too. The elements behind tsh_tensor_data may be read and written by any
 * thread while no call works on them. */
#ifndef TSHARD_TENSOR_H
#define TSHARD_TENSOR_H

#include "tshard/device.h"
#include "tshard/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsh_tensor tsh_tensor;

/* dtype and GLOBAL shape, and a layout for each axis of the mesh (all REPLICATED when left out). */
typedef struct tsh_tensor_config {
    tsh_dtype dtype;
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    tsh_layout layout[TSH_MAX_AXES];
} tsh_tensor_config;

/* A zeroed tensor of this rank's part of the global shape, in the memory of the mesh's device. One reference, the
 * caller's. The mesh must outlive it. Not collective. TSH_ERR_ARGUMENT, _SHAPE, _OVERFLOW, _MEMORY. */
TSH_API tsh_status tsh_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out);
TSH_API tsh_tensor *tsh_tensor_retain(tsh_tensor *tensor);
TSH_API void tsh_tensor_release(tsh_tensor *tensor);
/* A copy with its own memory, same layouts, no gradient. */
TSH_API tsh_status tsh_tensor_clone(const tsh_tensor *tensor, tsh_tensor **out);

/* Element type, and number of dims. */
TSH_API tsh_dtype tsh_tensor_dtype(const tsh_tensor *tensor);
TSH_API int tsh_tensor_ndim(const tsh_tensor *tensor);
/* The global shape: ndim sizes of the whole tensor; valid as long as the tensor. */
TSH_API const int64_t *tsh_tensor_shape(const tsh_tensor *tensor);
/* The local shape: ndim sizes of the part that this rank holds; valid as long as the tensor. Its elements and bytes. */
TSH_API const int64_t *tsh_tensor_local_shape(const tsh_tensor *tensor);
TSH_API int64_t tsh_tensor_local_numel(const tsh_tensor *tensor);
TSH_API size_t tsh_tensor_local_nbytes(const tsh_tensor *tensor);
TSH_API const tsh_mesh *tsh_tensor_mesh(const tsh_tensor *tensor);
/* Layout along the axis of `group`; REPLICATED for a group that is no axis of the tensor's mesh. */
TSH_API tsh_layout tsh_tensor_layout(const tsh_tensor *tensor, const tsh_group *group);
/* Device memory, row-major (host memory on CPU). NULL once backward has freed it (tsh_backward). */
TSH_API void *tsh_tensor_data(const tsh_tensor *tensor);

/* "float32 [8,16] data=SHARD(0) model=REPLICATED" into text, always terminated; returns text. */
TSH_API char *tsh_tensor_describe(const tsh_tensor *tensor, char *text, size_t size);

/* Say what a LOCAL tensor is along the axis of `group`: REPLICATED, PARTIAL or SHARD(d), whose dim d is then
 * `global` long over this axis and those that shard it already, split by the earlier axis first (0: ranks along this
 * axis hold equal parts). No communication and no check that it is true of the values; the local size must be this
 * rank's balanced part. Claiming LOCAL withdraws a claim. TSH_ERR_ARGUMENT, _SHAPE, _LAYOUT, _STATE for a tape's. */
TSH_API tsh_status tsh_tensor_claim(tsh_tensor *tensor, const tsh_group *group, tsh_layout layout, int64_t global);

/* Copy nbytes of this rank's part in or out; `count` elements must be the tensor's own number. A read waits for a GPU,
 * and fails with what its kernels have found wrong by then. */
TSH_API tsh_status tsh_tensor_write(tsh_tensor *tensor, const void *from, int64_t count);
TSH_API tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count);
/* Copy this rank's part out of a whole (global shape, row-major, in host memory). Each axis must be REPLICATED or
 * SHARD. */
TSH_API tsh_status tsh_tensor_write_whole(tsh_tensor *tensor, const void *whole);
TSH_API tsh_status tsh_tensor_fill(tsh_tensor *tensor, double value);
/* The one element of a tensor that holds one, as a double; NAN with the message set otherwise. Waits as a read does. */
TSH_API double tsh_tensor_item(const tsh_tensor *tensor);

/* Ask for a gradient (float dtypes; the tensor becomes a leaf). */
TSH_API tsh_status tsh_tensor_require_grad(tsh_tensor *tensor);
/* The accumulated gradient, laid out as the tensor (PARTIAL: replicated; LOCAL: a contribution), or NULL before any
 * backward has reached it. Owned by the tensor. When a tsh_data_parallel sums it, waits for the sum; NULL, with the
 * words in tsh_error_message(), when there is none to be had. */
TSH_API tsh_tensor *tsh_tensor_grad(const tsh_tensor *tensor);
/* The next backward starts the sum anew. The memory is kept. */
TSH_API void tsh_tensor_zero_grad(tsh_tensor *tensor);

#ifdef __cplusplus
}
#endif

#endif
