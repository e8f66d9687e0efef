/* Global tensors: values from the world's random streams. */
#include "dist/world.h"

static tsh_status create_drawn(const char *what, const tsh_mesh *mesh, const tsh_tensor_config *config, bool normal,
                               double a, double b, tsh_tensor **out) {
    if (out) *out = NULL;
    if (!mesh || !config || !out) return tshi_fail(TSH_ERR_ARGUMENT, "%s: mesh, config and out are required", what);
    tsh_status status = tshi_check_computes(mesh->device, config->dtype, what);
    if (status == TSH_OK) status = tshi_check_distribution(what, normal, a, b);
    if (status == TSH_OK) status = tsh_tensor_create(mesh, config, out);
    if (status != TSH_OK) return status;
    tshi_tensor_draw(*out, normal, mesh->world->seed, tshi_world_stream(mesh->world), a, b);
    return TSH_OK;
}

tsh_status tsh_tensor_create_uniform(const tsh_mesh *mesh, const tsh_tensor_config *config, double low, double high,
                                     tsh_tensor **out) {
    return create_drawn("tensor_create_uniform", mesh, config, false, low, high, out);
}

tsh_status tsh_tensor_create_normal(const tsh_mesh *mesh, const tsh_tensor_config *config, double mean,
                                    double deviation, tsh_tensor **out) {
    return create_drawn("tensor_create_normal", mesh, config, true, mean, deviation, out);
}
