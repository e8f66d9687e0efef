/* The model of a step's time: a record of what a rank does in a step, and a machine, give seconds. Pure arithmetic. */
#ifndef TOOLS_STEP_TIME_H
#define TOOLS_STEP_TIME_H

#include "common/machine.h"
#include "device/record.h"

/* Parts of a step, seconds. */
typedef struct step_time {
    double products, attention, kernels, calls; /* calls: the host's time for all of them */
    double exposed, hidden; /* communication that the rank waits for; that goes on while it computes */
    double all;             /* the step: the sum of the above but for what is hidden */
    char missing[96];       /* the first work that the machine has no rate for, or empty */
} step_time;

/* Collectives that are started early are hidden behind what backward computes, where their network overlaps: all but
 * the last one, which is started when backward has computed everything. */
void step_time_of(const machine *m, const tshi_record *record, step_time *out);

/* Seconds of one call of a record, in a step that works through `working_set` bytes; 0 where the machine has no rate
 * for it. */
double step_call_seconds(const machine *m, const tshi_record_entry *entry, double working_set);

/* The form of a product by how its operands are stored (forward, dx, dw), and its sizes as a linear layer's: X [m, k],
 * W [n, k], Y [m, n]. */
const char *step_product_form(const tshi_record_call *product, double sizes[MACHINE_AXES]);

/* What a collective of `ranks` multiplies bytes and latency by: the bytes that a rank's link carries of the whole's, as
 * nccl-tests count them, and the messages that follow one another. */
double step_bus_factor(const char *collective, int ranks);
double step_rounds(const char *collective, int ranks);

#endif
