/* Tensors that cannot be, and values that do not fit. */
#include "misuse.h"

#include <stdio.h>

static void create(const job *j, const tsh_tensor_config *config) {
    tsh_tensor *x = NULL;
    say(tsh_tensor_create(j->mesh, config, &x));
}

static void negative_dim(job *j) {
    create(j, &(tsh_tensor_config){.ndim = 1, .shape = {-3}});
}

static void many_dims(job *j) {
    create(j, &(tsh_tensor_config){.ndim = 99});
}

static void no_ndim(job *j) {
    create(j, &(tsh_tensor_config){.shape = {6, 8}});
}

static void huge(job *j) {
    create(j, &(tsh_tensor_config){.ndim = 2, .shape = {INT64_MAX / 2, 8}});
}

static void more_than_memory(job *j) {
    create(j, &(tsh_tensor_config){.ndim = 2, .shape = {1 << 20, 1 << 20}});
}

static void no_dtype(job *j) {
    create(j, &(tsh_tensor_config){.dtype = (tsh_dtype)55, .ndim = 1, .shape = {4}});
}

static void shard_of_no_dim(job *j) {
    create(j, &(tsh_tensor_config){.ndim = 1, .shape = {4}, .layout = {TSH_SHARD(5)}});
}

static void no_mesh(job *j) {
    tsh_tensor *x = NULL;
    (void)j;
    say(tsh_tensor_create(NULL, &(tsh_tensor_config){.ndim = 1, .shape = {4}}, &x));
}

static void write_too_much(job *j) {
    const float values[9] = {0};
    say(tsh_tensor_write(ones(j, TSH_FLOAT32, 1, 4, 0), values, 9));
}

static void item_of_many(job *j) {
    printf("%g: %s\n", tsh_tensor_item(ones(j, TSH_FLOAT32, 1, 4, 0)), tsh_error_message());
}

static void grad_of_integers(job *j) {
    say(tsh_tensor_require_grad(ones(j, TSH_INT64, 1, 4, 0), true));
}

const misuse tensor_rows[] = {
    {"negative_dim", BOTH, "", "dim 0 is negative: -3", negative_dim, false},
    {"many_dims", BOTH, "", "tensor_create: 99 dims, 0 to", many_dims, false},
    {"no_ndim", BOTH, "", "tensor_create: ndim is 0, which means a scalar, but shape[0] is 6", no_ndim, false},
    {"huge_tensor", BOTH, "", "TSH_ERR_OVERFLOW", huge, false},
    {"more_than_memory", BOTH, "TSHARD_HEAP=64M", "TSH_ERR_MEMORY", more_than_memory, false},
    {"no_dtype", BOTH, "", "tensor_create: unknown dtype 55", no_dtype, false},
    {"shard_of_no_dim", BOTH, "", "SHARD(5)", shard_of_no_dim, false},
    {"tensor_without_mesh", BOTH, "", "tensor_create: mesh and config are required", no_mesh, false},
    {"write_too_much", BOTH, "", "tensor_write: ", write_too_much, false},
    {"item_of_many", BOTH, "", "tensor_item: ", item_of_many, false},
    {"grad_of_integers", BOTH, "", "int64", grad_of_integers, false},
    {0}};
