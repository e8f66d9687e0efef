/* A mesh seen from one place in it, without a world: enough for tensors. */
#ifndef TSHI_TEST_PLACE_H
#define TSHI_TEST_PLACE_H

#include "tensor/tensor.h"

#define TSHI_PLACE_HEAP ((size_t)64 << 20)

typedef struct tshi_place {
    tsh_mesh mesh;
    void *heap;
    tsh_device *device;
} tshi_place;

/* axes up to TSH_MAX_AXES: sizes[a], of which this is index[a]. Aborts the test program without memory. */
tshi_place tshi_place_make(int axes, const int *sizes, const int *index);
void tshi_place_free(tshi_place *place);

/* A tensor of the global shape with the layouts, holding 0, 1, 2, ... as the whole does. */
tsh_tensor *tshi_place_tensor(const tshi_place *place, tsh_dtype dtype, int ndim, const int64_t *shape,
                              const tsh_layout *layout);

#endif
