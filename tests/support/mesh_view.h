/* A mesh as one of its ranks sees it, without a world: enough for tensors. */
#ifndef TSHI_TEST_MESH_VIEW_H
#define TSHI_TEST_MESH_VIEW_H

#include "tensor/tensor.h"

#define TSHI_MESH_VIEW_HEAP ((size_t)64 << 20)

typedef struct tshi_mesh_view {
    tsh_mesh mesh;
    void *heap;
    tsh_device *device;
} tshi_mesh_view;

/* A mesh of at most TSH_MAX_AXES axes of sizes[a] ranks, seen from the rank at index[a]. Aborts the test program when
 * memory runs out. */
tshi_mesh_view tshi_mesh_view_make(int axes, const int *sizes, const int *index);
void tshi_mesh_view_free(tshi_mesh_view *view);

/* A tensor of the global shape with the layouts, holding 0, 1, 2, ... as the whole does. */
tsh_tensor *tshi_mesh_view_tensor(const tshi_mesh_view *view, tsh_dtype dtype, int ndim, const int64_t *shape,
                                  const tsh_layout *layout);

#endif
