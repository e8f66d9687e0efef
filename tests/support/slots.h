/* What every device's table of kernels is checked for, slot by slot. */
#ifndef TEST_SLOTS_H
#define TEST_SLOTS_H

#include "device/slots.h"

#include <criterion/criterion.h>

/* A dtype for which the slot is looked at: all that it may have, or only the first for a slot that serves all. */
static inline bool is_slot_dtype(const tshi_kernel_slot *slot, int dtype) {
    return slot->table_bytes ? dtype < TSH_DTYPE_COUNT : dtype == 0;
}

/* Every required slot is filled for the dtypes that the device computes with, and no slot for others. */
static inline void expect_filled_slots(const tshi_device_ops *ops) {
    for (int i = 0; i < tshi_kernel_slot_count; i++) {
        const tshi_kernel_slot *slot = &tshi_kernel_slots[i];
        for (int d = 0; is_slot_dtype(slot, d); d++) {
            const bool filled = tshi_slot_kernel(ops, slot, (tsh_dtype)d) != NULL;
            const bool required = !slot->table_bytes || ops->computes >> d & 1;
            cr_expect(filled == required || (required && slot->optional), "%s of %s: %s.%s is %s", ops->name,
                      tsh_dtype_name((tsh_dtype)d), slot->table, slot->name, filled ? "filled" : "NULL");
        }
    }
}

/* `other` replaces the kernels of `own` for a dry run, or for a trace: a slot is NULL where it is in `own`, and
 * otherwise another function, unless the dry run or the trace leaves it. */
static inline void expect_replaced_slots(const tshi_device_ops *own, const tshi_device_ops *other, bool trace) {
    for (int i = 0; i < tshi_kernel_slot_count; i++) {
        const tshi_kernel_slot *slot = &tshi_kernel_slots[i];
        const bool replaced = trace ? slot->timed : slot->counted;
        for (int d = 0; is_slot_dtype(slot, d); d++) {
            tshi_any_kernel *before = tshi_slot_kernel(own, slot, (tsh_dtype)d),
                            *after = tshi_slot_kernel(other, slot, (tsh_dtype)d);
            cr_expect_eq(!before, !after, "%s.%s of %s is %s", slot->table, slot->name, tsh_dtype_name((tsh_dtype)d),
                         after ? "new" : "lost");
            cr_expect(!before || (before != after) == replaced, "%s.%s of %s is %s", slot->table, slot->name,
                      tsh_dtype_name((tsh_dtype)d), replaced ? "the device's own" : "not the device's own");
        }
    }
}

#endif
