/* Files: system calls with retries and messages. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most bytes of one system call. */
#define MAX_CALL_BYTES ((size_t)128 << 20)

tsh_status tshi_file_fail(int error, const char *path, const char *format, ...) {
    char what[160];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(what, sizeof what, format, arguments) < 0) what[0] = '\0';
    va_end(arguments);
    tsh_status status = tshi_fail_errno(error, "%.220s: %s", path, what);
    return status == TSH_ERR_MEMORY ? status : TSH_ERR_IO;
}

/* open and fsync, repeated after EINTR, which network file systems return. */
static int open_again(const char *path, int flags) {
    int fd;
    do fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int sync_again(int fd) {
    int failed;
    do failed = fsync(fd);
    while (failed && errno == EINTR);
    return failed;
}

tsh_status tshi_file_open(const char *path, int *fd, uint64_t *bytes) {
    struct stat info;
    /* Without O_NONBLOCK a named pipe waits for its writer. */
    *fd = open_again(path, O_RDONLY | O_NONBLOCK);
    if (*fd < 0) return tshi_file_fail(errno, path, "cannot be opened");
    tsh_status status = TSH_OK;
    if (fstat(*fd, &info) != 0) {
        status = tshi_file_fail(errno, path, "cannot be examined");
    } else if (!S_ISREG(info.st_mode)) {
        status = tshi_fail(TSH_ERR_IO, "%.220s: is not a regular file", path);
    } else {
        *bytes = (uint64_t)info.st_size;
    }
    if (status != TSH_OK) tshi_file_close(fd);
    return status;
}

/* A write beyond a limit of the process does not fail: a signal ends the process. */
static tsh_status check_size(const char *path, uint64_t bytes) {
    if (bytes <= INT64_MAX && tshi_file_fits((size_t)bytes)) return TSH_OK;
    return tshi_file_fail(EFBIG, path, "the limit on file sizes forbids %llu bytes", (unsigned long long)bytes);
}

tsh_status tshi_file_open_for_writing(const char *path, uint64_t bytes, int *fd) {
    *fd = -1;
    tsh_status status = check_size(path, bytes);
    if (status != TSH_OK) return status;
    *fd = open_again(path, O_WRONLY | O_NOFOLLOW);
    return *fd < 0 ? tshi_file_fail(errno, path, "cannot be opened for writing") : TSH_OK;
}

/* Reserves `bytes` on the disk; if the file system cannot, only sets the size. */
static tsh_status reserve_disk(int fd, const char *path, uint64_t bytes) {
    int failed;
    if (bytes == 0) return TSH_OK;
    do failed = fallocate(fd, 0, 0, (off_t)bytes);
    while (failed && errno == EINTR);
    if (failed && (errno == EOPNOTSUPP || errno == ENOSYS)) failed = ftruncate(fd, (off_t)bytes);
    return failed ? tshi_file_fail(errno, path, "no room for %llu bytes", (unsigned long long)bytes) : TSH_OK;
}

tsh_status tshi_file_create(const char *path, uint64_t bytes, int *fd) {
    *fd = -1;
    tsh_status status = check_size(path, bytes);
    if (status != TSH_OK) return status;
    if (unlink(path) != 0 && errno != ENOENT) return tshi_file_fail(errno, path, "cannot be replaced");
    *fd = open_again(path, O_WRONLY | O_CREAT | O_EXCL);
    if (*fd < 0) return tshi_file_fail(errno, path, "cannot be created");
    status = reserve_disk(*fd, path, bytes);
    if (status == TSH_OK) return TSH_OK;
    tshi_file_close(fd);
    unlink(path);
    return status;
}

void tshi_file_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

tsh_status tshi_file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        size_t most = bytes - done < MAX_CALL_BYTES ? bytes - done : MAX_CALL_BYTES;
        ssize_t got = pread(fd, (char *)to + done, most, (off_t)(offset + done));
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            return tshi_fail(TSH_ERR_IO, "%.220s: ends before byte %llu, where %zu bytes are to be read", path,
                             (unsigned long long)(offset + done), bytes - done);
        } else if (errno != EINTR) {
            return tshi_file_fail(errno, path, "%zu bytes at byte %llu cannot be read", bytes - done,
                                  (unsigned long long)(offset + done));
        }
    }
    return TSH_OK;
}

tsh_status tshi_file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        size_t most = bytes - done < MAX_CALL_BYTES ? bytes - done : MAX_CALL_BYTES;
        ssize_t put = pwrite(fd, (const char *)from + done, most, (off_t)(offset + done));
        if (put > 0) {
            done += (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            return tshi_file_fail(put == 0 ? ENOSPC : errno, path, "%zu bytes at byte %llu cannot be written",
                                  bytes - done, (unsigned long long)(offset + done));
        }
    }
    return TSH_OK;
}

tsh_status tshi_file_sync(int fd, const char *path) {
    return sync_again(fd) == 0 ? TSH_OK : tshi_file_fail(errno, path, "cannot be written to the disk");
}

tsh_status tshi_file_sync_folder(const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    if (length >= sizeof folder) return tshi_file_fail(ENAMETOOLONG, path, "cannot be written to the disk");
    memcpy(folder, slash ? path : ".", slash ? length : 1);
    folder[slash ? length : 1] = '\0';
    int fd = open_again(folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return tshi_file_fail(errno, folder, "cannot be opened");
    tsh_status status = TSH_OK;
    /* A file system that cannot sync folders returns EINVAL. */
    if (sync_again(fd) != 0 && errno != EINVAL) status = tshi_file_fail(errno, folder, "cannot be written to the disk");
    close(fd);
    return status;
}

tsh_status tshi_file_rename(const char *from, const char *to) {
    if (rename(from, to) != 0) return tshi_file_fail(errno, to, "cannot be renamed");
    return tshi_file_sync_folder(to);
}

/* --- whole files -------------------------------------------------------------------------------------------------- */

tsh_status tshi_file_load(const tsh_allocator *allocator, const char *path, const char *kind, uint64_t most,
                          char **text, size_t *bytes) {
    uint64_t size;
    int fd;
    *text = NULL;
    tsh_status status = tshi_file_open(path, &fd, &size);
    if (status != TSH_OK) return status;
    *bytes = (size_t)size;
    if (size > most) {
        status = tshi_fail(TSH_ERR_IO, "%.220s: is %s of %llu bytes; at most %llu are allowed", path, kind,
                           (unsigned long long)size, (unsigned long long)most);
    } else {
        *text = tshi_calloc(allocator, (size_t)size, 1);
        status = *text ? tshi_file_read(fd, path, *text, (size_t)size, 0) : TSH_ERR_MEMORY;
    }
    tshi_file_close(&fd);
    if (status == TSH_OK) return TSH_OK;
    tshi_free(allocator, *text);
    *text = NULL;
    return status;
}

tsh_status tshi_file_save(const char *path, const void *from, size_t bytes) {
    char partial[4096 + 16];
    int fd = -1;
    snprintf(partial, sizeof partial, "%.4096s.partial", path);
    tsh_status status = tshi_file_create(partial, bytes, &fd);
    if (status == TSH_OK) status = tshi_file_write(fd, partial, from, bytes, 0);
    if (status == TSH_OK) status = tshi_file_sync(fd, partial);
    tshi_file_close(&fd);
    if (status == TSH_OK) status = tshi_file_rename(partial, path);
    if (status != TSH_OK) unlink(partial);
    return status;
}
