/* Loading: every layout and dtype against the file's values, name maps, and errors that name all that is wrong and
 * change nothing. */
#include "io/load.h"
#include "support/files.h"
#include "support/layouts.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 2048 };

#define FILE_TEST(name, ...)                                                                                           \
    Test(load, name, .timeout = 120, .init = tshi_test_enter, .fini = tshi_test_leave, ##__VA_ARGS__)

/* A list of one parameter of the shape, filled with a value that no file has. */
static tsh_parameters *list_of(tshi_rank *r, const tsh_mesh *mesh, const char *name, const tsh_tensor_config *config,
                               tsh_tensor **tensor) {
    tsh_parameters *list = NULL;
    *tensor = NULL;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_tensor_create(mesh, config, tensor));
    tshi_check_ok(r, tsh_tensor_fill(*tensor, 99));
    tshi_check_ok(r, tsh_parameters_add(list, name, *tensor));
    return list;
}

static void drop(tsh_parameters *list, tsh_tensor *tensor) {
    tsh_parameters_destroy(list);
    tsh_tensor_release(tensor);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static const tshi_test_content contents[] = {
    {"matrix", TSH_FLOAT32, 2, {7, 5}, 1},     {"cube", TSH_FLOAT64, 3, {3, 8, 6}, 2},
    {"vector", TSH_BFLOAT16, 1, {11}, 3},      {"scalar", TSH_FLOAT16, 0, {0}, 4},
    {"empty", TSH_FLOAT32, 2, {0, 3}, 5},      {"narrow", TSH_FLOAT32, 2, {2, 1}, 6},
    {"half", TSH_FLOAT16, 4, {2, 3, 5, 4}, 7}, {"ids", TSH_INT64, 2, {5, 4}, 8},
    {"small ids", TSH_INT32, 1, {9}, 9},       {"bytes", TSH_UINT8, 2, {4, 9}, 10},
};
enum { CONTENTS = sizeof contents / sizeof contents[0] };

static bool floats(tsh_dtype dtype) {
    return dtype < TSH_INT32;
}

static void load_one(tshi_rank *r, tsh_mesh *mesh, const tshi_test_content *c, tsh_dtype dtype, int a, int b) {
    static const tsh_load_options options = {.allow_unexpected = true};
    static double whole[MOST];
    tsh_tensor *t;
    uint64_t read;
    tsh_tensor_config config = {.dtype = dtype, .ndim = c->ndim};
    memcpy(config.shape, c->shape, sizeof c->shape);
    if (a >= 0) config.layout[0] = TSH_SHARD(a);
    if (b >= 0) config.layout[1] = TSH_SHARD(b);
    tsh_parameters *list = list_of(r, mesh, c->name, &config, &t);
    tshi_check_ok(r, tshi_load(list, tshi_test_path("model.safetensors"), &options, &read));
    tshi_test_content_values(c, whole);
    tshi_test_same(r, c->name, t, whole, 0);
    drop(list, t);
}

/* Each tensor of the file with each layout on two axes, in the file's dtype and in others that it converts to. */
static void load_all(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    for (int i = 0; i < CONTENTS; i++) {
        const tshi_test_content *c = &contents[i];
        for (int a = -1; a < c->ndim; a++) {
            for (int b = -1; b < c->ndim; b++) {
                tsh_dtype other = floats(c->dtype) ? (tsh_dtype)((a + b + i + 4) % TSH_INT32) : TSH_INT64;
                load_one(r, mesh, c, c->dtype, a, b);
                load_one(r, mesh, c, other, a, b);
            }
        }
    }
}

static void on_each_mesh(tshi_rank *r, void *fn) {
    tshi_test_each_mesh(r, (tshi_mesh_fn *)fn, NULL);
}

FILE_TEST(every_layout_and_dtype) {
    tshi_test_write("model.safetensors", contents, CONTENTS);
    cr_assert_str_empty(tshi_test_run_each(1, 4, on_each_mesh, (void *)load_all));
}

/* A mesh of some ranks in another order, with a split order: ranks outside read nothing of the elements. */
static void on_some_ranks(tshi_rank *r, void *arg) {
    static const int ranks[] = {3, 0, 2};
    double whole[35];
    tsh_mesh *mesh = NULL;
    tsh_tensor *t;
    uint64_t read;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, ranks, 3, "a=3,b=1", &mesh));
    tsh_tensor_config config = {TSH_FLOAT32, 2, {7, 5}, {TSH_SHARD_ORDER(0, 1), TSH_SHARD(0)}};
    tsh_parameters *list = list_of(r, mesh, "matrix", &config, &t);
    tshi_check_ok(
        r, tshi_load(list, tshi_test_path("model.safetensors"), &(tsh_load_options){.allow_unexpected = true}, &read));
    tshi_test_content_values(&contents[0], whole);
    tshi_test_same(r, "matrix", t, whole, 0);
    tshi_check(r, (tsh_tensor_local_numel(t) == 0) == (r->rank == 1), "%d elements", (int)tsh_tensor_local_numel(t));
    drop(list, t);
    tsh_mesh_destroy(mesh);
}

