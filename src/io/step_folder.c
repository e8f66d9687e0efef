/* The folders of checkpoints: found, written under a hidden name, renamed and removed. */
#include "io/step_folder.h"
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tsh_status tshi_path_join(char out[TSHI_PATH], const char *path, const char *name) {
    int length = snprintf(out, TSHI_PATH, "%s/%s", path, name);
    if (length >= 0 && length < TSHI_PATH) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%.200s...: the path has %d bytes; at most %d are possible", path, length,
                     TSHI_PATH - 1);
}

void tshi_step_name(int64_t step, char out[TSHI_STEP_NAME]) {
    snprintf(out, TSHI_STEP_NAME, "step-%08" PRId64, step);
}

/* False for a name that tshi_step_name does not make. */
static bool parse_step(const char *name, int64_t *step) {
    char again[TSHI_STEP_NAME];
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5)) return false;
    errno = 0;
    *step = strtoll(name + 5, NULL, 10);
    tshi_step_name(*step, again);
    return errno == 0 && !strcmp(again, name);
}

static int newest_first(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

tsh_status tshi_step_list(const char *path, int64_t **steps, int *count) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    int capacity = 0;
    tsh_status status = TSH_OK;
    *steps = NULL;
    *count = 0;
    DIR *folder = opendir(path);
    if (!folder) return tshi_file_fail(errno, path, "cannot be opened");
    for (struct dirent *entry; status == TSH_OK && (errno = 0, entry = readdir(folder)) != NULL;) {
        int64_t step;
        if (!parse_step(entry->d_name, &step)) continue;
        status = tshi_grow(&allocator, (void **)steps, &capacity, *count + 1, sizeof **steps);
        if (status == TSH_OK) (*steps)[(*count)++] = step;
    }
    if (status == TSH_OK && errno) status = tshi_file_fail(errno, path, "cannot be read");
    closedir(folder);
    if (*count > 0) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    if (status == TSH_OK) return TSH_OK;
    free(*steps);
    *steps = NULL;
    *count = 0;
    return status;
}

void tshi_folder_remove(const char *path) {
    char file[TSHI_PATH];
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (tshi_path_join(file, path, entry->d_name) == TSH_OK) unlink(file);
    }
    if (folder) closedir(folder);
    rmdir(path);
}

/* Removes folders that an interrupted save or removal has left in `path`. */
static void remove_hidden(const char *path) {
    char hidden[TSHI_PATH];
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, ".step-", 6) != 0) continue;
        if (tshi_path_join(hidden, path, entry->d_name) == TSH_OK) tshi_folder_remove(hidden);
    }
    if (folder) closedir(folder);
}

tsh_status tshi_step_hidden(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]) {
    char name[TSHI_STEP_NAME], hidden[TSHI_STEP_NAME + 32];
    tshi_step_name(step, name);
    snprintf(hidden, sizeof hidden, ".%s.partial-%016" PRIx64, name, token);
    return tshi_path_join(folder, path, hidden);
}

tsh_status tshi_step_begin(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]) {
    tsh_status status = tshi_step_hidden(path, step, token, folder);
    if (status != TSH_OK) return status;
    if (mkdir(path, 0777) == 0) {
        status = tshi_file_sync_folder(path);
        if (status != TSH_OK) return status;
    } else if (errno != EEXIST) {
        return tshi_file_fail(errno, path, "cannot be created");
    }
    remove_hidden(path);
    return mkdir(folder, 0777) == 0 ? TSH_OK : tshi_file_fail(errno, folder, "cannot be created");
}

/* Swaps the names of two folders atomically, so that one of them has the name `to` at any time. */
static int take_place(const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    char aside[TSHI_PATH];
    if (snprintf(aside, sizeof aside, "%s.old", from) >= TSHI_PATH) return -1;
    return rename(to, aside) == 0 && rename(from, to) == 0 && rename(aside, from) == 0 ? 0 : -1;
}

tsh_status tshi_step_rename(const char *path, int64_t step, const char *folder) {
    char name[TSHI_STEP_NAME], final[TSHI_PATH];
    tshi_step_name(step, name);
    tsh_status status = tshi_path_join(final, path, name);
    if (status != TSH_OK) return status;
    if (rename(folder, final) != 0) {
        if ((errno != ENOTEMPTY && errno != EEXIST) || take_place(folder, final) != 0) {
            return tshi_file_fail(errno, final, "cannot be renamed");
        }
    }
    status = tshi_file_sync_folder(final);
    tshi_folder_remove(folder); /* the folder that had the name before */
    return status;
}

/* Renames to a hidden name first, so that an incomplete folder never has a step's name. */
static void remove_step(const char *path, int64_t step) {
    char name[TSHI_STEP_NAME], hidden_name[TSHI_STEP_NAME + 16], visible[TSHI_PATH], hidden[TSHI_PATH];
    tshi_step_name(step, name);
    snprintf(hidden_name, sizeof hidden_name, ".%s.removed", name);
    if (tshi_path_join(visible, path, name) != TSH_OK || tshi_path_join(hidden, path, hidden_name) != TSH_OK) return;
    tshi_folder_remove(hidden);
    if (rename(visible, hidden) == 0) tshi_folder_remove(hidden);
}

void tshi_step_prune(const char *path, int64_t step, int keep) {
    int64_t *steps;
    int count, kept = 1;
    if (keep <= 0 || tshi_step_list(path, &steps, &count) != TSH_OK) return;
    for (int i = 0; i < count; i++) {
        if (steps[i] != step && ++kept > keep) remove_step(path, steps[i]);
    }
    free(steps);
}
