#include "base/cpu.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

/* --- memory nodes ------------------------------------------------------------------------------------------------- */

bool tshi_list_item(const char **list, long *first, long *last) {
    char *end;
    if (**list < '0' || **list > '9') return false;
    *first = *last = strtol(*list, &end, 10);
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        *last = strtol(end + 1, &end, 10);
    }
    *list = end;
    return *first <= *last;
}

bool tshi_list_has(const char *list, long number) {
    for (long first, last; tshi_list_item(&list, &first, &last); list++) {
        if (number >= first && number <= last) return true;
        if (*list != ',') return false;
    }
    return false;
}

/* The first line of a file, or "". */
static void read_list(const char *folder, const char *name, char *line, int size) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (!file) return;
    if (!fgets(line, size, file)) line[0] = '\0';
    fclose(file);
}

static bool has_all(const char *list, const unsigned char *mask) {
    for (int core = 0; core < TSHI_MAX_CORES; core++) {
        if (mask[core / 8] >> core % 8 & 1 && !tshi_list_has(list, core)) return false;
    }
    return true;
}

int tshi_own_node(const char *folder) {
    char nodes[1024], cores[4096], name[64];
    unsigned char mask[TSHI_MAX_CORES / 8];
    read_list(folder, "has_memory", nodes, sizeof nodes);
    const char *list = nodes;
    long first, last;
    if (!tshi_list_item(&list, &first, &last) || (first == last && *list != ',')) return -1;
    tshi_granted_cores(mask, sizeof mask);
    for (list = nodes; tshi_list_item(&list, &first, &last) && last < 1024; list++) {
        for (long node = first; node <= last; node++) {
            snprintf(name, sizeof name, "node%ld/cpulist", node);
            read_list(folder, name, cores, sizeof cores);
            if (has_all(cores, mask)) return (int)node;
        }
        if (*list != ',') break;
    }
    return -1;
}

void tshi_prefer_node(void *memory, size_t bytes, int node) {
    enum { BITS = 8 * sizeof(unsigned long) };
    unsigned long nodes[1024 / BITS] = {0};
    if (node < 0 || node >= 1024) return;
    nodes[node / BITS] |= 1ul << node % BITS;
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, 1024ul + 1, 0ul);
}
