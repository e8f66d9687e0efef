#include "support/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "test support: %s: %s\n", what, tsh_error_message());
    abort();
}

tshi_place tshi_place_make(int axes, const int *sizes, const int *index) {
    tshi_place place = {.mesh.axes = axes};
    place.heap =
        mmap(NULL, TSHI_PLACE_HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(place.heap != MAP_FAILED, "mmap");
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    need(tshi_device_create_cpu(&allocator, place.heap, TSHI_PLACE_HEAP, 1, &place.device) == TSH_OK, "device");
    place.mesh.device = place.device;
    for (int a = 0; a < axes; a++) {
        snprintf(place.mesh.axis[a].name, sizeof place.mesh.axis[a].name, "axis%d", a);
        place.mesh.axis[a].size = sizes[a];
        place.mesh.axis[a].index = index[a];
    }
    return place;
}

void tshi_place_free(tshi_place *place) {
    tshi_device_destroy(place->device);
    munmap(place->heap, TSHI_PLACE_HEAP);
}

tsh_tensor *tshi_place_tensor(const tshi_place *place, tsh_dtype dtype, int ndim, const int64_t *shape,
                              const tsh_layout *layout) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim};
    int64_t numel = 1;
    for (int d = 0; d < ndim; d++) numel *= config.shape[d] = shape[d];
    memcpy(config.layout, layout, sizeof *layout * (size_t)place->mesh.axes);
    tsh_tensor *tensor;
    need(tsh_tensor_create(&place->mesh, &config, &tensor) == TSH_OK, "tensor_create");
    double *whole = malloc(sizeof(double) * (size_t)(numel + 1));
    float *narrow = malloc(sizeof(float) * (size_t)(numel + 1));
    need(whole && narrow && (dtype == TSH_FLOAT32 || dtype == TSH_FLOAT64), "float tensor");
    for (int64_t i = 0; i < numel; i++) narrow[i] = (float)(whole[i] = (double)i);
    need(tsh_tensor_write_whole(tensor, dtype == TSH_FLOAT64 ? (void *)whole : (void *)narrow) == TSH_OK,
         "write_whole");
    free(whole);
    free(narrow);
    return tensor;
}
