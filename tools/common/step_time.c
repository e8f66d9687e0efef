#include "common/step_time.h"

#include <math.h>
#include <string.h>

static bool is_any(const char *text, const char *const *words) {
    for (; *words; words++) {
        if (!strcmp(text, *words)) return true;
    }
    return false;
}

/* Notes the first rate that the file lacks. */
static void miss(step_time *t, const char *what, const char *name, const char *dtype) {
    if (!t->missing[0]) snprintf(t->missing, sizeof t->missing, "%s %.60s %.40s", what, name, dtype);
}

/* --- what is computed --------------------------------------------------------------------------------------------- */

void step_time_product(step_time *t, const step_product *p, double calls) {
    const double at[MACHINE_AXES] = {(double)p->m, (double)p->n, (double)p->k};
    double flops = 2 * at[0] * at[1] * at[2] * calls;
    double rate = machine_rate(t->m, MACHINE_PRODUCTS, p->form, p->dtype, at);
    if (flops <= 0) return;
    if (rate <= 0) miss(t, "products", p->form, p->dtype);
    t->flops += flops;
    t->products += rate > 0 ? flops / rate : 0;
}

double step_attention_flops(const step_attention *a) {
    double heads = (double)a->batch * (double)a->heads, queries = (double)a->queries, keys = (double)a->keys;
    double scores = heads * queries * keys;
    if (a->causal) scores -= heads * queries * (queries - 1) / 2;
    return (a->backward ? 10 : 4) * scores * (double)a->dim;
}

void step_time_attention(step_time *t, const step_attention *a, double calls) {
    const double at[MACHINE_AXES] = {(double)a->queries, (double)a->dim};
    const char *form = a->backward ? "backward" : "forward";
    double flops = step_attention_flops(a) * calls, rate = machine_rate(t->m, MACHINE_ATTENTION, form, a->dtype, at);
    if (flops <= 0) return;
    if (rate <= 0) miss(t, "attention", form, a->dtype);
    t->flops += flops;
    t->attention += rate > 0 ? flops / rate : 0;
}

void step_time_kernel(step_time *t, const char *family, const char *dtype, double bytes, double calls) {
    const double at[MACHINE_AXES] = {bytes};
    if (bytes <= 0 || calls <= 0) return;
    double rate = machine_rate(t->m, MACHINE_KERNELS, family, dtype, at);
    if (rate <= 0) miss(t, "kernels", family, dtype);
    t->kernels += rate > 0 ? bytes * calls / rate : 0;
}

void step_time_functions(step_time *t, double calls) {
    t->calls += 1e-6 * t->m->call_us * calls;
}

/* --- communication ------------------------------------------------------------------------------------------------ */

double step_bus_factor(const char *kind, int ranks) {
    static const char *const whole[] = {"broadcast", "reduce", "send", "recv", NULL};
    double p = ranks;
    if (ranks < 2) return 0;
    if (is_any(kind, whole)) return 1;
    if (!strcmp(kind, "barrier")) return 0;
    if (!strcmp(kind, "send_recv")) return 2;
    return (strcmp(kind, "all_reduce") ? 1 : 2) * (p - 1) / p;
}

double step_rounds(const char *kind, int ranks) {
    static const char *const pairs[] = {"send", "recv", NULL};
    if (ranks < 2) return 0;
    if (is_any(kind, pairs)) return 1;
    double levels = ceil(log2(ranks));
    return !strcmp(kind, "all_reduce") || !strcmp(kind, "send_recv") ? 2 * levels : levels;
}

double step_collective_seconds(const machine *m, const step_collective *c) {
    const machine_network *n = machine_find_network(m, c->axis, c->kind, c->ranks);
    if (!n || c->ranks < 2) return 0;
    return 1e-6 * n->latency_us * step_rounds(c->kind, c->ranks) +
           1e-9 * c->bytes * step_bus_factor(c->kind, c->ranks) / n->bus_gb_per_s;
}

/* What is computed meanwhile takes its share of the time of all that is computed. */
void step_time_collective(step_time *t, const step_collective *c, double calls) {
    double seconds = step_collective_seconds(t->m, c), hidden = 0;
    const machine_network *n = machine_find_network(t->m, c->axis, c->kind, c->ranks);
    if (c->ranks < 2) return;
    if (!n) miss(t, "networks", c->axis, c->kind);
    if (n && n->overlaps && c->under_way > 0 && t->flops > 0) {
        double computed = t->products + t->attention + t->kernels;
        hidden = fmin(seconds, computed * fmin(1, c->under_way / t->flops));
    }
    t->hidden += hidden * calls;
    t->exposed += (seconds - hidden) * calls;
}

double step_seconds(const step_time *t) {
    return t->products + t->attention + t->kernels + t->calls + t->exposed;
}
