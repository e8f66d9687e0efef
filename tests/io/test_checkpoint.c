/* Checkpoints: saved at one number of ranks and loaded at another, in other layouts; differences, damage, pruning. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/checkpoints.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *folder;

static void enter(void) {
    folder = tshi_test_folder(0);
}

static void leave(void) {
    tshi_test_remove(folder);
}

TestSuite(checkpoint, .init = enter, .fini = leave, .timeout = 300);

/* --- any number of ranks, any layouts ----------------------------------------------------------------------------- */

enum { MOST = 8 };

static void name_folder(char *path, int ranks, int way) {
    snprintf(path, 128, "%s/%d-%d", folder, ranks, way);
}

static uint64_t seed_of(int ranks, int way) {
    return (uint64_t)(100 + 10 * ranks + way);
}

static void save_each(tshi_rank *r, void *arg) {
    (void)arg;
    for (int way = 0; way < TSHI_TEST_LAYOUTS; way++) {
        tshi_test_model m;
        char path[128];
        name_folder(path, r->size, way);
        tshi_test_model_make(r, way, &m);
        tshi_test_model_fill(r, &m, seed_of(r->size, way));
        tshi_check_ok(r, tsh_checkpoint_save(path, &(tsh_checkpoint){.parameters = m.list, .step = 5}));
        tshi_test_model_is(r, &m, seed_of(r->size, way), "after the save");
        tshi_test_model_free(&m);
    }
}

/* Under a sanitizer every third of them, others at each number of ranks and in each way. */
static bool leaves_out(const tshi_rank *r, int way, int i) {
#ifdef __SANITIZE_ADDRESS__
    return (r->size + way + i) % 3 != 0;
#else
    (void)r, (void)way, (void)i;
    return false;
#endif
}

static void load_each(tshi_rank *r, void *arg) {
    (void)arg;
    for (int way = 0; way < TSHI_TEST_LAYOUTS; way++) {
        tshi_test_model m;
        tshi_test_model_make(r, way, &m);
        for (int i = 0; i < MOST * TSHI_TEST_LAYOUTS && !r->failed; i++) {
            int ranks = i / TSHI_TEST_LAYOUTS + 1, saved = i % TSHI_TEST_LAYOUTS;
            char path[128], what[64];
            if (leaves_out(r, way, i)) continue;
            name_folder(path, ranks, saved);
            snprintf(what, sizeof what, "saved by %d ranks in way %d, loaded in way %d", ranks, saved, way);
            tsh_checkpoint load = {.parameters = m.list};
            tshi_check_ok(r, tsh_checkpoint_load(path, &load));
            tshi_check(r, load.step == 5, "%s: step %lld", what, (long long)load.step);
            tshi_test_model_is(r, &m, seed_of(ranks, saved), what);
        }
        tshi_test_model_free(&m);
    }
}

Test(checkpoint, loads_at_any_number_of_ranks_and_in_any_layouts) {
    cr_assert_str_empty(tshi_test_run_each(1, MOST, save_each, NULL));
    cr_assert_str_empty(tshi_test_run_each(1, MOST, load_each, NULL));
}

/* --- the state beside the tensors --------------------------------------------------------------------------------- */

static void save_values(tshi_rank *r, void *arg) {
    int64_t epoch = -7, many = INT64_MIN;
    double loss = 0.1, worst = -INFINITY, none = NAN;
    char name[] = "ein Käse", key[3] = {0, -1, 7};
    tsh_value values[] = {{"epoch", TSH_VALUE_INT64, &epoch, 0},    {"many", TSH_VALUE_INT64, &many, 0},
                          {"loss", TSH_VALUE_DOUBLE, &loss, 0},     {"worst", TSH_VALUE_DOUBLE, &worst, 0},
                          {"none", TSH_VALUE_DOUBLE, &none, 0},     {"name", TSH_VALUE_STRING, name, 0},
                          {"key", TSH_VALUE_BYTES, key, sizeof key}};
    tshi_test_model m;
    tsh_checkpoint c = {.step = 12, .values = values, .value_count = 7, .keep = 2};
    (void)arg;
    tshi_test_model_make(r, 1, &m);
    tshi_test_model_fill(r, &m, 1);
    c.parameters = m.list;
    tsh_world_seed(r->world, UINT64_MAX - 3);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
    tshi_test_model_free(&m);
}

