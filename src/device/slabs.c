#include "device/slabs.h"

#include <string.h>

/* --- free blocks -------------------------------------------------------------------------------------------------- */

#define CLASS_BITS 4

typedef struct size_class {
    int level, index;
} size_class;

/* Level: the power of two; index: its sixteenth. Sizes below 16 units are level 0, one class each. */
static size_class class_of(size_t size) {
    uint64_t units = size / TSHI_BLOCK_UNIT;
    if (units < TSHI_FREE_CLASSES) return (size_class){0, (int)units};
    int power = 63 - __builtin_clzll(units);
    int index = (int)(units >> (power - CLASS_BITS)) - TSHI_FREE_CLASSES;
    return (size_class){power - CLASS_BITS + 1, index};
}

static void free_list_add(tshi_free_list *list, tshi_slab_block *block) {
    size_class c = class_of(block->size);
    tshi_slab_block *previous = NULL, *next = list->first[c.level][c.index];
    while (next && (uintptr_t)next->data < (uintptr_t)block->data) {
        previous = next;
        next = next->next;
    }
    block->previous = previous;
    block->next = next;
    if (next) next->previous = block;
    if (previous)
        previous->next = block;
    else
        list->first[c.level][c.index] = block;
    list->classes[c.level] = (uint16_t)(list->classes[c.level] | 1u << c.index);
    list->levels |= (uint64_t)1 << c.level;
    block->is_free = true;
}

static void free_list_remove(tshi_free_list *list, tshi_slab_block *block) {
    size_class c = class_of(block->size);
    if (block->next) block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        list->first[c.level][c.index] = block->next;
    block->previous = block->next = NULL;
    block->is_free = false;
    if (list->first[c.level][c.index]) return;
    list->classes[c.level] = (uint16_t)(list->classes[c.level] & ~(1u << c.index));
    if (list->classes[c.level] == 0) list->levels &= ~((uint64_t)1 << c.level);
}

/* Resizes a free block: it shrinks, or grows over memory that belongs to no other block. */
static void free_list_change(tshi_free_list *list, tshi_slab_block *block, char *data, size_t size) {
    size_class now = class_of(block->size), then = class_of(size);
    bool stays = now.level == then.level && now.index == then.index;
    if (!stays) free_list_remove(list, block);
    block->data = data;
    block->size = size;
    if (!stays) free_list_add(list, block);
}

/* The first block of the lowest class above c that has any; every block there is large enough. */
static tshi_slab_block *first_above(const tshi_free_list *list, size_class c) {
    uint32_t classes = list->classes[c.level] & (uint32_t)(0xffffffffu << (c.index + 1));
    if (classes) return list->first[c.level][__builtin_ctz(classes)];
    uint64_t levels = list->levels & ((~(uint64_t)0 << c.level) << 1);
    if (!levels) return NULL;
    int level = __builtin_ctzll(levels);
    return list->first[level][__builtin_ctz(list->classes[level])];
}

/* A free block of at least `size`, still in its list, or NULL. */
static tshi_slab_block *free_list_find(const tshi_free_list *list, size_t size) {
    size_class c = class_of(size);
    /* A block of the size's own class may be slightly too small, but a repeated step finds its exact fit there. */
    tshi_slab_block *block = list->first[c.level][c.index];
    while (block && block->size < size) block = block->next;
    return block ? block : first_above(list, c);
}

size_t tshi_slabs_largest(const tshi_slabs *slabs) {
    const tshi_free_list *list = &slabs->free;
    size_t largest = 0;
    if (!list->levels) return 0;
    int level = 63 - __builtin_clzll(list->levels);
    int index = 31 - __builtin_clz(list->classes[level]);
    for (const tshi_slab_block *b = list->first[level][index]; b; b = b->next) {
        if (b->size > largest) largest = b->size;
    }
    return largest;
}

/* --- blocks in use ------------------------------------------------------------------------------------------------ */

static size_t bucket_of(const tshi_slab_index *index, const void *data) {
    uint64_t key = (uint64_t)(uintptr_t)data / TSHI_BLOCK_UNIT * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (index->buckets_count - 1);
}

static void index_add(tshi_slab_index *index, tshi_slab_block *block) {
    size_t bucket = bucket_of(index, block->data);
    block->next = index->buckets[bucket];
    index->buckets[bucket] = block;
}

static tsh_status grow_buckets(tshi_slab_index *index) {
    if (index->in_use < index->buckets_count) return TSH_OK;
    tshi_slab_index old = *index;
    size_t count = old.buckets_count ? 2 * old.buckets_count : 256;
    index->buckets = tshi_calloc(index->allocator, count, sizeof *index->buckets);
    if (!index->buckets) {
        *index = old;
        return TSH_ERR_MEMORY;
    }
    index->buckets_count = count;
    for (size_t i = 0; i < old.buckets_count; i++) {
        for (tshi_slab_block *b = old.buckets[i], *next; b; b = next) {
            next = b->next;
            index_add(index, b);
        }
    }
    tshi_free(index->allocator, old.buckets);
    return TSH_OK;
}

tshi_slab_block *tshi_slab_index_find(const tshi_slab_index *index, const void *data) {
    tshi_slab_block *block = data && index->buckets_count ? index->buckets[bucket_of(index, data)] : NULL;
    while (block && block->data != data) block = block->next;
    return block;
}