FILE_TEST(a_mesh_of_some_ranks) {
    tshi_test_write("model.safetensors", contents, CONTENTS);
    cr_assert_str_empty(tshi_test_run(4, on_some_ranks, NULL));
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

static void load_folder(tshi_rank *r, void *arg) {
    static double whole[MOST];
    tsh_parameters *list = NULL;
    tsh_tensor *t[CONTENTS];
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < CONTENTS; i++) {
        tsh_tensor_config config = {.dtype = contents[i].dtype, .ndim = contents[i].ndim};
        memcpy(config.shape, contents[i].shape, sizeof contents[i].shape);
        if (config.ndim) config.layout[0] = TSH_SHARD(-1);
        tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t[i]));
        tshi_check_ok(r, tsh_parameters_add(list, contents[i].name, t[i]));
    }
    tshi_check_ok(r, tsh_load(list, tshi_test_path("."), NULL));
    for (int i = 0; i < CONTENTS; i++) {
        tshi_test_content_values(&contents[i], whole);
        tshi_test_same(r, contents[i].name, t[i], whole, 0);
        tsh_tensor_release(t[i]);
    }
    tsh_parameters_destroy(list);
}

static void write_index(void) {
    char text[2048] = "{\"metadata\":{\"total_size\":1234},\"weight_map\":{";
    for (int i = 0; i < CONTENTS; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s\"%s\":\"model-%05d-of-00002.safetensors\"", i ? "," : "",
                 contents[i].name, i < 4 ? 1 : 2);
    }
    strcat(text, "}}");
    tshi_test_write_text("model.safetensors.index.json", text);
}

FILE_TEST(several_files_with_an_index) {
    tshi_test_write("model-00001-of-00002.safetensors", contents, 4);
    tshi_test_write("model-00002-of-00002.safetensors", contents + 4, CONTENTS - 4);
    write_index();
    cr_assert_str_empty(tshi_test_run_each(1, 3, load_folder, NULL));
}

FILE_TEST(a_folder_with_one_file) {
    tshi_test_write("model.safetensors", contents, CONTENTS);
    tshi_test_write_text("model.safetensors.index.json", "not looked at");
    cr_assert_str_empty(tshi_test_run(2, load_folder, NULL));
}

/* --- name maps ---------------------------------------------------------------------------------------------------- */

enum { IN = 5, OUT = 6 };

/* fused [IN, 3 OUT]: q, k and v side by side. a and b are rows of what here is one parameter. */
static const tshi_test_content mapped[] = {
    {"t.h.0.fused.weight", TSH_FLOAT64, 2, {IN, 3 * OUT}, 1},
    {"t.h.0.fused.bias", TSH_FLOAT32, 1, {3 * OUT}, 2},
    {"t.h.1.fused.weight", TSH_FLOAT32, 2, {IN, 3 * OUT}, 3},
    {"t.h.1.fused.bias", TSH_FLOAT32, 1, {3 * OUT}, 4},
    {"a.weight", TSH_FLOAT32, 2, {2, IN}, 5},
    {"b.weight", TSH_FLOAT16, 2, {OUT, IN}, 6},
    {"wide.a", TSH_FLOAT32, 2, {4, 3}, 7},
    {"wide.b", TSH_FLOAT32, 2, {2, 4}, 8},
};

