#include "base/cpu.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int tshi_granted_cores(unsigned char *mask, size_t size) {
    const size_t bytes = CPU_ALLOC_SIZE(TSHI_MAX_CORES);
    unsigned long words[TSHI_MAX_CORES / (8 * sizeof(unsigned long))] = {0};
    cpu_set_t *set = (cpu_set_t *)words;
    if (sched_getaffinity(0, bytes, set) != 0 || CPU_COUNT_S(bytes, set) == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (long i = 0; i < (online > 0 ? online : 1); i++) CPU_SET_S((size_t)i, bytes, set);
    }
    if (size) memset(mask, 0, size);
    for (size_t i = 0; i < size * 8 && i < TSHI_MAX_CORES; i++) {
        if (CPU_ISSET_S(i, bytes, set)) mask[i / 8] |= (unsigned char)(1u << i % 8);
    }
    return CPU_COUNT_S(bytes, set);
}

void *tshi_map_memory(int fd, size_t bytes) {
    int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    char *start = mmap(NULL, bytes + TSHI_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    size_t skip = (TSHI_HUGE_PAGE - (uintptr_t)start % TSHI_HUGE_PAGE) % TSHI_HUGE_PAGE;
    char *memory = start + skip;
    if (skip) munmap(start, skip);
    munmap(memory + bytes, TSHI_HUGE_PAGE - skip);
    if (mmap(memory, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        munmap(memory, bytes);
        errno = error;
        return NULL;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}
