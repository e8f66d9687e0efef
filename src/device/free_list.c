#include "device/free_list.h"

#define CLASS_BITS 4

typedef struct size_class {
    int level, index;
} size_class;

/* Level: the power of two; index: its sixteenth. Units below 16 have level 0 to themselves, one class each. */
static size_class class_of(size_t size) {
    uint64_t units = size / TSHI_RANGE_UNIT;
    if (units < TSHI_FREE_CLASSES) return (size_class){0, (int)units};
    int power = 63 - __builtin_clzll(units);
    int index = (int)(units >> (power - CLASS_BITS)) - TSHI_FREE_CLASSES;
    return (size_class){power - CLASS_BITS + 1, index};
}

void tshi_free_list_add(tshi_free_list *list, tshi_range *range) {
    size_class c = class_of(range->size);
    tshi_range *previous = NULL, *next = list->first[c.level][c.index];
    while (next && (uintptr_t)next->data < (uintptr_t)range->data) {
        previous = next;
        next = next->next;
    }
    range->previous = previous;
    range->next = next;
    if (next) next->previous = range;
    if (previous)
        previous->next = range;
    else
        list->first[c.level][c.index] = range;
    list->classes[c.level] = (uint16_t)(list->classes[c.level] | 1u << c.index);
    list->levels |= (uint64_t)1 << c.level;
    range->is_free = true;
}

void tshi_free_list_remove(tshi_free_list *list, tshi_range *range) {
    size_class c = class_of(range->size);
    if (range->next) range->next->previous = range->previous;
    if (range->previous)
        range->previous->next = range->next;
    else
        list->first[c.level][c.index] = range->next;
    range->previous = range->next = NULL;
    range->is_free = false;
    if (list->first[c.level][c.index]) return;
    list->classes[c.level] = (uint16_t)(list->classes[c.level] & ~(1u << c.index));
    if (list->classes[c.level] == 0) list->levels &= ~((uint64_t)1 << c.level);
}

void tshi_free_list_change(tshi_free_list *list, tshi_range *range, char *data, size_t size) {
    size_class now = class_of(range->size), then = class_of(size);
    bool stays = now.level == then.level && now.index == then.index;
    if (!stays) tshi_free_list_remove(list, range);
    range->data = data;
    range->size = size;
    if (!stays) tshi_free_list_add(list, range);
}

/* The first of a class above c, in which every range is large enough. */
static tshi_range *first_above(const tshi_free_list *list, size_class c) {
    uint32_t classes = list->classes[c.level] & (uint32_t)(0xffffffffu << (c.index + 1));
    if (classes) return list->first[c.level][__builtin_ctz(classes)];
    uint64_t levels = list->levels & ((~(uint64_t)0 << c.level) << 1);
    if (!levels) return NULL;
    int level = __builtin_ctzll(levels);
    return list->first[level][__builtin_ctz(list->classes[level])];
}

tshi_range *tshi_free_list_find(const tshi_free_list *list, size_t size) {
    size_class c = class_of(size);
    /* A range of the size's own class may be a little too small; the exact fit of a repeated step is in it. */
    tshi_range *range = list->first[c.level][c.index];
    while (range && range->size < size) range = range->next;
    return range ? range : first_above(list, c);
}

size_t tshi_free_list_largest(const tshi_free_list *list) {
    size_t largest = 0;
    if (!list->levels) return 0;
    int level = 63 - __builtin_clzll(list->levels);
    int index = 31 - __builtin_clz(list->classes[level]);
    for (const tshi_range *h = list->first[level][index]; h; h = h->next) {
        if (h->size > largest) largest = h->size;
    }
    return largest;
}