static const tsh_name_rule rules[] = {
    {"*.q.weight", "t.*.fused.weight", true, 0, OUT, 0, 0, false},
    {"*.k.weight", "t.*.fused.weight", true, 0, OUT, 0, OUT, false},
    {"*.v.weight", "t.*.fused.weight", true, 0, OUT, 0, 2 * OUT, false},
    {"*.qkv.bias", "t.*.fused.bias", false, 0, 0, 0, 0, false},
    {"both.weight", "b.weight", false, 0, OUT, 2, 0, false},
    {"both.weight", "a.weight", false, 0, 2, 0, 0, false},
    {"wide", "wide.a", false, 1, 3, 0, 0, false},
    {"wide", "wide.b", true, 1, 2, 3, 0, false},
    {"both.weight", "c.weight", false, 0, 0, 0, 0, false},
};

static double fused_value(int seed, int64_t row, int64_t column) {
    return tshi_test_integer(seed, row * 3 * OUT + column);
}

static void add_parameter(tshi_rank *r, tsh_parameters *list, const tsh_mesh *mesh, const char *name, int64_t rows,
                          int64_t cols, const tsh_layout layout[2], tsh_tensor **out) {
    tsh_tensor_config config = {TSH_FLOAT32, cols ? 2 : 1, {rows, cols}, {layout[0], layout[1]}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, out));
    tshi_check_ok(r, tsh_parameters_add(list, name, *out));
}

static void load_mapped(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    static const tsh_layout layouts[][2] = {{R, R}, {S0, R}, {S1, R}, {S0, S0}, {S0, S1}, {S1, S0}};
    static const char *const letters[] = {"q", "k", "v"};
    const tsh_load_options options = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
    (void)arg;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        const tsh_layout line[2] = {layouts[l][0].dim ? TSH_REPLICATED : layouts[l][0], TSH_REPLICATED};
        tsh_tensor *t[10];
        tsh_parameters *list = NULL;
        char name[32];
        double whole[64];
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 3; i++) {
                snprintf(name, sizeof name, "h.%d.%s.weight", h, letters[i]);
                add_parameter(r, list, mesh, name, OUT, IN, layouts[l], &t[4 * h + i]);
            }
            snprintf(name, sizeof name, "h.%d.qkv.bias", h);
            add_parameter(r, list, mesh, name, 3 * OUT, 0, line, &t[4 * h + 3]);
        }
        add_parameter(r, list, mesh, "both.weight", OUT + 2, IN, layouts[l], &t[8]);
        add_parameter(r, list, mesh, "wide", 4, 5, layouts[l], &t[9]);
        tshi_check_ok(r, tsh_load(list, tshi_test_path("model.safetensors"), &options));
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 3; i++) {
                for (int k = 0; k < OUT * IN; k++) whole[k] = fused_value(1 + 2 * h, k % IN, i * OUT + k / IN);
                tshi_test_same(r, letters[i], t[4 * h + i], whole, 0);
            }
            tshi_test_content_values(&mapped[1 + 2 * h], whole);
            tshi_test_same(r, "bias", t[4 * h + 3], whole, 0);
        }
        tshi_test_content_values(&mapped[4], whole);
        tshi_test_content_values(&mapped[5], whole + 2 * IN);
        tshi_test_same(r, "both", t[8], whole, 0);
        for (int k = 0; k < 20; k++) {
            int row = k / 5, column = k % 5;
            whole[k] =
                column < 3 ? tshi_test_integer(7, row * 3 + column) : tshi_test_integer(8, (column - 3) * 4 + row);
        }
        tshi_test_same(r, "wide", t[9], whole, 0);
        for (int i = 0; i < 10; i++) tsh_tensor_release(t[i]);
        tsh_parameters_destroy(list);
    }
}

FILE_TEST(names_slices_and_transpositions) {
    tshi_test_write("model.safetensors", mapped, sizeof mapped / sizeof *mapped);
    cr_assert_str_empty(tshi_test_run_each(1, 4, on_each_mesh, (void *)load_mapped));
}

