/* Saving: any number of ranks and any layouts write the file that one rank writes, byte for byte, and what fails leaves
 * the old file as it was. */
#include "io/load.h"
#include "io/weights.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/layouts.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_TEST(name) Test(save, name, .timeout = 120, .init = tshi_test_enter, .fini = tshi_test_leave)

enum { SEED = 5, WAYS = TSHI_TEST_LAYOUTS };

/* What a run of save_model does. */
typedef struct job {
    int way;
    const char *name; /* in the test's folder */
    tsh_save_options options;
    uint64_t seed;
} job;

static void save_model(tshi_rank *r, void *arg) {
    const job *j = arg;
    tshi_test_model m;
    tshi_test_model_make(r, j->way, &m);
    tshi_test_model_fill(r, &m, j->seed);
    tshi_check_ok(r, tsh_save(m.list, tshi_test_path(j->name), &j->options));
    tshi_test_model_is(r, &m, j->seed, "the model that was saved");
    tshi_test_model_free(&m);
}

static void load_model(tshi_rank *r, void *arg) {
    const job *j = arg;
    tshi_test_model m;
    tshi_test_model_make(r, j->way, &m);
    tshi_check_ok(r, tsh_load(m.list, tshi_test_path(j->name), NULL));
    tshi_test_model_is(r, &m, j->seed, "the model that was loaded");
    tshi_test_model_free(&m);
}

static char *contents_of(const char *name, size_t *size) {
    FILE *f = fopen(tshi_test_path(name), "rb");
    cr_assert(f, "%s: %s", name, strerror(errno));
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    *size = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*size + 1);
    cr_assert(text);
    cr_assert_eq(fread(text, 1, *size, f), *size);
    text[*size] = '\0';
    fclose(f);
    return text;
}

static bool equal_files(const char *a, const char *b) {
    size_t a_size, b_size;
    char *first = contents_of(a, &a_size), *second = contents_of(b, &b_size);
    bool equal = a_size == b_size && memcmp(first, second, a_size) == 0;
    free(first);
    free(second);
    return equal;
}

/* The number of files in the test's folder. */
static int count_files(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    cr_assert(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

FILE_TEST(the_file_is_that_of_one_rank) {
    cr_assert_str_empty(tshi_test_run(1, save_model, &(job){0, "one.safetensors", {0}, SEED}));
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int way = 0; way < WAYS; way++) {
            job j = {way, "model.safetensors", {0}, SEED};
            cr_assert_str_empty(tshi_test_run(ranks, save_model, &j));
            cr_assert(equal_files("one.safetensors", "model.safetensors"));
            cr_assert_str_empty(tshi_test_run(ranks, load_model, &j));
        }
    }
    cr_assert_eq(count_files(tshi_test_path(".")), 2);
}

FILE_TEST(any_ranks_and_layouts_load_it) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        cr_assert_str_empty(tshi_test_run(ranks, save_model, &(job){ranks % WAYS, "m.safetensors", {0}, SEED}));
        for (int way = 0; way < WAYS; way++) {
            cr_assert_str_empty(tshi_test_run(4 - ranks + way, load_model, &(job){way, "m.safetensors", {0}, SEED}));
        }
    }
}

/* --- several files ------------------------------------------------------------------------------------------------ */

