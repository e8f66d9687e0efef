/* Lion: the sign of a moving average. */
#include "train/optimizer.h"

static void lion_step(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t number, const tshi_rate *rate, int count,
                      const tshi_update *updates) {
    const tsh_lion_config *c = &optimizer->config.lion;
    tsh_device *device = tsh_world_device(optimizer->world);
    const tshi_lion settings = {.lr = optimizer->lr * rate->lr_factor,
                                .beta1 = c->beta1,
                                .beta2 = c->beta2,
                                .weight_decay = rate->weight_decay};
    (void)number;
    device->ops->optimizer[dtype].lion(device, &settings, count, updates);
}

static const tshi_optimizer_kind lion = {.name = "lion", .state = {"exp_avg", NULL}, .step = lion_step};

tsh_status tsh_lion_create(tsh_parameters *list, const tsh_lion_config *config, tsh_optimizer **out) {
    tsh_lion_config c = config ? *config : (tsh_lion_config){0};
    const tshi_optimizer_common common = {c.lr, c.weight_decay, c.decay_matrices, c.low_bits, c.groups, NULL};
    tsh_status status = tshi_optimizer_check("lion_create", list, config, &common, out);
    if (status != TSH_OK) return status;
    if (c.beta1 == 0) c.beta1 = 0.9;
    if (c.beta2 == 0) c.beta2 = 0.99;
    if (!(c.beta1 > 0 && c.beta1 < 1) || !(c.beta2 > 0 && c.beta2 < 1))
        return tshi_fail(TSH_ERR_ARGUMENT, "lion_create: beta1 %g and beta2 %g must be in (0, 1)", c.beta1, c.beta2);
    status = tshi_optimizer_create(&lion, list, 1, &common, out);
    if (status == TSH_OK) (*out)->config.lion = c;
    return status;
}