static void wrong_rules(tshi_rank *r, void *arg) {
    static const struct {
        tsh_name_rule rule[2];
        const char *words;
        tsh_status status;
    } cases[] = {
        {{{NULL, "a", false, 0, 0, 0, 0, false}}, "a name is NULL", TSH_ERR_ARGUMENT},
        {{{"a", NULL, false, 0, 0, 0, 0, false}}, "a name is NULL", TSH_ERR_ARGUMENT},
        {{{"*.*", "*", false, 0, 0, 0, 0, false}}, "a name may have only one '*'", TSH_ERR_ARGUMENT},
        {{{"*", "*.*", false, 0, 0, 0, 0, false}}, "a name may have only one '*'", TSH_ERR_ARGUMENT},
        {{{"a", "*", false, 0, 0, 0, 0, false}},
         "the tensor's name has a '*', the parameter's has none",
         TSH_ERR_ARGUMENT},
        {{{"a", "b", false, -1, 1, 0, 0, false}}, "a number is negative", TSH_ERR_ARGUMENT},
        {{{"a", "b", false, 0, 1, -1, 0, false}}, "a number is negative", TSH_ERR_ARGUMENT},
        {{{"a", "b", false, 0, 0, 0, 3, false}}, "a slice needs a length", TSH_ERR_ARGUMENT},
        {{{"a", "b", false, 0, 2, 0, 0, true}}, "squeeze needs length 1 of dim 0", TSH_ERR_ARGUMENT},
        {{{"a", "b", false, 0, INT64_MAX, 0, 3, false}}, "a slice ends past 2^63", TSH_ERR_ARGUMENT},
        {{{"matrix", "matrix", false, 2, 7, 0, 0, false}}, "sliced along one of its dims", TSH_ERR_IO},
        {{{"matrix", "matrix", false, 0, 8, 0, 0, false}}, "has a rule that goes past its end", TSH_ERR_IO},
        {{{"matrix", "matrix", false, 0, 6, 0, 0, false}}, "is not filled completely by its rules", TSH_ERR_IO},
        {{{"matrix", "matrix", false, 0, 7, 0, 1, false}}, "is a slice past the end", TSH_ERR_IO},
        {{{"matrix", "matrix", false, 0, 4, 0, 0, false}, {"matrix", "matrix", false, 0, 3, 3, 0, false}},
         "rules that overlap",
         TSH_ERR_IO},
        {{{"matrix", "matrix", false, 0, 4, 0, 0, false}, {"matrix", "matrix", false, 1, 3, 0, 0, false}},
         "sliced along one of its dims",
         TSH_ERR_IO},
        {{{"matrix", "matrix", true, 0, 0, 0, 0, false}},
         "has another shape: float32 [7,5] here, F32 [7,5] there",
         TSH_ERR_IO},
        {{{"matrix", "vector", false, 0, 0, 0, 0, false}}, "'vector' has another number of dims", TSH_ERR_IO},
        {{{"*trix", "*ny", false, 0, 0, 0, 0, false}}, "'many' is missing", TSH_ERR_IO},
    };
    tsh_tensor *t;
    tsh_tensor_config config = {TSH_FLOAT32, 2, {7, 5}, {S0}};
    tsh_parameters *list = list_of(r, tsh_world_mesh(r->world), "matrix", &config, &t);
    double untouched[35];
    (void)arg;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool second = cases[i].rule[1].parameter;
        if (strstr(cases[i].words, "'many'")) continue;
        tsh_load_options options = {.rules = cases[i].rule, .rule_count = second ? 2 : 1, .allow_unexpected = true};
        tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &options), cases[i].status,
                          cases[i].words);
    }
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &(tsh_load_options){.rule_count = 1}),
                      TSH_ERR_ARGUMENT, "rule_count is 1 and rules is NULL");
    for (int i = 0; i < 35; i++) untouched[i] = 99;
    tshi_test_same(r, "matrix", t, untouched, 0);
    drop(list, t);
}

FILE_TEST(rules_that_make_no_sense) {
    tshi_test_write("model.safetensors", contents, CONTENTS);
    cr_assert_str_empty(tshi_test_run_each(1, 2, wrong_rules, NULL));
}

/* --- what does not fit -------------------------------------------------------------------------------------------- */

static void add_filled(tshi_rank *r, tsh_parameters *list, const char *name, tsh_tensor_config config, tsh_tensor **t) {
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, t));
    tshi_check_ok(r, tsh_tensor_fill(*t, 99));
    tshi_check_ok(r, tsh_parameters_add(list, name, *t));
}

static void check_untouched(tshi_rank *r, tsh_tensor *const *t, int n) {
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < tsh_tensor_local_numel(t[i]); k++) {
            tshi_check(r, tshi_test_element(t[i], k) == 99, "tensor %d has changed", i);
        }
    }
}

