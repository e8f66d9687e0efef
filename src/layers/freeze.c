/* Freezing parameters by their names. */
#include "autograd/grad/state.h"
#include "layers/layers.h"

#include <string.h>

bool tshi_parameter_matches(const char *pattern, const char *name) {
    for (const char *end = strchr(name, '.'); end; end = strchr(end + 1, '.')) {
        if (tshi_layer_matches(pattern, name, (size_t)(end - name))) return true;
    }
    return tshi_layer_matches(pattern, name, strlen(name));
}

/* Checks that the parameters can be frozen, and that there are any. */
static tsh_status check_matches(const char *what, const tsh_parameters *list, const char *pattern, bool required) {
    int found = 0;
    for (int i = 0; i < list->count; i++) {
        const tshi_parameter *p = &list->items[i];
        if (!tshi_parameter_matches(pattern, p->name)) continue;
        found++;
        if (required || !tshi_gradient_schedule_of(p->tensor)) continue;
        return tshi_fail(TSH_ERR_STATE,
                         "%s: a tsh_data_parallel sums the gradient of '%s': freeze it before creating that", what,
                         p->name);
    }
    if (found) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: '%.100s' matches none of %d parameters, the first of which is '%.100s'",
                     what, pattern, list->count, list->count ? list->items[0].name : "");
}

static tsh_status require_matching(const char *what, tsh_parameters *list, const char *pattern, bool required) {
    if (!list || !pattern) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a list and a pattern are required", what);
    tsh_status status = check_matches(what, list, pattern, required);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tshi_parameter *p = &list->items[i];
        if (tshi_parameter_matches(pattern, p->name)) status = tsh_tensor_require_grad(p->tensor, required);
    }
    return status;
}

tsh_status tsh_parameters_freeze(tsh_parameters *list, const char *pattern) {
    return require_matching("parameters_freeze", list, pattern, false);
}

tsh_status tsh_parameters_unfreeze(tsh_parameters *list, const char *pattern) {
    return require_matching("parameters_unfreeze", list, pattern, true);
}
