/* The kernels of a traced device, made from device/kernels.def: each is an event around the device's own kernel. */
#include "device/plan/costs.h"
#include "device/plan/plan.h"
#include "device/trace.h"

#include <string.h>

static tshi_trace_event *open_event(tsh_device *device, tshi_trace_kind kind, const char *name) {
    uint32_t number = tshi_trace_name(device->trace, name);
    tshi_trace_event *event = tshi_trace_open(device->trace, kind);
    event->name = number;
    event->flags = device->place.backward ? TSHI_TRACE_BACKWARD : 0;
    return event;
}

static tshi_trace_event *open_kernel(tsh_device *device, const char *family, uint64_t bytes) {
    tshi_trace_event *event = open_event(device, TSHI_TRACE_KERNEL, family);
    event->a = (int64_t)bytes;
    return event;
}

/* A batch is an event with the rows of all its products. */
static tshi_trace_event *open_product(tsh_device *device, int64_t count, bool transpose_a, bool transpose_b, int64_t m,
                                      int64_t n, int64_t k) {
    tshi_trace_event *event = open_event(device, TSHI_TRACE_PRODUCT, "product");
    event->a = count * m;
    event->b = n;
    event->c = k;
    return event;
}

/* --- the functions ------------------------------------------------------------------------------------------------ */

/* RUN calls the device's own kernel, whose place in the table is `slot`. */
#define RUN(slot, arguments) tshi_inner_ops(device)->slot(device, LIST arguments)

#define TIMED_KERNEL(of, table, slot, name, parameters, arguments, bytes)                                              \
    static void timed_##table##_##slot##_##of(tsh_device *device, LIST parameters) {                                   \
        const tsh_dtype dtype = of;                                                                                    \
        tshi_trace_event *event = open_kernel(device, #name, bytes);                                                   \
        RUN(table[dtype].slot, arguments);                                                                             \
        tshi_trace_close(event);                                                                                       \
    }
#define KERNEL(table, slot, name, parameters, arguments, bytes)                                                        \
    EACH_FLOAT(TIMED_KERNEL, table, slot, name, parameters, arguments, bytes)

/* The event is opened after the kernel has run: a refused call leaves no event, and the kernels that the caller then
 * uses record theirs. */
#define TIMED_OPTIONAL(of, table, slot, name, parameters, arguments, bytes)                                            \
    static bool timed_##table##_##slot##_##of(tsh_device *device, LIST parameters) {                                   \
        const tsh_dtype dtype = of;                                                                                    \
        const uint64_t begin = tshi_ticks();                                                                           \
        const bool done = RUN(table[dtype].slot, arguments);                                                           \
        if (done) {                                                                                                    \
            tshi_trace_event *event = open_kernel(device, #name, bytes);                                               \
            event->begin = begin;                                                                                      \
            tshi_trace_close(event);                                                                                   \
        }                                                                                                              \
        return done;                                                                                                   \
    }
#define OPTIONAL_KERNEL(table, slot, name, parameters, arguments, bytes)                                               \
    EACH_FLOAT(TIMED_OPTIONAL, table, slot, name, parameters, arguments, bytes)

#define TIMED_ATTENTION(of, slot, name, parameters, arguments)                                                         \
    static void timed_attention_##slot##_##of(tsh_device *device, LIST parameters) {                                   \
        tshi_trace_event *event = open_event(device, TSHI_TRACE_KERNEL, #name);                                        \
        RUN(attention[of].slot, arguments);                                                                            \
        tshi_trace_close(event);                                                                                       \
    }
#define ATTENTION(slot, name, parameters, arguments, back)                                                             \
    EACH_FLOAT(TIMED_ATTENTION, slot, name, parameters, arguments)

#define PRODUCT(slot, parameters, arguments, shape, rows, also)                                                        \
    static tsh_status timed_product_##slot(tsh_device *device, LIST parameters) {                                      \
        tshi_trace_event *event = open_product(device, LIST shape);                                                    \
        tsh_status status = RUN(product.slot, arguments);                                                              \
        tshi_trace_close(event);                                                                                       \
        return status;                                                                                                 \
    }

#define TIMED(function, family, place, parameters, arguments, bytes_moved)                                             \
    static void function(tsh_device *device, LIST parameters) {                                                        \
        tshi_trace_event *event = open_kernel(device, family, bytes_moved);                                            \
        RUN(place, arguments);                                                                                         \
        tshi_trace_close(event);                                                                                       \
    }
#define MIXED(table, slot, name, parameters, arguments, of, bytes)                                                     \
    TIMED(timed_##table##_##slot, #table, table.slot, parameters, arguments, bytes)
#define COPY(slot, name, family, parameters, arguments, of, source, bytes_moved)                                       \
    TIMED(timed_copy_##slot, #family, copy.slot, parameters, arguments, bytes_moved)
#define LONE_KERNEL(name, parameters, arguments, of, bytes)                                                            \
    TIMED(timed_##name, #name, name, parameters, arguments, bytes)

#define LONE_CHECK(name, parameters)

#include "device/kernels.def"

/* --- the tables --------------------------------------------------------------------------------------------------- */

#define SET(filled, place, function)      place = (filled) ? function : NULL;
#define SET_FLOAT(d, table, slot)         SET(own->table[d].slot, p->tables.table[d].slot, timed_##table##_##slot##_##d)
#define KERNEL(table, slot, ...)          EACH_FLOAT(SET_FLOAT, table, slot)
#define OPTIONAL_KERNEL(table, slot, ...) EACH_FLOAT(SET_FLOAT, table, slot)
#define ATTENTION(slot, ...)              EACH_FLOAT(SET_FLOAT, attention, slot)
#define SIZE(table, slot, ...)
#define LONE_CHECK(name, ...)
#define SLOT(table, slot, ...) SET(own->table.slot, p->ops.table.slot, timed_##table##_##slot)
#define LONE(name, ...)        SET(own->name, p->ops.name, timed_##name)
#define FLOAT_TABLE(table)                                                                                             \
    memcpy(p->tables.table, own->table, sizeof p->tables.table);                                                       \
    p->ops.table = p->tables.table;

void tshi_timed_kernels(tshi_planned *p, const tshi_device_ops *own) {
    p->ops = *own;
    p->inner = own;
#include "device/kernels.def"
}
