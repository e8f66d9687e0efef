/* Checkpoints that cannot be saved or read: an error with path and cause on every rank, no half folder that is taken
 * for a whole one, and ranks that go on. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "io/checkpoint_save.h"
#include "support/checkpoints.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static void enter(void) {
    snprintf(folder, sizeof folder, "%s", tshi_test_folder(0));
}

static void leave(void) {
    tshi_test_remove(folder);
}

TestSuite(checkpoint_failures, .init = enter, .fini = leave, .timeout = 300);

/* Entries of a folder, hidden ones too. */
static int count_entries(const char *path) {
    int count = -2;
    DIR *open = opendir(path);
    while (open && readdir(open)) count++;
    if (open) closedir(open);
    return count;
}

/* Where a save is to fail, and how. */
typedef struct failing {
    const char *path;
    const char *cause;
    rlim_t limit; /* of rank 1's files; 0: none */
    bool background;
} failing;

static void set_limit(rlim_t limit) {
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = limit ? limit : l.rlim_max;
    setrlimit(RLIMIT_FSIZE, &l);
}

/* The failure is this rank's own, or a peer's whose words this rank has. */
static void check_failed(tshi_rank *r, tsh_status status, const failing *f) {
    const char *words = tsh_error_message();
    tshi_check(r, status == TSH_ERR_IO || status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), words);
    tshi_check(r, strstr(words, f->cause) && strstr(words, f->path), "'%s' lacks '%s' or '%s'", words, f->path,
               f->cause);
}

/* A save fails; then the ranks compute, and save elsewhere. */
static void fail_and_go_on(tshi_rank *r, void *arg) {
    const failing *f = arg;
    tshi_test_model m;
    tshi_test_model_make(r, 0, &m);
    tshi_test_model_fill(r, &m, 4);
    tsh_checkpoint c = {.parameters = m.list, .step = 7, .background = f->background};
    if (r->rank == 1 && f->limit) set_limit(f->limit);
    tsh_status status = tsh_checkpoint_save(f->path, &c);
    if (f->background && status == TSH_OK) {
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        status = tsh_checkpoint_save(folder, &c); /* which does nothing but return the failure */
    }
    check_failed(r, status, f);
    if (r->rank == 1 && f->limit) set_limit(0);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), tsh_parameters_tensor(m.list, 2), TSH_REDUCE_SUM));
    tshi_test_model_fill(r, &m, 4);
    if (r->rank == 0) tshi_check(r, count_entries(f->path) <= 0, "%d files are left", count_entries(f->path));
    char path[128];
    snprintf(path, sizeof path, "%s/elsewhere", folder);
    tshi_check_ok(r, tsh_checkpoint_save(path, &c));
    tshi_check_ok(r, tsh_checkpoint_load(path, &c));
    tshi_test_model_is(r, &m, 4, "saved elsewhere");
    tshi_test_model_free(&m);
}

static void fails_and_goes_on(failing f) {
    for (int i = 0; i < 2; i++) {
        f.background = i == 1;
        cr_assert_str_empty(tshi_test_run(3, fail_and_go_on, &f), "%s", f.background ? "in the background" : "");
    }
}

Test(checkpoint_failures, full_disk) {
    if (geteuid() != 0) cr_skip_test("a file system can be mounted by root alone");
    char path[64];
    snprintf(path, sizeof path, "%s", tshi_test_folder(2));
    fails_and_goes_on((failing){.path = path, .cause = "No space left on device"});
    tshi_test_remove(path);
}

Test(checkpoint_failures, limit_of_file_sizes) {
    char path[128];
    snprintf(path, sizeof path, "%s/limited", folder);
    fails_and_goes_on((failing){.path = path, .cause = "File too large", .limit = 100000});
}

Test(checkpoint_failures, read_only_folder) {
    char path[64];
    snprintf(path, sizeof path, "%s", tshi_test_folder(geteuid() == 0 ? 1 : 0));
    if (geteuid() == 0) {
        cr_assert_eq(mount("tmpfs", path, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    } else {
        cr_assert_eq(chmod(path, 0555), 0);
    }
    fails_and_goes_on((failing){.path = path, .cause = geteuid() == 0 ? "Read-only file system" : "Permission denied"});
    chmod(path, 0777);
    tshi_test_remove(path);
}

Test(checkpoint_failures, no_folder_above_and_a_file_in_its_place) {
    char path[128], file[128];
    snprintf(path, sizeof path, "%s/none/run", folder);
    fails_and_goes_on((failing){.path = path, .cause = "No such file or directory"});
    snprintf(file, sizeof file, "%s/file", folder);
    close(open(file, O_CREAT | O_WRONLY, 0666));
    fails_and_goes_on((failing){.path = file, .cause = "Not a directory"});
}

/* --- others at the same files ------------------------------------------------------------------------------------- */

static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Removes what is hidden in a folder, as soon as it is there. */
static void remove_hidden(const char *path) {
    char hidden[512];
    DIR *open = opendir(path);
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL;) {
        if (strncmp(entry->d_name, ".step", 5) != 0) continue;
        snprintf(hidden, sizeof hidden, "%s/%s", path, entry->d_name);
        tshi_test_remove(hidden);
    }
    if (open) closedir(open);
}

/* Some rank has counted one. */
static bool any(tshi_rank *r, int count) {
    tsh_tensor *most = tshi_test_vector(r, TSH_FLOAT64, 1);
    tshi_check_ok(r, tsh_tensor_fill(most, count));
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), most, TSH_REDUCE_MAX));
    bool found = tsh_tensor_item(most) > 0;
    tsh_tensor_release(most);
    return found;
}