FILE_TEST(files_of_a_size_with_an_index) {
    static const char *const names[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors", "model.safetensors.index.json"};
    job j = {1, ".", {.max_shard_bytes = 3000}, SEED};
    size_t size;
    cr_assert_str_empty(tshi_test_run(3, save_model, &j));
    cr_assert_eq(count_files(tshi_test_path(".")), 4);
    for (int i = 0; i < 4; i++) cr_assert_eq(access(tshi_test_path(names[i]), R_OK), 0, "%s", names[i]);
    char *index = contents_of(names[3], &size);
    cr_assert(strstr(index, "\"total_size\": 3370407") &&
                  strstr(index, "\"large\": \"model-00003-of-00003.safetensors\""),
              "%s", index);
    free(index);
    for (int way = 0; way < WAYS; way++) {
        j.way = way;
        cr_assert_str_empty(tshi_test_run(1 + way, load_model, &j));
    }
    /* Again, over the old set; and with a limit that one file keeps. */
    j.seed = 6;
    cr_assert_str_empty(tshi_test_run(2, save_model, &j));
    cr_assert_str_empty(tshi_test_run(2, load_model, &j));
    j.options.max_shard_bytes = 1 << 30;
    j.seed = 7;
    cr_assert_str_empty(tshi_test_run(2, save_model, &j));
    cr_assert_eq(access(tshi_test_path("model.safetensors"), R_OK), 0);
    cr_assert_str_empty(tshi_test_run(2, load_model, &j));
}

static void refused_sets(tshi_rank *r, void *arg) {
    const tsh_save_options options = {.max_shard_bytes = 3000};
    tshi_test_model m;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tsh_status status = tsh_save(m.list, tshi_test_path("."), &options);
    tshi_check(r, status == (r->rank ? TSH_ERR_PEER : TSH_ERR_IO), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), "model.safetensors: exists, and readers would prefer it to the index"),
               "%s", tsh_error_message());
    tshi_check_status(r, tsh_save(m.list, tshi_test_path("model.safetensors"), &options), TSH_ERR_IO,
                      "is not a folder, which max_shard_bytes needs");
    tshi_test_model_free(&m);
}

FILE_TEST(a_set_beside_a_file_is_refused) {
    job j = {0, ".", {0}, SEED};
    cr_assert_str_empty(tshi_test_run(1, save_model, &j));
    cr_assert_str_empty(tshi_test_run_each(1, 2, refused_sets, NULL));
    cr_assert_eq(count_files(tshi_test_path(".")), 1);
    cr_assert_str_empty(tshi_test_run(1, load_model, &j));
}

/* --- name maps ---------------------------------------------------------------------------------------------------- */

