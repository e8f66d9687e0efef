#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME "tshard-pmix-"
/* Seconds that a folder may be without its lock: it is made first. */
#define YOUNG 60

/* In memory where possible: MPI keeps there what the ranks of a machine share. */
static const char *const folders[] = {"/dev/shm", "/tmp"};

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *level) {
    (void)info;
    (void)type;
    (void)level;
    remove(path);
    return 0;
}

void helper_folder_remove(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static bool lock(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return true; /* until no process has it open */
    if (fd >= 0) close(fd);
    return false;
}

static void remove_stale(const char *parent) {
    DIR *folder = opendir(parent);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        char path[512];
        struct stat s;
        if (strncmp(entry->d_name, NAME, sizeof NAME - 1) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        if (lstat(path, &s) != 0 || !S_ISDIR(s.st_mode) || s.st_uid != getuid()) continue;
        if (time(NULL) - s.st_mtime > YOUNG && lock(path)) helper_folder_remove(path);
    }
    if (folder) closedir(folder);
}

bool helper_folder_make(char *out, size_t size) {
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        remove_stale(folders[i]);
        snprintf(out, size, "%s/" NAME "XXXXXX", folders[i]);
        if (mkdtemp(out) && lock(out)) return true;
    }
    return false;
}