static void load_values(tshi_rank *r, void *arg) {
    int64_t epoch = 0, many = 0;
    double loss = 0, worst = 0, none = 0;
    char name[10] = "", key[3] = "";
    tsh_value values[] = {{"epoch", TSH_VALUE_INT64, &epoch, 0},    {"many", TSH_VALUE_INT64, &many, 0},
                          {"loss", TSH_VALUE_DOUBLE, &loss, 0},     {"worst", TSH_VALUE_DOUBLE, &worst, 0},
                          {"none", TSH_VALUE_DOUBLE, &none, 0},     {"name", TSH_VALUE_STRING, name, sizeof name},
                          {"key", TSH_VALUE_BYTES, key, sizeof key}};
    tshi_test_model m;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tsh_checkpoint c = {.parameters = m.list, .values = values, .value_count = 7};
    tshi_check_ok(r, tsh_checkpoint_load(folder, &c));
    tshi_check(r, epoch == -7 && many == INT64_MIN && loss == 0.1 && worst == -INFINITY && isnan(none),
               "numbers differ");
    tshi_check(r, !strcmp(name, "ein Käse") && key[0] == 0 && key[1] == -1 && key[2] == 7, "texts differ");
    values[5].size = 9;
    tshi_check_status(r, tsh_checkpoint_load(folder, &c), TSH_ERR_IO, "the value 'name' takes 10 bytes");
    values[5].size = 10;
    values[6].size = 2;
    values[0].name = "epochs";
    values[2].kind = TSH_VALUE_INT64;
    loss = 5;
    tshi_check_status(r, tsh_checkpoint_load(folder, &c), TSH_ERR_IO, "the value 'epochs' is missing");
    tshi_check(r,
               strstr(tsh_error_message(), "the value 'loss' has another kind") != NULL &&
                   strstr(tsh_error_message(), "the value 'key' has 3 bytes in the checkpoint, 2 here") != NULL,
               "%s", tsh_error_message());
    tshi_check(r, loss == 5, "a failed load has changed a value");
    tshi_test_model_free(&m);
}

Test(checkpoint, keeps_the_callers_values) {
    cr_assert_str_empty(tshi_test_run(3, save_values, NULL));
    cr_assert_str_empty(tshi_test_run(2, load_values, NULL));
}

/* Draws from the world's next stream of random numbers. */
static double draw(tshi_rank *r) {
    double value = 0;
    tsh_tensor *t = tshi_test_vector(r, TSH_FLOAT64, 1);
    tshi_check_ok(r, tsh_tensor_init(t, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}));
    tshi_check_ok(r, tsh_tensor_read(t, &value, 1));
    tsh_tensor_release(t);
    return value;
}

/* *shared is what is drawn after the save, by the ranks that save and by those that load. */
static void random_streams(tshi_rank *r, void *arg) {
    double *shared = arg;
    bool saves = *shared == 0;
    tshi_test_model m;
    tshi_test_model_make(r, 0, &m);
    tsh_checkpoint c = {.parameters = m.list};
    if (saves) {
        tsh_world_seed(r->world, UINT64_MAX - 7);
        draw(r);
        tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
    } else {
        tshi_check_ok(r, tsh_checkpoint_load(folder, &c));
    }
    double value = draw(r);
    if (!saves) tshi_check(r, value == *shared, "%g is drawn, not %g", value, *shared);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (saves && r->rank == 0) *shared = value;
    tshi_test_model_free(&m);
}

Test(checkpoint, goes_on_with_the_worlds_random_numbers) {
    double *shared = tshi_test_shared(sizeof *shared);
    cr_assert_str_empty(tshi_test_run(2, random_streams, shared));
    cr_assert_neq(*shared, 0);
    cr_assert_str_empty(tshi_test_run(3, random_streams, shared));
}

/* --- differences and damage --------------------------------------------------------------------------------------- */

static void add(tshi_rank *r, tsh_parameters *list, const char *name, tsh_dtype dtype, int64_t n) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = dtype, .ndim = 1, .shape = {n}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_fill(t, 3));
    tshi_check_ok(r, tsh_parameters_add(list, name, t));
    tsh_tensor_release(t);
}

