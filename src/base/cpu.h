/* The processor: a pause while spinning, the cores that a process may run on, and memory in huge pages. */
#ifndef TSHI_CPU_H
#define TSHI_CPU_H

#include <stddef.h>

#define TSHI_HUGE_PAGE ((size_t)2 << 20)
/* The largest machine that Linux knows has fewer cores. */
#define TSHI_MAX_CORES 16384

/* Between two looks at memory that another core is about to write. */
static inline void tshi_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Number of cores that this process may run on, at least 1. `mask` gets a bit for each of the first 8 * size cores. */
int tshi_granted_cores(unsigned char *mask, size_t size);

/* Maps `bytes` of fd (-1: private memory) at a multiple of the huge page, so that large tensors need few translations;
 * munmap ends it. Pages are taken when they are used. NULL with errno set. */
void *tshi_map_memory(int fd, size_t bytes);

#endif
