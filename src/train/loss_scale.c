/* Dynamic loss scale: keeps gradients in the range of float16. */
#include "train/optimizer.h"

#include <math.h>

#define START    65536.0
#define INTERVAL 2000

static double value_of(const tsh_loss_scale *scale) {
    return scale->scale == 0 ? START : scale->scale;
}

static tsh_status check_loss_scale(const char *what, const tsh_loss_scale *scale) {
    if (!scale) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a tsh_loss_scale is required", what);
    bool valid = value_of(scale) > 0 && isfinite(scale->scale) && scale->interval >= 0 && scale->good_steps >= 0;
    if (valid && (scale->growth == 0 || scale->growth >= 1) && scale->backoff >= 0 && scale->backoff < 1) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT,
                     "%s: scale %g, growth %g, backoff %g, interval %lld and good_steps %lld: scale must be above 0, "
                     "growth at least 1, backoff below 1, and counts at least 0",
                     what, scale->scale, scale->growth, scale->backoff, (long long)scale->interval,
                     (long long)scale->good_steps);
}

tsh_tensor *tsh_loss_scale_apply(tsh_tape *tape, const tsh_loss_scale *scale, tsh_tensor *loss) {
    if (!tshi_tape_ready(tape, "loss_scale_apply", 1, &loss)) return NULL;
    tsh_status status = check_loss_scale("loss_scale_apply", scale);
    return status == TSH_OK ? tsh_scale(tape, loss, value_of(scale))
                            : tshi_tape_fail(tape, status, "%s", tsh_error_message());
}

/* *finite = no rank of the world has a gradient that is not finite. `local`: the sum of squares of all gradients of
 * this rank. */
static tsh_status find_overflow(tsh_parameters *list, double local, bool *finite) {
    double found = isfinite(local) ? 0 : 1;
    tsh_status status = tsh_tensor_write(list->scalar, &found, 1);
    if (status == TSH_OK) status = tsh_all_reduce(tsh_world_group(list->world), list->scalar, TSH_REDUCE_MAX);
    if (status == TSH_OK) status = tsh_tensor_read(list->scalar, &found, 1);
    *finite = status == TSH_OK && found == 0;
    return status;
}

static tsh_status unscale_gradients(const tsh_loss_scale *scale, tsh_parameters *list, double max_norm, double *norm,
                                    bool *finite) {
    double counted = 0, rest = 0;
    if (norm) *norm = NAN;
    if (finite) *finite = false;
    tsh_status status = check_loss_scale("loss_scale_unscale", scale);
    if (status == TSH_OK && (!list || !finite || !(max_norm >= 0)))
        status = tshi_fail(TSH_ERR_ARGUMENT, "loss_scale_unscale: a list, `finite` and max_norm >= 0 are required");
    for (int i = 0; status == TSH_OK && i < list->count; i++) status = tshi_gradient_check(list->items[i].tensor);
    if (status == TSH_OK) status = tshi_clip_local_squares(list, false, &rest);
    if (status == TSH_OK) status = tshi_clip_local_squares(list, true, &counted);
    if (status == TSH_OK) status = find_overflow(list, counted + rest, finite);
    if (status != TSH_OK || !*finite) return status;
    status = tsh_tensor_write(list->scalar, &counted, 1);
    if (status == TSH_OK && list->count > 0 && (norm || max_norm > 0)) status = tshi_clip_sum(list);
    if (status != TSH_OK) return status;
    tshi_clip_all(list, 1 / value_of(scale), max_norm == 0 ? INFINITY : max_norm);
    if (!norm) return TSH_OK;
    status = tsh_tensor_read(list->scalar, norm, 1);
    *norm = sqrt(*norm) / value_of(scale);
    return status;
}

tsh_status tsh_loss_scale_unscale(const tsh_loss_scale *scale, tsh_parameters *list, double max_norm, double *norm,
                                  bool *finite) {
    return tshi_failure_hold(unscale_gradients(scale, list, max_norm, norm, finite));
}

tsh_status tsh_loss_scale_update(tsh_loss_scale *scale, bool finite) {
    tsh_status status = tshi_failure_hold(check_loss_scale("loss_scale_update", scale));
    if (status != TSH_OK) return status;
    bool grows = finite && scale->good_steps + 1 >= (scale->interval ? scale->interval : INTERVAL);
    double factor = grows                 ? (scale->growth == 0 ? 2 : scale->growth)
                    : finite              ? 1
                    : scale->backoff == 0 ? 0.5
                                          : scale->backoff;
    double next = value_of(scale) * factor;
    scale->good_steps = finite && !grows ? scale->good_steps + 1 : 0;
    /* Beyond the range of doubles, the scale stays. */
    scale->scale = isfinite(next) && next > 0 ? next : value_of(scale);
    return TSH_OK;
}