static void difference(tshi_rank *r, void *arg) {
    tsh_parameters *saved = NULL, *wanted = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &saved));
    tshi_check_ok(r, tsh_parameters_create(r->world, &wanted));
    add(r, saved, "same", TSH_FLOAT32, 5);
    add(r, saved, "shape", TSH_FLOAT32, 6);
    add(r, saved, "type", TSH_FLOAT32, 7);
    add(r, saved, "more", TSH_FLOAT32, 8);
    add(r, wanted, "less", TSH_FLOAT32, 9);
    add(r, wanted, "type", TSH_FLOAT64, 7);
    add(r, wanted, "same", TSH_FLOAT32, 5);
    add(r, wanted, "shape", TSH_FLOAT32, 5);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = saved, .step = 1}));
    tshi_check_ok(r, tsh_tensor_fill(tsh_parameters_tensor(wanted, 2), 4));
    tsh_checkpoint load = {.parameters = wanted, .step = 77};
    tshi_check_status(r, tsh_checkpoint_load(folder, &load), TSH_ERR_IO,
                      "step-00000001': 'less' is missing; 'type' is float32 [7] in the checkpoint, float64 [7] here; "
                      "'shape' is float32 [6] in the checkpoint, float32 [5] here; 'more' is unexpected");
    tsh_tensor *same = tsh_parameters_tensor(wanted, 2);
    float values[5] = {4}, first = 4;
    if (tsh_tensor_local_numel(same) > 0) {
        tshi_check_ok(r, tsh_tensor_read(same, values, tsh_tensor_local_numel(same)));
        first = values[0];
    }
    tshi_check(r, first == 4 && load.step == 77, "a failed load has changed something");
    /* Lists that differ from rank to rank are found before anything is written. */
    tsh_parameters *other = r->rank ? wanted : saved;
    tshi_check_status(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = other, .step = 2}),
                      TSH_ERR_MISMATCH, "checkpoint_save");
    tsh_parameters_destroy(saved);
    tsh_parameters_destroy(wanted);
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *open = opendir(path);
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL;)
        count += entry->d_name[0] != '.' || entry->d_name[1] > '.';
    if (open) closedir(open);
    return count;
}

Test(checkpoint, names_all_differences_in_one_error_and_changes_nothing) {
    cr_assert_str_empty(tshi_test_run(3, difference, NULL));
    cr_assert_eq(count_entries(folder), 1);
}

static void save_one(tshi_rank *r, void *arg) {
    tshi_test_model m;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tshi_test_model_fill(r, &m, 9);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = m.list, .step = 3}));
    tshi_test_model_free(&m);
}

static void load_damaged(tshi_rank *r, void *arg) {
    tshi_test_model m;
    tshi_test_model_make(r, 2, &m);
    tsh_checkpoint load = {.parameters = m.list, .step = 77};
    bool chosen = !strstr(arg, "no complete"); /* rank 0 looks for the folder */
    tshi_check_status(r, tsh_checkpoint_load(folder, &load), chosen || r->rank == 0 ? TSH_ERR_IO : TSH_ERR_PEER, arg);
    tshi_check(r, load.step == 77, "a failed load has set the step");
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_test_model_free(&m);
}

