/* The time of a step of a dry run. */
#include "plan.h"

#include <stdio.h>

step_time plan_slowest(const plan_result *result, const machine *m) {
    step_time slowest = {.all = -1};
    for (int k = 0; k < result->count; k++) {
        step_time t;
        step_time_of(m, result->kinds[k].record, &t);
        if (t.all > slowest.all) slowest = t;
    }
    return slowest;
}

void plan_parts(const step_time *t, plan_part parts[PLAN_PARTS]) {
    const plan_part all[PLAN_PARTS] = {{"time of a step", "all", t->all},
                                       {"  matrix products", "products", t->products},
                                       {"  attention", "attention", t->attention},
                                       {"  other kernels", "kernels", t->kernels},
                                       {"  calls", "calls", t->calls},
                                       {"  communication", "exposed", t->exposed},
                                       {"  and hidden", "hidden", t->hidden}};
    for (int i = 0; i < PLAN_PARTS; i++) parts[i] = all[i];
}

void plan_print_time_json(const step_time *t) {
    plan_part parts[PLAN_PARTS];
    plan_parts(t, parts);
    printf("\"step_seconds\": %.9g, \"step_parts\": {", t->all);
    for (int i = 1; i < PLAN_PARTS; i++) {
        printf("%s\"%s\": %.9g", i > 1 ? ", " : "", parts[i].name, parts[i].seconds);
    }
    printf("}");
}
