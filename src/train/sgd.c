/* Stochastic gradient descent. */
#include "train/optimizer.h"

static void step(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t number, double weight_decay, int count,
                 const tshi_update *updates) {
    const tsh_sgd_config *c = &optimizer->config.sgd;
    tsh_device *device = tsh_world_device(optimizer->world);
    tshi_sgd settings = {.lr = optimizer->lr,
                         .momentum = c->momentum,
                         .dampening = c->dampening,
                         .weight_decay = weight_decay,
                         .nesterov = c->nesterov,
                         .first = number == 1};
    device->ops->optimizer[dtype].sgd(device, &settings, count, updates);
}

static const tshi_optimizer_kind sgd = {"sgd", {"momentum_buffer", NULL}, step};

tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "sgd_create: out is NULL");
    *out = NULL;
    tsh_status status =
        tshi_optimizer_check("sgd_create", list, config, config ? config->lr : 0, config ? config->weight_decay : 0);
    if (status != TSH_OK) return status;
    if (!(config->momentum >= 0 && config->momentum < 1) || !(config->dampening >= 0 && config->dampening <= 1)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "sgd_create: momentum %g is not in [0, 1) or dampening %g not in [0, 1]",
                         config->momentum, config->dampening);
    }
    if (config->nesterov && (config->momentum <= 0 || config->dampening > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "sgd_create: nesterov wants momentum > 0 and dampening 0, given %g and %g",
                         config->momentum, config->dampening);
    }
    status = tshi_optimizer_create(&sgd, list, config->momentum > 0 ? 1 : 0, config->lr, config->low_bits, out);
    if (status != TSH_OK) return status;
    (*out)->config.sgd = *config;
    (*out)->weight_decay = config->weight_decay;
    (*out)->decay_matrices = config->decay_matrices;
    return TSH_OK;
}
