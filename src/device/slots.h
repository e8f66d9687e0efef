/* The slots of a device's table that hold kernels, as device/kernels.def lists them. */
#ifndef TSHI_SLOTS_H
#define TSHI_SLOTS_H

#include "device/device.h"

typedef struct tshi_kernel_slot {
    const char *table, *name; /* table: "" outside tables */
    size_t at;                /* in tshi_device_ops: of the slot, or of the pointer to the tables by dtype */
    size_t table_bytes;       /* of a dtype's table; 0: the slot serves all dtypes */
    size_t at_in_table;       /* of the slot in a dtype's table */
    bool optional;            /* NULL on a device that lacks the kernel */
    bool counted, timed;      /* the dry run, and the trace, have a function of their own for it */
} tshi_kernel_slot;

extern const tshi_kernel_slot tshi_kernel_slots[];
extern const int tshi_kernel_slot_count;

/* What the slot holds; a slot that serves all dtypes ignores the dtype. */
typedef void tshi_any_kernel(void);
tshi_any_kernel *tshi_slot_kernel(const tshi_device_ops *ops, const tshi_kernel_slot *slot, tsh_dtype dtype);

/* True when no required slot of the table is NULL for the dtype; false for a table that is not by dtype. */
bool tshi_table_is_filled(const tshi_device_ops *ops, const char *table, tsh_dtype dtype);

#endif