static void save_vanishing(tshi_rank *r, void *arg) {
    char path[128];
    tshi_test_model m;
    int *failures = r->result;
    (void)arg;
    snprintf(path, sizeof path, "%s/vanishing", folder);
    tshi_test_model_make(r, 0, &m);
    /* Until the other process has come in time once. */
    for (int64_t step = 1; !r->failed && (step <= 30 || !any(r, *failures)); step++) {
        tshi_test_model_fill(r, &m, (uint64_t)step);
        tsh_checkpoint c = {.parameters = m.list, .step = step, .background = step % 2};
        tsh_status status = tsh_checkpoint_save(path, &c);
        if (status == TSH_OK) status = tsh_checkpoint_wait(r->world);
        if (status == TSH_OK) continue;
        ++*failures;
        check_failed(r, status, &(failing){.path = path, .cause = "No such file or directory"});
    }
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_test_model_free(&m);
}

Test(checkpoint_failures, vanished_folder) {
    int failures[2] = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/vanishing", folder);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) remove_hidden(path);
    }
    const tshi_test_options options = {.ranks = 2, .result_bytes = sizeof(int)};
    const char *words = tshi_test_run_with(&options, save_vanishing, NULL, NULL, failures);
    end(child);
    cr_assert_str_empty(words);
    cr_assert(failures[0] > 0 && failures[0] == failures[1], "%d and %d saves failed", failures[0], failures[1]);
}

enum { SHRINKING = 60 }; /* loads, and more until one has come to the end of the file */

/* A process that cuts a file in half when its first bytes have been read; it is ready on return. */
static pid_t shrinker(const char *path) {
    char event[512];
    int watch = inotify_init();
    if (watch < 0 || inotify_add_watch(watch, path, IN_ACCESS) < 0) abort();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(watch, event, sizeof event) <= 0 || truncate(path, 900000) != 0) _exit(1);
        _exit(0);
    }
    close(watch);
    return child;
}

static void load_shrinking(tshi_rank *r, void *arg) {
    char command[256], path[128];
    tshi_test_model m;
    int *failures = r->result;
    (void)arg;
    snprintf(path, sizeof path, "%s/step-00000001/rank-00000.safetensors", folder);
    snprintf(command, sizeof command, "cp %s/whole %s", folder, path);
    tshi_test_model_make(r, 1, &m);
    for (int i = 0; !r->failed && (i < SHRINKING || !any(r, failures[1])); i++) {
        tsh_checkpoint c = {.parameters = m.list, .step = 77};
        pid_t child = 0;
        if (r->rank == 0) {
            tshi_check(r, system(command) == 0, "cp");
            child = shrinker(path);
        }
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        tsh_status status = tsh_checkpoint_load(folder, &c);
        if (child > 0) end(child);
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        if (status == TSH_OK) {
            tshi_test_model_is(r, &m, 5, "loaded beside a file that shrinks");
            continue;
        }
        failures[0]++;
        failures[1] += strstr(tsh_error_message(), ": ends before byte") != NULL;
        check_failed(r, status, &(failing){.path = folder, .cause = ""});
        tshi_check(r, c.step == 77, "a failed load has set the step");
    }
    tshi_test_model_free(&m);
}

static void save_five(tshi_rank *r, void *arg) {
    tshi_test_model m;
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tshi_test_model_fill(r, &m, 5);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = m.list, .step = 1}));
    tshi_test_model_free(&m);
}

