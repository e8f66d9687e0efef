/* The processor: a pause while spinning, the cores that a process may run on, and memory in huge pages. */
#ifndef TSHI_CPU_H
#define TSHI_CPU_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>

#define TSHI_HUGE_PAGE ((size_t)2 << 20)
/* The largest machine that Linux knows has fewer cores. */
#define TSHI_MAX_CORES 16384

/* A pause between two reads of memory that another core is about to write. */
static inline void tshi_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* some 10 ns; `yield` takes no time on most cores */
#endif
}

/* Number of cores that this process may run on, at least 1. `mask` gets a bit for each of the first 8 * size cores. */
TSHI_TOOLS int tshi_granted_cores(unsigned char *mask, size_t size);

/* Reads the first item of a list of cores or nodes as the kernel writes it ("0-3,8"), and moves the list behind it.
 * False when the list does not begin with a number. */
TSHI_TOOLS bool tshi_list_item(const char **list, long *first, long *last);
TSHI_TOOLS bool tshi_list_has(const char *list, long number);

/* The NUMA node of all cores that this process may run on, read from the files in `folder` (normally TSHI_NODES); -1
 * when the cores belong to several nodes, or the machine has one node. */
#define TSHI_NODES "/sys/devices/system/node"
int tshi_own_node(const char *folder);
/* Allocates the pages of this memory, shared or not, on the node while it has free ones, whichever process touches them
 * first. With node -1, or a kernel that refuses, the first touch decides. `memory` is page-aligned. */
void tshi_prefer_node(void *memory, size_t bytes, int node);

/* Maps `bytes` of fd (-1: private memory), aligned to huge pages, so that large tensors need few TLB entries; munmap
 * releases it. Pages are allocated at first use. NULL with errno set. */
void *tshi_map_memory(int fd, size_t bytes);

#endif