static const tsh_name_rule gpt2_rules[] = {
    {"h.*.attn.q.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 0, false},
    {"h.*.attn.k.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 32, false},
    {"h.*.attn.v.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 64, false},
    {"h.*.attn.qkv.bias", "transformer.h.*.attn.c_attn.bias", false, 0, 0, 0, 0, false},
    {"h.*.c_proj.weight", "transformer.h.*.c_proj.weight", true, 0, 0, 0, 0, false},
    {"h.*.c_fc.weight", "transformer.h.*.c_fc.weight", true, 0, 0, 0, 0, false},
    {"wpe", "transformer.wpe.weight", false, 1, 32, 0, 0, false},
    {"*", "transformer.*", false, 0, 0, 0, 0, false},
};
enum { GPT2_RULES = sizeof gpt2_rules / sizeof *gpt2_rules };

static void add(tshi_rank *r, tsh_parameters *list, const tsh_mesh *mesh, const char *name, int64_t rows,
                int64_t cols) {
    static const tsh_layout layouts[][2] = {{R, R}, {S0, R}, {R, S1}, {S0, S0}, {S1, S0}};
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {TSH_FLOAT32, cols ? 2 : 1, {rows, cols}, {R}};
    for (int a = 0; a < 2; a++) config.layout[a] = layouts[tsh_parameters_count(list) % 5][a];
    for (int a = 0; a < 2; a++) {
        if (config.layout[a].dim >= config.ndim) config.layout[a] = TSH_REPLICATED;
    }
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    tshi_check_ok(r, tsh_parameters_add(list, name, t));
    tsh_tensor_release(t);
}

static void gpt2_again(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    static const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {{"attn.q.weight", 32, 32},      {"attn.k.weight", 32, 32},    {"attn.v.weight", 32, 32},
                 {"attn.qkv.bias", 96, 0},       {"ln_1.weight", 32, 0},       {"ln_1.bias", 32, 0},
                 {"attn.c_proj.weight", 32, 32}, {"attn.c_proj.bias", 32, 0},  {"ln_2.weight", 32, 0},
                 {"ln_2.bias", 32, 0},           {"mlp.c_fc.weight", 128, 32}, {"mlp.c_fc.bias", 128, 0},
                 {"mlp.c_proj.weight", 32, 128}, {"mlp.c_proj.bias", 32, 0}};
    const tsh_load_options load = {.rules = gpt2_rules, .rule_count = GPT2_RULES};
    const tsh_save_options save = {.rules = gpt2_rules, .rule_count = GPT2_RULES};
    tsh_parameters *list = NULL;
    char name[64];
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    add(r, list, mesh, "wte.weight", 97, 32);
    add(r, list, mesh, "wpe", 32, 32);
    add(r, list, mesh, "ln_f.weight", 32, 0);
    add(r, list, mesh, "ln_f.bias", 32, 0);
    for (int h = 0; h < 2; h++) {
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            snprintf(name, sizeof name, "h.%d.%s", h, parts[i].name);
            add(r, list, mesh, name, parts[i].rows, parts[i].cols);
        }
    }
    tshi_check_ok(r, tsh_load(list, TSHARD_TEST_DATA "/models/gpt2", &load));
    tshi_check_ok(r, tsh_save(list, tshi_test_path("model.safetensors"), &save));
    tsh_parameters_destroy(list);
}

static void on_each_mesh(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_test_each_mesh(r, gpt2_again, NULL);
}

/* A stack of 3 matrices [4, 5], one of them transposed in the file: saved on one mesh, loaded on others, where ranks
 * have whole matrices, rows of one, or rows of each. */
static const tsh_name_rule stack_rules[] = {
    {.parameter = "stack", .tensor = "m.0", .length = 1, .squeeze = true},
    {.parameter = "stack", .tensor = "m.1", .transpose = true, .length = 1, .parameter_start = 1, .squeeze = true},
    {.parameter = "stack", .tensor = "m.2", .length = 1, .parameter_start = 2, .squeeze = true},
};

static void stack_again(tshi_rank *r, void *arg) {
    enum { COUNT = 3, ROWS = 4, COLS = 5, ALL = COUNT * ROWS * COLS };
    const tsh_load_options load = {.rules = stack_rules, .rule_count = 3};
    const tsh_save_options save = {.rules = stack_rules, .rule_count = 3};
    tsh_tensor_config config = {TSH_FLOAT64, 3, {COUNT, ROWS, COLS}, {TSH_SHARD_NEXT(0), TSH_SHARD(1)}};
    double values[ALL];
    tsh_parameters *list = NULL;
    tsh_mesh *mesh = NULL;
    for (int i = 0; i < ALL; i++) values[i] = i;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, arg, &mesh))) return;
    tsh_tensor *saved = tshi_test_tensor(r, mesh, &config, values), *loaded = NULL;
    tshi_check_ok(r, tsh_parameters_add(list, "stack", saved));
    tshi_check_ok(r, tsh_save(list, tshi_test_path("model.safetensors"), &save));
    tshi_check_ok(r, tsh_tensor_fill(saved, -1));
    tshi_check_ok(r, tsh_load(list, tshi_test_path("model.safetensors"), &load));
    tshi_test_same(r, "again", saved, values, 0);
    tsh_parameters_destroy(list);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    config = (tsh_tensor_config){TSH_FLOAT64, 2, {COLS, ROWS}, {TSH_SHARD(1)}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &loaded));
    tshi_check_ok(r, tsh_parameters_add(list, "m.1", loaded));
    tshi_check_ok(r,
                  tsh_load(list, tshi_test_path("model.safetensors"), &(tsh_load_options){.allow_unexpected = true}));
    for (int i = 0; i < COLS * ROWS; i++) values[i] = ROWS * COLS + i % ROWS * COLS + i / ROWS;
    tshi_test_same(r, "transposed", loaded, values, 0);
    tsh_tensor_release(saved);
    tsh_tensor_release(loaded);
    tsh_parameters_destroy(list);
    tsh_mesh_destroy(mesh);
}

