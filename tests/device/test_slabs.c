/* The allocator over slabs against a plain model: which bytes are live. */
#include "device/slabs.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

TestSuite(slabs, .timeout = 120);

#define REGION ((size_t)1 << 20)
#define SLOTS  300

typedef struct slot {
    unsigned char *data;
    size_t size;
    unsigned char mark;
} slot;

typedef struct model {
    tsh_allocator allocator;
    tshi_slab_index index;
    tshi_slabs slabs;
    char *region;
    size_t size;
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
    m->size = size;
    m->allocator = tshi_allocator_resolve(NULL);
    m->index.allocator = &m->allocator;
    cr_assert_eq(tshi_slabs_add(&m->slabs, &m->index, m->region, size), TSH_OK);
}

static void model_free(model *m) {
    tshi_slabs_clear(&m->slabs, &m->index);
    tshi_slab_index_clear(&m->index);
    free(m->region);
}

static void *take(model *m, size_t size) {
    bool failed;
    tshi_slab_block *block = tshi_slabs_alloc(&m->slabs, &m->index, tshi_units(size, TSHI_BLOCK_UNIT), &failed);
    cr_assert_not(failed);
    return block ? block->data : NULL;
}

static void give(model *m, void *data) {
    tshi_slab_block *block = tshi_slab_index_take(&m->index, data);
    cr_assert_not_null(block);
    tshi_slabs_release(&m->index, block);
}

/* All memory is one free block again. */
static void expect_whole(const model *m) {
    cr_assert_eq(tshi_slabs_largest(&m->slabs), m->size);
    cr_assert_eq(m->index.in_use, 0u);
}

static void check_marks(const slot *s) {
    for (size_t i = 0; i < s->size; i++) cr_assert_eq(s->data[i], s->mark, "a live block was overwritten");
}

static void release(model *m, slot *s) {
    check_marks(s);
    give(m, s->data);
    s->data = NULL;
}

static bool fill(model *m, slot *s, size_t size) {
    s->data = take(m, size);
    if (!s->data) return false;
    s->size = size;
    s->mark = (unsigned char)next_random(m);
    cr_assert_eq((uintptr_t)s->data % 64, 0u);
    cr_assert_geq((char *)s->data, m->region);
    cr_assert_leq((char *)s->data + size, m->region + m->size);
    memset(s->data, s->mark, size);
    return true;
}

static size_t random_size(model *m) {
    size_t limit = (size_t)1 << next_random(m) % 17;
    return next_random(m) % (limit + 1);
}

Test(slabs, random_use_never_overlaps_and_merges_back_to_nothing) {
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
    expect_whole(&m);
    cr_assert_not_null(take(&m, REGION));
    model_free(&m);
}

Test(slabs, the_same_calls_return_the_same_addresses) {
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
    model_free(&a);
    model_free(&b);
}

/* The order in which blocks come back leaves no trace. */
Test(slabs, addresses_depend_on_the_live_blocks_alone) {
    enum { COUNT = 64 };
    static model m;
    model_init(&m, REGION);
    void *blocks[COUNT], *first[COUNT];
    size_t sizes[COUNT];
    for (int i = 0; i < COUNT; i++) sizes[i] = 64 + random_size(&m) % 4096;
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < COUNT; i++) blocks[i] = take(&m, sizes[i]);
        for (int i = 0; i < COUNT; i += 2) {
            int k = round % 2 ? COUNT - 2 - i : i;
            give(&m, blocks[k]);
        }
        for (int i = 0; i < COUNT; i += 2) blocks[i] = take(&m, sizes[COUNT - 2 - i]);
        if (round == 0) memcpy(first, blocks, sizeof first);
        cr_assert_arr_eq(blocks, first, sizeof first, "round %d", round);
        for (int i = 0; i < COUNT; i++) {
            give(&m, blocks[round % 3 ? i : (i * 37) % COUNT]);
        }
        expect_whole(&m);
    }
    model_free(&m);
}

Test(slabs, freed_bytes_serve_any_size) {
    static model m;
    model_init(&m, 1 << 16);
    void *small[16];
    for (int i = 0; i < 16; i++) small[i] = take(&m, 1000);
    void *guard = take(&m, 64);
    for (int i = 0; i < 16; i++) give(&m, small[(i * 7) % 16]);
    void *large = take(&m, 16 * 1024);
    cr_assert_eq(large, small[0], "16 neighbours became one block");
    give(&m, large);
    give(&m, guard);
    model_free(&m);
}

Test(slabs, an_exact_fit_is_found_within_its_class) {
    static model m;
    model_init(&m, 1 << 20);
    /* Two sizes of one class, the smaller at the lower address. */
    size_t lesser = 64 * 1025, greater = 64 * 1085;
    void *a = take(&m, lesser);
    void *wall = take(&m, 64);
    void *b = take(&m, greater);
    void *end = take(&m, 64);
    give(&m, a);
    give(&m, b);
    cr_assert_eq(take(&m, greater), b);
    cr_assert_eq(take(&m, lesser), a);
    cr_assert_not_null(wall);
    cr_assert_not_null(end);
    model_free(&m);
}

Test(slabs, exhaustion_returns_null_and_changes_nothing) {
    static model m;
    model_init(&m, 4096);
    cr_assert_null(take(&m, 4097));
    expect_whole(&m);
    void *p = take(&m, 4096);
    cr_assert_not_null(p);
    cr_assert_null(take(&m, 0));
    cr_assert_eq(tshi_slabs_largest(&m.slabs), 0u);
    give(&m, p);
    cr_assert_not_null(take(&m, 4096));
    model_free(&m);
}

Test(slabs, memory_is_not_touched) {
    size_t size = (size_t)1 << 40, page = 4096, window = 1 << 20;
    static model m;
    model_init(&m, 64);
    model_free(&m);
    m.region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(m.region, MAP_FAILED);
    cr_assert_eq(tshi_slabs_add(&m.slabs, &m.index, m.region, size), TSH_OK);
    void *a = take(&m, 100), *b = take(&m, window);
    give(&m, b);
    give(&m, a);
    unsigned char resident[256];
    cr_assert_eq(mincore(m.region, window, resident), 0);
    for (size_t i = 0; i < window / page; i++) cr_assert_eq(resident[i] & 1, 0);
    munmap(m.region, size);
    m.region = NULL;
    model_free(&m);
}
