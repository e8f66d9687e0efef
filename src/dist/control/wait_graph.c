/* Rows of the wait graph, the ends of its chains, and its cycles. */
#include "dist/control/wait_graph.h"
#include "dist/world.h"

#include <stdio.h>
#include <string.h>

#define BITS 64u
/* A row, in 64-bit words:
 *
 *   words_of(size)   one bit for each rank waited for
 *   1                the stamp: bits 32..63 number the waits, bits 2..31 the publications of this wait,
 *                    bit 1: the call's text follows, bit 0: the wait stands (tshi_waits.stands)
 *   CALL_WORDS       the call's text */
#define ONE_WAIT        (UINT64_C(1) << 32)
#define ONE_PUBLICATION UINT64_C(4)
#define CALL_BYTES      160
#define CALL_WORDS      (CALL_BYTES / sizeof(uint64_t))
#define EXTRA           (1 + CALL_WORDS)

static size_t words_of(int size) {
    return ((size_t)size + BITS - 1) / BITS;
}

size_t tshi_waits_bytes(int size) {
    return (size_t)size * (words_of(size) + EXTRA) * sizeof(uint64_t);
}

tsh_status tshi_waits_open(tsh_world *world, tshi_waits *waits, void *rows) {
    const tsh_allocator *allocator = &world->allocator;
    size_t words = words_of(world->size);
    *waits = (tshi_waits){.rank = world->rank, .size = world->size, .words = words, .rows = rows};
    waits->mine = tshi_calloc(allocator, 2 * words, sizeof *waits->mine);
    waits->process = tshi_calloc(allocator, (size_t)world->size, sizeof *waits->process);
    waits->before = tshi_calloc(allocator, (size_t)world->size, sizeof *waits->before);
    waits->next = tshi_calloc(allocator, (size_t)world->size, sizeof *waits->next);
    if (!waits->mine || !waits->process || !waits->before || !waits->next) return TSH_ERR_MEMORY;
    waits->seen = waits->mine + words;
    return TSH_OK;
}

void tshi_waits_close(tsh_world *world, tshi_waits *waits) {
    tshi_free(&world->allocator, waits->mine);
    tshi_free(&world->allocator, waits->process);
    tshi_free(&world->allocator, waits->before);
    tshi_free(&world->allocator, waits->next);
    *waits = (tshi_waits){0};
}

static bool has(const uint64_t *set, int rank) {
    return set[(size_t)rank / BITS] >> ((unsigned)rank % BITS) & 1;
}

static void put(uint64_t *set, int rank) {
    set[(size_t)rank / BITS] |= UINT64_C(1) << ((unsigned)rank % BITS);
}

static _Atomic uint64_t *row_of(const tshi_waits *waits, int rank) {
    return waits->rows + (size_t)rank * (waits->words + EXTRA);
}

static _Atomic uint64_t *stamp_of(const tshi_waits *waits, int rank) {
    return row_of(waits, rank) + waits->words;
}

/* --- this rank's row ---------------------------------------------------------------------------------------------- */

void tshi_waits_begin(tshi_waits *waits, uint64_t awaited) {
    if (waits->awaited != awaited) tshi_waits_end(waits);
    waits->awaited = awaited;
    memset(waits->mine, 0, waits->words * sizeof *waits->mine);
    waits->stands = waits->said = false;
}

void tshi_waits_say(tshi_waits *waits, const char *call, bool stands) {
    uint64_t words[CALL_WORDS] = {0};
    waits->stands = stands;
    waits->said = true;
    if (!waits->rows) return;
    size_t length = strnlen(call, CALL_BYTES - 1);
    memcpy(words, call, length);
    _Atomic uint64_t *to = stamp_of(waits, waits->rank) + 1;
    for (size_t k = 0; k < CALL_WORDS; k++) atomic_store_explicit(&to[k], words[k], memory_order_relaxed);
}

