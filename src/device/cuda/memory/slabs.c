#include "device/cuda/memory/slabs.h"

#include <string.h>

static void make_free(tshi_slab_block *block) {
    tshi_free_list_add(&block->slab->owner->free, &block->range);
}

static void take_out(tshi_slab_block *block) {
    tshi_free_list_remove(&block->slab->owner->free, &block->range);
}

/* --- blocks in use ------------------------------------------------------------------------------------------------ */

static size_t bucket_of(const tshi_slab_index *index, const void *data) {
    uint64_t key = (uint64_t)(uintptr_t)data / TSHI_SLAB_UNIT * 0x9e3779b97f4a7c15u;
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

tshi_slab_block *tshi_slab_index_find(const tshi_slab_index *index, const void *data) {
    if (index->buckets_count == 0) return NULL;
    tshi_slab_block *block = index->buckets[bucket_of(index, data)];
    while (block && block->range.data != data) block = block->chain;
    return block;
}

void tshi_slab_index_remove(tshi_slab_index *index, tshi_slab_block *block) {
    tshi_slab_block **link = &index->buckets[bucket_of(index, block->range.data)];
    while (*link != block) link = &(*link)->chain;
    *link = block->chain;
    block->chain = NULL;
    index->in_use--;
}

/* --- alloc and release -------------------------------------------------------------------------------------------- */

/* What `block` has beyond `size` becomes `rest`. */
static void split(tshi_slab_block *block, size_t size, tshi_slab_block *rest) {
    *rest = (tshi_slab_block){.range = {.data = block->range.data + size, .size = block->range.size - size},
                              .slab = block->slab,
                              .before = block,
                              .after = block->after};
    if (block->after) block->after->before = rest;
    block->after = rest;
    block->range.size = size;
    make_free(rest);
}

tshi_slab_block *tshi_slabs_alloc(tshi_slabs *slabs, tshi_slab_index *index, size_t size, bool *failed) {
    *failed = false;
    tshi_slab_block *block = (tshi_slab_block *)(void *)tshi_free_list_find(&slabs->free, size), *rest = NULL;
    if (!block) return NULL;
    *failed = true;
    if (grow_buckets(index) != TSH_OK) return NULL;
    if (block->range.size > size) {
        rest = tshi_pool_take(&index->structs, index->allocator, sizeof *rest);
        if (!rest) return NULL;
    }
    *failed = false;
    take_out(block);
    if (rest) split(block, size, rest);
    block->wanted = size;
    index_add(index, block);
    index->in_use++;
    return block;
}

/* `block` becomes one with the block behind it. */
static void merge(tshi_slab_index *index, tshi_slab_block *block) {
    tshi_slab_block *behind = block->after;
    block->range.size += behind->range.size;
    block->after = behind->after;
    if (block->after) block->after->before = block;
    tshi_pool_give(&index->structs, behind);
}

void tshi_slabs_release(tshi_slab_index *index, tshi_slab_block *block) {
    if (block->after && block->after->range.is_free) {
        take_out(block->after);
        merge(index, block);
    }
    if (block->before && block->before->range.is_free) {
        block = block->before;
        take_out(block);
        merge(index, block);
    }
    make_free(block);
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
    make_free(block);
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
    take_out(slab->first);
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
            slab->owner = from;
            take_out(b);
            slab->owner = to;
            make_free(b);
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
