/* malloc and its relatives in the program gpu_kernels (linked with --wrap): static memory, which kernel_gpu.h registers
 * with the GPU. Memory of CUDA and libc stays in their own heap. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA     ((size_t)256 << 20)
#define ALIGNMENT 64

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void __wrap_free(void *memory);
void *__real_realloc(void *memory, size_t size);
void __real_free(void *memory);

static _Alignas(4096) unsigned char arena[ARENA];
static size_t used;
static int lock;

static int in_arena(const void *memory) {
    return (uintptr_t)memory - (uintptr_t)arena < ARENA;
}

/* A block's size is before it. Blocks are used once: a test's process ends soon. */
void *__wrap_malloc(size_t size) {
    if (size > ARENA) return NULL;
    size_t whole = (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
    }
    unsigned char *block = whole <= ARENA - used ? arena + used : NULL;
    if (block) used += whole;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    if (!block) return NULL;
    memcpy(block, &size, sizeof size);
    return block + ALIGNMENT;
}

void *__wrap_calloc(size_t count, size_t size) {
    if (size != 0 && count > ARENA / size) return NULL;
    return __wrap_malloc(count * size); /* never used before, so zero */
}

void *__wrap_realloc(void *memory, size_t size) {
    if (memory && !in_arena(memory)) return __real_realloc(memory, size);
    void *copy = __wrap_malloc(size);
    size_t before = 0;
    if (memory) memcpy(&before, (unsigned char *)memory - ALIGNMENT, sizeof before);
    if (copy && memory) memcpy(copy, memory, before < size ? before : size);
    return copy;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size) {
    if (alignment > ALIGNMENT) return EINVAL;
    *out = __wrap_malloc(size);
    return *out ? 0 : ENOMEM;
}

void __wrap_free(void *memory) {
    if (!in_arena(memory)) __real_free(memory);
}
