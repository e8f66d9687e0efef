/* train: optimisers and gradient clipping. */
#ifndef TSHARD_TRAIN_H
#define TSHARD_TRAIN_H

#include "tshard/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An optimiser holds a reference to its list's tensors and one or two state tensors each, laid out as the parameter:
 * nothing is communicated. Parameters without a gradient are left alone. Steps zero no gradients:
 * tsh_optimizer_zero_grad. */
typedef struct tsh_optimizer tsh_optimizer;

/* g = grad + weight_decay p;  buf = momentum buf + (1 - dampening) g (first step: buf = g);
 * p -= lr (nesterov ? g + momentum buf : buf). As torch.optim.SGD. */
typedef struct tsh_sgd_config {
    double lr, momentum, dampening, weight_decay;
    bool nesterov; /* wants momentum > 0 and dampening 0 */
} tsh_sgd_config;

/* Decoupled weight decay (Loshchilov and Hutter): p -= lr weight_decay p, then Adam with bias corrections. Zero beta1,
 * beta2, eps take 0.9, 0.999, 1e-8. */
typedef struct tsh_adamw_config {
    double lr, beta1, beta2, eps, weight_decay;
} tsh_adamw_config;

/* An optimiser over the list as it is now; the caller destroys it. Not collective. TSH_ERR_ARGUMENT for a setting out
 * of its range, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_adamw_create(tsh_parameters *list, const tsh_adamw_config *config, tsh_optimizer **out);
TSH_API void tsh_optimizer_destroy(tsh_optimizer *optimizer);
/* One step from the gradients as they are. Local. */
TSH_API tsh_status tsh_optimizer_step(tsh_optimizer *optimizer);
TSH_API void tsh_optimizer_zero_grad(tsh_optimizer *optimizer);
TSH_API void tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr);

/* Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum of squares of all gradients): each element
 * of the whole model counted once, sharded and replicated parameters together. *norm (may be NULL) is the norm before.
 * One all-reduce of one double over each axis of the parameters' mesh: collective. TSH_ERR_ARGUMENT for max_norm <= 0;
 * a norm that is not finite scales nothing and is reported in *norm. */
TSH_API tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm);

#ifdef __cplusplus
}
#endif

#endif
