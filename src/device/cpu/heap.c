#include "device/cpu/heap.h"

#include <string.h>

#define CLASS_BITS 4

/* The header before each block's data. Neighbours in memory are found through `size` and `before`. */
struct tshi_heap_block {
    size_t size;             /* of the data */
    size_t wanted;           /* of it asked for; less where the rest is too small for a block */
    tshi_heap_block *before; /* in memory; NULL for the first */
    tshi_heap_block *next;   /* in the free list of its class */
    tshi_heap_block *previous;
    bool is_free;
    char padding[64 - 5 * sizeof(void *) - sizeof(bool)];
};

#define HEADER sizeof(tshi_heap_block)

_Static_assert(sizeof(tshi_heap_block) == 64, "data stays aligned behind its header");

typedef struct size_class {
    int level, index;
} size_class;

/* Level: the power of two; index: its sixteenth. Units below 16 have level 0 to themselves, one class each. */
static size_class class_of(size_t size) {
    uint64_t units = size / TSHI_HEAP_ALIGNMENT;
    if (units < TSHI_HEAP_CLASSES) return (size_class){0, (int)units};
    int power = 63 - __builtin_clzll(units);
    int index = (int)(units >> (power - CLASS_BITS)) - TSHI_HEAP_CLASSES;
    return (size_class){power - CLASS_BITS + 1, index};
}

static char *data_of(tshi_heap_block *block) {
    return (char *)block + HEADER;
}

static tshi_heap_block *block_of(const void *data) {
    return (tshi_heap_block *)((uintptr_t)data - HEADER);
}

/* The block behind, or NULL for the last. */
static tshi_heap_block *after(const tshi_heap *heap, tshi_heap_block *block) {
    return block == heap->last ? NULL : (tshi_heap_block *)(data_of(block) + block->size);
}

static void list_insert(tshi_heap *heap, tshi_heap_block *block) {
    size_class c = class_of(block->size);
    tshi_heap_block *previous = NULL;
    tshi_heap_block *next = heap->free[c.level][c.index];
    while (next && next < block) {
        previous = next;
        next = next->next;
    }
    block->previous = previous;
    block->next = next;
    if (next) next->previous = block;
    if (previous)
        previous->next = block;
    else
        heap->free[c.level][c.index] = block;
    heap->classes[c.level] = (uint16_t)(heap->classes[c.level] | 1u << c.index);
    heap->levels |= (uint64_t)1 << c.level;
    block->is_free = true;
}

static void list_remove(tshi_heap *heap, tshi_heap_block *block) {
    size_class c = class_of(block->size);
    if (block->next) block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        heap->free[c.level][c.index] = block->next;
    block->is_free = false;
    if (heap->free[c.level][c.index]) return;
    heap->classes[c.level] = (uint16_t)(heap->classes[c.level] & ~(1u << c.index));
    if (heap->classes[c.level] == 0) heap->levels &= ~((uint64_t)1 << c.level);
}

/* The first block of a class above c, where every block is large enough. */
static tshi_heap_block *first_above(const tshi_heap *heap, size_class c) {
    uint32_t classes = heap->classes[c.level] & (uint32_t)(0xffffffffu << (c.index + 1));
    if (classes) return heap->free[c.level][__builtin_ctz(classes)];
    uint64_t levels = heap->levels & ((~(uint64_t)0 << c.level) << 1);
    if (!levels) return NULL;
    int level = __builtin_ctzll(levels);
    return heap->free[level][__builtin_ctz(heap->classes[level])];
}

static tshi_heap_block *find_free(const tshi_heap *heap, size_t size) {
    size_class c = class_of(size);
    /* In its own class a block may be a little too small; the exact fit of a repeated step is here. */
    tshi_heap_block *block = heap->free[c.level][c.index];
    while (block && block->size < size) block = block->next;
    return block ? block : first_above(heap, c);
}

/* Gives what `block` has beyond `size` a header of its own, and to the free lists. */
static void split(tshi_heap *heap, tshi_heap_block *block, size_t size) {
    if (block->size < size + HEADER + TSHI_HEAP_ALIGNMENT) return;
    tshi_heap_block *behind = after(heap, block);
    tshi_heap_block *rest = (tshi_heap_block *)(data_of(block) + size);
    rest->size = block->size - size - HEADER;
    rest->before = block;
    block->size = size;
    if (behind) behind->before = rest;
    list_insert(heap, rest);
}

static tshi_heap_block *take_from_top(tshi_heap *heap, size_t size) {
    size_t left = heap->size - heap->top;
    if (left < HEADER || left - HEADER < size) return NULL;
    tshi_heap_block *block = (tshi_heap_block *)(heap->base + heap->top);
    block->size = size;
    block->before = heap->last;
    block->is_free = false;
    heap->last = block;
    heap->top += HEADER + size;
    if (heap->top > heap->high_water) heap->high_water = heap->top;
    return block;
}

void tshi_heap_init(tshi_heap *heap, void *base, size_t size) {
    memset(heap, 0, sizeof *heap);
    heap->base = base;
    heap->size = size & ~(TSHI_HEAP_ALIGNMENT - 1);
}

void *tshi_heap_alloc(tshi_heap *heap, size_t size) {
    if (size > heap->size) return NULL;
    if (size == 0) size = 1;
    size = (size + TSHI_HEAP_ALIGNMENT - 1) & ~(TSHI_HEAP_ALIGNMENT - 1);
    tshi_heap_block *block = find_free(heap, size);
    if (block) {
        list_remove(heap, block);
        split(heap, block, size);
    } else {
        block = take_from_top(heap, size);
    }
    if (!block) return NULL;
    block->wanted = size;
    return data_of(block);
}

void tshi_heap_release(tshi_heap *heap, void *pointer) {
    tshi_heap_block *block = block_of(pointer);
    tshi_heap_block *behind = after(heap, block);
    if (behind && behind->is_free) {
        list_remove(heap, behind);
        block->size += HEADER + behind->size;
        if (behind == heap->last) heap->last = block;
    }
    tshi_heap_block *before = block->before;
    if (before && before->is_free) {
        list_remove(heap, before);
        before->size += HEADER + block->size;
        if (block == heap->last) heap->last = before;
        block = before;
    }
    behind = after(heap, block);
    if (behind) {
        behind->before = block;
        list_insert(heap, block);
    } else {
        heap->last = block->before;
        heap->top = (size_t)((char *)block - heap->base);
    }
}

size_t tshi_heap_size_of(const void *pointer) {
    return block_of(pointer)->wanted;
}

size_t tshi_heap_largest(const tshi_heap *heap) {
    size_t left = heap->size - heap->top;
    size_t largest = left > HEADER ? left - HEADER : 0;
    if (!heap->levels) return largest;
    int level = 63 - __builtin_clzll(heap->levels);
    int index = 31 - __builtin_clz(heap->classes[level]);
    for (const tshi_heap_block *b = heap->free[level][index]; b; b = b->next) {
        if (b->size > largest) largest = b->size;
    }
    return largest;
}
