#include "base/base.h"

#include <stdalign.h>

#define BLOCK_BYTES 4096

typedef struct block {
    struct block *next;
    size_t bytes;
    alignas(16) unsigned char data[];
} block;

/* The first block after the current one that has room; a new one at the end of the list otherwise. */
static block *block_with(tshi_region *region, const tsh_allocator *allocator, size_t bytes) {
    block *last = region->current;
    for (block *b = last ? last->next : region->first; b; b = b->next) {
        if (b->bytes >= bytes) return b;
        last = b;
    }
    size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES, whole;
    if (tshi_size_add(sizeof(block), room, &whole) != TSH_OK) return NULL;
    block *fresh = tshi_calloc(allocator, 1, whole);
    if (!fresh) return NULL;
    fresh->bytes = room;
    if (last) {
        last->next = fresh;
    } else {
        region->first = fresh;
    }
    return fresh;
}

void *tshi_region_go_on(tshi_region *region, const tsh_allocator *allocator, size_t bytes) {
    block *b = block_with(region, allocator, bytes);
    if (!b) return NULL;
    region->current = b;
    region->next = b->data + bytes;
    region->left = b->bytes - bytes;
    return b->data;
}

void tshi_region_reset(tshi_region *region) {
    *region = (tshi_region){.first = region->first};
}

void tshi_region_clear(tshi_region *region, const tsh_allocator *allocator) {
    block *b = region->first;
    while (b) {
        block *next = b->next;
        tshi_free(allocator, b);
        b = next;
    }
    *region = (tshi_region){0};
}
