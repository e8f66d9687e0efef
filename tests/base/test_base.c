/* Status names, log lines, checked sizes, host memory. */
#include "base/base.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(base, .timeout = 120);

Test(base, every_status_has_a_name) {
    cr_assert_str_eq(tsh_status_name(TSH_OK), "TSH_OK");
    cr_assert_str_eq(tsh_status_name(TSH_ERR_PEER), "TSH_ERR_PEER");
    for (int i = 0; i < TSH_STATUS_COUNT; i++) {
        for (int j = 0; j < i; j++) cr_assert_str_neq(tsh_status_name((tsh_status)i), tsh_status_name((tsh_status)j));
        cr_assert_eq(strncmp(tsh_status_name((tsh_status)i), "TSH_", 4), 0);
    }
    cr_assert_str_eq(tsh_status_name((tsh_status)TSH_STATUS_COUNT), "unknown status");
    cr_assert_str_eq(tsh_status_name((tsh_status)-1), "unknown status");
}

Test(base, version_is_that_of_the_header) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TSH_VERSION_MAJOR, TSH_VERSION_MINOR, TSH_VERSION_PATCH);
    cr_assert_str_eq(tsh_version(), text);
}

Test(base, a_failure_is_reported_again) {
    tshi_failure kept;
    tshi_failure_keep(&kept, tshi_fail(TSH_ERR_SHAPE, "x is [8,100]"));
    tshi_fail(TSH_ERR_IO, "another");
    cr_assert_eq(tshi_failure_report(&kept), TSH_ERR_SHAPE);
    cr_assert_str_eq(tsh_error_message(), "x is [8,100]");
    tshi_failure_keep(&kept, TSH_OK);
    cr_assert_eq(tshi_failure_report(&kept), TSH_OK);
    cr_assert_str_eq(tsh_error_message(), "x is [8,100]", "what is no failure has no message");
}

Test(base, a_text_that_does_not_fit_says_so) {
    char text[12] = "";
    cr_assert_str_eq(tshi_append(text, sizeof text, "rank %d", 1), "rank 1");
    cr_assert_str_eq(tshi_append(text, sizeof text, ", %d", 10), "rank 1, 10");
    cr_assert_str_eq(tshi_append(text, sizeof text, ", %d", 11), "rank 1, ...");
    cr_assert_str_eq(tshi_append(text, sizeof text, ", %d", 12), "rank 1, ...");
}

Test(base, a_failure_sets_the_message) {
    cr_assert_str_eq(tsh_error_message(), "");
    cr_assert_eq(tshi_fail(TSH_ERR_SHAPE, "x is [%d,%d]", 8, 100), TSH_ERR_SHAPE);
    cr_assert_str_eq(tsh_error_message(), "x is [8,100]");
    tshi_fail(TSH_ERR_PEER, "rank 2: %s", tsh_error_message());
    cr_assert_str_eq(tsh_error_message(), "rank 2: x is [8,100]", "a message may quote the one before");
}

Test(base, a_long_message_is_cut) {
    char text[2 * TSHI_MESSAGE_SIZE];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    tshi_fail(TSH_ERR_IO, "%s", text);
    cr_assert_eq(strlen(tsh_error_message()), (size_t)TSHI_MESSAGE_SIZE - 1);
    tshi_fail_errno(EPIPE, "%s", text);
    cr_assert_not_null(strstr(tsh_error_message(), strerror(EPIPE)), "the reason survives a long text");
}

Test(base, errno_comes_with_its_text_and_number) {
    cr_assert_eq(tshi_fail_errno(ENOENT, "open %s", "data.txt"), TSH_ERR_SYSTEM);
    char wanted[128];
    snprintf(wanted, sizeof wanted, "open data.txt: %s (errno %d)", strerror(ENOENT), ENOENT);
    cr_assert_str_eq(tsh_error_message(), wanted);
    cr_assert_eq(tshi_fail_errno(ENOMEM, "mmap"), TSH_ERR_MEMORY);
}

static void *fail_elsewhere(void *unused) {
    (void)unused;
    tshi_fail(TSH_ERR_IO, "elsewhere");
    return NULL;
}

