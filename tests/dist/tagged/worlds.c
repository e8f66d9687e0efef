/* Worlds one after the other, and ranks that make calls until one fails. */
#include "dist/tagged/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double sum_of_ones(tshi_rank *r, tsh_world *world) {
    double value = 1;
    tsh_tensor *one = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(world), &config, &one));
    if (r->failed) return 0;
    tshi_check_ok(r, tsh_tensor_write(one, &value, 1));
    if (!r->failed && tsh_all_reduce(tsh_world_group(world), one, TSH_REDUCE_SUM) != TSH_OK) value = -1;
    if (value > 0) tshi_check_ok(r, tsh_tensor_read(one, &value, 1));
    tsh_tensor_release(one);
    return value;
}

void scenario_twice(tshi_rank *r) {
    double sum = sum_of_ones(r, r->world);
    tshi_check(r, sum == r->size, "the first world's sum is %g", sum);
    tsh_world_destroy(r->world);
    r->world = NULL;
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    sum = sum_of_ones(r, r->world);
    tshi_check(r, sum == r->size, "the second world's sum is %g", sum);
}

/* Makes calls until one fails. */
void scenario_linger(tshi_rank *r) {
    const struct timespec nap = {.tv_nsec = 10000000};
    printf("lingering\n");
    fflush(stdout);
    for (int i = 0; i < 2000 && sum_of_ones(r, r->world) == r->size; i++) nanosleep(&nap, NULL);
    printf("told: %s\n", tsh_error_message());
    fflush(stdout);
    r->failed = true;
}