static void named_in_one_message(tshi_rank *r, void *arg) {
    static const char *const parts[] = {
        "load '",
        "model.safetensors'",
        "'absent' is missing",
        "'absent.too' is missing",
        "'matrix' has another shape: float32 [5,7] here, F32 [7,5] there",
        "'ids' has a dtype that cannot be converted: float32 [5,4] here, I64 [5,4] there",
        "'scalar' is unexpected"};
    tsh_parameters *list = NULL;
    tsh_tensor *t[5];
    tsh_load_options options = {0};
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    add_filled(r, list, "vector", (tsh_tensor_config){TSH_FLOAT32, 1, {11}, {S0}}, &t[0]);
    add_filled(r, list, "absent", (tsh_tensor_config){TSH_FLOAT32, 1, {3}, {S0}}, &t[1]);
    add_filled(r, list, "absent.too", (tsh_tensor_config){TSH_FLOAT32, 1, {3}, {S0}}, &t[2]);
    add_filled(r, list, "matrix", (tsh_tensor_config){TSH_FLOAT32, 2, {5, 7}, {S0}}, &t[3]);
    add_filled(r, list, "ids", (tsh_tensor_config){TSH_FLOAT32, 2, {5, 4}, {S0}}, &t[4]);
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &options), TSH_ERR_IO, "");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        tshi_check(r, strstr(tsh_error_message(), parts[i]), "no '%s' in '%s'", parts[i], tsh_error_message());
    }
    const char *const scalar[] = {"none", "sc*r", NULL}, *const stars[] = {"scalar", "s*a*r", NULL};
    options = (tsh_load_options){.allow_missing = true, .ignored = stars};
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &options), TSH_ERR_ARGUMENT,
                      "ignored 's*a*r': a name may have only one '*'");
    options.ignored = scalar;
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &options), TSH_ERR_IO,
                      "'ids' has a dtype");
    tshi_check(r, !strstr(tsh_error_message(), "'scalar'"), "%s", tsh_error_message());
    options = (tsh_load_options){.allow_missing = true, .allow_unexpected = true};
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), &options), TSH_ERR_IO,
                      "'ids' has a dtype");
    tshi_check(r, !strstr(tsh_error_message(), "missing"), "%s", tsh_error_message());
    tshi_check(r, !strstr(tsh_error_message(), "unexpected"), "%s", tsh_error_message());
    check_untouched(r, t, 5);
    tsh_parameters_destroy(list);
    for (int i = 0; i < 5; i++) tsh_tensor_release(t[i]);
}

static const tshi_test_content few[] = {
    {"matrix", TSH_FLOAT32, 2, {7, 5}, 1},
    {"vector", TSH_BFLOAT16, 1, {11}, 3},
    {"scalar", TSH_FLOAT16, 0, {0}, 4},
    {"ids", TSH_INT64, 2, {5, 4}, 8},
};

FILE_TEST(everything_wrong_is_named_at_once) {
    tshi_test_write("model.safetensors", few, 4);
    cr_assert_str_empty(tshi_test_run_each(1, 3, named_in_one_message, NULL));
}

static int logged;

static void count_lines(void *user, tsh_log_level level, const char *line) {
    (void)user;
    if (level == TSH_LOG_ERROR && strstr(line, "is missing")) logged++;
}

/* What the message has no room for is in the log of rank 0. */
static void a_long_list(tshi_rank *r, void *arg) {
    enum { MANY = 100 };
    tsh_world_config config = {.log = {.fn = count_lines}};
    tsh_parameters *list = NULL;
    tsh_tensor *t[MANY];
    char name[64], words[32];
    (void)arg;
    tshi_check_ok(r, tsh_world_init(&config, &r->world));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "parameter number %d", i);
        add_filled(r, list, name, (tsh_tensor_config){TSH_FLOAT32, 1, {3}, {S0}}, &t[i]);
    }
    tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), NULL), TSH_ERR_IO,
                      "'parameter number 0' is missing");
    tshi_check(r, logged < MANY && (r->rank == 0) == (logged > 0), "%d lines", logged);
    snprintf(words, sizeof words, "; and %d more", logged);
    tshi_check(r, r->rank > 0 || strstr(tsh_error_message(), words), "%s", tsh_error_message());
    tsh_parameters_destroy(list);
    for (int i = 0; i < MANY; i++) tsh_tensor_release(t[i]);
}

