/* The heap against a plain model: which bytes are live. */
#include "device/cpu/heap.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

TestSuite(heap, .timeout = 120);

#define REGION ((size_t)1 << 20)
#define SLOTS  300

typedef struct slot {
    unsigned char *data;
    size_t size;
    unsigned char mark;
} slot;

typedef struct model {
    tshi_heap heap;
    char *region;
    slot slots[SLOTS];
    uint64_t random;
} model;

static uint64_t next_random(model *m) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return m->random >> 33;
}

static void model_init(model *m, size_t size) {
    memset(m, 0, sizeof *m);
    m->region = aligned_alloc(64, (size + 63) / 64 * 64);
    cr_assert_not_null(m->region);
    m->random = 42;
    tshi_heap_init(&m->heap, m->region, size);
}

static void check_marks(const slot *s) {
    for (size_t i = 0; i < s->size; i++) cr_assert_eq(s->data[i], s->mark, "a live block was overwritten");
}

static void release(model *m, slot *s) {
    check_marks(s);
    tshi_heap_release(&m->heap, s->data);
    s->data = NULL;
}

static bool fill(model *m, slot *s, size_t size) {
    s->data = tshi_heap_alloc(&m->heap, size);
    if (!s->data) return false;
    s->size = size;
    s->mark = (unsigned char)next_random(m);
    cr_assert_eq((uintptr_t)s->data % 64, 0u);
    cr_assert_geq((char *)s->data, m->region);
    cr_assert_leq((char *)s->data + size, m->region + m->heap.size);
    cr_assert_eq(tshi_heap_size_of(s->data), size == 0 ? 64 : (size + 63) / 64 * 64);
    memset(s->data, s->mark, size);
    return true;
}

static size_t random_size(model *m) {
    size_t limit = (size_t)1 << next_random(m) % 17;
    return next_random(m) % (limit + 1);
}

Test(heap, random_use_never_overlaps_and_merges_back_to_nothing) {
    static model m;
    model_init(&m, REGION);
    int refused = 0;
    for (int step = 0; step < 20000; step++) {
        slot *s = &m.slots[next_random(&m) % SLOTS];
        if (s->data)
            release(&m, s);
        else if (!fill(&m, s, random_size(&m)))
            refused++;
    }
    cr_assert_gt(refused, 0, "the region was never full: the test is too mild");
    for (int i = 0; i < SLOTS; i++) {
        if (m.slots[i].data) release(&m, &m.slots[i]);
    }
    cr_assert_eq(m.heap.top, 0u);
    cr_assert_null(m.heap.last);
    cr_assert_eq(m.heap.free.levels, 0u);
    cr_assert_eq(tshi_heap_largest(&m.heap), REGION - 64, "all bytes are one free block again");
    cr_assert_not_null(tshi_heap_alloc(&m.heap, REGION - 64));
    free(m.region);
}

Test(heap, the_same_calls_return_the_same_addresses) {
    static model a, b;
    model_init(&a, REGION);
    model_init(&b, REGION);
    for (int step = 0; step < 5000; step++) {
        size_t at = next_random(&a) % SLOTS;
        next_random(&b);
        if (a.slots[at].data) {
            release(&a, &a.slots[at]);
            release(&b, &b.slots[at]);
            continue;
        }
        size_t size = random_size(&a);
        random_size(&b);
        bool given = fill(&a, &a.slots[at], size);
        cr_assert_eq(fill(&b, &b.slots[at], size), given);
        if (given) cr_assert_eq((char *)a.slots[at].data - a.region, (char *)b.slots[at].data - b.region);
    }
    free(a.region);
    free(b.region);
}

/* The order in which blocks come back leaves no trace. */
Test(heap, addresses_depend_on_the_live_blocks_alone) {
    enum { COUNT = 64 };
    static model m;
    model_init(&m, REGION);
    void *blocks[COUNT], *first[COUNT];
    size_t sizes[COUNT];
    for (int i = 0; i < COUNT; i++) sizes[i] = 64 + random_size(&m) % 4096;
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < COUNT; i++) blocks[i] = tshi_heap_alloc(&m.heap, sizes[i]);
        for (int i = 0; i < COUNT; i += 2) {
            int k = round % 2 ? COUNT - 2 - i : i;
            tshi_heap_release(&m.heap, blocks[k]);
        }
        for (int i = 0; i < COUNT; i += 2) blocks[i] = tshi_heap_alloc(&m.heap, sizes[COUNT - 2 - i]);
        if (round == 0) memcpy(first, blocks, sizeof first);
        cr_assert_arr_eq(blocks, first, sizeof first, "round %d", round);
        for (int i = 0; i < COUNT; i++) {
            tshi_heap_release(&m.heap, blocks[round % 3 ? i : (i * 37) % COUNT]);
        }
        cr_assert_eq(m.heap.top, 0u);
    }
    free(m.region);
}

