#include "device/slabs.h"

#include <string.h>

/* The pointer to the block in the slab's list. */
static tshi_slab_block **link_to(tshi_slab_block *block) {
    return block->before ? &block->before->after : &block->slab->first;
}

static tshi_free_list *free_of(const tshi_slab_block *block) {
    return &block->slab->owner->free;
}

/* --- blocks in use ------------------------------------------------------------------------------------------------ */

static size_t bucket_of(const tshi_slab_index *index, const void *data) {
    uint64_t key = (uint64_t)(uintptr_t)data / TSHI_RANGE_UNIT * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (index->buckets_count - 1);
}

static void index_add(tshi_slab_index *index, tshi_slab_block *block) {
    size_t bucket = bucket_of(index, block->range.data);
    block->chain = index->buckets[bucket];
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
            next = b->chain;
            index_add(index, b);
        }
    }
    tshi_free(index->allocator, old.buckets);
    return TSH_OK;
}

tshi_slab_block *tshi_slab_index_take(tshi_slab_index *index, const void *data) {
    if (!data || index->buckets_count == 0) return NULL;
    tshi_slab_block **link = &index->buckets[bucket_of(index, data)];
    while (*link && (*link)->range.data != data) link = &(*link)->chain;
    tshi_slab_block *block = *link;
    if (!block) return NULL;
    *link = block->chain;
    index->in_use--;
    return block;
}

/* --- alloc and release -------------------------------------------------------------------------------------------- */

/* The first `size` bytes of a free block become `front`. */
static void split(tshi_slab_block *block, size_t size, tshi_slab_block *front) {
    char *data = block->range.data;
    *front = (tshi_slab_block){
        .range = {.data = data, .size = size}, .slab = block->slab, .before = block->before, .after = block};
    *link_to(block) = front;
    block->before = front;
    tshi_free_list_change(free_of(block), &block->range, data + size, block->range.size - size);
}

tshi_slab_block *tshi_slabs_alloc(tshi_slabs *slabs, tshi_slab_index *index, size_t size, bool *failed) {
    *failed = false;
    tshi_slab_block *block = (tshi_slab_block *)(void *)tshi_free_list_find(&slabs->free, size), *front;
    if (!block) return NULL;
    *failed = true;
    if (grow_buckets(index) != TSH_OK) return NULL;
    if (block->range.size > size) {
        front = tshi_pool_take(&index->structs, index->allocator, sizeof *front);
        if (!front) return NULL;
        split(block, size, front);
    } else {
        front = block;
        tshi_free_list_remove(&slabs->free, &block->range);
    }
    *failed = false;
    index_add(index, front);
    index->in_use++;
    return front;
}

/* The block is no more: its memory is a neighbour's. */
static void drop(tshi_slab_index *index, tshi_slab_block *block) {
    *link_to(block) = block->after;
    if (block->after) block->after->before = block->before;
    tshi_pool_give(&index->structs, block);
}

void tshi_slabs_release(tshi_slab_index *index, tshi_slab_block *block) {
    tshi_free_list *list = free_of(block);
    tshi_slab_block *before = block->before, *after = block->after;
    bool joins_before = before && before->range.is_free, joins_after = after && after->range.is_free;
    if (joins_before && joins_after) {
        tshi_free_list_remove(list, &before->range);
        block->range.data = before->range.data;
        block->range.size += before->range.size;
        drop(index, before);
    }
    if (joins_after) {
        tshi_free_list_change(list, &after->range, block->range.data, block->range.size + after->range.size);
        drop(index, block);
    } else if (joins_before) {
        tshi_free_list_change(list, &before->range, before->range.data, before->range.size + block->range.size);
        drop(index, block);
    } else {
        tshi_free_list_add(list, &block->range);
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
    *block = (tshi_slab_block){.range = {.data = base, .size = size}, .slab = slab};
    slabs->first = slab;
    tshi_free_list_add(&slabs->free, &block->range);
    return TSH_OK;
}

tshi_slab *tshi_slabs_find(const tshi_slabs *slabs, const void *pointer) {
    tshi_slab *slab = slabs->first;
    while (slab && (uintptr_t)pointer - (uintptr_t)slab->base >= slab->size) slab = slab->next;
    return slab;
}

static bool is_idle(const tshi_slab *slab) {
    return !slab->shared && slab->first->range.is_free && slab->first->range.size == slab->size;
}

tshi_slab *tshi_slabs_take_idle(tshi_slabs *slabs, tshi_slab_index *index) {
    tshi_slab **link = &slabs->first;
    while (*link && !is_idle(*link)) link = &(*link)->next;
    tshi_slab *slab = *link;
    if (!slab) return NULL;
    *link = slab->next;
    tshi_free_list_remove(&slabs->free, &slab->first->range);
    tshi_pool_give(&index->structs, slab->first);
    slab->first = NULL;
    return slab;
}

void tshi_slabs_merge(tshi_slabs *from, tshi_slabs *to) {
    while (from->first) {
        tshi_slab *slab = from->first;
        from->first = slab->next;
        for (tshi_slab_block *b = slab->first; b; b = b->after) {
            if (!b->range.is_free) continue;
            tshi_free_list_remove(&from->free, &b->range);
            tshi_free_list_add(&to->free, &b->range);
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
