/* Learning rates as functions of the step. */
#include "tshard/train.h"

#include <math.h>

/* How far the rate has fallen from lr, at 0, to min_lr, at 1. */
static double fallen(const tsh_lr_schedule *s, int64_t step) {
    int64_t begin = s->kind == TSH_LR_STABLE_DECAY ? s->steps - s->decay : s->warmup;
    if (begin < s->warmup) begin = s->warmup;
    if (s->kind == TSH_LR_CONSTANT || step < begin) return 0;
    if (step >= s->steps) return 1;
    double done = (double)(step - begin) / (double)(s->steps - begin);
    return s->kind == TSH_LR_COSINE ? 0.5 * (1 - cos(acos(-1) * done)) : done;
}

double tsh_lr_at(const tsh_lr_schedule *schedule, int64_t step) {
    if (!schedule || step < 0 || (unsigned)schedule->kind > TSH_LR_STABLE_DECAY) return 0;
    if (step < schedule->warmup) return schedule->lr * (double)(step + 1) / (double)(schedule->warmup + 1);
    return schedule->lr + fallen(schedule, step) * (schedule->min_lr - schedule->lr);
}
