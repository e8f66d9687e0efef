// The hooks of a thread sanitizer in kernels: threads switch at accesses to memory, and races are found.
//
// Each byte has the last thread that wrote and read it, with the time: a count of barriers and blocks. A shuffle orders
// no accesses, as on a GPU. Two blocks may write the same value.
#include "standin/accesses.h"
#include "standin/launch.h"

#include <link.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t PAGE = 4096, MOST_PAGES = 4096;
constexpr unsigned MOST_BLOCKS = 500; // of a launch, on average: of larger ones some blocks are watched
constexpr uint16_t MANY = 0x400;      // threads of one block have read it since the last barrier

// Some bytes, which all accesses so far have used together.
struct cell {
    uint32_t wrote, read;    // when
    uint16_t writer, reader; // the thread
    bool elsewhere;          // another block of this launch has read it
};

struct page {
    size_t unit = 4; // bytes of a cell
    std::vector<cell> cells = std::vector<cell>(PAGE / 4);
};

// What another block has written too: it has to stay so.
struct agreed {
    const unsigned char *at;
    unsigned char value;
    unsigned block, thread;
};

struct watch {
    uint64_t random;
    uint32_t now, block, launch; // the time, and when the block and the launch began
    uint32_t calm;               // accesses until the next switch
    uint32_t mean;               // twice their mean, drawn for each block
    const char *kernel;          // NULL: none
    uintptr_t last_number;
    page *last;
    std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
    std::vector<agreed> both;
    uintptr_t shared; // where this thread has the variables of a block, which follow one another in one memory
    size_t shared_bytes;
};

thread_local watch *w;
thread_local bool inside; // of a block that is watched

struct access {
    const unsigned char *at;
    size_t size;
    bool writes, global;
};

[[noreturn]] void die(const access &a, unsigned other) {
    fprintf(stderr, "%s: block %u: a race: thread %u %s %zu bytes at %p, which thread %u", w->kernel, blockIdx.x,
            threadIdx.x, a.writes ? "writes" : "reads", a.size, (const void *)a.at, other);
    fprintf(stderr, " has used, with no barrier between\n");
    abort();
}

[[noreturn]] void die_of_blocks(const access &a) {
    fprintf(stderr, "%s: block %u: a race: thread %u %s %zu bytes at %p, which another block of the launch uses\n",
            w->kernel, blockIdx.x, threadIdx.x, a.writes ? "writes" : "reads", a.size, (const void *)a.at);
    abort();
}

void split(page *p, size_t unit) {
    std::vector<cell> parts;
    for (const cell &c : p->cells) parts.insert(parts.end(), p->unit / unit, c);
    p->cells.swap(parts);
    p->unit = unit;
}

page *page_of(uintptr_t address) {
    uintptr_t number = address / PAGE;
    if (!w->last || number != w->last_number) {
        std::unique_ptr<page> &slot = w->pages[number];
        if (!slot) slot.reset(new page());
        w->last = slot.get();
        w->last_number = number;
    }
    return w->last;
}

void read_cell(cell *c, const access &a) {
    uint16_t me = (uint16_t)threadIdx.x;
    if (c->wrote == w->now && c->writer != me) die(a, c->writer);
    if (a.global && c->wrote >= w->launch && c->wrote < w->block) die_of_blocks(a);
    if (c->read < w->launch) c->elsewhere = false;
    if (c->read >= w->launch && c->read < w->block) c->elsewhere = true;
    c->reader = c->read == w->now && c->reader != me ? MANY : me;
    c->read = w->now;
}

void write_cell(cell *c, const access &a, const unsigned char *at, size_t bytes) {
    uint16_t me = (uint16_t)threadIdx.x;
    if (c->wrote == w->now && c->writer != me) die(a, c->writer);
    if (c->read == w->now && c->reader != me) die(a, c->reader);
    if (a.global && c->read >= w->launch && (c->read < w->block || c->elsewhere)) die_of_blocks(a);
    if (a.global && c->wrote >= w->launch && c->wrote < w->block)
        for (size_t i = 0; i < bytes; i++) w->both.push_back({at + i, at[i], blockIdx.x, threadIdx.x});
    c->writer = me;
    c->wrote = w->now;
}

