#include "device/cuda/memory/blocks.h"

#include <string.h>

/* The block that a hole is the start of. */
static tshi_piece *piece_of(tshi_hole *hole) {
    return (tshi_piece *)(void *)hole;
}

static void insert(tshi_piece *block) {
    tshi_holes_add(&block->slab->owner->holes, &block->hole);
}

static void take_out(tshi_piece *block) {
    tshi_holes_remove(&block->slab->owner->holes, &block->hole);
}

/* --- blocks in use ------------------------------------------------------------------------------------------------ */

static size_t bucket_of(const tshi_block_books *books, const void *data) {
    uint64_t key = (uint64_t)(uintptr_t)data / TSHI_BLOCK_UNIT * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (books->buckets_count - 1);
}

static void enter(tshi_block_books *books, tshi_piece *block) {
    size_t bucket = bucket_of(books, block->hole.data);
    block->chain = books->buckets[bucket];
    books->buckets[bucket] = block;
}

static tsh_status more_buckets(tshi_block_books *books) {
    if (books->in_use < books->buckets_count) return TSH_OK;
    tshi_block_books old = *books;
    size_t count = old.buckets_count ? 2 * old.buckets_count : 256;
    books->buckets = tshi_calloc(books->allocator, count, sizeof *books->buckets);
    if (!books->buckets) {
        *books = old;
        return TSH_ERR_MEMORY;
    }
    books->buckets_count = count;
    for (size_t i = 0; i < old.buckets_count; i++) {
        for (tshi_piece *b = old.buckets[i], *next; b; b = next) {
            next = b->chain;
            enter(books, b);
        }
    }
    tshi_free(books->allocator, old.buckets);
    return TSH_OK;
}

tshi_piece *tshi_blocks_find(const tshi_block_books *books, const void *data) {
    if (books->buckets_count == 0) return NULL;
    tshi_piece *block = books->buckets[bucket_of(books, data)];
    while (block && block->hole.data != data) block = block->chain;
    return block;
}

void tshi_blocks_forget(tshi_block_books *books, tshi_piece *block) {
    tshi_piece **link = &books->buckets[bucket_of(books, block->hole.data)];
    while (*link != block) link = &(*link)->chain;
    *link = block->chain;
    block->chain = NULL;
    books->in_use--;
}

/* --- taking and giving -------------------------------------------------------------------------------------------- */

/* What `block` has beyond `size` becomes `rest`. */
static void split(tshi_piece *block, size_t size, tshi_piece *rest) {
    *rest = (tshi_piece){.hole = {.data = block->hole.data + size, .size = block->hole.size - size},
                         .slab = block->slab,
                         .before = block,
                         .after = block->after};
    if (block->after) block->after->before = rest;
    block->after = rest;
    block->hole.size = size;
    insert(rest);
}

tshi_piece *tshi_blocks_take(tshi_blocks *blocks, tshi_block_books *books, size_t size, bool *failed) {
    *failed = false;
    tshi_piece *block = piece_of(tshi_holes_find(&blocks->holes, size)), *rest = NULL;
    if (!block) return NULL;
    *failed = true;
    if (more_buckets(books) != TSH_OK) return NULL;
    if (block->hole.size > size) {
        rest = tshi_pool_take(&books->structs, books->allocator, sizeof *rest);
        if (!rest) return NULL;
    }
    *failed = false;
    take_out(block);
    if (rest) split(block, size, rest);
    block->wanted = size;
    enter(books, block);
    books->in_use++;
    return block;
}

/* `block` takes in the block behind it. */
static void merge(tshi_block_books *books, tshi_piece *block) {
    tshi_piece *behind = block->after;
    block->hole.size += behind->hole.size;
    block->after = behind->after;
    if (block->after) block->after->before = block;
    tshi_pool_give(&books->structs, behind);
}

void tshi_blocks_give(tshi_block_books *books, tshi_piece *block) {
    if (block->after && block->after->hole.is_free) {
        take_out(block->after);
        merge(books, block);
    }
    if (block->before && block->before->hole.is_free) {
        block = block->before;
        take_out(block);
        merge(books, block);
    }
    insert(block);
}

/* --- slabs -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_blocks_add(tshi_blocks *blocks, tshi_block_books *books, char *base, size_t size) {
    tshi_slab *slab = tshi_calloc(books->allocator, 1, sizeof *slab);
    tshi_piece *block = slab ? tshi_pool_take(&books->structs, books->allocator, sizeof *block) : NULL;
    if (!block) {
        tshi_free(books->allocator, slab);
        return TSH_ERR_MEMORY;
    }
    *slab = (tshi_slab){.owner = blocks, .next = blocks->slabs, .base = base, .size = size, .first = block};
    *block = (tshi_piece){.hole = {.data = base, .size = size}, .slab = slab};
    blocks->slabs = slab;
    insert(block);
    return TSH_OK;
}

tshi_slab *tshi_blocks_slab(const tshi_blocks *blocks, const void *pointer) {
    tshi_slab *slab = blocks->slabs;
    while (slab && (uintptr_t)pointer - (uintptr_t)slab->base >= slab->size) slab = slab->next;
    return slab;
}

static bool is_idle(const tshi_slab *slab) {
    return !slab->shared && slab->first->hole.is_free && slab->first->hole.size == slab->size;
}

tshi_slab *tshi_blocks_idle(tshi_blocks *blocks, tshi_block_books *books) {
    tshi_slab **link = &blocks->slabs;
    while (*link && !is_idle(*link)) link = &(*link)->next;
    tshi_slab *slab = *link;
    if (!slab) return NULL;
    *link = slab->next;
    take_out(slab->first);
    tshi_pool_give(&books->structs, slab->first);
    slab->first = NULL;
    return slab;
}

void tshi_blocks_join(tshi_blocks *from, tshi_blocks *to) {
    while (from->slabs) {
        tshi_slab *slab = from->slabs;
        from->slabs = slab->next;
        for (tshi_piece *b = slab->first; b; b = b->after) {
            if (!b->hole.is_free) continue;
            slab->owner = from;
            take_out(b);
            slab->owner = to;
            insert(b);
        }
        slab->owner = to;
        slab->next = to->slabs;
        to->slabs = slab;
    }
}

void tshi_blocks_clear(tshi_blocks *blocks, tshi_block_books *books) {
    while (blocks->slabs) {
        tshi_slab *slab = blocks->slabs;
        blocks->slabs = slab->next;
        for (tshi_piece *b = slab->first, *after; b; b = after) {
            after = b->after;
            tshi_pool_give(&books->structs, b);
        }
        tshi_free(books->allocator, slab->shared);
        tshi_free(books->allocator, slab);
    }
    memset(blocks, 0, sizeof *blocks);
}
