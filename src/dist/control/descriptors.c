#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/descriptors.h"

#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2U
#endif

/* Containers often refuse unshare even for CLONE_FILES, so close_range, which old kernels lack, comes first. No
 * descriptor is open in its range. */
static bool own_table(void) {
    return syscall(SYS_close_range, UINT_MAX, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0 || unshare(CLONE_FILES) == 0;
}

static bool is_kept(int fd, const int *kept, int n) {
    for (int i = 0; i < n; i++) {
        if (kept[i] == fd) return true;
    }
    return false;
}

/* For kernels without close_range. /proc/self/fd would list the table of the process's first thread. */
static void close_one_by_one(const int *kept, int n) {
    DIR *folder = opendir("/proc/thread-self/fd");
    if (!folder) return;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        int fd = atoi(entry->d_name);
        bool number = entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
        if (number && fd != dirfd(folder) && !is_kept(fd, kept, n)) close(fd);
    }
    closedir(folder);
}

bool tshi_descriptors_own(const int *kept, int n) {
    unsigned from = 0;
    if (!own_table()) return false;
    for (int i = 0; i <= n; i++) {
        unsigned to = i < n ? (unsigned)kept[i] : UINT_MAX;
        if (to > from && syscall(SYS_close_range, from, i < n ? to - 1 : to, 0) != 0) {
            close_one_by_one(kept, n);
            return true;
        }
        from = to + 1;
    }
    return true;
}
