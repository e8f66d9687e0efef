/* Tensors that are created with values: the same at any layout, on every rank of any mesh. */
#include "support/mesh_view.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { SHAPES = 6 };
static const struct {
    int ndim;
    int64_t dims[3];
} shapes[SHAPES] = {{0, {0}}, {1, {11}}, {2, {5, 7}}, {3, {3, 4, 2}}, {2, {0, 3}}, {2, {65, 129}}};

/* How values come into a tensor: the last is the part of a whole. */
enum { FULL, ARANGE, UNIFORM, NORMAL, WHOLE, WAYS };

static tsh_tensor *make(const tshi_mesh_view *at, const tsh_tensor_config *config, int way, const void *whole) {
    tsh_tensor *t = NULL;
    tsh_status status = way == ARANGE ? tsh_tensor_create_arange(&at->mesh, config, 3, 2, &t)
                                      : tsh_tensor_create_full(&at->mesh, config, way == FULL ? 2 : 0, &t);
    cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
    if (way == UNIFORM || way == NORMAL) tshi_tensor_draw(t, way == NORMAL, 7, 3, 0, 1);
    if (way == WHOLE) cr_assert_eq(tsh_tensor_write_whole(t, whole), TSH_OK);
    return t;
}

static tsh_layout layout_of(int number, int ndim) {
    return number < ndim ? TSH_SHARD(number) : number == ndim ? TSH_REPLICATED : TSH_PARTIAL;
}

/* The element i of this rank's part in the whole, from the boxes of the layout alone. */
static int64_t place(const tshi_mesh_view *at, const tsh_tensor_config *c, int64_t i) {
    tshi_placement p = {.axes = at->mesh.axes};
    int member = 0;
    int64_t place = 0, stride = 1;
    for (int a = 0; a < p.axes; a++) {
        p.size[a] = at->mesh.axis[a].size;
        p.layout[a] = c->layout[a];
        member = member * p.size[a] + at->mesh.axis[a].index;
    }
    tsh_box box = tshi_placement_box(&p, c->ndim, c->shape, member);
    for (int d = c->ndim - 1; d >= 0; d--) {
        place += (box.start[d] + i % box.length[d]) * stride;
        i /= box.length[d];
        stride *= c->shape[d];
    }
    return place;
}

/* Each rank's elements are those of the whole, bit for bit; a term of a sum that is not the first is zeros. */
static void check_part(const tshi_mesh_view *at, const tsh_tensor_config *config, int way, const char *whole) {
    static const char zeros[16];
    tsh_tensor *t = make(at, config, way, whole);
    size_t size = tsh_dtype_size(config->dtype);
    const char *mine = tsh_tensor_data(t);
    bool first = true;
    for (int a = 0; a < at->mesh.axes; a++) {
        if (config->layout[a].kind == TSH_KIND_PARTIAL && at->mesh.axis[a].index > 0) first = false;
    }
    for (int64_t i = 0; i < tsh_tensor_local_numel(t); i++) {
        const char *wanted = first ? whole + (size_t)place(at, config, i) * size : zeros;
        cr_assert_eq(memcmp(mine + (size_t)i * size, wanted, size), 0, "element %d, way %d", (int)i, way);
    }
    tsh_tensor_release(t);
}

static void check_layouts(const tshi_mesh_view *at, const tshi_mesh_view *one, tsh_tensor_config config, int way) {
    tsh_tensor *whole = make(one, &config, way == WHOLE ? ARANGE : way, NULL);
    int kinds = config.ndim + 2, all = kinds * kinds * kinds;
    for (int number = 0; number < all; number++) {
        config.layout[0] = layout_of(number % kinds, config.ndim);
        config.layout[1] = layout_of(number / kinds % kinds, config.ndim);
        config.layout[2] = layout_of(number / kinds / kinds, config.ndim);
        if (config.layout[0].kind == TSH_KIND_SHARD) config.layout[0].order = number % 2; /* splits last */
        check_part(at, &config, way, tsh_tensor_data(whole));
    }
    tsh_tensor_release(whole);
}