Test(checkpoint_failures, file_that_shrinks_while_it_is_read) {
    char path[128], whole[128], command[300];
    int failures[2][2] = {{0}};
    cr_assert_str_empty(tshi_test_run(2, save_five, NULL));
    snprintf(path, sizeof path, "%s/step-00000001/rank-00000.safetensors", folder);
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(command, sizeof command, "cp %s %s", path, whole);
    cr_assert_eq(system(command), 0);
    const tshi_test_options options = {.ranks = 2, .result_bytes = sizeof failures[0]};
    cr_assert_str_empty(tshi_test_run_with(&options, load_shrinking, NULL, NULL, failures));
    cr_log_info("%d loads failed, %d and %d of them at the file's end", failures[0][0], failures[0][1], failures[1][1]);
    cr_assert(failures[0][0] == failures[1][0] && failures[0][1] + failures[1][1] > 0, "%d, %d, %d, %d", failures[0][0],
              failures[1][0], failures[0][1], failures[1][1]);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* A world's memory, whose request number `due` fails. */
typedef struct memory {
    int due;
    bool failed;
} memory;

static void *hook_alloc(void *user, size_t size) {
    memory *m = user;
    if (m->due > 0 && --m->due == 0) {
        m->failed = true;
        return NULL;
    }
    return malloc(size);
}

static void hook_release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static void run_out_of_memory(tshi_rank *r, void *arg) {
    memory hooks = {0};
    tsh_world_config config = {.allocator = {.alloc = hook_alloc, .release = hook_release, .user = &hooks},
                               .heap_bytes = (size_t)64 << 20,
                               .blas_threads = 1};
    tshi_test_model m;
    int saves = 0, loads = 0;
    bool over = false;
    (void)arg;
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tshi_test_model_make(r, 0, &m);
    tshi_test_model_fill(r, &m, 3);
    tsh_tensor *flag = tshi_test_vector(r, TSH_INT64, 1);
    for (int due = 1; !over && !r->failed; due++) {
        tsh_checkpoint c = {.parameters = m.list, .step = 1, .background = due % 2};
        hooks.due = r->rank == 1 ? due : 0;
        tsh_status status = tsh_checkpoint_save(folder, &c);
        if (status == TSH_OK) status = tsh_checkpoint_wait(r->world);
        saves += status != TSH_OK;
        hooks.due = 0;
        tshi_check(r, status == TSH_OK || status == (r->rank == 1 ? TSH_ERR_MEMORY : TSH_ERR_PEER), "save, %d: %s, %s",
                   due, tsh_status_name(status), tsh_error_message());
        tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
        tshi_check_ok(r, tsh_checkpoint_wait(r->world));
        hooks.due = r->rank == 1 ? due : 0;
        status = tsh_checkpoint_load(folder, &c);
        loads += status != TSH_OK;
        hooks.due = 0;
        tshi_check(r, status == TSH_OK || status == (r->rank == 1 ? TSH_ERR_MEMORY : TSH_ERR_PEER), "load, %d: %s, %s",
                   due, tsh_status_name(status), tsh_error_message());
        int64_t failed = hooks.failed;
        hooks.failed = false;
        tshi_check_ok(r, tsh_tensor_write(flag, &failed, 1));
        tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), flag, TSH_REDUCE_MAX));
        tshi_check_ok(r, tsh_tensor_read(flag, &failed, 1));
        over = failed == 0;
    }
    tshi_check(r, saves > 5 && loads > 5, "%d saves and %d loads failed", saves, loads);
    tsh_tensor_release(flag);
    tshi_test_model_free(&m);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(checkpoint_failures, memory_that_runs_out) {
    cr_assert_str_empty(
        tshi_test_run_with(&(tshi_test_options){.ranks = 2, .bare = true}, run_out_of_memory, NULL, NULL, NULL));
}

/* --- a folder that gets its name ---------------------------------------------------------------------------------- */

static struct { char part[TSHI_PATH + 32], folder[TSHI_PATH], named[TSHI_PATH + 32]; } at_once;

/* The C library's, in this program; once the part has its name, what rank 0 does beside a save in the background: the
 * folder gets another name. */
int rename(const char *from, const char *to) {
    int result = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (result == 0 && !strcmp(to, at_once.part)) renameat(AT_FDCWD, at_once.folder, AT_FDCWD, at_once.named);
    return result;
}

static void save_beside_rank_0(tshi_rank *r, void *arg) {
    tshi_test_model m;
    tshi_checkpoint_save save = {.world = r->world, .step = 1};
    (void)arg;
    tshi_test_model_make(r, 0, &m);
    tshi_check_ok(r, tshi_step_begin(folder, 1, 1, save.folder));
    snprintf(at_once.folder, sizeof at_once.folder, "%s", save.folder);
    snprintf(at_once.part, sizeof at_once.part, "%s/rank-00000.sums", save.folder);
    snprintf(at_once.named, sizeof at_once.named, "%s/named", folder);
    tsh_checkpoint c = {.parameters = m.list, .background = true};
    tshi_check_ok(r, tshi_checkpoint_save_prepare(&save, &c, m.list));
    tshi_check_ok(r, tshi_checkpoint_save_write(&save));
    tshi_check(r, count_entries(at_once.named) == 2, "%d entries", count_entries(at_once.named));
    tshi_checkpoint_save_clear(&save);
    tshi_test_model_free(&m);
}

Test(checkpoint_failures, none_where_the_folder_gets_its_name_at_once) {
    cr_assert_str_empty(tshi_test_run(1, save_beside_rank_0, NULL));
}