Test(heap, freed_bytes_serve_any_size) {
    static model m;
    model_init(&m, 1 << 16);
    void *small[16];
    for (int i = 0; i < 16; i++) small[i] = tshi_heap_alloc(&m.heap, 1000);
    void *guard = tshi_heap_alloc(&m.heap, 64);
    size_t high_water = m.heap.high_water;
    for (int i = 0; i < 16; i++) tshi_heap_release(&m.heap, small[(i * 7) % 16]);
    void *large = tshi_heap_alloc(&m.heap, 16 * 1024 + 15 * 64);
    cr_assert_eq(large, small[0], "16 neighbours became one block");
    cr_assert_eq(m.heap.high_water, high_water);
    tshi_heap_release(&m.heap, large);
    tshi_heap_release(&m.heap, guard);
    free(m.region);
}

Test(heap, an_exact_fit_is_found_within_its_class) {
    static model m;
    model_init(&m, 1 << 20);
    /* Two sizes of one class, the smaller at the lower address. */
    size_t lesser = 64 * 1025, greater = 64 * 1085;
    void *a = tshi_heap_alloc(&m.heap, lesser);
    void *wall = tshi_heap_alloc(&m.heap, 64);
    void *b = tshi_heap_alloc(&m.heap, greater);
    void *end = tshi_heap_alloc(&m.heap, 64);
    tshi_heap_release(&m.heap, a);
    tshi_heap_release(&m.heap, b);
    cr_assert_eq(tshi_heap_alloc(&m.heap, greater), b);
    cr_assert_eq(tshi_heap_alloc(&m.heap, lesser), a);
    cr_assert_not_null(wall);
    cr_assert_not_null(end);
    free(m.region);
}

Test(heap, exhaustion_returns_null_and_changes_nothing) {
    static model m;
    model_init(&m, 4096 + 32);
    cr_assert_eq(m.heap.size, (size_t)4096);
    cr_assert_null(tshi_heap_alloc(&m.heap, 4096), "the header needs room too");
    cr_assert_null(tshi_heap_alloc(&m.heap, SIZE_MAX));
    cr_assert_null(tshi_heap_alloc(&m.heap, SIZE_MAX - 63));
    cr_assert_eq(m.heap.top, 0u);
    void *p = tshi_heap_alloc(&m.heap, 4096 - 64);
    cr_assert_not_null(p);
    cr_assert_null(tshi_heap_alloc(&m.heap, 0));
    cr_assert_eq(tshi_heap_largest(&m.heap), 0u);
    tshi_heap_release(&m.heap, p);
    cr_assert_not_null(tshi_heap_alloc(&m.heap, 4096 - 64));
    free(m.region);
}

Test(heap, an_empty_region_returns_null) {
    tshi_heap heap;
    tshi_heap_init(&heap, NULL, 0);
    cr_assert_null(tshi_heap_alloc(&heap, 0));
    cr_assert_eq(tshi_heap_largest(&heap), 0u);
}

Test(heap, pages_beyond_the_blocks_stay_untouched) {
    size_t size = (size_t)1 << 40, page = 4096, window = 1 << 20;
    char *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(region, MAP_FAILED);
    tshi_heap heap;
    tshi_heap_init(&heap, region, size);
    void *a = tshi_heap_alloc(&heap, 100);
    void *b = tshi_heap_alloc(&heap, window);
    tshi_heap_release(&heap, b);
    tshi_heap_release(&heap, a);
    unsigned char resident[256];
    cr_assert_eq(mincore(region, window, resident), 0);
    size_t touched = 0;
    for (size_t i = 0; i < window / page; i++) touched += resident[i] & 1;
    cr_assert_leq(touched, 1u, "only the page of the two headers");
    munmap(region, size);
}