FILE_TEST(files_have_a_tensor_for_each_matrix_of_a_stack) {
    static const char *const meshes[] = {"a=1,b=1", "a=2,b=1", "a=2,b=2", "a=4,b=1"};
    static const int ranks[] = {1, 2, 4, 4};
    for (int i = 0; i < 4; i++)
        cr_assert_str_empty(tshi_test_run(ranks[i], stack_again, (void *)(uintptr_t)meshes[i]), "%s", meshes[i]);
}

/* Every tensor of one file is in the other one, bit for bit. */
static void same_tensors(const char *a, const char *b) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *first, *second;
    cr_assert_eq(tshi_safetensors_open(&allocator, a, &first), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tshi_safetensors_open(&allocator, b, &second), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(first->count, second->count);
    cr_assert_str_eq(tshi_safetensors_metadata(second, "format"), "pt");
    for (int i = 0; i < first->count; i++) {
        const tshi_safetensors_entry *e = &first->entries[i], *o = &second->entries[i];
        tsh_box box = {0};
        memcpy(box.length, e->shape, sizeof e->shape);
        char *x = malloc((size_t)e->bytes + 1), *y = malloc((size_t)e->bytes + 1);
        cr_assert(x && y);
        cr_assert(!strcmp(e->name, o->name) && e->dtype == o->dtype && e->ndim == o->ndim);
        cr_assert_arr_eq(e->shape, o->shape, sizeof e->shape);
        cr_assert_eq(tshi_safetensors_read_box(first, e, &box, x), TSH_OK);
        cr_assert_eq(tshi_safetensors_read_box(second, o, &box, y), TSH_OK);
        cr_assert_eq(memcmp(x, y, (size_t)e->bytes), 0, "%s differs", e->name);
        free(x);
        free(y);
    }
    tshi_safetensors_close(first);
    tshi_safetensors_close(second);
}

FILE_TEST(gpt2_is_written_as_it_was) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        cr_assert_str_empty(tshi_test_run(ranks, on_each_mesh, NULL));
        same_tensors(TSHARD_TEST_DATA "/models/gpt2/model.safetensors", tshi_test_path("model.safetensors"));
    }
}

static void wrong_rules(tshi_rank *r, void *arg) {
    static const struct {
        tsh_name_rule rule[2];
        const char *words;
    } cases[] = {
        {{{"*", "same", false, 0, 0, 0, 0, false}}, "'same' is the name of several parameters"},
        {{{"b", "same", false, 0, 0, 0, 0, false}, {"a", "same", false, 0, 4, 0, 4, false}},
         "'same' is the name of several"},
        {{{"a", "same", false, 0, 0, 0, 0, false}, {"b", "same", false, 0, 4, 0, 4, false}}, "several parameters fill"},
        {{{"a", "same", false, 0, 4, 0, 0, false}, {"b", "same", false, 0, 4, 0, 5, false}},
         "'same' has elements that no parameter"},
        {{{"a", "same", false, 0, 4, 0, 0, false}, {"b", "same", false, 0, 4, 0, 3, false}},
         "elements that several parameters fill"},
        {{{"a", "same", false, 0, 4, 0, 0, false}, {"b", "same", true, 0, 4, 0, 4, false}},
         "parameters that do not fit together"},
        {{{"a", "x", false, 0, 3, 0, 0, false}}, "'a' is not filled completely by its rules"},
        {{{"c", "x", true, 0, 0, 0, 0, false}}, "'x' cannot be transposed: it does not have two dims"},
        {{{"a", "\xff", false, 0, 0, 0, 0, false}}, "is not UTF-8"},
        {{{"*", "*.*", false, 0, 0, 0, 0, false}}, "only one '*'"},
    };
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    add(r, list, tsh_world_mesh(r->world), "a", 4, 3);
    add(r, list, tsh_world_mesh(r->world), "b", 4, 3);
    add(r, list, tsh_world_mesh(r->world), "c", 4, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsh_save_options options = {.rules = cases[i].rule, .rule_count = cases[i].rule[1].parameter ? 2 : 1};
        tshi_check_status(r, tsh_save(list, tshi_test_path("x"), &options), TSH_ERR_ARGUMENT, cases[i].words);
    }
    tsh_parameters_destroy(list);
}

