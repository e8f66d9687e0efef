/* The CUDA device's memory: its cache, and copies. */
#include "cuda/dies.h"
#include "cuda/standin_device.h"

TestSuite(cuda_memory, .timeout = 120);

/* --- the cache ---------------------------------------------------------------------------------------------------- */

typedef struct piece {
    char *data;
    size_t size;
} piece;

static void expect_apart(const piece *pieces, int n, int i) {
    const piece *p = &pieces[i];
    cr_assert_eq((uintptr_t)p->data % 256, 0);
    for (int j = 0; j < n; j++) {
        const piece *q = &pieces[j];
        if (j == i || !q->data) continue;
        cr_assert(p->data + p->size <= q->data || q->data + q->size <= p->data, "%d and %d overlap", i, j);
    }
}

static size_t rounded(size_t size) {
    return ((size ? size : 1) + 63) / 64 * 64;
}

Test(cuda_memory, any_order_of_allocating_and_freeing) {
    enum { N = 60 };
    piece pieces[N] = {{0}};
    size_t in_use = 0, peak = 0;
    uint64_t random = 7;
    tsh_device *device = open_device();
    for (int step = 0; step < 20000; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        piece *p = &pieces[(random >> 33) % N];
        if (p->data) {
            device->ops->memory.release(device, p->data);
            in_use -= rounded(p->size);
            p->data = NULL;
            continue;
        }
        int power = (int)(random >> 20 & 31) % 25; /* up to 32 MiB */
        p->size = (size_t)(random >> 40) & (((size_t)1 << power) - 1);
        p->data = get(device, p->size);
        in_use += rounded(p->size);
        if (in_use > peak) peak = in_use;
        expect_apart(pieces, N, (int)(p - pieces));
        cr_assert_eq(device->stats.bytes_in_use, in_use);
    }
    cr_assert_eq(device->stats.bytes_peak, peak);
    for (int i = 0; i < N; i++) device->ops->memory.release(device, pieces[i].data);
    uint64_t mallocs = standin_calls("cudaMalloc");
    cr_assert_eq(device->stats.allocations, mallocs - 1, "one is cuBLASLt's workspace");
    cr_assert_lt(mallocs, 40);
    /* What was split is whole again: the largest fits without another call. */
    for (int i = 0; i < 2; i++) {
        void *large = get(device, (size_t)64 << 20), *small = get(device, 1000000);
        device->ops->memory.release(device, large);
        device->ops->memory.release(device, small);
    }
    cr_assert_eq(standin_calls("cudaMalloc"), mallocs);
    close_device(device);
}

static void zero(size_t bytes, bool cached) {
    setenv("TSHARD_CUDA_CACHE", cached ? "1" : "0", 1);
    tsh_device *device = open_device();
    device->ops->copy.zero(device, bytes, get(device, 1000));
    tshi_device_destroy(device);
}

static void zero_a_block(void) {
    zero(1000, false);
}

static void zero_two(void) {
    zero(1100, false);
}

static void zero_two_of_a_slab(void) {
    zero(1100, true);
}

Test(cuda_memory, without_a_cache_each_block_ends_in_memory_of_its_own) {
    expect_end("a block", zero_a_block, NULL);
    expect_end("more than a block", zero_two, "past the end");
    expect_end("more than a block of a slab", zero_two_of_a_slab, NULL);
}

Test(cuda_memory, without_a_cache_idle_blocks_are_freed) {
    setenv("TSHARD_CUDA_CACHE", "0", 1);
    tsh_device *device = open_device();
    uint64_t mallocs = standin_calls("cudaMalloc"), frees = standin_calls("cudaFree");
    for (int i = 0; i < 5; i++) device->ops->memory.release(device, get(device, 1000));
    cr_expect_eq(standin_calls("cudaMalloc") - mallocs, 5);
    cr_expect_eq(standin_calls("cudaFree") - frees, 4);
    close_device(device);
}

Test(cuda_memory, a_repeated_step_repeats_its_addresses) {
    static const size_t sizes[] = {100, 3 << 20, 40, 5 << 20, 70 << 20, 900000, 1 << 20, 256};
    enum { N = sizeof sizes / sizeof *sizes };
    void *first[N], *now[N];
    tsh_device *device = open_device();
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < N; i++) now[i] = get(device, sizes[i]);
        for (int i = 0; i < N; i++) device->ops->memory.release(device, now[(i * 3 + step) % N]);
        if (step == 1) memcpy(first, now, sizeof first);
        if (step > 1) cr_assert_arr_eq(first, now, sizeof first);
    }
    close_device(device);
}

