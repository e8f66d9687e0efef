#include "device/free_list.h"

#define CLASS_BITS 4

typedef struct size_class {
    int level, index;
} size_class;

/* Level: the power of two; index: its sixteenth. Units below 16 have level 0 to themselves, one class each. */
static size_class class_of(size_t size) {
    uint64_t units = size / TSHI_HOLE_UNIT;
    if (units < TSHI_HOLE_CLASSES) return (size_class){0, (int)units};
    int power = 63 - __builtin_clzll(units);
    int index = (int)(units >> (power - CLASS_BITS)) - TSHI_HOLE_CLASSES;
    return (size_class){power - CLASS_BITS + 1, index};
}

void tshi_holes_add(tshi_holes *holes, tshi_hole *hole) {
    size_class c = class_of(hole->size);
    tshi_hole *previous = NULL, *next = holes->first[c.level][c.index];
    while (next && (uintptr_t)next->data < (uintptr_t)hole->data) {
        previous = next;
        next = next->next;
    }
    hole->previous = previous;
    hole->next = next;
    if (next) next->previous = hole;
    if (previous)
        previous->next = hole;
    else
        holes->first[c.level][c.index] = hole;
    holes->classes[c.level] = (uint16_t)(holes->classes[c.level] | 1u << c.index);
    holes->levels |= (uint64_t)1 << c.level;
    hole->is_free = true;
}

void tshi_holes_remove(tshi_holes *holes, tshi_hole *hole) {
    size_class c = class_of(hole->size);
    if (hole->next) hole->next->previous = hole->previous;
    if (hole->previous)
        hole->previous->next = hole->next;
    else
        holes->first[c.level][c.index] = hole->next;
    hole->previous = hole->next = NULL;
    hole->is_free = false;
    if (holes->first[c.level][c.index]) return;
    holes->classes[c.level] = (uint16_t)(holes->classes[c.level] & ~(1u << c.index));
    if (holes->classes[c.level] == 0) holes->levels &= ~((uint64_t)1 << c.level);
}

/* The first of a class above c, where every hole is large enough. */
static tshi_hole *first_above(const tshi_holes *holes, size_class c) {
    uint32_t classes = holes->classes[c.level] & (uint32_t)(0xffffffffu << (c.index + 1));
    if (classes) return holes->first[c.level][__builtin_ctz(classes)];
    uint64_t levels = holes->levels & ((~(uint64_t)0 << c.level) << 1);
    if (!levels) return NULL;
    int level = __builtin_ctzll(levels);
    return holes->first[level][__builtin_ctz(holes->classes[level])];
}

tshi_hole *tshi_holes_find(const tshi_holes *holes, size_t size) {
    size_class c = class_of(size);
    /* In its own class a hole may be a little too small; the exact fit of a repeated step is here. */
    tshi_hole *hole = holes->first[c.level][c.index];
    while (hole && hole->size < size) hole = hole->next;
    return hole ? hole : first_above(holes, c);
}

size_t tshi_holes_largest(const tshi_holes *holes) {
    size_t largest = 0;
    if (!holes->levels) return 0;
    int level = 63 - __builtin_clzll(holes->levels);
    int index = 31 - __builtin_clz(holes->classes[level]);
    for (const tshi_hole *h = holes->first[level][index]; h; h = h->next) {
        if (h->size > largest) largest = h->size;
    }
    return largest;
}
