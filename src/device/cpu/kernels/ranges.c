/* The tables of kernels in ranges, made from device/kernels.def: a function for each dtype. */
#include "device/cpu/kernels/ranges.h"

#define RANGES(of, table, slot, parameters, arguments)                                                                 \
    static void table##_##slot##_##of(tsh_device *device, LIST parameters) {                                           \
        tshi_cpu_##table##_##slot(device, of, LIST arguments);                                                         \
    }
#define KERNEL(table, slot, name, parameters, arguments, ...) EACH_FLOAT(RANGES, table, slot, parameters, arguments)
#define ATTENTION(slot, name, parameters, arguments, ...)     KERNEL(attention, slot, name, parameters, arguments)
#define WHOLE_KERNEL(...)
#include "device/kernels.def"

#define SET(of, table, slot)              tables->table[of].slot = table##_##slot##_##of;
#define SET_ISA(of, table, slot)          tables->table[of].slot = isa->table[of].slot;
#define SET_SIZE(of, table, slot)         tables->table[of].slot = tshi_cpu_##table##_##slot;
#define KERNEL(table, slot, ...)          EACH_FLOAT(SET, table, slot)
#define ATTENTION(slot, ...)              EACH_FLOAT(SET, attention, slot)
#define WHOLE_KERNEL(table, slot, ...)    EACH_FLOAT(SET_ISA, table, slot)
#define OPTIONAL_KERNEL(table, slot, ...) EACH_FLOAT(SET_ISA, table, slot)
#define SIZE(table, slot, ...)            EACH_FLOAT(SET_SIZE, table, slot)

void tshi_cpu_ranges(const tshi_isa *isa, tshi_float_tables *tables) {
#include "device/kernels.def"
}
