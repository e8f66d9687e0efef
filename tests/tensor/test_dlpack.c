/* DLPack: arrays out of tensors without a copy, and into them with any strides. */
#include "support/mesh_view.h"
#include "tensor/dlpack.h"

#include <criterion/criterion.h>
#include <string.h>

static tshi_mesh_view mesh_view;

static void set_up(void) {
    mesh_view = tshi_mesh_view_make(1, (int[]){2}, (int[]){1});
}

static void tear_down(void) {
    cr_assert_eq(tsh_device_stats(mesh_view.device).bytes_in_use, 0, "every buffer was given back");
    tshi_mesh_view_free(&mesh_view);
}

TestSuite(dlpack, .init = set_up, .fini = tear_down, .timeout = 120);

static tsh_tensor *create(const tsh_tensor_config *config) {
    tsh_tensor *t;
    cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, config, &t), TSH_OK, "%s", tsh_error_message());
    return t;
}

/* Rank 1 of 2 has rows [3, 5) of [5, 4]. */
static tsh_tensor *rows(tsh_dtype dtype) {
    return create(&(tsh_tensor_config){.dtype = dtype, .ndim = 2, .shape = {5, 4}, .layout = {TSH_SHARD(0)}});
}

static tsh_tensor *vector(tsh_dtype dtype, int64_t n) {
    return create(&(tsh_tensor_config){.dtype = dtype, .ndim = 1, .shape = {n}});
}

static void expect_words(const char *words) {
    cr_assert(strstr(tsh_error_message(), words), "\"%s\" is not in \"%s\"", words, tsh_error_message());
}

Test(dlpack, describes_the_part_where_it_lies) {
    static const struct {
        tsh_dtype dtype;
        int code, bits;
    } types[] = {{TSH_FLOAT32, 2, 32}, {TSH_FLOAT64, 2, 64},   {TSH_BFLOAT16, 4, 16},
                 {TSH_FLOAT16, 2, 16}, {TSH_INT32, 0, 32},     {TSH_INT64, 0, 64},
                 {TSH_UINT8, 1, 8},    {TSH_COMPLEX64, 5, 64}, {TSH_COMPLEX128, 5, 128}};
    cr_assert_eq(sizeof types / sizeof *types, TSH_DTYPE_COUNT);
    for (int i = 0; i < TSH_DTYPE_COUNT; i++) {
        struct DLManagedTensor *array;
        tsh_tensor *t = rows(types[i].dtype);
        void *data = tsh_tensor_data(t);
        cr_assert_eq(tsh_tensor_to_dlpack(t, &array), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(array->tensor.data, data);
        cr_assert(array->tensor.device.type == 1 && array->tensor.byte_offset == 0 && array->tensor.ndim == 2);
        cr_assert(array->tensor.dtype.code == types[i].code && array->tensor.dtype.bits == types[i].bits);
        cr_assert_eq(array->tensor.dtype.lanes, 1);
        cr_assert(array->tensor.shape[0] == 2 && array->tensor.shape[1] == 4);
        cr_assert(array->tensor.strides[0] == 4 && array->tensor.strides[1] == 1);
        tsh_tensor_release(t); /* the array has a reference */
        memset(array->tensor.data, 0, 8 * tsh_dtype_size(types[i].dtype));
        array->deleter(array);
    }
}

/* Element (i, j) of a column-major [2, 4] array is 10 i + j; between columns lies a gap. */
Test(dlpack, strided_arrays_are_copied) {
    float values[1 + 4 * 3] = {0};
    int64_t shape[] = {2, 4}, strides[] = {1, 3};
    struct DLManagedTensor array = {.tensor = {.data = values,
                                               .device = {1, 0},
                                               .ndim = 2,
                                               .dtype = {2, 32, 1},
                                               .shape = shape,
                                               .strides = strides,
                                               .byte_offset = sizeof *values}};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 4; j++) values[1 + i + 3 * j] = (float)(10 * i + j);
    }
    tsh_tensor *t = rows(TSH_FLOAT32);
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_OK, "%s", tsh_error_message());
    const float *x = tsh_tensor_data(t);
    for (int i = 0; i < 8; i++) cr_assert_eq(x[i], (float)(10 * (i / 4) + i % 4));
    strides[0] = -1; /* upside down */
    array.tensor.byte_offset += sizeof *values;
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_OK);
    for (int i = 0; i < 8; i++) cr_assert_eq(x[i], (float)(10 * (1 - i / 4) + i % 4));
    array.tensor.strides = NULL;
    array.tensor.byte_offset = 0;
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_OK);
    cr_assert(memcmp(x, values, sizeof *values * 8) == 0);
    tsh_tensor_release(t);
}

Test(dlpack, other_arrays_are_refused) {
    float values[6] = {0};
    int64_t shape[] = {6};
    struct DLManagedTensor array = {
        .tensor = {.data = values, .device = {1, 0}, .ndim = 1, .dtype = {2, 32, 1}, .shape = shape}};
    tsh_tensor *t = vector(TSH_FLOAT32, 5), *whole = vector(TSH_INT32, 6), *empty = vector(TSH_FLOAT32, 0);
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_ERR_SHAPE);
    expect_words("another shape than this rank's part of float32 [5]");
    cr_assert_eq(tsh_tensor_write_dlpack(whole, &array), TSH_ERR_DTYPE);
    expect_words("type code 2 with 32 bits and 1 lanes; the tensor is int32");
    shape[0] = 5;
    array.tensor.data = NULL;
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_ERR_ARGUMENT);
    array.tensor.device.type = 2;
    cr_assert_eq(tsh_tensor_write_dlpack(t, &array), TSH_ERR_UNSUPPORTED);
    expect_words("device type 2");
    array.tensor.device.type = 1;
    shape[0] = 0;
    cr_assert_eq(tsh_tensor_write_dlpack(empty, &array), TSH_OK);
    tsh_tensor_release(t);
    tsh_tensor_release(whole);
    tsh_tensor_release(empty);
}