Test(cuda_memory, an_empty_block_has_an_address_of_its_own) {
    tsh_device *device = open_device();
    void *a = get(device, 0), *b = get(device, 0);
    cr_assert_neq(a, b);
    device->ops->memory.release(device, a);
    device->ops->memory.release(device, b);
    device->ops->memory.release(device, NULL);
    close_device(device);
}

Test(cuda_memory, full_memory_frees_unused_slabs_before_it_fails) {
    tsh_device *device = open_device();
    standin_memory((size_t)400 << 20); /* 64 of it are cuBLASLt's */
    char *pieces[4];
    for (int i = 0; i < 4; i++) pieces[i] = get(device, (size_t)80 << 20);
    cr_assert_null(device->ops->memory.alloc(device, (size_t)20 << 20));
    cr_assert_not_null(strstr(tsh_error_message(), "no room on the GPU for a tensor of 20971520 bytes: tensors take "
                                                   "335544320, 335544320 are held"),
                       "%s", tsh_error_message());
    /* The smallest slab that it may ask for fits where the usual one does not. */
    char *small = get(device, (size_t)15 << 20);
    device->ops->memory.release(device, pieces[1]);
    device->ops->memory.release(device, pieces[2]);
    device->ops->copy.zero(device, 4, pieces[0]);
    char *large = get(device, (size_t)160 << 20);
    cr_assert_eq(standin_calls("cudaFree"), 2);
    device->ops->memory.release(device, large);
    device->ops->memory.release(device, small);
    device->ops->memory.release(device, pieces[0]);
    device->ops->memory.release(device, pieces[3]);
    cr_assert_eq(device->ops->check(device), TSH_OK, "the request that fails reports it, once");
    close_device(device);
}

Test(cuda_memory, absurd_sizes_are_refused) {
    tsh_device *device = open_device();
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2 + 1, SIZE_MAX / 2, (size_t)1 << 50};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cr_assert_null(device->ops->memory.alloc(device, sizes[i]), "%zu", sizes[i]);
        cr_assert_not_null(strstr(tsh_error_message(), "no room"), "%s", tsh_error_message());
    }
    close_device(device);
}

static bool refuse(void *user, size_t size) {
    return size <= *(size_t *)user;
}

Test(cuda_memory, the_reserve_hook_is_asked) {
    size_t most = 1000;
    tsh_allocator hooks = {.user = &most, .reserve = refuse};
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cuda(&hooks, 0, &device), TSH_OK);
    cr_assert_null(device->ops->memory.alloc(device, 1001));
    cr_assert_str_eq(tsh_error_message(), "the allocator's reserve refused 1001 bytes of tensor memory");
    void *fits = get(device, 1000);
    device->ops->memory.release(device, fits);
    close_device(device);
}

/* The host's own memory may run out too. */
static int allocations_left;