FILE_TEST(a_message_that_is_too_long) {
    tshi_test_write("model.safetensors", few, 0);
    const tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, a_long_list, NULL, NULL, NULL));
}

static void missing_ones_keep_their_values(tshi_rank *r, void *arg) {
    const tsh_load_options options = {.allow_missing = true, .allow_unexpected = true};
    tsh_parameters *list = NULL;
    tsh_tensor *t[2];
    double whole[11];
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    add_filled(r, list, "absent", (tsh_tensor_config){TSH_FLOAT32, 1, {3}, {S0}}, &t[0]);
    add_filled(r, list, "vector", (tsh_tensor_config){TSH_FLOAT32, 1, {11}, {S0}}, &t[1]);
    tshi_check_ok(r, tsh_load(list, tshi_test_path("model.safetensors"), &options));
    check_untouched(r, t, 1);
    tshi_test_content_values(&few[1], whole);
    tshi_test_same(r, "vector", t[1], whole, 0);
    tsh_parameters_destroy(list);
    for (int i = 0; i < 2; i++) tsh_tensor_release(t[i]);
}

FILE_TEST(parameters_may_be_missing) {
    tshi_test_write("model.safetensors", few, 4);
    cr_assert_str_empty(tshi_test_run_each(1, 2, missing_ones_keep_their_values, NULL));
}

/* --- errors of one rank ------------------------------------------------------------------------------------------- */

/* One rank fails, each for its own reason: it returns its error, its peers that it failed and why. */
static void one_rank_fails(tshi_rank *r, void *arg) {
    tsh_parameters *list = NULL;
    tsh_tensor *t[1];
    bool last = r->rank == r->size - 1;
    const char *good = tshi_test_path("model.safetensors"), *absent = tshi_test_path("absent");
    const char *garbage = tshi_test_path("garbage"), *other = tshi_test_path("other.safetensors");
    const tsh_load_options any = {.allow_unexpected = true};
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    add_filled(r, list, "vector", (tsh_tensor_config){TSH_FLOAT32, 1, {11}, {S0}}, &t[0]);
    tsh_status status = tsh_load(list, last ? absent : good, &any);
    tshi_check(r, status == (last ? TSH_ERR_IO : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), "absent: cannot be opened: No such file or directory"), "%s",
               tsh_error_message());
    status = tsh_load(list, last ? garbage : good, &any);
    tshi_check(r, status == (last ? TSH_ERR_IO : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), "garbage: is not a safetensors file"), "%s", tsh_error_message());
    tshi_check_status(r, tsh_load(list, last ? other : good, &any), TSH_ERR_MISMATCH, "load of 1 parameters");
    status = tsh_load(list, last ? NULL : good, &any);
    tshi_check(r, status == (last ? TSH_ERR_ARGUMENT : TSH_ERR_PEER), "%s", tsh_status_name(status));
    check_untouched(r, t, 1);
    tshi_check_ok(r, tsh_load(list, good, &any));
    tsh_parameters_destroy(list);
    tsh_tensor_release(t[0]);
}

FILE_TEST(errors_of_one_rank_reach_all) {
    tshi_test_write("model.safetensors", few, 4);
    tshi_test_write("other.safetensors", few, 3);
    tshi_test_write_text("garbage", "This is a text, and its first bytes are a large number.");
    cr_assert_str_empty(tshi_test_run_each(2, 3, one_rank_fails, NULL));
}

static void bad_folders(tshi_rank *r, void *arg) {
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{", "is not JSON"},
        {"[]", "has no weight_map"},
        {"{}", "has no weight_map"},
        {"{\"weight_map\":[]}", "has no weight_map"},
        {"{\"weight_map\":{\"vector\":3}}", "the file of 'vector' is not in this folder"},
        {"{\"weight_map\":{\"vector\":\"../x\"}}", "the file of 'vector' is not in this folder"},
        {"{\"weight_map\":{\"vector\":\"..\"}}", "the file of 'vector' is not in this folder"},
        {"{\"weight_map\":{\"vector\":\"\"}}", "the file of 'vector' is not in this folder"},
        {"{\"weight_map\":{\"vector\":\"absent\"}}", "absent: cannot be opened"},
        {"{\"weight_map\":{\"other\":\"part.safetensors\"}}",
         "part.safetensors: lacks 'other', which the index assigns to it"},
        {"{\"weight_map\":{\"vector\":\"part.safetensors\",\"vector\":\"part.safetensors\"}}", "duplicate object key"},
    };
    tsh_tensor *t;
    tsh_tensor_config config = {TSH_FLOAT32, 1, {11}, {S0}};
    tsh_parameters *list = list_of(r, tsh_world_mesh(r->world), "vector", &config, &t);
    (void)arg;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (r->rank == 0) tshi_test_write_text("model.safetensors.index.json", cases[i].index);
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        tshi_check_status(r, tsh_load(list, tshi_test_path("."), NULL), TSH_ERR_IO, cases[i].words);
    }
    if (r->rank == 0) unlink(tshi_test_path("model.safetensors.index.json"));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_check_status(r, tsh_load(list, tshi_test_path("."), NULL), TSH_ERR_IO,
                      "has neither model.safetensors nor model.safetensors.index.json");
    check_untouched(r, &t, 1);
    drop(list, t);
}