void look_at(const access &a) {
    uintptr_t first = (uintptr_t)a.at, bits = first | a.size;
    size_t unit = bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
    for (uintptr_t at = first; at < first + a.size;) {
        page *p = page_of(at);
        if (p->unit > unit) split(p, unit);
        cell *c = &p->cells[at % PAGE / p->unit];
        if (a.writes)
            write_cell(c, a, (const unsigned char *)at, p->unit);
        else
            read_cell(c, a);
        at += p->unit;
    }
}

void watched(const void *at, size_t size, bool writes) {
    uintptr_t place = (uintptr_t)at;
    bool shared = place - w->shared < w->shared_bytes;
    if (tshi::standin_is_private(place, shared)) return;
    look_at({(const unsigned char *)at, size, writes, !shared});
    if (w->calm-- > 0) return;
    w->calm = tshi::standin_draw(w->mean);
    tshi::standin_give_way();
}

inline void hook(const void *at, size_t size, bool writes) {
    if (__builtin_expect(inside, false)) watched(at, size, writes);
}

void check_agreed() {
    for (const agreed &a : w->both) {
        if (*a.at == a.value) continue;
        fprintf(stderr, "%s: a race: thread %u of block %u writes another value to %p than a block before\n", w->kernel,
                a.thread, a.block, (const void *)a.at);
        abort();
    }
    w->both.clear();
}

// The program itself is the first. Its thread-local variables are those of kernels, or of the stand-in.
int find_shared(struct dl_phdr_info *about, size_t, void *) {
    w->shared = (uintptr_t)about->dlpi_tls_data;
    for (int i = 0; i < about->dlpi_phnum; i++)
        if (about->dlpi_phdr[i].p_type == PT_TLS) w->shared_bytes = about->dlpi_phdr[i].p_memsz;
    return 1;
}

} // namespace

namespace tshi {

uint64_t standin_seed() {
    static const uint64_t seed = [] {
        const char *text = getenv("TSHARD_TEST_SEED");
        return text ? strtoull(text, nullptr, 10) : 0;
    }();
    return seed;
}

uint32_t standin_draw(uint32_t limit) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 32) * limit >> 32);
}

void standin_accesses_launch(const char *kernel) {
    if (standin_seed() == 0) return;
    if (!w) {
        w = new watch();
        w->random = standin_seed() * 0x9E3779B97F4A7C15u | 1;
        dl_iterate_phdr(find_shared, nullptr);
    }
    if (!kernel) check_agreed();
    inside = false;
    w->kernel = kernel;
    w->launch = w->now + 1;
    if (w->pages.size() < MOST_PAGES) return;
    w->pages.clear();
    w->last = nullptr;
}

void standin_accesses_block() {
    if (!w || !w->kernel) return;
    inside = standin_draw(gridDim.x) < MOST_BLOCKS;
    w->block = ++w->now;
    w->mean = 2u << 2 * standin_draw(4); // from the next access to the 64th on average
    w->calm = standin_draw(w->mean);
}

void standin_accesses_barrier() {
    if (inside) w->now++;
}

} // namespace tshi

// The names that the compiler calls.
extern "C" {
#define HOOKS(SIZE)                                                                                                    \
    void __tsan_read##SIZE(void *at) {                                                                                 \
        hook(at, SIZE, false);                                                                                         \
    }                                                                                                                  \
    void __tsan_write##SIZE(void *at) {                                                                                \
        hook(at, SIZE, true);                                                                                          \
    }                                                                                                                  \
    void __tsan_unaligned_read##SIZE(void *at) {                                                                       \
        hook(at, SIZE, false);                                                                                         \
    }                                                                                                                  \
    void __tsan_unaligned_write##SIZE(void *at) {                                                                      \
        hook(at, SIZE, true);                                                                                          \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *at, size_t size) {
    hook(at, size, false);
}
void __tsan_write_range(void *at, size_t size) {
    hook(at, size, true);
}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
}
