/* Global tensors as text, at any layout and of any dtype. */
#include "support/tensors.h"
#include "tensor/format.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(print, .timeout = 300);

/* What a rank has written, "" where it has not. */
static char *printed(tshi_rank *r, const tsh_tensor *t, const tsh_print_config *config) {
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    tshi_check_ok(r, tsh_tensor_print(t, to, config));
    fclose(to);
    return text;
}

static tsh_layout layout_of(int number, int ndim) {
    if (number < 2) return number ? TSH_PARTIAL : TSH_REPLICATED;
    return number < 2 + ndim ? TSH_SHARD(number - 2) : TSH_SHARD_ORDER(number - 2 - ndim, 1);
}

/* The text of the whole, on one rank. */
static char *text_of(tshi_rank *r, tsh_tensor_config config, double start, const tsh_print_config *print) {
    tsh_mesh *self = NULL;
    tsh_tensor *t = NULL;
    memset(config.layout, 0, sizeof config.layout);
    tshi_check_ok(r, tsh_mesh_create_on(r->world, &(int){0}, 1, "one=1", &self));
    tshi_check_ok(r, tsh_tensor_create_arange(self, &config, start, 0.25, &t));
    tsh_print_config alone = *print;
    alone.root = 0;
    char *text = printed(r, t, &alone);
    tsh_tensor_release(t);
    tsh_mesh_destroy(self);
    return text;
}

static const struct {
    int ndim;
    int64_t dims[3];
} shapes[] = {{1, {7}}, {2, {6, 11}}, {3, {5, 1, 9}}, {2, {0, 3}}, {0, {0}}, {1, {40}}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Rank 0 has the text of the whole in `wanted`, and writes in every second case. */
static void prints_of(tshi_rank *r, tsh_mesh *mesh, const tsh_tensor_config *config, const char *const wanted[2],
                      const tsh_print_config *print) {
    char described[160];
    tsh_tensor *t = NULL;
    int terms = 1;
    for (int a = 0; a < mesh->axes; a++) terms *= config->layout[a].kind == TSH_KIND_PARTIAL ? mesh->axis[a].size : 1;
    if (terms > 2) return;
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, config, 0, 0.25, &t));
    if (t && !tshi_tensor_is_first_term(t)) tshi_check_ok(r, tsh_tensor_fill(t, 1));
    char *text = printed(r, t, print);
    tshi_check(r, !strcmp(text, r->rank ? "" : wanted[terms - 1]), "%s: \"%s\"",
               tsh_tensor_describe(t, described, sizeof described), text);
    free(text);
    tsh_tensor_release(t);
}

static void prints_on(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    const tsh_print_config *print = arg;
    for (int s = 0; s < SHAPES; s++) {
        tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = shapes[s].ndim};
        int kinds = 2 + 2 * config.ndim;
        memcpy(config.shape, shapes[s].dims, sizeof shapes->dims);
        char *one = text_of(r, config, 0, print), *two = text_of(r, config, 1, print);
        for (int number = 0; number < kinds * kinds && !r->failed; number++) {
            config.layout[0] = layout_of(number % kinds, config.ndim);
            config.layout[1] = layout_of(number / kinds, config.ndim);
            prints_of(r, mesh, &config, (const char *const[]){one, two}, print);
        }
        free(one);
        free(two);
    }
}

static void prints(tshi_rank *r, void *arg) {
    tshi_test_each_mesh(r, prints_on, arg);
}

Test(print, writes_the_same_text_at_any_layout) {
    tsh_print_config all = {0}, edges = {.threshold = 20, .edge_items = 2, .precision = 3, .line_width = 40};
    cr_assert_str_empty(tshi_test_run_each(1, 4, prints, &all));
    cr_assert_str_empty(tshi_test_run_each(1, 6, prints, &edges));
}