static void *few(void *user, size_t size) {
    (void)user;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void give(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

Test(cuda_memory, each_allocation_on_the_host_may_fail) {
    bool whole = false;
    for (int n = 0; !whole; n++) {
        tsh_allocator hooks = {.alloc = few, .release = give};
        tsh_device *device = NULL;
        void *pieces[300] = {NULL};
        allocations_left = n;
        whole = tshi_device_create_cuda(&hooks, 0, &device) == TSH_OK;
        for (int i = 0; i < 300 && whole; i++) {
            pieces[i] = device->ops->memory.alloc(device, 1000);
            whole = pieces[i] != NULL;
        }
        if (!whole) cr_assert_not_null(strstr(tsh_error_message(), "no memory for "), "%s", tsh_error_message());
        for (int i = 0; i < 300 && device; i++) device->ops->memory.release(device, pieces[i]);
        if (device) cr_assert_eq(device->stats.bytes_in_use, 0);
        tshi_device_destroy(device);
        expect_nothing_left("the device");
        cr_assert_lt(n, 1000);
    }
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

Test(cuda_memory, what_is_copied_from_may_change_at_once) {
    static const size_t sizes[] = {1, 63, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (11 << 20) + 5};
    tsh_device *device = open_device();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char *from = malloc(sizes[s]), *back = malloc(sizes[s]), *there = get(device, sizes[s]);
        for (size_t i = 0; i < sizes[s]; i++) from[i] = (char)(i * 31 + i / 1000 + s);
        device->ops->copy.from_host(device, sizes[s], from, there);
        memset(from, 0, sizes[s]);
        device->ops->copy.to_host(device, sizes[s], there, back);
        for (size_t i = 0; i < sizes[s]; i++) cr_assert_eq(back[i], (char)(i * 31 + i / 1000 + s), "%zu", i);
        device->ops->memory.release(device, there);
        free(from);
        free(back);
    }
    close_device(device);
}

/* Thousands of small ones go round the pinned memory many times; those under way are not overwritten. */
Test(cuda_memory, many_small_copies_under_way) {
    enum { N = 3000, BYTES = 5000 };
    char *whole = malloc((size_t)N * BYTES), one[BYTES];
    tsh_device *device = open_device();
    char *there = get(device, (size_t)N * BYTES);
    for (int i = 0; i < N; i++) {
        memset(one, i % 251, sizeof one);
        device->ops->copy.from_host(device, BYTES, one, there + (size_t)i * BYTES);
    }
    device->ops->copy.to_host(device, (size_t)N * BYTES, there, whole);
    for (int i = 0; i < N; i++) cr_assert(whole[(size_t)i * BYTES] == (char)(i % 251), "%d", i);
    device->ops->memory.release(device, there);
    close_device(device);
    free(whole);
}

static void check_strided(tsh_device *device, int64_t outer, size_t bytes, size_t from_stride, size_t to_stride) {
    size_t from_bytes = (size_t)(outer - 1) * from_stride + bytes, to_bytes = (size_t)(outer - 1) * to_stride + bytes;
    char *from = malloc(from_bytes), *to = malloc(to_bytes), *want = malloc(to_bytes);
    for (size_t i = 0; i < from_bytes; i++) from[i] = (char)(i * 7 + 1);
    memset(want, 0, to_bytes);
    for (int64_t o = 0; o < outer; o++) {
        memcpy(want + (size_t)o * to_stride, from + (size_t)o * from_stride, bytes);
    }
    char *a = get(device, from_bytes), *b = get(device, to_bytes);
    device->ops->copy.from_host(device, from_bytes, from, a);
    device->ops->copy.zero(device, to_bytes, b);
    device->ops->copy.strided(device, outer, bytes, a, from_stride, b, to_stride);
    device->ops->copy.to_host(device, to_bytes, b, to);
    cr_assert_arr_eq(to, want, to_bytes, "%d of %zu, strides %zu and %zu", (int)outer, bytes, from_stride, to_stride);
    device->ops->memory.release(device, a);
    device->ops->memory.release(device, b);
    free(from);
    free(to);
    free(want);
}

Test(cuda_memory, strided_copies) {
    tsh_device *device = open_device();
    check_strided(device, 5, 12, 20, 16);
    check_strided(device, 5, 12, 12, 12);
    check_strided(device, 1, 12, 1, 1);
    check_strided(device, 4, 12, 0, 12); /* one row for all: no pitch of CUDA's */
    check_strided(device, 3, 1, 100, 1);
    uint64_t calls = standin_calls(NULL);
    device->ops->copy.strided(device, 0, 4, NULL, 4, NULL, 4);
    device->ops->copy.strided(device, 4, 0, NULL, 4, NULL, 4);
    device->ops->copy.within(device, 0, NULL, NULL);
    device->ops->copy.zero(device, 0, NULL);
    device->ops->copy.to_host(device, 0, NULL, NULL);
    device->ops->copy.from_host(device, 0, NULL, NULL);
    cr_assert_eq(standin_calls(NULL), calls);
    close_device(device);
}

Test(cuda_memory, strides_past_what_cuda_takes) {
    enum { STRIDE = 0x80000000u };
    tsh_device *device = open_device();
    char *wide = get(device, (size_t)STRIDE + 64), *narrow = get(device, 16), back[16];
    device->ops->copy.zero(device, 16, wide);
    device->ops->copy.zero(device, 16, wide + STRIDE);
    device->ops->copy.strided(device, 2, 8, wide, STRIDE, narrow, 8);
    device->ops->copy.to_host(device, 16, narrow, back);
    for (int i = 0; i < 16; i++) cr_assert_eq(back[i], 0);
    device->ops->memory.release(device, wide);
    device->ops->memory.release(device, narrow);
    close_device(device);
}
