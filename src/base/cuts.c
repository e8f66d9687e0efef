/* The table of cut points. */
#include "base/cuts.h"
#include "base/hash.h"

#include <string.h>

static uint64_t cuts_number(int parts, const int64_t *at) {
    uint64_t number = tshi_fingerprint_add(TSHI_FINGERPRINT, (uint64_t)parts);
    for (int i = 0; i <= parts; i++) number = tshi_fingerprint_add(number, (uint64_t)at[i]);
    return number ? number : 1;
}

/* The place of the number, or the place at which to insert it. */
static int cuts_place(const tshi_cut_table *table, uint64_t number) {
    int low = 0, high = table->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (table->items[middle]->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static tshi_cuts *cuts_with(const tshi_cut_table *table, uint64_t number) {
    int place = table && number ? cuts_place(table, number) : 0;
    bool found = table && place < table->count && table->items[place]->number == number;
    return found ? table->items[place] : NULL;
}

const tshi_cuts *tshi_cuts_find(const tshi_cut_table *table, uint64_t number) {
    return cuts_with(table, number);
}

tsh_status tshi_cuts_add(tshi_cut_table *table, const tsh_allocator *allocator, int parts, const int64_t *at,
                         uint64_t *number) {
    size_t size = sizeof *at * ((size_t)parts + 1);
    *number = cuts_number(parts, at);
    tshi_cuts *cuts = cuts_with(table, *number);
    if (cuts && (cuts->parts != parts || memcmp(cuts->at, at, size) != 0))
        return tshi_fail(TSH_ERR_STATE, "two different cut points have the same fingerprint: release the first ones");
    if (!cuts) {
        tsh_status status =
            tshi_grow(allocator, (void **)&table->items, &table->room, table->count + 1, sizeof(tshi_cuts *));
        if (status == TSH_OK) cuts = tshi_calloc(allocator, 1, sizeof *cuts + size);
        if (!cuts) return TSH_ERR_MEMORY;
        int place = cuts_place(table, *number);
        memmove(&table->items[place + 1], &table->items[place], sizeof(tshi_cuts *) * (size_t)(table->count++ - place));
        cuts->number = *number;
        cuts->parts = parts;
        memcpy(cuts->at, at, size);
        table->items[place] = cuts;
    }
    cuts->references++;
    cuts->created++;
    return TSH_OK;
}

void tshi_cuts_retain(tshi_cut_table *table, uint64_t number) {
    tshi_cuts *cuts = cuts_with(table, number);
    if (cuts) cuts->references++;
}

void tshi_cuts_release(tshi_cut_table *table, const tsh_allocator *allocator, uint64_t number) {
    tshi_cuts *cuts = cuts_with(table, number);
    if (!cuts || --cuts->references > 0) return;
    int place = cuts_place(table, number);
    memmove(&table->items[place], &table->items[place + 1], sizeof(tshi_cuts *) * (size_t)(--table->count - place));
    tshi_free(allocator, cuts);
}

void tshi_cuts_remove(tshi_cut_table *table, const tsh_allocator *allocator, uint64_t number) {
    tshi_cuts *cuts = cuts_with(table, number);
    if (!cuts || cuts->created == 0) return;
    cuts->created--;
    tshi_cuts_release(table, allocator, number);
}

void tshi_cuts_clear(tshi_cut_table *table, const tsh_allocator *allocator) {
    for (int i = 0; i < table->count; i++) tshi_free(allocator, table->items[i]);
    tshi_free(allocator, table->items);
    *table = (tshi_cut_table){0};
}