/* Of a large tensor only the edges move: 36 elements, half of which the root holds. */
static void large(tshi_rank *r, void *arg) {
    static const char text[] = "[[  -7   -6   -5 ...   40   41   42]\n"
                               " [  43   44   45 ...   90   91   92]\n"
                               " [  93   94   95 ...  140  141  142]\n"
                               " ...\n"
                               " [2843 2844 2845 ... 2890 2891 2892]\n"
                               " [2893 2894 2895 ... 2940 2941 2942]\n"
                               " [2943 2944 2945 ... 2990 2991 2992]]\n";
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {60, 50}, .layout = {TSH_SHARD(0)}};
    tsh_group *group = tsh_world_group(r->world);
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, -7, 1, &t));
    tsh_group_reset_stats(group);
    char *got = printed(r, t, &(tsh_print_config){.root = 2});
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r, !strcmp(got, r->rank == 2 ? text : ""), "\"%s\"", got);
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL] == (r->rank ? 0 : 18 * sizeof(double)), "%d bytes",
               (int)stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL]);
    free(got);
    tsh_tensor_release(t);
}

Test(print, moves_what_is_written) {
    cr_assert_str_empty(tshi_test_run(3, large, NULL));
}

/* Each dtype's own values, and the digits that are shown where no precision is given. */
static void dtypes(tshi_rank *r, void *arg) {
    static const struct {
        tsh_dtype dtype;
        const char *text;
    } cases[] = {
        {TSH_FLOAT32, "[-0.1    0  0.1  0.2]\n"},
        {TSH_FLOAT64, "[-0.1    0  0.1  0.2]\n"},
        {TSH_FLOAT16, "[-0.1    0  0.1  0.2]\n"},
        {TSH_BFLOAT16, "[-0.1    0  0.1  0.2]\n"},
        {TSH_INT32, "[-1  0  1  2]\n"},
        {TSH_INT64, "[-1  0  1  2]\n"},
        {TSH_UINT8, "[0 1 2 3]\n"},
        {TSH_COMPLEX64, "[-0.1+0j    0+0j  0.1+0j  0.2+0j]\n"},
        {TSH_COMPLEX128, "[-0.1+0j    0+0j  0.1+0j  0.2+0j]\n"},
    };
    (void)arg;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsh_tensor *t = NULL;
        tsh_tensor_config config = {.dtype = cases[i].dtype, .ndim = 1, .shape = {4}, .layout = {TSH_SHARD(0)}};
        bool integer = cases[i].text[1] != ' ' && !strchr(cases[i].text, '.');
        double step = integer ? 1 : 0.1, start = cases[i].dtype == TSH_UINT8 ? 0 : -step;
        tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, start, step, &t));
        char *text = printed(r, t, NULL);
        tshi_check(r, !strcmp(text, r->rank ? "" : cases[i].text), "%s: \"%s\"", tsh_dtype_name(config.dtype), text);
        free(text);
        tsh_tensor_release(t);
    }
}

Test(print, writes_every_dtype) {
    cr_assert_str_empty(tshi_test_run(2, dtypes, NULL));
}

static void wrong(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL, *local = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {5}, .layout = {TSH_SHARD(0)}};
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, 0, 1, &t));
    config.layout[0] = TSH_LOCAL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &local));
    tshi_check_status(r, tsh_tensor_print(t, NULL, &(tsh_print_config){.root = r->rank}), TSH_ERR_MISMATCH,
                      "tensor_print");
    tshi_check_status(r, tsh_tensor_print(t, NULL, &(tsh_print_config){.threshold = r->rank + 1}), TSH_ERR_MISMATCH,
                      "edge");
    tshi_check_status(r, tsh_tensor_print(t, NULL, &(tsh_print_config){.edge_items = -r->rank}),
                      r->rank ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "negative");
    tshi_check_status(r, tsh_tensor_print(local, NULL, NULL), TSH_ERR_LAYOUT, "LOCAL");
    FILE *full = fopen("/dev/full", "w");
    if (tshi_check(r, full, "/dev/full")) {
        if (r->rank)
            tshi_check_ok(r, tsh_tensor_print(t, NULL, NULL));
        else
            tshi_check_status(r, tsh_tensor_print(t, full, NULL), TSH_ERR_IO, "No space left");
        fclose(full);
    }
    tsh_tensor_release(t);
    tsh_tensor_release(local);
}

Test(print, wrong_use_is_an_error_on_every_rank) {
    cr_assert_str_empty(tshi_test_run(6, wrong, NULL));
}