FILE_TEST(rules_that_make_no_whole_tensors) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, wrong_rules, NULL));
    cr_assert_eq(count_files(tshi_test_path(".")), 0);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* A save fails on every rank with the path and these words; then the model is as it was, and so is an old file. */
typedef struct failure {
    const char *path, *words;
    rlim_t file_bytes; /* of the last rank, 0: no limit */
} failure;

static void fails(tshi_rank *r, void *arg) {
    const failure *f = arg;
    tshi_test_model m;
    tshi_test_model_make(r, r->size % WAYS, &m);
    tshi_test_model_fill(r, &m, SEED + 1);
    if (f->file_bytes && r->rank == 0) {
        struct rlimit limit = {f->file_bytes, f->file_bytes};
        tshi_check(r, setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    }
    for (int i = 0; i < 2; i++) {
        tsh_status status = tsh_save(m.list, f->path, NULL);
        tshi_check(r, status == (r->rank ? TSH_ERR_PEER : TSH_ERR_IO), "%s", tsh_status_name(status));
        tshi_check(r, strstr(tsh_error_message(), f->path) && strstr(tsh_error_message(), f->words), "%s",
                   tsh_error_message());
    }
    tshi_test_model_is(r, &m, SEED + 1, "the model");
    tshi_test_model_free(&m);
}

static void fails_at(int first, int last, const char *path, rlim_t file_bytes, const char *words) {
    failure f = {path, words, file_bytes};
    cr_assert_str_empty(tshi_test_run_each(first, last, fails, &f));
}

FILE_TEST(folders_that_are_not_there_and_limits) {
    char path[256];
    job j = {0, "model.safetensors", {0}, SEED};
    cr_assert_str_empty(tshi_test_run(2, save_model, &j));
    snprintf(path, sizeof path, "%s", tshi_test_path("vanished/model.safetensors"));
    fails_at(1, 3, path, 0, "cannot be created: No such file or directory");
    snprintf(path, sizeof path, "%s", tshi_test_path("model.safetensors"));
    fails_at(1, 3, path, 1000000, "the limit on file sizes forbids 3371007 bytes: File too large");
    cr_assert_eq(count_files(tshi_test_path(".")), 1);
    cr_assert_str_empty(tshi_test_run(2, load_model, &j));
}

/* A file system of a MiB, which has room for nothing but a first, small model; then one that is read-only. */
Test(save, a_full_disk_and_a_read_only_one, .timeout = 120) {
    const char *folder = tshi_test_folder(1);
    char path[256], command[512];
    if (!folder) cr_skip_test("no right to mount a small file system");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    snprintf(command, sizeof command, "echo old > %s", path);
    cr_assert_eq(system(command), 0);
    fails_at(1, 3, path, 0, "No space left on device");
    cr_assert_eq(count_files(folder), 1);
    cr_assert_eq(mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0, "%s", strerror(errno));
    fails_at(1, 3, path, 0, "Read-only file system");
    cr_assert_eq(count_files(folder), 1);
    tshi_test_remove(folder);
}

/* Saves one model and the other in turns until a rank, which an alarm ends, is missing. */
static void save_until_the_end(tshi_rank *r, void *arg) {
    const int *moment = arg;
    tshi_test_model m;
    tsh_status status = TSH_OK;
    tshi_test_model_make(r, 0, &m);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank == *moment % 2) ualarm((useconds_t)(200 + *moment * 613), 0);
    for (uint64_t turn = 0; status == TSH_OK; turn++) {
        tshi_test_model_fill(r, &m, SEED + turn % 2);
        status = tsh_save(m.list, tshi_test_path("model.safetensors"), NULL);
    }
    tshi_test_model_free(&m);
}