void tshi_waits_add(tshi_waits *waits, int rank) {
    if (rank != waits->rank) put(waits->mine, rank);
}

void tshi_waits_publish(tshi_waits *waits) {
    if (!waits->rows) return;
    _Atomic uint64_t *row = row_of(waits, waits->rank), *stamp = stamp_of(waits, waits->rank);
    for (size_t k = 0; k < waits->words; k++) atomic_store_explicit(&row[k], waits->mine[k], memory_order_release);
    waits->published = true;
    uint64_t published = atomic_load(stamp) / ONE_PUBLICATION + 1;
    atomic_store(stamp, published * ONE_PUBLICATION + (waits->said ? 2 : 0) + (waits->stands ? 1 : 0));
}

void tshi_waits_end(tshi_waits *waits) {
    if (!waits->published) return;
    _Atomic uint64_t *row = row_of(waits, waits->rank), *stamp = stamp_of(waits, waits->rank);
    atomic_store(stamp, (atomic_load(stamp) / ONE_WAIT + 1) * ONE_WAIT); /* before the row of the next wait */
    for (size_t k = 0; k < waits->words; k++) atomic_store_explicit(&row[k], 0, memory_order_release);
    waits->published = false;
}

void tshi_waits_leave(tshi_waits *waits) {
    waits->published = false;
}

/* --- chains ------------------------------------------------------------------------------------------------------- */

/* Adds the ranks of a row to `set`; true if any of them is new. */
static bool add_row(const tshi_waits *waits, int rank, uint64_t *set) {
    const _Atomic uint64_t *row = row_of(waits, rank);
    bool grows = false;
    for (size_t k = 0; k < waits->words; k++) {
        uint64_t bits = atomic_load_explicit(&row[k], memory_order_relaxed);
        grows = grows || bits & ~set[k];
        set[k] |= bits;
    }
    return grows;
}

static bool is_waiting(const tshi_waits *waits, int rank) {
    const _Atomic uint64_t *row = row_of(waits, rank);
    for (size_t k = 0; k < waits->words; k++) {
        if (atomic_load_explicit(&row[k], memory_order_relaxed)) return true;
    }
    return false;
}

/* Fills waits->seen with all ranks that this rank waits for, directly or through other ranks. */
static void follow(const tshi_waits *waits) {
    memcpy(waits->seen, waits->mine, waits->words * sizeof *waits->seen);
    for (bool grows = true; grows;) {
        grows = false;
        for (int i = 0; i < waits->size; i++) {
            if (i != waits->rank && has(waits->seen, i)) grows = add_row(waits, i, waits->seen) || grows;
        }
    }
}