tshi_slab_block *tshi_slab_index_take(tshi_slab_index *index, const void *data) {
    if (!data || index->buckets_count == 0) return NULL;
    tshi_slab_block **link = &index->buckets[bucket_of(index, data)];
    while (*link && (*link)->data != data) link = &(*link)->next;
    tshi_slab_block *block = *link;
    if (!block) return NULL;
    *link = block->next;
    index->in_use--;
    return block;
}

/* --- alloc and release -------------------------------------------------------------------------------------------- */

/* The link of the slab's list that points to the block. */
static tshi_slab_block **link_to(tshi_slab_block *block) {
    return block->before ? &block->before->after : &block->slab->first;
}

static tshi_free_list *free_of(const tshi_slab_block *block) {
    return &block->slab->owner->free;
}

/* Splits the first `size` bytes off a free block, as `front`. */
static void split(tshi_slab_block *block, size_t size, tshi_slab_block *front) {
    char *data = block->data;
    *front =
        (tshi_slab_block){.data = data, .size = size, .slab = block->slab, .before = block->before, .after = block};
    *link_to(block) = front;
    block->before = front;
    free_list_change(free_of(block), block, data + size, block->size - size);
}

tshi_slab_block *tshi_slabs_alloc(tshi_slabs *slabs, tshi_slab_index *index, size_t size, bool *failed) {
    *failed = false;
    tshi_slab_block *block = free_list_find(&slabs->free, size), *front;
    if (!block) return NULL;
    *failed = true;
    if (grow_buckets(index) != TSH_OK) return NULL;
    if (block->size > size) {
        front = tshi_pool_take_used(&index->structs, index->allocator, sizeof *front);
        if (!front) return NULL;
        split(block, size, front);
    } else {
        front = block;
        free_list_remove(&slabs->free, block);
    }
    *failed = false;
    index_add(index, front);
    index->in_use++;
    return front;
}

/* Drops the block, whose memory a neighbour has taken over. */
static void forget_block(tshi_slab_index *index, tshi_slab_block *block) {
    *link_to(block) = block->after;
    if (block->after) block->after->before = block->before;
    tshi_pool_give(&index->structs, block);
}

void tshi_slabs_release(tshi_slab_index *index, tshi_slab_block *block) {
    tshi_free_list *list = free_of(block);
    tshi_slab_block *before = block->before, *after = block->after;
    bool joins_before = before && before->is_free, joins_after = after && after->is_free;
    if (joins_before && joins_after) {
        free_list_remove(list, before);
        block->data = before->data;
        block->size += before->size;
        forget_block(index, before);
    }
    if (joins_after) {
        free_list_change(list, after, block->data, block->size + after->size);
        forget_block(index, block);
    } else if (joins_before) {
        free_list_change(list, before, before->data, before->size + block->size);
        forget_block(index, block);
    } else {
        free_list_add(list, block);
    }
}

/* --- slabs -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_slabs_add(tshi_slabs *slabs, tshi_slab_index *index, char *base, size_t size) {
    tshi_slab *slab = tshi_calloc(index->allocator, 1, sizeof *slab);
    tshi_slab_block *block = slab ? tshi_pool_take(&index->structs, index->allocator, sizeof *block) : NULL;
    if (!block) {
        tshi_free(index->allocator, slab);
        return TSH_ERR_MEMORY;
    }
    *slab = (tshi_slab){.owner = slabs, .next = slabs->first, .base = base, .size = size, .first = block};
    *block = (tshi_slab_block){.data = base, .size = size, .slab = slab};
    slabs->first = slab;
    free_list_add(&slabs->free, block);
    return TSH_OK;
}

tshi_slab *tshi_slabs_find(const tshi_slabs *slabs, const void *pointer) {
    tshi_slab *slab = slabs->first;
    while (slab && (uintptr_t)pointer - (uintptr_t)slab->base >= slab->size) slab = slab->next;
    return slab;
}

static bool is_idle(const tshi_slab *slab) {
    return !slab->shared && slab->first->is_free && slab->first->size == slab->size;
}

tshi_slab *tshi_slabs_take_idle(tshi_slabs *slabs, tshi_slab_index *index) {
    tshi_slab **link = &slabs->first;
    while (*link && !is_idle(*link)) link = &(*link)->next;
    tshi_slab *slab = *link;
    if (!slab) return NULL;
    *link = slab->next;
    free_list_remove(&slabs->free, slab->first);
    tshi_pool_give(&index->structs, slab->first);
    slab->first = NULL;
    return slab;
}

void tshi_slabs_merge(tshi_slabs *from, tshi_slabs *to) {
    while (from->first) {
        tshi_slab *slab = from->first;
        from->first = slab->next;
        for (tshi_slab_block *b = slab->first; b; b = b->after) {
            if (!b->is_free) continue;
            free_list_remove(&from->free, b);
            free_list_add(&to->free, b);
        }
        slab->owner = to;
        slab->next = to->first;
        to->first = slab;
    }
}

void tshi_slabs_clear(tshi_slabs *slabs, tshi_slab_index *index) {
    while (slabs->first) {
        tshi_slab *slab = slabs->first;
        slabs->first = slab->next;
        for (tshi_slab_block *b = slab->first, *after; b; b = after) {
            after = b->after;
            tshi_pool_give(&index->structs, b);
        }
        tshi_free(index->allocator, slab->shared);
        tshi_free(index->allocator, slab);
    }
    memset(slabs, 0, sizeof *slabs);
}

void tshi_slab_index_clear(tshi_slab_index *index) {
    tshi_pool_clear(&index->structs, index->allocator);
    tshi_free(index->allocator, index->buckets);
    *index = (tshi_slab_index){.allocator = index->allocator};
}
