/* A training step that has been made before takes no memory: neither from malloc nor for tensors.
 *
 * This program's own malloc and its relatives count and pass on to those of the C library; under a sanitizer, whose
 * they are, its hook counts. */
#include "support/language.h"
#include "support/ranks.h"

#include <criterion/criterion.h>

static _Thread_local int64_t mallocs;

#if defined(__SANITIZE_ADDRESS__)

void __sanitizer_malloc_hook(const volatile void *pointer, size_t size);
void __sanitizer_malloc_hook(const volatile void *pointer, size_t size) {
    (void)pointer, (void)size;
    mallocs++;
}

#else

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *pointer, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    mallocs++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    mallocs++;
    return __libc_calloc(count, size);
}

void *realloc(void *pointer, size_t size) {
    mallocs++;
    return __libc_realloc(pointer, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    mallocs++;
    return __libc_memalign(alignment, size);
}

#endif

enum { WARM_UP = 3, STEPS = 10 };

static void one_step(tshi_rank *r, tshi_language *l) {
    double loss, norm;
    char words[TSHI_TEST_WORDS] = "";
    tsh_status status = tshi_language_gradients(l, &loss, &norm, words);
    tshi_check(r, status == TSH_OK, "%s", words);
    tshi_check_ok(r, tshi_language_update(l));
}

static void steps(tshi_rank *r, void *axes) {
    tshi_language l;
    if (!tshi_check_ok(r, tshi_language_create(r->world, axes, &l))) return;
    int64_t before = mallocs;
    for (int i = 0; i < WARM_UP; i++) one_step(r, &l);
    tshi_check(r, mallocs > before, "the counter does not count: the first step takes memory for its tape");
    before = mallocs;
    tsh_device_stats start = tsh_device_get_stats(tsh_world_device(r->world));
    for (int i = 0; i < STEPS; i++) one_step(r, &l);
    tsh_device_stats end = tsh_device_get_stats(tsh_world_device(r->world));
    tshi_check(r, mallocs == before, "%d steps made %lld calls of malloc", STEPS, (long long)(mallocs - before));
    tshi_check(r, end.allocations == start.allocations, "%d steps took new tensor memory %llu times", STEPS,
               (unsigned long long)(end.allocations - start.allocations));
    tshi_check(r, end.requests > start.requests, "no tensor was made in %d steps", STEPS);
    tshi_check(r, end.bytes_in_use == start.bytes_in_use, "%zu bytes in use became %zu", start.bytes_in_use,
               end.bytes_in_use);
    tshi_language_destroy(&l);
}

Test(steady_state, one_rank_takes_no_memory, .timeout = 20) {
    cr_assert_str_empty(tshi_test_run(1, steps, "data=1,model=1"));
}

Test(steady_state, two_ranks_take_no_memory, .timeout = 20) {
    cr_assert_str_empty(tshi_test_run(2, steps, "data=1,model=2"));
}

Test(steady_state, a_mesh_of_four_takes_no_memory, .timeout = 20) {
    cr_assert_str_empty(tshi_test_run(4, steps, "data=2,model=2"));
}
