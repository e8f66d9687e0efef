/* Dense maths on tensors: plain loops beside, and shapes that do not fit. The kernels' own tests are in tests/device.
 */
#include "functional/ops.h"
#include "support/place.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static tshi_place place;
static const tsh_layout whole[TSH_MAX_AXES];

static void set_up(void) {
    place = tshi_place_make(1, (int[]){1}, (int[]){0});
}

static void tear_down(void) {
    cr_assert_eq(tsh_device_stats(place.device).bytes_in_use, 0);
    tshi_place_free(&place);
}

TestSuite(ops, .init = set_up, .fini = tear_down, .timeout = 120);

static tsh_tensor *make(int ndim, const int64_t *shape) {
    return tshi_place_tensor(&place, TSH_FLOAT64, ndim, shape, whole);
}

static const double *values(const tsh_tensor *t) {
    return tsh_tensor_data(t);
}

Test(ops, matmul_flattens_leading_dims_and_transposes) {
    tsh_tensor *a = make(3, (int64_t[]){2, 3, 4}), *b = make(2, (int64_t[]){5, 4}), *c = make(3, (int64_t[]){2, 3, 5});
    cr_assert_eq(tshi_op_matmul(a, false, b, true, 0, c), TSH_OK);
    for (int m = 0; m < 6; m++) {
        for (int n = 0; n < 5; n++) {
            double sum = 0;
            for (int k = 0; k < 4; k++) sum += (m * 4 + k) * (n * 4 + k);
            cr_assert_eq(values(c)[m * 5 + n], sum);
        }
    }
    /* c^T a: [5, 6] x [6, 4] on top of what b has */
    cr_assert_eq(tshi_op_matmul(c, true, a, false, 1, b), TSH_OK);
    for (int n = 0; n < 5; n++) {
        for (int k = 0; k < 4; k++) {
            double sum = n * 4 + k;
            for (int m = 0; m < 6; m++) sum += values(c)[m * 5 + n] * (m * 4 + k);
            cr_assert_eq(values(b)[n * 4 + k], sum);
        }
    }
    cr_assert_eq(tshi_op_matmul(a, false, b, false, 0, c), TSH_ERR_SHAPE);
    cr_assert(strstr(tsh_error_message(), "[2,3,4]") && strstr(tsh_error_message(), "[5,4]"));
    tsh_tensor_release(a);
    tsh_tensor_release(b);
    tsh_tensor_release(c);
}

Test(ops, slices_and_insertions) {
    tsh_tensor *x = make(3, (int64_t[]){2, 5, 3}), *part = make(3, (int64_t[]){2, 2, 3});
    cr_assert_eq(tshi_op_slice(x, 1, 3, part), TSH_OK);
    for (int o = 0; o < 2; o++) {
        for (int i = 0; i < 6; i++) cr_assert_eq(values(part)[o * 6 + i], o * 15 + 9 + i);
    }
    cr_assert_eq(tshi_op_insert_add(part, 1, 0, x), TSH_OK);
    cr_assert_eq(values(x)[15 + 2], 15 + 2 + 15 + 9 + 2);
    cr_assert_eq(tshi_op_insert(part, 1, 0, x), TSH_OK);
    cr_assert_eq(values(x)[15 + 2], 15 + 9 + 2);
    cr_assert_eq(tshi_op_slice(x, 1, 4, part), TSH_ERR_SHAPE, "two from the fourth of five");
    cr_assert_eq(tshi_op_slice(x, 0, 0, part), TSH_ERR_SHAPE);
    tsh_tensor_release(x);
    tsh_tensor_release(part);
}

Test(ops, sums_over_one_dim_and_all) {
    tsh_tensor *x = make(3, (int64_t[]){2, 5, 3}), *y = make(2, (int64_t[]){2, 3}), *all = make(0, NULL);
    cr_assert_eq(tshi_op_sum(x, 1, 0.5, y), TSH_OK);
    for (int o = 0; o < 2; o++) {
        for (int k = 0; k < 3; k++) {
            double sum = 0;
            for (int i = 0; i < 5; i++) sum += 0.5 * (o * 15 + i * 3 + k);
            cr_assert_eq(values(y)[o * 3 + k], sum);
        }
    }
    cr_assert_eq(tshi_op_sum(x, -1, 1, all), TSH_OK);
    cr_assert_eq(values(all)[0], 29 * 30 / 2);
    cr_assert_eq(tshi_op_sum(x, 0, 1, y), TSH_ERR_SHAPE);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tensor_release(all);
}

Test(ops, lookup_names_the_bad_id) {
    tsh_tensor *table = make(2, (int64_t[]){3, 2}), *y = make(2, (int64_t[]){4, 2}), *ids;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {4}};
    cr_assert_eq(tsh_tensor_create(&place.mesh, &config, &ids), TSH_OK);
    cr_assert_eq(tsh_tensor_write(ids, (int64_t[]){5, 9, 6, 4}, 4), TSH_OK);
    cr_assert_eq(tshi_op_lookup(table, ids, 4, 10, y), TSH_OK, "rows 4 to 6 of 10");
    static const double expected[] = {2, 3, 0, 0, 4, 5, 0, 1};
    cr_assert_eq(memcmp(values(y), expected, sizeof expected), 0);
    cr_assert_eq(tshi_op_lookup(table, ids, 4, 9, y), TSH_ERR_RANGE);
    cr_assert(strstr(tsh_error_message(), "id 9 at place 1"), "%s", tsh_error_message());
    cr_assert_eq(tshi_op_lookup(table, y, 4, 10, y), TSH_ERR_DTYPE);
    tsh_tensor_release(table);
    tsh_tensor_release(y);
    tsh_tensor_release(ids);
}

Test(ops, elementwise_wants_equal_sizes_and_dtypes) {
    tsh_tensor *x = make(1, (int64_t[]){4}), *y = make(1, (int64_t[]){5}), *z = make(1, (int64_t[]){4});
    tsh_tensor *narrow = tshi_place_tensor(&place, TSH_FLOAT32, 1, (int64_t[]){4}, whole);
    cr_assert_eq(tshi_op_axpby(1, x, 1, y, z), TSH_ERR_SHAPE);
    cr_assert_eq(tshi_op_mul(x, narrow, 0, z), TSH_ERR_DTYPE);
    cr_assert_eq(tshi_op_unary(TSHI_RELU, x, y), TSH_ERR_SHAPE);
    cr_assert_eq(tshi_op_bias(x, y, z), TSH_ERR_SHAPE);
    cr_assert_eq(tshi_op_axpby(2, x, -1, x, z), TSH_OK);
    for (int i = 0; i < 4; i++) cr_assert_eq(values(z)[i], i);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tensor_release(z);
    tsh_tensor_release(narrow);
}
