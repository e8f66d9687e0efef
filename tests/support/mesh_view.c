#include "support/mesh_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "test support: %s: %s\n", what, tsh_error_message());
    abort();
}

tshi_mesh_view tshi_mesh_view_make(int axes, const int *sizes, const int *index) {
    tshi_mesh_view view = {.mesh.axes = axes};
    view.heap =
        mmap(NULL, TSHI_MESH_VIEW_HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(view.heap != MAP_FAILED, "mmap");
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    need(tshi_device_create_cpu(&allocator, view.heap, TSHI_MESH_VIEW_HEAP, 1, &view.device) == TSH_OK, "device");
    view.mesh.device = view.device;
    for (int a = 0; a < axes; a++) {
        snprintf(view.mesh.axis[a].name, sizeof view.mesh.axis[a].name, "axis%d", a);
        view.mesh.axis[a].size = sizes[a];
        view.mesh.axis[a].index = index[a];
    }
    return view;
}

void tshi_mesh_view_free(tshi_mesh_view *view) {
    tshi_device_destroy(view->device);
    munmap(view->heap, TSHI_MESH_VIEW_HEAP);
}

tsh_tensor *tshi_mesh_view_tensor(const tshi_mesh_view *view, tsh_dtype dtype, int ndim, const int64_t *shape,
                                  const tsh_layout *layout) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim};
    int64_t numel = 1;
    for (int d = 0; d < ndim; d++) numel *= config.shape[d] = shape[d];
    memcpy(config.layout, layout, sizeof *layout * (size_t)view->mesh.axes);
    tsh_tensor *tensor;
    need(tsh_tensor_create(&view->mesh, &config, &tensor) == TSH_OK, "tensor_create");
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