Test(create, values_are_the_same_at_any_layout, .timeout = 300) {
    tshi_mesh_view one = tshi_mesh_view_make(3, (int[]){1, 1, 1}, (int[]){0, 0, 0});
    for (int rank = 0; rank < 12; rank++) {
        tshi_mesh_view at = tshi_mesh_view_make(3, (int[]){2, 3, 2}, (int[]){rank / 6, rank / 2 % 3, rank % 2});
        for (int i = 0; i < SHAPES * WAYS; i++) {
            tsh_tensor_config config = {.dtype = i % 2 ? TSH_FLOAT64 : TSH_FLOAT32, .ndim = shapes[i / WAYS].ndim};
            memcpy(config.shape, shapes[i / WAYS].dims, sizeof shapes->dims);
            check_layouts(&at, &one, config, i % WAYS);
        }
        tshi_mesh_view_free(&at);
    }
    tshi_mesh_view_free(&one);
}

static void read_doubles(const tsh_tensor *t, double *to) {
    tsh_device *device = tshi_device_of(t);
    device->ops->copy.convert(device, tsh_tensor_local_numel(t), t->dtype, tsh_tensor_data(t), TSH_FLOAT64, to);
}

/* More elements than are computed at a time, in every dtype. */
Test(create, arange_counts_in_every_dtype, .timeout = 120) {
    enum { N = 10000 };
    static double got[N];
    tshi_mesh_view one = tshi_mesh_view_make(1, (int[]){1}, (int[]){0});
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        tsh_tensor_config config = {.dtype = (tsh_dtype)dtype, .ndim = 2, .shape = {N / 4, 4}};
        bool complex = tshi_dtype_is_complex(config.dtype), coarse = dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16;
        if (dtype == TSH_UINT8 || coarse) config.shape[0] = 50; /* 200 numbers, which 8 bits hold */
        int64_t n = config.shape[0] * 4;
        tsh_tensor *t = NULL;
        cr_assert_eq(tsh_tensor_create_arange(&one.mesh, &config, 5, 1, &t), TSH_OK, "%s", tsh_error_message());
        if (!complex) read_doubles(t, got);
        for (int64_t i = 0; i < n; i++) {
            const void *at = (char *)tsh_tensor_data(t) + (size_t)i * tsh_dtype_size(config.dtype);
            const float *small = at;
            const double *large = at;
            double real = !complex ? got[i] : dtype == TSH_COMPLEX64 ? (double)small[0] : large[0];
            cr_assert_eq(real, (double)(i + 5), "%s: %g", tsh_dtype_name(config.dtype), real);
            if (complex) cr_assert_eq(dtype == TSH_COMPLEX64 ? (double)small[1] : large[1], 0);
        }
        tsh_tensor_release(t);
    }
    tshi_mesh_view_free(&one);
}

Test(create, integers_are_exact_or_refused, .timeout = 120) {
    tshi_mesh_view one = tshi_mesh_view_make(1, (int[]){1}, (int[]){0});
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    cr_assert_eq(tsh_tensor_create_arange(&one.mesh, &config, 0x1p53, 1, &t), TSH_OK);
    cr_assert_eq(((int64_t *)tsh_tensor_data(t))[1], ((int64_t)1 << 53) + 1, "no double holds it");
    tsh_tensor_release(t);
    static const struct {
        tsh_dtype dtype;
        double start, step;
        tsh_status status;
    } cases[] = {
        {TSH_INT32, 0.5, 1, TSH_ERR_ARGUMENT},
        {TSH_INT32, 0, 0.25, TSH_ERR_ARGUMENT},
        {TSH_INT64, NAN, 1, TSH_ERR_ARGUMENT},
        {TSH_INT64, 0x1p63, 0, TSH_ERR_ARGUMENT},
        {TSH_INT64, 0x1.8p62, 0x1p62, TSH_ERR_OVERFLOW},
        {TSH_INT32, 0x1p31, -0x1p31, TSH_ERR_OVERFLOW},
        {TSH_UINT8, 254, 1, TSH_ERR_OVERFLOW},
        {TSH_UINT8, 1, -1, TSH_ERR_OVERFLOW},
        {TSH_UINT8, 253, 1, TSH_OK},
        {TSH_INT32, -0x1p31, 0x1p31, TSH_ERR_OVERFLOW},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config.dtype = cases[i].dtype;
        cr_assert_eq(tsh_tensor_create_arange(&one.mesh, &config, cases[i].start, cases[i].step, &t), cases[i].status,
                     "case %zu: %s", i, tsh_error_message());
        cr_assert_eq(t == NULL, cases[i].status != TSH_OK);
        tsh_tensor_release(t);
    }
    cr_assert_eq(tsh_device_stats(one.device).bytes_in_use, 0, "every buffer was given back");
    tshi_mesh_view_free(&one);
}

