#include "base/base.h"

#include <string.h>

void *tshi_pool_take(tshi_pool *pool, const tsh_allocator *allocator, size_t size) {
    void *item = pool->free;
    if (!item) return tshi_calloc(allocator, 1, size);
    memcpy(&pool->free, item, sizeof(void *)); /* a free item starts with the pointer to the next */
    memset(item, 0, size);
    return item;
}

void tshi_pool_give(tshi_pool *pool, void *item) {
    if (!item) return;
    memcpy(item, &pool->free, sizeof(void *));
    pool->free = item;
}

void tshi_pool_clear(tshi_pool *pool, const tsh_allocator *allocator) {
    while (pool->free) {
        void *item = pool->free;
        memcpy(&pool->free, item, sizeof(void *));
        tshi_free(allocator, item);
    }
}