Test(base, messages_belong_to_a_thread) {
    pthread_t thread;
    tshi_fail(TSH_ERR_IO, "here");
    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(tsh_error_message(), "here");
}

typedef struct caught {
    int lines;
    tsh_log_level level;
    char text[2048];
} caught;

static void catch_line(void *user, tsh_log_level level, const char *line) {
    caught *c = user;
    c->lines++;
    c->level = level;
    snprintf(c->text, sizeof c->text, "%s", line);
}

Test(base, a_sink_gets_every_line) {
    caught c = {0};
    tsh_log_sink log = {catch_line, &c};
    tshi_log(&log, TSH_LOG_DEBUG, "%d/%d joined", 3, 4);
    cr_assert_eq(c.lines, 1);
    cr_assert_eq(c.level, TSH_LOG_DEBUG);
    cr_assert_str_eq(c.text, "3/4 joined");
    char long_text[1500];
    memset(long_text, 'b', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    tshi_log(&log, TSH_LOG_ERROR, "%s", long_text);
    size_t length = strlen(c.text);
    cr_assert_str_eq(c.text + length - 3, "...", "a line that was cut says so");
}

Test(base, without_a_sink_warnings_go_to_stderr, .init = cr_redirect_stderr) {
    tsh_log_sink log = {0};
    tshi_log(&log, TSH_LOG_INFO, "quiet");
    tshi_log(&log, TSH_LOG_WARNING, "loud %d", 1);
    tshi_log(NULL, TSH_LOG_ERROR, "louder");
    fflush(stderr);
    cr_assert_stderr_eq_str("tshard warning: loud 1\ntshard error: louder\n");
}

Test(base, sizes_are_checked) {
    size_t out = 7;
    cr_assert_eq(tshi_size_mul(6, 7, &out), TSH_OK);
    cr_assert_eq(out, (size_t)42);
    cr_assert_eq(tshi_size_mul(0, SIZE_MAX, &out), TSH_OK);
    cr_assert_eq(out, (size_t)0);
    cr_assert_eq(tshi_size_mul(SIZE_MAX, 1, &out), TSH_OK);
    cr_assert_eq(out, SIZE_MAX);
    cr_assert_eq(tshi_size_mul(SIZE_MAX / 2 + 1, 2, &out), TSH_ERR_OVERFLOW);
    cr_assert_eq(out, SIZE_MAX, "a failure changes nothing");
    cr_assert_eq(tshi_size_add(SIZE_MAX - 1, 1, &out), TSH_OK);
    cr_assert_eq(tshi_size_add(SIZE_MAX, 1, &out), TSH_ERR_OVERFLOW);
}

Test(base, products_of_dims_are_checked) {
    int64_t out = -1;
    cr_assert_eq(tshi_dims_product(0, NULL, &out), TSH_OK);
    cr_assert_eq(out, 1);
    cr_assert_eq(tshi_dims_product(3, (int64_t[]){2, 3, 7}, &out), TSH_OK);
    cr_assert_eq(out, 42);
    cr_assert_eq(tshi_dims_product(2, (int64_t[]){INT64_MAX, 1}, &out), TSH_OK);
    cr_assert_eq(out, INT64_MAX);
    cr_assert_eq(tshi_dims_product(2, (int64_t[]){(int64_t)1 << 32, (int64_t)1 << 31}, &out), TSH_ERR_OVERFLOW);
    cr_assert_eq(tshi_dims_product(3, (int64_t[]){INT64_MAX, INT64_MAX, 0}, &out), TSH_OK, "empty is empty");
    cr_assert_eq(out, 0);
    cr_assert_eq(tshi_dims_product(2, (int64_t[]){0, -1}, &out), TSH_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tsh_error_message(), "dim 1"));
}

typedef struct counts {
    int given, taken;
    bool empty;
} counts;

static void *counted_alloc(void *user, size_t size) {
    counts *c = user;
    if (c->empty) return NULL;
    c->given++;
    void *pointer = malloc(size);
    if (pointer) memset(pointer, 0xff, size);
    return pointer;
}

static void counted_release(void *user, void *pointer) {
    ((counts *)user)->taken++;
    free(pointer);
}