FILE_TEST(folders_without_a_model) {
    tshi_test_write("part.safetensors", few, 4);
    cr_assert_str_empty(tshi_test_run_each(1, 2, bad_folders, NULL));
}

static void no_parts_of_a_whole(tshi_rank *r, void *arg) {
    static const tsh_layout layouts[] = {TSH_PARTIAL_INIT, TSH_LOCAL_INIT};
    (void)arg;
    for (int i = 0; i < 2; i++) {
        tsh_tensor *t;
        tsh_tensor_config config = {TSH_FLOAT32, 1, {11}, {layouts[i]}};
        tsh_parameters *list = list_of(r, tsh_world_mesh(r->world), "vector", &config, &t);
        tshi_check_status(r, tsh_load(list, tshi_test_path("model.safetensors"), NULL), TSH_ERR_LAYOUT,
                          "'vector' (float32 [11]");
        check_untouched(r, &t, 1);
        drop(list, t);
    }
    tshi_check_status(r, tsh_load(NULL, "x", NULL), TSH_ERR_ARGUMENT, "a list of parameters is required");
}

FILE_TEST(partial_and_local_parameters_are_refused) {
    tshi_test_write("model.safetensors", few, 4);
    cr_assert_str_empty(tshi_test_run_each(1, 2, no_parts_of_a_whole, NULL));
}

/* --- files that change -------------------------------------------------------------------------------------------- */

/* Memory hooks that cut the file short when a buffer of *user bytes is taken, which is after its header has been
 * checked. */
static void *cut_file(void *user, size_t size) {
    if (size == *(size_t *)user && truncate(tshi_test_path("model.safetensors"), 400)) abort();
    return malloc(size);
}

static void release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static void the_file_shrinks(tshi_rank *r, void *arg) {
    size_t buffer = 0;
    tsh_world_config config = {.allocator = {.alloc = cut_file, .release = release, .user = &buffer}};
    tsh_tensor *t;
    (void)arg;
    tshi_check_ok(r, tsh_world_init(&config, &r->world));
    tsh_tensor_config matrix = {TSH_FLOAT32, 2, {100, 50}, {S0}};
    tsh_parameters *list = list_of(r, tsh_world_mesh(r->world), "long", &matrix, &t);
    buffer = (size_t)tsh_tensor_local_numel(t) * 8;
    tsh_status status = tsh_load(list, tshi_test_path("model.safetensors"), NULL);
    tshi_check(r, status == TSH_ERR_IO || status == TSH_ERR_PEER, "%s", tsh_status_name(status));
    /* A peer that opens the file late finds it cut short already. */
    tshi_check(r, strstr(tsh_error_message(), "model.safetensors: "), "%s", tsh_error_message());
    tshi_check(r,
               strstr(tsh_error_message(), "ends before byte ") ||
                   (r->size > 1 && strstr(tsh_error_message(), "of the data, but the file has only")),
               "%s", tsh_error_message());
    drop(list, t);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

FILE_TEST(a_file_that_shrinks_while_it_is_read) {
    static const tshi_test_content content = {"long", TSH_FLOAT32, 2, {100, 50}, 1};
    for (int ranks = 1; ranks <= 3; ranks++) {
        tshi_test_write("model.safetensors", &content, 1);
        const tshi_test_options options = {.ranks = ranks, .bare = true};
        cr_assert_str_empty(tshi_test_run_with(&options, the_file_shrinks, NULL, NULL, NULL));
    }
}