/* Element i of the whole is i; the boxes that are asked for are noted. */
typedef struct asked {
    const tsh_tensor *tensor;
    int64_t elements;
    int boxes, refused; /* the number of the box that is refused, or -1 */
} asked;

static tsh_status write_places(void *user, const tsh_box *box, void *values) {
    asked *a = user;
    int ndim = tsh_tensor_ndim(a->tensor);
    int64_t n = tshi_box_numel(ndim, box);
    double *to = values;
    cr_assert_leq(n * (int64_t)sizeof *to, 4 << 20);
    a->elements += n;
    if (a->boxes++ == a->refused) return TSH_ERR_IO;
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int d = ndim - 1; d >= 0; d--) {
            at += (box->start[d] + rest % box->length[d]) * stride;
            rest /= box->length[d];
            stride *= tsh_tensor_shape(a->tensor)[d];
        }
        to[i] = (double)at;
    }
    return TSH_OK;
}

Test(create, a_function_is_asked_for_this_ranks_boxes, .timeout = 120) {
    for (int rank = 0; rank < 6; rank++) {
        tshi_mesh_view at = tshi_mesh_view_make(2, (int[]){2, 3}, (int[]){rank / 3, rank % 3});
        tsh_tensor_config config = {
            .dtype = TSH_FLOAT64, .ndim = 2, .shape = {2001, 777}, .layout = {TSH_SHARD(1), TSH_SHARD(0)}};
        tsh_tensor *t = NULL;
        cr_assert_eq(tsh_tensor_create(&at.mesh, &config, &t), TSH_OK);
        asked a = {.tensor = t, .refused = -1};
        cr_assert_eq(tsh_tensor_write_boxes(t, write_places, &a), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(a.elements, tsh_tensor_local_numel(t));
        for (int64_t i = 0; i < a.elements; i += 97) {
            cr_assert_eq(((double *)tsh_tensor_data(t))[i], (double)place(&at, &config, i));
        }
        a = (asked){.tensor = t, .refused = 0};
        cr_assert_eq(tsh_tensor_write_boxes(t, write_places, &a), TSH_ERR_IO);
        cr_assert_eq(a.boxes, 1);
        cr_assert(strstr(tsh_error_message(), "TSH_ERR_IO from the caller's function for the box ["));
        tsh_tensor_release(t);
        tshi_mesh_view_free(&at);
    }
}

/* The pieces of a box cover it once, in order. */
Test(create, pieces_of_a_box_follow_each_other, .timeout = 120) {
    static const tsh_box boxes[] = {
        {{0}, {0}}, {{3}, {10}}, {{1, 2}, {4, 5}}, {{0, 7, 1}, {2, 3, 4}}, {{5, 5, 5, 5}, {1, 3, 1, 2}}};
    for (int ndim = 0; ndim < 5; ndim++) {
        const tsh_box *box = &boxes[ndim];
        int64_t numel = tshi_box_numel(ndim, box);
        for (int64_t most = 1; most < 30; most++) {
            for (int64_t at = 0, n; at < numel; at += n) {
                tsh_box piece = tshi_box_cut(ndim, box, at, most);
                int64_t begin = 0, end = 0;
                n = tshi_box_numel(ndim, &piece);
                for (int d = 0; d < ndim; d++) {
                    int64_t first = piece.start[d] - box->start[d];
                    begin = begin * box->length[d] + first;
                    end = end * box->length[d] + first + piece.length[d] - 1;
                }
                cr_assert(n >= 1 && n <= most && begin == at && end == at + n - 1, "%d dims, at most %d, at %d", ndim,
                          (int)most, (int)at);
            }
        }
    }
}
