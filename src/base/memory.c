/* Host memory through a world's hooks, and files in memory. */
#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void *default_alloc(void *user, size_t size) {
    (void)user;
    return malloc(size);
}

static void default_release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static bool default_reserve(void *user, size_t size) {
    (void)user;
    (void)size;
    return true;
}

tsh_allocator tshi_allocator_resolve(const tsh_allocator *wanted) {
    tsh_allocator a = {0};
    if (wanted) a = *wanted;
    if (!a.alloc) a.alloc = default_alloc;
    if (!a.release) a.release = default_release;
    if (!a.reserve) a.reserve = default_reserve;
    return a;
}

void *tshi_calloc(const tsh_allocator *allocator, size_t count, size_t size) {
    size_t bytes = 0;
    if (tshi_size_mul(count, size, &bytes) != TSH_OK) return NULL;
    if (bytes == 0) bytes = 1;
    void *pointer = allocator->alloc(allocator->user, bytes);
    if (!pointer) {
        tshi_fail(TSH_ERR_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(pointer, 0, bytes);
    return pointer;
}

void tshi_free(const tsh_allocator *allocator, void *pointer) {
    if (pointer) allocator->release(allocator->user, pointer);
}

tsh_status tshi_grow_array(const tsh_allocator *allocator, void **items, int *capacity, int needed, size_t size) {
    int wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < needed) wanted = wanted > INT_MAX / 2 ? INT_MAX : wanted * 2;
    void *grown = tshi_calloc(allocator, (size_t)wanted, size);
    if (!grown) return TSH_ERR_MEMORY;
    if (*items) memcpy(grown, *items, (size_t)*capacity * size);
    tshi_free(allocator, *items);
    *items = grown;
    *capacity = wanted;
    return TSH_OK;
}

void tshi_pool_clear(tshi_pool *pool, const tsh_allocator *allocator) {
    while (pool->free) {
        void *item = pool->free;
        memcpy(&pool->free, item, sizeof(void *));
        tshi_free(allocator, item);
    }
}

bool tshi_file_fits(size_t bytes) {
    struct rlimit limit;
    errno = EFBIG;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

int tshi_memory_file(const char *name, size_t bytes) {
    if (!tshi_file_fits(bytes)) return -1;
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}
