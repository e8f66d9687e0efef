#include "device/cuda/blocks.h"

#include <string.h>

#define KIND_BITS 4

/* --- free lists --------------------------------------------------------------------------------------------------- */

typedef struct size_class {
    int level, kind;
} size_class;

/* Level: the power of two; kind: its sixteenth. Units below 16 have level 0 to themselves, one class each. */
static size_class class_of(size_t size) {
    uint64_t units = size / TSHI_BLOCK_UNIT;
    if (units < TSHI_BLOCK_KINDS) return (size_class){0, (int)units};
    int power = 63 - __builtin_clzll(units);
    return (size_class){power - KIND_BITS + 1, (int)(units >> (power - KIND_BITS)) - TSHI_BLOCK_KINDS};
}

static void insert(tshi_piece *block) {
    tshi_blocks *blocks = block->slab->owner;
    size_class c = class_of(block->size);
    tshi_piece *previous = NULL, *next = blocks->free[c.level][c.kind];
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
        blocks->free[c.level][c.kind] = block;
    blocks->kinds[c.level] = (uint16_t)(blocks->kinds[c.level] | 1u << c.kind);
    blocks->levels |= (uint64_t)1 << c.level;
    block->is_free = true;
}

static void take_out(tshi_piece *block) {
    tshi_blocks *blocks = block->slab->owner;
    size_class c = class_of(block->size);
    if (block->next) block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        blocks->free[c.level][c.kind] = block->next;
    block->previous = block->next = NULL;
    block->is_free = false;
    if (blocks->free[c.level][c.kind]) return;
    blocks->kinds[c.level] = (uint16_t)(blocks->kinds[c.level] & ~(1u << c.kind));
    if (blocks->kinds[c.level] == 0) blocks->levels &= ~((uint64_t)1 << c.level);
}

/* The first block of a class above c, where every block is large enough. */
static tshi_piece *first_above(const tshi_blocks *blocks, size_class c) {
    uint32_t kinds = blocks->kinds[c.level] & (uint32_t)(0xffffffffu << (c.kind + 1));
    if (kinds) return blocks->free[c.level][__builtin_ctz(kinds)];
    uint64_t levels = blocks->levels & ((~(uint64_t)0 << c.level) << 1);
    if (!levels) return NULL;
    int level = __builtin_ctzll(levels);
    return blocks->free[level][__builtin_ctz(blocks->kinds[level])];
}

static tshi_piece *find_free(const tshi_blocks *blocks, size_t size) {
    size_class c = class_of(size);
    /* In its own class a block may be a little too small; the exact fit of a repeated step is here. */
    tshi_piece *block = blocks->free[c.level][c.kind];
    while (block && block->size < size) block = block->next;
    return block ? block : first_above(blocks, c);
}

/* --- blocks in use ------------------------------------------------------------------------------------------------ */

static size_t bucket_of(const tshi_block_books *books, const void *data) {
    uint64_t key = (uint64_t)(uintptr_t)data / TSHI_BLOCK_UNIT * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (books->buckets_count - 1);
}

static void enter(tshi_block_books *books, tshi_piece *block) {
    size_t bucket = bucket_of(books, block->data);
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
    while (block && block->data != data) block = block->chain;
    return block;
}

void tshi_blocks_forget(tshi_block_books *books, tshi_piece *block) {
    tshi_piece **link = &books->buckets[bucket_of(books, block->data)];
    while (*link != block) link = &(*link)->chain;
    *link = block->chain;
    block->chain = NULL;
    books->in_use--;
}

/* --- taking and giving -------------------------------------------------------------------------------------------- */

/* What `block` has beyond `size` becomes `rest`. */
static void split(tshi_piece *block, size_t size, tshi_piece *rest) {
    *rest = (tshi_piece){.data = block->data + size,
                         .size = block->size - size,
                         .slab = block->slab,
                         .before = block,
                         .after = block->after};
    if (block->after) block->after->before = rest;
    block->after = rest;
    block->size = size;
    insert(rest);
}

tshi_piece *tshi_blocks_take(tshi_blocks *blocks, tshi_block_books *books, size_t size, bool *failed) {
    *failed = false;
    tshi_piece *block = find_free(blocks, size), *rest = NULL;
    if (!block) return NULL;
    *failed = true;
    if (more_buckets(books) != TSH_OK) return NULL;
    if (block->size > size) {
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
    block->size += behind->size;
    block->after = behind->after;
    if (block->after) block->after->before = block;
    tshi_pool_give(&books->structs, behind);
}

void tshi_blocks_give(tshi_block_books *books, tshi_piece *block) {
    if (block->after && block->after->is_free) {
        take_out(block->after);
        merge(books, block);
    }
    if (block->before && block->before->is_free) {
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
    *block = (tshi_piece){.data = base, .size = size, .slab = slab};
    blocks->slabs = slab;
    insert(block);
    return TSH_OK;
}

tshi_slab *tshi_blocks_idle(tshi_blocks *blocks, tshi_block_books *books) {
    tshi_slab **link = &blocks->slabs;
    while (*link && !((*link)->first->is_free && (*link)->first->size == (*link)->size)) link = &(*link)->next;
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
            if (!b->is_free) continue;
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
        tshi_free(books->allocator, slab);
    }
    memset(blocks, 0, sizeof *blocks);
}