/* Changes a bit of the file, at a position from its end. */
static void flip(const char *file, off_t from_end) {
    char path[128], byte;
    snprintf(path, sizeof path, "%s/step-00000003/%s", folder, file);
    int fd = open(path, O_RDWR);
    off_t at = lseek(fd, -from_end, SEEK_END);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

Test(checkpoint, finds_a_changed_bit_by_its_checksum) {
    cr_assert_str_empty(tshi_test_run(3, save_one, NULL));
    flip("rank-00001.safetensors", 1); /* "bytes" has the smallest elements, which come last */
    cr_assert_str_empty(tshi_test_run(2, load_damaged, "step-00000003: 'bytes' has a wrong checksum"));
    flip("rank-00001.safetensors", 1);
    flip("rank-00000.safetensors", 30000);
    cr_assert_str_empty(tshi_test_run(4, load_damaged, "step-00000003: 'large' has a wrong checksum"));
}

/* A rank's boxes twice, another's not at all. */
Test(checkpoint, wants_each_element_once) {
    char command[256];
    int64_t step;
    cr_assert_str_empty(tshi_test_run(2, save_one, NULL));
    snprintf(command, sizeof command, "cd %s/step-00000003 && cp rank-00000.safetensors rank-00001.safetensors",
             folder);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_eq(step, -1);
    cr_assert(strstr(tsh_error_message(), "do not have each of its elements once"), "%s", tsh_error_message());
}

static void truncate_file(const char *file) {
    char path[128];
    snprintf(path, sizeof path, "%s/step-00000003/%s", folder, file);
    cr_assert_eq(truncate(path, 100), 0);
}

Test(checkpoint, takes_no_folder_for_whole_that_is_not) {
    char path[128];
    int64_t step;
    cr_assert_str_empty(tshi_test_run(2, save_one, NULL));
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_eq(step, 3);
    snprintf(path, sizeof path, "%s/step-00000004", folder);
    cr_assert_eq(mkdir(path, 0777), 0); /* nothing in it */
    snprintf(path, sizeof path, "%s/step-4", folder);
    cr_assert_eq(mkdir(path, 0777), 0); /* another's name */
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_eq(step, 3);
    truncate_file("rank-00001.safetensors");
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_eq(step, -1);
    cr_assert_str_empty(tshi_test_run(2, load_damaged, "no complete checkpoint found"));
    snprintf(path, sizeof path, "%s/nowhere", folder);
    cr_assert_eq(tsh_checkpoint_latest(path, &step), TSH_OK);
    cr_assert_eq(step, -1);
    snprintf(path, sizeof path, "%s/step-00000003/checkpoint.json", folder);
    cr_assert_eq(tsh_checkpoint_latest(path, &step), TSH_ERR_IO, "a file is no folder");
}

/* --- many steps --------------------------------------------------------------------------------------------------- */

static void save_many(tshi_rank *r, void *arg) {
    tshi_test_model m;
    const bool *background = arg;
    int64_t step = 0;
    tshi_test_model_make(r, 1, &m);
    for (int64_t s = 1; s <= 5; s++) {
        tshi_test_model_fill(r, &m, (uint64_t)s);
        tsh_checkpoint c = {.parameters = m.list, .step = s * 50000000, .keep = 3, .background = *background};
        tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
        tshi_test_model_fill(r, &m, 1000); /* after the values have been copied */
    }
    /* The same step again takes its place, and is not pruned in favour of newer ones. */
    tshi_test_model_fill(r, &m, 44);
    tsh_checkpoint c = {.parameters = m.list, .step = 200000000, .keep = 2, .background = *background};
    tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
    tshi_check_ok(r, tsh_checkpoint_wait(r->world));
    if (r->rank == 0) {
        char path[128];
        tshi_check_ok(r, tsh_checkpoint_latest(folder, &step));
        tshi_check(r, step == 250000000, "the latest is %lld", (long long)step);
        tshi_check(r, count_entries(folder) == 2, "%d folders", count_entries(folder));
        snprintf(path, sizeof path, "%s/step-200000000", folder);
        tshi_check(r, count_entries(path) == r->size + 1, "%d files", count_entries(path));
    }
    char path[128];
    snprintf(path, sizeof path, "%s/step-200000000", folder);
    tsh_checkpoint load = {.parameters = m.list};
    tshi_check_ok(r, tsh_checkpoint_load(path, &load));
    tshi_test_model_is(r, &m, 44, "one step's folder");
    tshi_check_ok(r, tsh_checkpoint_load(folder, &load));
    tshi_test_model_is(r, &m, 5, "the newest");
    tshi_test_model_free(&m);
}

Test(checkpoint, prunes_old_steps_and_replaces_one) {
    bool background = false;
    cr_assert_str_empty(tshi_test_run(4, save_many, &background));
}

Test(checkpoint, prunes_old_steps_and_replaces_one_in_the_background) {
    bool background = true;
    cr_assert_str_empty(tshi_test_run(4, save_many, &background));
}

/* A world that is destroyed finishes its save. */
static void leave_at_once(tshi_rank *r, void *arg) {
    tshi_test_model m;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tshi_test_model_fill(r, &m, 6);
    tsh_checkpoint c = {.parameters = m.list, .step = 8, .background = true};
    tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
    tshi_test_model_free(&m);
}

Test(checkpoint, is_whole_when_the_world_is_destroyed_at_once) {
    int64_t step;
    cr_assert_str_empty(tshi_test_run(4, leave_at_once, NULL));
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_eq(step, 8);
}
