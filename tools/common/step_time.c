#include "common/step_time.h"

#include <math.h>
#include <string.h>

/* --- communication ------------------------------------------------------------------------------------------------ */

static bool is_one_of(const char *text, const char *const *words) {
    while (*words && strcmp(text, *words)) words++;
    return *words != NULL;
}

double step_bus_factor(const char *collective, int ranks) {
    static const char *const whole[] = {"broadcast", "reduce", "send", "recv", NULL};
    double p = ranks;
    if (ranks < 2 || !strcmp(collective, "barrier")) return 0;
    if (is_one_of(collective, whole)) return 1;
    if (!strcmp(collective, "send_recv")) return 2;
    return (strcmp(collective, "all_reduce") ? 1 : 2) * (p - 1) / p;
}

double step_rounds(const char *collective, int ranks) {
    static const char *const messages[] = {"send", "recv", NULL}, *const both_ways[] = {"all_reduce", "send_recv",
                                                                                        NULL};
    if (ranks < 2) return 0;
    if (is_one_of(collective, messages)) return 1;
    return ceil(log2(ranks)) * (is_one_of(collective, both_ways) ? 2 : 1);
}

static const machine_network *network_of(const machine *m, const tshi_record_call *c) {
    return machine_find_network(m, c->axis, c->name, (int)c->size[0]);
}

static double collective_seconds(const machine *m, const tshi_record_call *c) {
    const machine_network *n = network_of(m, c);
    int ranks = (int)c->size[0];
    if (!n) return 0;
    return 1e-6 * n->latency_us * step_rounds(c->name, ranks) +
           1e-9 * (double)c->size[1] * step_bus_factor(c->name, ranks) / n->bus_gb_per_s;
}

/* --- one call ----------------------------------------------------------------------------------------------------- */

const char *step_product_form(const tshi_record_call *product, double sizes[MACHINE_AXES]) {
    double m = (double)product->size[0], n = (double)product->size[1], k = (double)product->size[2];
    bool transposed_a = product->size[3], transposed_b = product->size[4];
    sizes[0] = transposed_a ? k : m;
    sizes[1] = transposed_a ? m : transposed_b ? n : k;
    sizes[2] = transposed_a || !transposed_b ? n : k;
    return transposed_a ? "dw" : transposed_b ? "forward" : "dx";
}

/* Operations or bytes of the call, and how many of them the machine does a second. */
static double rate_of(const machine *m, const tshi_record_entry *e, double working_set, double *work) {
    const tshi_record_call *c = &e->call;
    const char *dtype = tsh_dtype_name(c->dtype);
    double at[MACHINE_AXES] = {0};
    *work = e->flops;
    if (c->kind == TSHI_RECORD_PRODUCT) {
        const char *form = step_product_form(c, at);
        return machine_rate(m, MACHINE_PRODUCTS, form, dtype, at, working_set);
    }
    if (c->kind == TSHI_RECORD_ATTENTION) {
        at[0] = (double)c->size[3];
        at[1] = (double)c->size[5];
        return machine_rate(m, MACHINE_ATTENTION, c->backward ? "backward" : "forward", dtype, at, working_set);
    }
    *work = at[0] = (double)e->bytes;
    return machine_rate(m, MACHINE_KERNELS, c->name, dtype, at, working_set);
}

double step_call_seconds(const machine *m, const tshi_record_entry *entry, double working_set) {
    double work, rate;
    if (entry->call.kind == TSHI_RECORD_COLLECTIVE) return collective_seconds(m, &entry->call);
    rate = rate_of(m, entry, working_set, &work);
    return work > 0 && rate > 0 ? work / rate : 0;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static void note_missing(const machine *m, const tshi_record_entry *e, double working_set, step_time *t) {
    static const char *const lists[] = {"products", "attention", "kernels", "networks"};
    const tshi_record_call *c = &e->call;
    double work, at[MACHINE_AXES];
    bool collective = c->kind == TSHI_RECORD_COLLECTIVE;
    bool there = collective ? c->size[0] < 2 || network_of(m, c) : rate_of(m, e, working_set, &work) > 0 || work <= 0;
    if (there || t->missing[0]) return;
    const char *name = c->kind == TSHI_RECORD_PRODUCT ? step_product_form(c, at) : c->name;
    snprintf(t->missing, sizeof t->missing, "%s %s %s", lists[c->kind], name,
             collective ? c->axis : tsh_dtype_name(c->dtype));
}

/* Collectives that may be hidden: their seconds, and how many. */
typedef struct early_calls {
    double seconds, count;
} early_calls;

static void hide(const early_calls *early, double computed, step_time *t) {
    if (early->count <= 0) return;
    t->hidden = fmin(early->seconds * (early->count - 1) / early->count, computed);
    t->exposed += early->seconds - t->hidden;
}

void step_time_of(const machine *m, const tshi_record *record, step_time *out) {
    double backward = 0, working_set = (double)record->peak;
    early_calls early = {0, 0};
    *out = (step_time){.all = 0};
    for (int i = 0; i < record->count; i++) {
        const tshi_record_entry *e = &record->entries[i];
        double calls = (double)e->calls, seconds = step_call_seconds(m, e, working_set) * calls;
        double *const parts[] = {&out->products, &out->attention, &out->kernels, &out->exposed};
        if (e->calls == 0) continue;
        note_missing(m, e, working_set, out);
        out->calls += 1e-6 * m->call_us * calls;
        if (e->call.kind != TSHI_RECORD_COLLECTIVE) {
            *parts[e->call.kind] += seconds;
            backward += e->call.backward ? seconds : 0;
        } else if (e->call.early && network_of(m, &e->call) && network_of(m, &e->call)->overlaps) {
            early = (early_calls){early.seconds + seconds, early.count + calls};
        } else {
            out->exposed += seconds;
        }
    }
    hide(&early, backward, out);
    out->all = out->products + out->attention + out->kernels + out->calls + out->exposed;
}