Test(base, unset_hooks_get_defaults) {
    tsh_allocator a = tshi_allocator_resolve(NULL);
    cr_assert(a.reserve(a.user, SIZE_MAX));
    int *p = tshi_calloc(&a, 3, sizeof *p);
    cr_assert_not_null(p);
    cr_assert_eq(p[0] | p[1] | p[2], 0);
    tshi_free(&a, p);
    tshi_free(&a, NULL);
}

Test(base, memory_comes_zeroed_through_the_hooks) {
    counts c = {0};
    tsh_allocator wanted = {.alloc = counted_alloc, .release = counted_release, .user = &c};
    tsh_allocator a = tshi_allocator_resolve(&wanted);
    unsigned char *p = tshi_calloc(&a, 10, 3);
    for (int i = 0; i < 30; i++) cr_assert_eq(p[i], 0);
    tshi_free(&a, p);
    tshi_free(&a, NULL);
    cr_assert_eq(c.given, 1);
    cr_assert_eq(c.taken, 1, "release never sees NULL");
    cr_assert_null(tshi_calloc(&a, SIZE_MAX, 2));
    c.empty = true;
    cr_assert_null(tshi_calloc(&a, 1, 40));
    cr_assert_not_null(strstr(tsh_error_message(), "40 bytes"));
}

Test(base, arrays_grow_and_keep_their_items) {
    counts c = {0};
    tsh_allocator wanted = {.alloc = counted_alloc, .release = counted_release, .user = &c};
    tsh_allocator a = tshi_allocator_resolve(&wanted);
    void *items = NULL;
    int capacity = 0;
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(tshi_grow(&a, &items, &capacity, i + 1, sizeof(int)), TSH_OK);
        cr_assert_geq(capacity, i + 1);
        ((int *)items)[i] = i;
    }
    for (int i = 0; i < 1000; i++) cr_assert_eq(((int *)items)[i], i);
    cr_assert_lt(c.given, 12, "capacity doubles");
    void *before = items;
    int capacity_before = capacity;
    c.empty = true;
    cr_assert_eq(tshi_grow(&a, &items, &capacity, 5000, sizeof(int)), TSH_ERR_MEMORY);
    cr_assert_eq(items, before);
    cr_assert_eq(capacity, capacity_before);
    tshi_free(&a, items);
    cr_assert_eq(c.given, c.taken);
}

/* 200 takes of 0 to 199 items of 8 bytes, and one that is larger than a block; the region's user writes each whole. */
static void take_many(tshi_region *region, const tsh_allocator *a, unsigned char *taken[201]) {
    for (size_t i = 0; i <= 200; i++) {
        size_t n = i < 200 ? i : 5000;
        taken[i] = tshi_region_take(region, a, n, 8);
        cr_assert_not_null(taken[i]);
        cr_assert_eq((uintptr_t)taken[i] % 16, 0);
        memset(taken[i], (int)i, n * 8);
    }
    for (size_t i = 0; i < 200 * 8; i++) cr_assert_eq(taken[199][i % (199 * 8)], 199);
    for (size_t i = 1; i < 200; i++) cr_assert_eq(taken[i][i * 8 - 1], i);
}

Test(base, a_region_returns_the_same_memory_after_a_reset) {
    counts c = {0};
    tsh_allocator wanted = {.alloc = counted_alloc, .release = counted_release, .user = &c};
    tsh_allocator a = tshi_allocator_resolve(&wanted);
    tshi_region region = {0};
    unsigned char *first[201], *second[201];
    take_many(&region, &a, first);
    int given = c.given;
    tshi_region_reset(&region);
    take_many(&region, &a, second);
    cr_assert_eq(c.given, given, "nothing is allocated a second time");
    cr_assert_eq(memcmp(first, second, sizeof first), 0);
    c.empty = true;
    cr_assert_null(tshi_region_take(&region, &a, 10000, 8));
    cr_assert_null(tshi_region_take(&region, &a, SIZE_MAX / 8, 8));
    c.empty = false;
    cr_assert_not_null(tshi_region_take(&region, &a, 10000, 8), "usable after a failure");
    tshi_region_clear(&region, &a);
    cr_assert_eq(c.given, c.taken);
}
