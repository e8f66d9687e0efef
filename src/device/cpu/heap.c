#include "device/cpu/heap.h"

#include <string.h>

/* The header before each block's data. Neighbours in memory are found through range.size and `before`. */
struct tshi_heap_block {
    tshi_range range;
    size_t wanted;           /* bytes that were asked for; less than the size where the rest is too small for a block */
    tshi_heap_block *before; /* in memory; NULL for the first */
    char padding[64 - sizeof(tshi_range) - sizeof(size_t) - sizeof(void *)];
};

#define HEADER sizeof(tshi_heap_block)

_Static_assert(sizeof(tshi_heap_block) == 64, "data stays aligned behind its header");

static tshi_heap_block *block_of(const void *data) {
    return (tshi_heap_block *)((uintptr_t)data - HEADER);
}

/* The block behind this one, or NULL for the last. */
static tshi_heap_block *after(const tshi_heap *heap, const tshi_heap_block *block) {
    return block == heap->last ? NULL : (tshi_heap_block *)(block->range.data + block->range.size);
}

static tshi_heap_block *set_up(void *at, size_t size, tshi_heap_block *before) {
    tshi_heap_block *block = at;
    *block = (tshi_heap_block){.range = {.data = (char *)at + HEADER, .size = size}, .before = before};
    return block;
}

/* What `block` has beyond `size` becomes a free block with a header of its own. */
static void split(tshi_heap *heap, tshi_heap_block *block, size_t size) {
    if (block->range.size < size + HEADER + TSHI_RANGE_UNIT) return;
    tshi_heap_block *behind = after(heap, block);
    tshi_heap_block *rest = set_up(block->range.data + size, block->range.size - size - HEADER, block);
    block->range.size = size;
    if (behind) behind->before = rest;
    tshi_free_list_add(&heap->free, &rest->range);
}

static tshi_heap_block *take_from_top(tshi_heap *heap, size_t size) {
    size_t left = heap->size - heap->top;
    if (left < HEADER || left - HEADER < size) return NULL;
    tshi_heap_block *block = set_up(heap->base + heap->top, size, heap->last);
    heap->last = block;
    heap->top += HEADER + size;
    if (heap->top > heap->high_water) heap->high_water = heap->top;
    return block;
}

void tshi_heap_init(tshi_heap *heap, void *base, size_t size) {
    memset(heap, 0, sizeof *heap);
    heap->base = base;
    heap->size = size & ~(TSHI_RANGE_UNIT - 1);
}

void *tshi_heap_alloc(tshi_heap *heap, size_t size) {
    if (size > heap->size) return NULL;
    if (size == 0) size = 1;
    size = (size + TSHI_RANGE_UNIT - 1) & ~(TSHI_RANGE_UNIT - 1);
    tshi_range *range = tshi_free_list_find(&heap->free, size);
    tshi_heap_block *block = range ? block_of(range->data) : take_from_top(heap, size);
    if (!block) return NULL;
    if (range) {
        tshi_free_list_remove(&heap->free, range);
        split(heap, block, size);
    }
    block->wanted = size;
    return block->range.data;
}

/* `block` becomes one with the free block behind it. */
static void merge(tshi_heap *heap, tshi_heap_block *block, tshi_heap_block *behind) {
    block->range.size += HEADER + behind->range.size;
    if (behind == heap->last) heap->last = block;
}

void tshi_heap_release(tshi_heap *heap, void *pointer) {
    tshi_heap_block *block = block_of(pointer), *behind = after(heap, block), *before = block->before;
    if (behind && behind->range.is_free) {
        tshi_free_list_remove(&heap->free, &behind->range);
        merge(heap, block, behind);
    }
    if (before && before->range.is_free) {
        tshi_free_list_remove(&heap->free, &before->range);
        merge(heap, before, block);
        block = before;
    }
    behind = after(heap, block);
    if (behind) {
        behind->before = block;
        tshi_free_list_add(&heap->free, &block->range);
    } else {
        heap->last = block->before;
        heap->top = (size_t)((char *)block - heap->base);
    }
}

size_t tshi_heap_size_of(const void *pointer) {
    return block_of(pointer)->wanted;
}

size_t tshi_heap_largest(const tshi_heap *heap) {
    size_t left = heap->size - heap->top, largest = tshi_free_list_largest(&heap->free);
    return left > HEADER && left - HEADER > largest ? left - HEADER : largest;
}
