#include "autograd/run/movement.h"

#include <stdio.h>
#include <string.h>

static char *layouts_name(const tsh_mesh *mesh, const tsh_layout *layout, char *text, size_t size) {
    text[0] = '\0';
    for (int a = 0; a < mesh->axes; a++) {
        tshi_append(text, size, "%s%s=%s", a ? " " : "", mesh->axis[a].name,
                    TSHI_LAYOUT_TEXT(layout[a], &mesh->axis[a]));
    }
    return text;
}

char *tshi_movement_describe(const tshi_cost *cost, const tsh_tensor *x, bool recorded, char *text, size_t size) {
    double there = cost->elements * (double)tsh_dtype_size(x->dtype);
    double back = cost->backward_elements * (double)tsh_dtype_size(tshi_gradient_dtype(x));
    snprintf(text, size, "%s, %.0f bytes sent", cost->name, there);
    if (recorded && tshi_requires_grad(x) && back > 0)
        tshi_append(text, size, "; backward: %s, %.0f bytes sent", cost->backward_name, back);
    return text;
}

void tshi_movement_log(const tsh_tape *tape, const char *what, const tsh_tensor *x, const tshi_plan_step *step) {
    char to[TSHI_LINE], other[TSHI_LINE] = "", moves[128];
    tshi_route_step route = {.axis = step->axis};
    memcpy(route.to, step->layout, sizeof route.to);
    tshi_cost cost = tshi_route_step_cost(x->mesh, step->mesh, &x->shape, x->layout, &route);
    size_t used = step->mesh == x->mesh ? 0 : (size_t)snprintf(other, sizeof other, " on mesh ");
    if (used) tshi_mesh_name(step->mesh, other + used, sizeof other - used);
    tshi_log(&tape->world->log, TSH_LOG_INFO, "%s: %s -> %s%s: %s", what, TSHI_TENSOR_TEXT(x),
             layouts_name(step->mesh, step->layout, to, sizeof to), other,
             tshi_movement_describe(&cost, x, tape->recording, moves, sizeof moves));
}
