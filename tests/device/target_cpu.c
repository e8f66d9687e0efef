/* The CPU's table, of the instruction set that TSHARD_CPU_ISA names. */
#include "kernel_test.h"

static tsh_status open_cpu(tsh_device **out) {
    static _Alignas(4096) char heap[1 << 22];
    return tshi_device_create_cpu(NULL, heap, sizeof heap, 1, out);
}

static void *alloc_aligned(size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, size) == 0 ? memory : NULL;
}

/* AddressSanitizer sees what is read behind the end, too. */
#ifdef __SANITIZE_ADDRESS__
#define GUARD 0
#else
#define GUARD 64
#endif

const kernel_target tested = {
    .units = 1, .half = 1, .guard = GUARD, .open = open_cpu, .alloc = alloc_aligned, .release = free};
