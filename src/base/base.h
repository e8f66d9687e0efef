/* Shared by every room: failures with a message, the log, checked sizes, host memory, Philox. */
#ifndef TSHI_BASE_H
#define TSHI_BASE_H

#include "tshard/base.h"

#include <stdarg.h>
#include <string.h>

/* Exported for the tools of the same version, not for programs. */
#define TSHI_TOOLS TSH_API

/* Marks what runs only where something fails or grows: its callers are compiled for the other way. */
#if defined(__GNUC__)
#define TSHI_RARE __attribute__((cold))
#else
#define TSHI_RARE
#endif

#define TSHI_MESSAGE_SIZE 512
/* A line that names a call or a list of ranks fits. */
#define TSHI_LINE 256

/* Records the message of a failure for tsh_error_message() and returns `status`, so that a caller writes:
 * return tshi_fail(TSH_ERR_SHAPE, "linear: x is %s, ...", ...). */
TSHI_TOOLS TSHI_RARE tsh_status tshi_fail(tsh_status status, const char *format, ...) TSH_PRINTF(2, 3);
tsh_status tshi_vfail(tsh_status status, const char *format, va_list arguments) TSH_PRINTF(2, 0);
/* A status with its message, to be reported later, or on another thread. */
typedef struct tshi_failure {
    tsh_status status;
    char words[TSHI_MESSAGE_SIZE];
} tshi_failure;
/* Stores the status, and for a failure tsh_error_message(). */
void tshi_failure_keep(tshi_failure *failure, tsh_status status);
/* Returns the stored status, and records its message again. */
tsh_status tshi_failure_report(const tshi_failure *failure);
/* For a call whose failure shows only in its return value, which programs ignore easily: returns the status, and counts
 * a failure as dropped until tsh_error_message is called. */
tsh_status tshi_failure_hold(tsh_status status);
/* Returns and clears this thread's last dropped failure; its status is TSH_OK when no failure was dropped. */
tsh_status tshi_failure_dropped(tshi_failure *out);
/* How many failures this thread has recorded. */
uint64_t tshi_failures(void);
/* tshi_fail with strerror(error) and the number at the end: TSH_ERR_MEMORY for ENOMEM, else TSH_ERR_SYSTEM. */
tsh_status tshi_fail_errno(int error, const char *format, ...) TSH_PRINTF(2, 3);

/* Appends to a text in a buffer of `size` bytes; a text that does not fit ends with "...". Returns text. */
TSHI_TOOLS char *tshi_append(char *text, size_t size, const char *format, ...) TSH_PRINTF(3, 4);

/* Formats a line, and passes it to the sink. */
void tshi_log(const tsh_log_sink *log, tsh_log_level level, const char *format, ...) TSH_PRINTF(3, 4);
/* A sink that prints lines of every level to stderr. */
void tshi_log_print(void *user, tsh_log_level level, const char *line);

/* out = a * b, or a + b; TSH_ERR_OVERFLOW when it does not fit. */
TSHI_RARE void tshi_size_overflow(size_t a, const char *operation, size_t b);
static inline tsh_status tshi_size_mul(size_t a, size_t b, size_t *out) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        tshi_size_overflow(a, "x", b);
        return TSH_ERR_OVERFLOW;
    }
    *out = product;
    return TSH_OK;
}
static inline tsh_status tshi_size_add(size_t a, size_t b, size_t *out) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        tshi_size_overflow(a, "+", b);
        return TSH_ERR_OVERFLOW;
    }
    *out = sum;
    return TSH_OK;
}
/* Product of n dims (1 when n is 0); TSH_ERR_ARGUMENT for a negative one, TSH_ERR_OVERFLOW past INT64_MAX. */
TSHI_TOOLS tsh_status tshi_dims_product(int n, const int64_t *dims, int64_t *out);

/* Replaces unset hooks by malloc, free and a reserve that returns true. */
TSHI_TOOLS tsh_allocator tshi_allocator_resolve(const tsh_allocator *wanted);
/* True when this process may create a file of `bytes` (ulimit -f), else false with errno EFBIG: without this check a
 * signal would end the process. */
bool tshi_file_fits(size_t bytes);
/* A descriptor of an anonymous file of `bytes` zeros, or -1 with errno set (EFBIG as above). */
int tshi_memory_file(const char *name, size_t bytes);
/* Zeroed memory for count items of size bytes, or NULL with the message set. */
void *tshi_calloc(const tsh_allocator *allocator, size_t count, size_t size);
TSHI_TOOLS void tshi_free(const tsh_allocator *allocator, void *pointer);

/* A copy of a text, or NULL with the message set. */
char *tshi_copy_text(const tsh_allocator *allocator, const char *text);

/* Grows an array to hold `needed` items of `size` bytes; *items and *capacity change only on success. */
TSHI_RARE tsh_status tshi_grow_array(const tsh_allocator *allocator, void **items, int *capacity, int needed,
                                     size_t size);
static inline tsh_status tshi_grow(const tsh_allocator *allocator, void **items, int *capacity, int needed,
                                   size_t size) {
    return needed <= *capacity ? TSH_OK : tshi_grow_array(allocator, items, capacity, needed, size);
}

/* A free list of items of one size: small structs cost no allocation in a steady state. A free item starts with the
 * pointer to the next one. */
typedef struct tshi_pool {
    void *free;
} tshi_pool;
/* An item that has been given back, as it was but for a pointer at its start; a zeroed one where there is none, or NULL
 * with the message set. */
static inline void *tshi_pool_take_used(tshi_pool *pool, const tsh_allocator *allocator, size_t size) {
    void *item = pool->free;
    if (!item) return tshi_calloc(allocator, 1, size);
    memcpy(&pool->free, item, sizeof(void *));
    __builtin_prefetch(pool->free); /* the next take reads its pointer */
    return item;
}
/* Zeroed, or NULL with the message set. */
static inline void *tshi_pool_take(tshi_pool *pool, const tsh_allocator *allocator, size_t size) {
    void *item = tshi_pool_take_used(pool, allocator, size);
    return item ? memset(item, 0, size) : NULL;
}
static inline void tshi_pool_give(tshi_pool *pool, void *item) {
    if (!item) return;
    memcpy(item, &pool->free, sizeof(void *));
    pool->free = item;
}
void tshi_pool_clear(tshi_pool *pool, const tsh_allocator *allocator);

/* An arena: memory that is taken piece by piece and released all at once. Its blocks are kept, so that a repeated step
 * allocates nothing. */
typedef struct tshi_region {
    void *first, *current; /* blocks; current is NULL after a reset */
    unsigned char *next;   /* unused memory of the current block: `left` bytes */
    size_t left;
} tshi_region;
/* `bytes`, a multiple of 16, from the next block with room. */
void *tshi_region_go_on(tshi_region *region, const tsh_allocator *allocator, size_t bytes);
/* count items of size bytes, not zeroed, aligned to 16; NULL with the message set. Valid until the reset. */
static inline void *tshi_region_take(tshi_region *region, const tsh_allocator *allocator, size_t count, size_t size) {
    size_t bytes;
    if (tshi_size_mul(count, size, &bytes) != TSH_OK || tshi_size_add(bytes, 15, &bytes) != TSH_OK) return NULL;
    bytes &= ~(size_t)15;
    if (bytes >= region->left) return tshi_region_go_on(region, allocator, bytes);
    void *taken = region->next;
    region->next += bytes;
    region->left -= bytes;
    return taken;
}
void tshi_region_reset(tshi_region *region);
void tshi_region_clear(tshi_region *region, const tsh_allocator *allocator);

#endif