FILE_TEST(a_rank_that_is_killed_leaves_a_whole_file) {
    const tshi_test_options options = {.ranks = 2, .world_timeout = "10"};
    cr_assert_str_empty(tshi_test_run(1, save_model, &(job){0, "first", {0}, SEED}));
    cr_assert_str_empty(tshi_test_run(1, save_model, &(job){0, "second", {0}, SEED + 1}));
    cr_assert_str_empty(tshi_test_run(1, save_model, &(job){0, "model.safetensors", {0}, SEED}));
    for (int moment = 0; moment < 30; moment++) {
        tshi_outcome outcomes[2];
        tshi_test_run_with(&options, save_until_the_end, &moment, outcomes, NULL);
        cr_assert_eq(outcomes[moment % 2].signal, SIGALRM, "%s", outcomes[moment % 2].words);
        cr_assert(equal_files("model.safetensors", "first") || equal_files("model.safetensors", "second"));
    }
    cr_assert_str_empty(tshi_test_run(2, save_model, &(job){0, "model.safetensors", {0}, SEED}));
    cr_assert(equal_files("model.safetensors", "first"));
    cr_assert_eq(count_files(tshi_test_path(".")), 3);
}

static void one_rank_fails(tshi_rank *r, void *arg) {
    tshi_test_model m;
    bool last = r->rank == r->size - 1;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tsh_status status = tsh_save(m.list, last ? NULL : tshi_test_path("x"), NULL);
    tshi_check(r, status == (last ? TSH_ERR_ARGUMENT : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), "a path is required"), "%s", tsh_error_message());
    tshi_check_status(r, tsh_save(m.list, tshi_test_path(last ? "." : "x"), NULL), TSH_ERR_MISMATCH, "in a folder");
    /* A rank for which the folder is another one finds no file to write to. */
    status = tsh_save(m.list, tshi_test_path(last ? "vanished/x" : "x"), NULL);
    tshi_check(r, status == (last ? TSH_ERR_IO : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), "vanished/x.partial: cannot be opened for writing"), "%s",
               tsh_error_message());
    tshi_test_model_free(&m);
}

FILE_TEST(errors_of_one_rank_reach_all) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, one_rank_fails, NULL));
    cr_assert_eq(count_files(tshi_test_path(".")), 0);
}

static void unsuitable(tshi_rank *r, void *arg) {
    static const tsh_tensor_config configs[] = {{TSH_FLOAT32, 1, {5}, {TSH_PARTIAL_INIT}},
                                                {TSH_FLOAT32, 1, {5}, {TSH_LOCAL_INIT}},
                                                {TSH_COMPLEX128, 1, {5}, {R}}};
    static const char *const words[] = {"'a' (float32 [5]", "'a' (float32 [5]",
                                        "the format has no complex128, which 'a' is"};
    (void)arg;
    for (int i = 0; i < 3; i++) {
        tsh_tensor *t = NULL;
        tsh_parameters *list = NULL;
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &configs[i], &t));
        tshi_check_ok(r, tsh_parameters_add(list, "a", t));
        tshi_check_status(r, tsh_save(list, tshi_test_path("x"), NULL), i < 2 ? TSH_ERR_LAYOUT : TSH_ERR_DTYPE,
                          words[i]);
        tsh_parameters_destroy(list);
        tsh_tensor_release(t);
    }
}

FILE_TEST(what_is_no_part_of_a_whole_is_refused) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, unsuitable, NULL));
    cr_assert_eq(count_files(tshi_test_path(".")), 0);
}
