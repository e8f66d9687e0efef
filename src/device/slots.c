/* The list of slots, and what a device has in them. */
#include "device/slots.h"

#include <stddef.h>
#include <string.h>

#define BY_DTYPE(table_, slot, ...)                                                                                    \
    {.table = #table_,                                                                                                 \
     .name = #slot,                                                                                                    \
     .at = offsetof(tshi_device_ops, table_),                                                                          \
     .table_bytes = sizeof(tshi_##table_##_ops),                                                                       \
     .at_in_table = offsetof(tshi_##table_##_ops, slot),                                                               \
     __VA_ARGS__},
#define KERNEL(table, slot, ...)          BY_DTYPE(table, slot, .counted = true, .timed = true)
#define OPTIONAL_KERNEL(table, slot, ...) BY_DTYPE(table, slot, .counted = true, .timed = true, .optional = true)
#define ATTENTION(slot, ...)              BY_DTYPE(attention, slot, .counted = true, .timed = true)
#define SIZE(table, slot, ...)            BY_DTYPE(table, slot, .counted = false)
#define SLOT(table_, slot, ...)                                                                                        \
    {.table = #table_, .name = #slot, .at = offsetof(tshi_device_ops, table_.slot), .counted = true, .timed = true},
#define LONE_KERNEL(name_, ...)                                                                                        \
    {.table = "", .name = #name_, .at = offsetof(tshi_device_ops, name_), .counted = true, .timed = true},
#define LONE_CHECK(name_, ...) {.table = "", .name = #name_, .at = offsetof(tshi_device_ops, name_), .counted = true},

const tshi_kernel_slot tshi_kernel_slots[] = {
#include "device/kernels.def"
};
const int tshi_kernel_slot_count = sizeof tshi_kernel_slots / sizeof *tshi_kernel_slots;

tshi_any_kernel *tshi_slot_kernel(const tshi_device_ops *ops, const tshi_kernel_slot *slot, tsh_dtype dtype) {
    tshi_any_kernel *kernel = NULL;
    const char *at = (const char *)ops + slot->at;
    if (slot->table_bytes) {
        const char *tables;
        memcpy(&tables, at, sizeof tables);
        if (!tables) return NULL;
        at = tables + (size_t)dtype * slot->table_bytes + slot->at_in_table;
    }
    memcpy(&kernel, at, sizeof kernel);
    return kernel;
}

bool tshi_table_is_filled(const tshi_device_ops *ops, const char *table, tsh_dtype dtype) {
    bool found = false;
    for (int i = 0; i < tshi_kernel_slot_count; i++) {
        const tshi_kernel_slot *slot = &tshi_kernel_slots[i];
        if (!slot->table_bytes || strcmp(slot->table, table) != 0) continue;
        found = true;
        if (!slot->optional && !tshi_slot_kernel(ops, slot, dtype)) return false;
    }
    return found;
}