/* /proc/PID/stat: the state follows the name, which is in parentheses and may itself contain any character. */
bool tshi_process_stopped(int process) {
    char path[64], text[512] = "";
    if (process <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *name_end = n > 0 ? strrchr(text, ')') : NULL;
    return name_end && (!strncmp(name_end, ") T", 3) || !strncmp(name_end, ") t", 3));
}

/* Appends "rank 1" to an empty text, ", 1" to others. */
static void say_rank(char *text, size_t size, int rank) {
    tshi_append(text, size, "%s%d", text[0] ? ", " : "rank ", rank);
}

bool tshi_waits_name(const tshi_waits *waits, char *ranks, size_t size, char *stopped, size_t stopped_size) {
    ranks[0] = stopped[0] = '\0';
    if (waits->rows) follow(waits);
    for (int i = 0; waits->rows && i < waits->size; i++) {
        if (i == waits->rank || !has(waits->seen, i) || !tshi_process_stopped(waits->process[i])) continue;
        say_rank(ranks, size, i);
        tshi_append(stopped, stopped_size, "; rank %d is stopped", i);
    }
    for (int i = 0; waits->rows && !stopped[0] && i < waits->size; i++) {
        bool ends = i != waits->rank && has(waits->seen, i) && !is_waiting(waits, i);
        if (ends) say_rank(ranks, size, i);
    }
    if (ranks[0]) return true;
    for (int i = 0; i < waits->size; i++) {
        if (has(waits->mine, i)) say_rank(ranks, size, i);
    }
    return false;
}

bool tshi_waits_call(const tshi_waits *waits, int rank, char *text, size_t size) {
    uint64_t words[CALL_WORDS];
    text[0] = '\0';
    if (!waits->rows || !is_waiting(waits, rank) || !(atomic_load(stamp_of(waits, rank)) & 2)) return false;
    const _Atomic uint64_t *from = stamp_of(waits, rank) + 1;
    for (size_t k = 0; k < CALL_WORDS; k++) words[k] = atomic_load_explicit(&from[k], memory_order_relaxed);
    snprintf(text, size, "%.*s", (int)CALL_BYTES - 1, (const char *)words);
    return text[0] != '\0';
}

/* A rank in waits->seen for which `rank` has waited ever since `before` was read, or -1. Ever since: the stamps agree
 * on the wait, it stood both times, and `rank` has published its row at least twice in between, so the row is newer. */
static int waits_for(const tshi_waits *waits, int rank) {
    uint64_t stamp = atomic_load(stamp_of(waits, rank)), before = waits->before[rank], bits = 0;
    size_t k = 0;
    if (!(stamp & before & 1) || stamp / ONE_WAIT != before / ONE_WAIT || stamp - before < 2 * ONE_PUBLICATION)
        return -1;
    for (; !bits && k < waits->words; k++) {
        bits = atomic_load_explicit(&row_of(waits, rank)[k], memory_order_acquire) & waits->seen[k];
    }
    if (!bits || atomic_load(stamp_of(waits, rank)) != stamp) return -1;
    return (int)((k - 1) * BITS) + __builtin_ctzll(bits);
}

/* Follows the waits backwards from this rank, and returns true if they lead back to it. Each of those waits has stood
 * since `before` was read: at that time the whole cycle existed, so none of its waits can end. Looks forwards first:
 * that way only the rows of a few ranks are read, and most often it ends there. */
static bool find_cycle(tshi_waits *waits) {
    follow(waits);
    if (!has(waits->seen, waits->rank)) return false;
    memset(waits->seen, 0, waits->words * sizeof *waits->seen);
    put(waits->seen, waits->rank);
    for (bool grows = true; grows;) {
        grows = false;
        for (int i = 0; i < waits->size; i++) {
            int next = has(waits->seen, i) ? -1 : waits_for(waits, i);
            if (next < 0) continue;
            put(waits->seen, i);
            waits->next[i] = next;
            grows = true;
        }
    }
    waits->next[waits->rank] = waits_for(waits, waits->rank);
    return waits->next[waits->rank] >= 0;
}

bool tshi_waits_cycle(tshi_waits *waits, char *text, size_t size) {
    char call[CALL_BYTES];
    if (!waits->rows || !waits->published) return false;
    if (!find_cycle(waits)) {
        /* At publication 2, 4, 8, ... of this wait: the growing interval lets ever slower ranks publish twice in it. */
        uint64_t publishes = atomic_load(stamp_of(waits, waits->rank)) % ONE_WAIT / ONE_PUBLICATION;
        for (int i = 0; (publishes & (publishes - 1)) == 0 && i < waits->size; i++)
            waits->before[i] = atomic_load(stamp_of(waits, i));
        return false;
    }
    int first = waits->rank;
    for (int i = waits->next[first]; i != waits->rank; i = waits->next[i]) first = i < first ? i : first;
    snprintf(text, size, "ranks wait for each other");
    for (int i = first, n = 0; n == 0 || i != first; i = waits->next[i], n++) {
        tshi_waits_call(waits, i, call, sizeof call);
        tshi_append(text, size, "%s rank %d in %s", n ? "," : ":", i, call);
    }
    return true;
}
