/* Adam with decoupled weight decay. */
#include "train/optimizer.h"

#include <math.h>

static void adamw_step(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t number, const tshi_rate *rate,
                       int count, const tshi_update *updates) {
    const tsh_adamw_config *c = &optimizer->config.adamw;
    tsh_device *device = tsh_world_device(optimizer->world);
    tshi_adamw settings = {.lr = optimizer->lr * rate->lr_factor,
                           .beta1 = c->beta1,
                           .beta2 = c->beta2,
                           .eps = c->eps,
                           .weight_decay = rate->weight_decay,
                           .step = number};
    device->ops->optimizer[dtype].adamw(device, &settings, count, updates);
}

static const tshi_optimizer_kind adamw = {.name = "adamw", .state = {"exp_avg", "exp_avg_sq"}, .step = adamw_step};

tsh_status tsh_adamw_create(tsh_parameters *list, const tsh_adamw_config *config, tsh_optimizer **out) {
    tsh_adamw_config c = config ? *config : (tsh_adamw_config){0};
    const tshi_optimizer_common common = {c.lr, c.weight_decay, c.decay_matrices, c.low_bits, c.groups, NULL};
    tsh_status status = tshi_optimizer_check("adamw_create", list, config, &common, out);
    if (status != TSH_OK) return status;
    if (c.beta1 == 0) c.beta1 = 0.9;
    if (c.beta2 == 0) c.beta2 = 0.999;
    if (c.eps == 0) c.eps = 1e-8;
    if (!(c.beta1 > 0 && c.beta1 < 1) || !(c.beta2 > 0 && c.beta2 < 1) || !(c.eps > 0 && isfinite(c.eps))) {
        return tshi_fail(TSH_ERR_ARGUMENT, "adamw_create: beta1 %g and beta2 %g must be in (0, 1), and eps %g above 0",
                         c.beta1, c.beta2, c.eps);
    }
    status = tshi_optimizer_create(&adamw, list, 2, &common, out);
    if (status == TSH_OK) (*out)->config.adamw = c;
    return status;
}
