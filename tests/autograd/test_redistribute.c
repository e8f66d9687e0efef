/* tsh_redistribute with random layouts, split orders, sizes and meshes: the whole does not change, it comes back, and
 * gradients are those of one rank. */
#include "support/tensors.h"
#include "support/values.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(redistribute, .timeout = 300);

enum { MESHES = 7, MOST_RANKS = 8, MOST = 7, ELEMENTS = MOST * MOST * MOST };

typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh[MESHES]; /* all ranks; all in another order; some; the others; fewer of those; any; any */
    tsh_tape *tape;
    uint32_t state;
} kit;

static int below(kit *k, int n) {
    k->state = k->state * 1664525u + 1013904223u;
    return (int)((k->state >> 8) % (uint32_t)n);
}

/* --- meshes ------------------------------------------------------------------------------------------------------- */

static void shuffle(kit *k, int n, int *items) {
    for (int i = n - 1; i > 0; i--) {
        int j = below(k, i + 1), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

static int divisor(kit *k, int n) {
    int d = 1 + below(k, n);
    while (n % d) d--;
    return d;
}

/* A mesh of n ranks with one to eight axes, many of them of one rank. */
static tsh_mesh *make_mesh(kit *k, const int *ranks, int n) {
    char axes[8 * TSH_MAX_AXES] = "";
    tsh_mesh *mesh = NULL;
    int last = below(k, 2) ? below(k, 3) : below(k, TSH_MAX_AXES);
    for (int a = 0, left = n; a <= last; a++) {
        int size = a < last ? divisor(k, left) : left;
        tshi_append(axes, sizeof axes, "%s%c=%d", a ? "," : "", 'a' + a, size);
        left /= size;
    }
    tshi_check_ok(k->r, tsh_mesh_create_on(k->r->world, ranks, n, axes, &mesh));
    return mesh;
}

static void make_meshes(kit *k) {
    int ranks[MOST_RANKS], size = k->r->size, half = size > 1 ? size / 2 : 1;
    for (int i = 0; i < size; i++) ranks[i] = i;
    k->mesh[0] = make_mesh(k, ranks, size);
    shuffle(k, size, ranks);
    k->mesh[1] = make_mesh(k, ranks, size);
    k->mesh[2] = make_mesh(k, ranks, half);
    k->mesh[3] = make_mesh(k, size > 1 ? ranks + half : ranks, size > 1 ? size - half : 1);
    k->mesh[4] = make_mesh(k, ranks, 1 + below(k, half));
    for (int i = 5; i < MESHES; i++) {
        shuffle(k, size, ranks);
        k->mesh[i] = make_mesh(k, ranks, 1 + below(k, size));
    }
}

/* --- a trial ------------------------------------------------------------------------------------------------------ */

typedef struct trial {
    char what[160];
    tsh_dtype dtype;
    int ndim, terms; /* whose sum the whole is */
    int64_t shape[TSH_MAX_DIMS], numel;
    const tsh_mesh *from, *to;
    tsh_layout from_layout[TSH_MAX_AXES], to_layout[TSH_MAX_AXES];
} trial;

/* Units, blocks and ranks that share units for SHARD layouts, where no axis cuts units of another. */
static void random_units(kit *k, const tsh_mesh *mesh, const trial *t, bool own, tsh_layout out[TSH_MAX_AXES]) {
    tsh_layout with[TSH_MAX_AXES];
    memcpy(with, out, sizeof with);
    for (int a = 0; a < mesh->axes; a++) {
        int d = out[a].dim < 0 ? out[a].dim + t->ndim : out[a].dim, n = (int)t->shape[d];
        if (out[a].kind != TSH_KIND_SHARD || n == 0 || below(k, 2)) continue;
        with[a].units = divisor(k, n);
        int kind = below(k, 3);
        if (kind == 1) with[a].blocks = with[a].units * divisor(k, n / (int)with[a].units);
        if (kind == 2) with[a].sharing = own && below(k, 2) ? TSH_SHARED_OWN : TSH_SHARED;
    }
    tsh_shape shape = {.ndim = t->ndim};
    memcpy(shape.global, t->shape, sizeof shape.global);
    tsh_layout resolved[TSH_MAX_AXES];
    memcpy(resolved, with, sizeof resolved);
    if (tshi_shape_resolve(mesh, &shape, resolved) == TSH_OK) memcpy(out, with, sizeof with);
}

static void random_layouts(kit *k, const tsh_mesh *mesh, int ndim, bool partial, tsh_layout out[TSH_MAX_AXES]) {
    for (int a = 0; a < TSH_MAX_AXES; a++) out[a] = TSH_REPLICATED;
    for (int a = 0; a < mesh->axes; a++) {
        int kind = below(k, 4);
        if (kind == 1 && partial) out[a] = TSH_PARTIAL;
        if (kind > 1 && ndim) out[a] = TSH_SHARD_ORDER(below(k, ndim) - (kind == 3 ? ndim : 0), below(k, 3));
    }
}

static bool has_partial(const tsh_mesh *mesh, const tsh_layout *layout) {
    for (int a = 0; a < mesh->axes; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) return true;
    }
    return false;
}

/* This rank's coordinates along the PARTIAL axes as one number; how many of those there are. */
static int term_number(const tsh_mesh *mesh, const tsh_layout *layout, int *terms) {
    int number = 0;
    *terms = 1;
    for (int a = 0; a < mesh->axes; a++) {
        if (layout[a].kind != TSH_KIND_PARTIAL) continue;
        number = number * mesh->axis[a].size + mesh->axis[a].index;
        *terms *= mesh->axis[a].size;
    }
    return number;
}

static void draw(kit *k, uint32_t seed, trial *t) {
    *t = (trial){.numel = 1};
    k->state = seed * 2654435761u + 1;
    t->dtype = (tsh_dtype)below(k, TSH_DTYPE_COUNT);
    t->ndim = below(k, 4);
    for (int d = 0; d < t->ndim; d++) t->numel *= t->shape[d] = below(k, MOST + 1);
    t->from = k->mesh[below(k, MESHES)];
    t->to = below(k, 3) ? k->mesh[below(k, MESHES)] : t->from;
    random_layouts(k, t->from, t->ndim, true, t->from_layout);
    random_layouts(k, t->to, t->ndim, true, t->to_layout);
    random_units(k, t->from, t, false, t->from_layout);
    random_units(k, t->to, t, true, t->to_layout);
    term_number(t->from, t->from_layout, &t->terms);
    char from[TSHI_LINE], to[TSHI_LINE];
    snprintf(t->what, sizeof t->what, "%d ranks, seed %u, %.40s to %.40s", k->r->size, seed,
             tshi_mesh_name(t->from, from, sizeof from), tshi_mesh_name(t->to, to, sizeof to));
}

/* Term `term` of element g of the whole: a small whole number, exact in every dtype in any sum. */
static tshi_number term_of(int64_t g, int term) {
    double v = (double)((g * 7 + term * 5 + 3) % 9);
    return (tshi_number){v, 2 * v};
}

static tshi_number whole_of(const trial *t, int64_t g) {
    tshi_number sum = {0, 0};
    for (int i = 0; i < t->terms; i++) {
        tshi_number one = term_of(g, i);
        sum = (tshi_number){sum.re + one.re, sum.im + one.im};
    }
    return sum;
}

/* The tensor of the trial on its first mesh: along PARTIAL axes this rank's term, divided by `over`. */
static tsh_tensor *make_input(kit *k, const trial *t, double over) {
    unsigned char elements[ELEMENTS * 16];
    tsh_tensor_config config = {.dtype = t->dtype, .ndim = t->ndim};
    tsh_tensor *x = NULL;
    int terms, term = term_number(t->from, t->from_layout, &terms);
    memcpy(config.shape, t->shape, sizeof config.shape);
    memcpy(config.layout, t->from_layout, sizeof config.layout);
    if (!tshi_check_ok(k->r, tsh_tensor_create(t->from, &config, &x))) return NULL;
    for (int64_t i = 0; i < x->numel; i++) {
        tshi_number v = term_of(tshi_test_place(x, i), term);
        tshi_put(t->dtype, elements, i, (tshi_number){v.re / over, v.im / over});
    }
    tshi_check_ok(k->r, tsh_tensor_write(x, elements, x->numel));
    return x;
}

/* y is on this mesh in these layouts; outside the mesh it is empty. */
static bool check_part(kit *k, const trial *t, const char *what, const tsh_tensor *y, const tsh_mesh *mesh,
                       const tsh_layout *layout) {
    tshi_placement p = tshi_mesh_placement(mesh, layout);
    tsh_box wanted = {{0}, {0}};
    if (!tshi_check(k->r, y, "%s, %s: %s", t->what, what, tsh_tape_message(k->tape))) return false;
    tsh_box got = tsh_tensor_box(y);
    for (int a = 0; a < mesh->axes; a++) {
        if (p.layout[a].kind == TSH_KIND_SHARD && p.layout[a].dim < 0) p.layout[a].dim += t->ndim;
    }
    if (mesh->member >= 0) wanted = tshi_placement_box(&p, t->ndim, t->shape, mesh->member);
    bool same = y->mesh == mesh && !memcmp(&wanted, &got, sizeof wanted);
    int64_t n = mesh->member < 0 ? 0 : tshi_box_numel(t->ndim, &wanted);
    return tshi_check(k->r, same && tsh_tensor_local_numel(y) == n, "%s: %s has another box than its layouts say",
                      t->what, what);
}

/* Read as a whole it has the values, unless ranks share units for uses of their own. */
static bool check_whole(kit *k, const trial *t, const char *what, const tsh_tensor *y) {
    unsigned char whole[ELEMENTS * 16];
    bool own = false, same = true;
    for (int a = 0; a < y->mesh->axes; a++) own = own || tshi_layout_is_own(y->layout[a]);
    tsh_status status = tsh_tensor_read_whole(y, whole);
    if (y->mesh->member < 0) return tshi_check_ok(k->r, status);
    if (own) return tshi_check_status(k->r, status, TSH_ERR_LAYOUT, "not part of a global tensor");
    for (int64_t g = 0; status == TSH_OK && same && g < t->numel; g++)
        same = tshi_is(t->dtype, whole, g, whole_of(t, g));
    return tshi_check_ok(k->r, status) && tshi_check(k->r, same, "%s: %s is wrong as a whole", t->what, what);
}

/* This rank's part has the whole's values, bit for bit; PARTIAL parts add up to them. */
static void check_values(kit *k, const trial *t, const char *what, tsh_tensor *y) {
    if (!check_whole(k, t, what, y)) return;
    if (has_partial(y->mesh, y->layout)) y = tsh_full(k->tape, y);
    if (!tshi_check(k->r, y, "%s, %s: %s", t->what, what, tsh_tape_message(k->tape))) return;
    for (int64_t i = 0; i < y->numel; i++) {
        int64_t g = tshi_test_place(y, i);
        bool same = tshi_is(t->dtype, tsh_tensor_data(y), i, whole_of(t, g));
        if (!tshi_check(k->r, same, "%s: element %d of %s is wrong", t->what, (int)g, what)) return;
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static void there_and_back(kit *k, uint32_t seed) {
    trial t;
    draw(k, seed, &t);
    tsh_tensor *x = make_input(k, &t, 1);
    tsh_tensor *y = tsh_redistribute(k->tape, x, t.to, t.to_layout);
    if (check_part(k, &t, "the result", y, t.to, t.to_layout)) {
        check_values(k, &t, "the result", y);
        tsh_tensor *again = tsh_redistribute(k->tape, y, t.to, t.to_layout);
        tshi_check(k->r, again == y, "%s: the same layouts on the same mesh are another tensor", t.what);
        tsh_tensor *z = tsh_redistribute(k->tape, y, t.from, t.from_layout);
        if (check_part(k, &t, "the way back", z, t.from, t.from_layout)) check_values(k, &t, "the way back", z);
    }
    tsh_tensor_release(x);
    tsh_tape_reset(k->tape);
}

/* Ranks along REPLICATED axes hold the same bits, though the sums are rounded. */
static void replicas_agree(kit *k, uint32_t seed) {
    trial t;
    draw(k, seed, &t);
    t.dtype = seed % 2 ? TSH_FLOAT32 : TSH_FLOAT64;
    tsh_tensor *x = make_input(k, &t, 7), *y = tsh_redistribute(k->tape, x, t.to, t.to_layout);
    tshi_check(k->r, y, "%s: %s", t.what, tsh_tape_message(k->tape));
    for (int a = 0; y && a < t.to->axes; a++) {
        tsh_tensor *least = NULL, *most = NULL;
        if (y->layout[a].kind != TSH_KIND_REPLICATED) continue;
        tshi_check_ok(k->r, tsh_tensor_clone(y, &least));
        tshi_check_ok(k->r, tsh_tensor_clone(y, &most));
        tshi_check_ok(k->r, tsh_all_reduce(t.to->axis[a].group, least, TSH_REDUCE_MIN));
        tshi_check_ok(k->r, tsh_all_reduce(t.to->axis[a].group, most, TSH_REDUCE_MAX));
        bool same = !memcmp(tsh_tensor_data(least), tsh_tensor_data(most), tsh_tensor_local_nbytes(y));
        tshi_check(k->r, y->numel == 0 || same, "%s: replicas along axis %d differ", t.what, a);
        tsh_tensor_release(least);
        tsh_tensor_release(most);
    }
    tsh_tensor_release(x);
    tsh_tape_reset(k->tape);
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

static double coefficient(int64_t g) {
    return tshi_test_integer(11, g);
}

static tsh_tensor *make_coefficients(kit *k, const trial *t, const tsh_mesh *mesh) {
    double whole[ELEMENTS];
    tsh_tensor_config config = {.dtype = t->dtype, .ndim = t->ndim};
    memcpy(config.shape, t->shape, sizeof config.shape);
    random_layouts(k, mesh, t->ndim, false, config.layout);
    random_units(k, mesh, t, false, config.layout);
    for (int64_t g = 0; g < t->numel; g++) whole[g] = coefficient(g);
    return tshi_test_tensor(k->r, mesh, &config, whole);
}

/* The sum of c x^2, the square on the second mesh, the sum on a third one: its value on every rank, and 2 c x. */
static void gradients(kit *k, uint32_t seed) {
    trial t;
    tsh_layout layout[TSH_MAX_AXES];
    double value = 0, gradient[ELEMENTS];
    draw(k, seed, &t);
    t.dtype = seed % 2 ? TSH_FLOAT32 : TSH_FLOAT64;
    const tsh_mesh *third = k->mesh[below(k, MESHES)];
    random_layouts(k, third, t.ndim, true, layout);
    for (int64_t g = 0; g < t.numel; g++) {
        double w = whole_of(&t, g).re;
        value += coefficient(g) * w * w;
        gradient[g] = 2 * coefficient(g) * w;
    }
    tsh_tensor *x = make_input(k, &t, 1), *c = make_coefficients(k, &t, third);
    tshi_check_ok(k->r, tsh_tensor_require_grad(x, true));
    tsh_tensor *y = tsh_redistribute(k->tape, x, t.to, t.to_layout);
    tsh_tensor *z = tsh_redistribute(k->tape, tsh_mul(k->tape, y, y), third, layout);
    tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, z, c), TSH_ALL_DIMS);
    tsh_tensor *everywhere = tsh_redistribute(k->tape, loss, tsh_world_mesh(k->r->world), NULL);
    if (tshi_check(k->r, everywhere, "%s: %s", t.what, tsh_tape_message(k->tape))) {
        double got = tsh_tensor_item(everywhere);
        tshi_check(k->r, got == value, "%s: the loss is %g, %g wanted", t.what, got, value);
        tsh_status status = tsh_backward(k->tape, below(k, 2) ? loss : everywhere);
        tshi_check(k->r, status == TSH_OK, "%s: %s", t.what, tsh_tape_message(k->tape));
        tshi_test_same_grad(k->r, t.what, x, gradient, 0);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(c);
    tsh_tape_reset(k->tape);
}

/* --- series ------------------------------------------------------------------------------------------------------- */

typedef struct series {
    uint32_t seed;
    int pools, trials; /* pools of meshes, and trials of each kind in one */
} series;

static void run_trials(kit *k, uint32_t first, int count) {
    for (uint32_t seed = first; seed < first + (uint32_t)count; seed++) {
        if (!k->r->failed) there_and_back(k, seed);
        if (!k->r->failed) replicas_agree(k, seed);
        if (!k->r->failed) gradients(k, seed);
    }
}

static size_t bytes_in_use(const kit *k) {
    return tsh_device_stats(tsh_world_device(k->r->world)).bytes_in_use;
}

/* The first collectives and messages of a group take memory that the group keeps. */
static void run_series(tshi_rank *r, void *arg) {
    const series *s = arg;
    for (int p = 0; p < s->pools && !r->failed; p++) {
        uint32_t first = s->seed + (uint32_t)(p * s->trials);
        kit k = {.r = r, .state = first * 40503u + 7};
        make_meshes(&k);
        if (r->failed || !tshi_check_ok(r, tsh_tape_create(r->world, &k.tape))) return;
        run_trials(&k, first, s->trials);
        size_t bytes = bytes_in_use(&k);
        run_trials(&k, first, s->trials);
        tshi_check(r, bytes_in_use(&k) == bytes, "seed %u: %zu bytes in use, %zu before", first, bytes_in_use(&k),
                   bytes);
        if (r->failed) return;
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        tsh_tape_destroy(k.tape);
        for (int i = 0; i < MESHES; i++) tsh_mesh_destroy(k.mesh[i]);
    }
}

Test(redistribute, random_tensors_on_random_meshes) {
    cr_assert_str_empty(tshi_test_run_each(1, 5, run_series, &(series){0, 4, 60}));
    cr_assert_str_empty(tshi_test_run(8, run_series, &(series){1000, 4, 60}));
}

Test(redistribute, random_tensors_on_random_meshes_of_threads) {
    cr_assert_str_empty(tshi_test_run_threads(4, run_series, &(series){2000, 3, 60}));
    cr_assert_str_empty(tshi_test_run_threads(7, run_series, &(series){3000, 2, 60}));
}
