/* Stochastic gradient descent. */
#include "train/optimizer.h"

static void sgd_step(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t number, const tshi_rate *rate, int count,
                     const tshi_update *updates) {
    const tsh_sgd_config *c = &optimizer->config.sgd;
    tsh_device *device = tsh_world_device(optimizer->world);
    tshi_sgd settings = {.lr = optimizer->lr * rate->lr_factor,
                         .momentum = c->momentum,
                         .dampening = c->dampening,
                         .weight_decay = rate->weight_decay,
                         .nesterov = c->nesterov,
                         .first = number == 1};
    device->ops->optimizer[dtype].sgd(device, &settings, count, updates);
}

static const tshi_optimizer_kind sgd = {.name = "sgd", .state = {"momentum_buffer", NULL}, .step = sgd_step};

tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out) {
    const tsh_sgd_config c = config ? *config : (tsh_sgd_config){0};
    const tshi_optimizer_common common = {c.lr, c.weight_decay, c.decay_matrices, c.low_bits, c.groups, NULL};
    tsh_status status = tshi_optimizer_check("sgd_create", list, config, &common, out);
    if (status != TSH_OK) return status;
    if (!(c.momentum >= 0 && c.momentum < 1) || !(c.dampening >= 0 && c.dampening <= 1)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "sgd_create: momentum %g is not in [0, 1) or dampening %g not in [0, 1]",
                         c.momentum, c.dampening);
    }
    if (c.nesterov && (c.momentum <= 0 || c.dampening > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "sgd_create: nesterov needs momentum > 0 and dampening 0; they are %g and %g", c.momentum,
                         c.dampening);
    }
    status = tshi_optimizer_create(&sgd, list, c.momentum > 0 ? 1 : 0, &common, out);
    if (status == TSH_OK) (*out)->config.sgd = c;
    return status;
}
