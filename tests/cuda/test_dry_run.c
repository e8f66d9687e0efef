/* The dry run of a job on GPUs, on a machine without any: its kernels and its memory are a GPU's. */
#include "device/plan/plan.h"
#include "dist/world.h"
#include "standin/standin.h"
#include "support/slots.h"
#include "tshard/functional.h"

#include <stdlib.h>
#include <string.h>

TestSuite(cuda_dry_run, .timeout = 60);

static tsh_world *open_world(const char *backend, int gpus) {
    tsh_world *world = NULL;
    const tsh_world_config config = {.device = TSH_CUDA, .blas_threads = 1};
    setenv("TSHARD_BACKEND", backend, 1);
    standin_reset();
    standin_gpus(gpus);
    cr_assert_eq(tsh_world_init(&config, &world), TSH_OK, "%s", tsh_error_message());
    return world;
}

Test(cuda_dry_run, has_the_kernels_of_a_gpu) {
    tsh_world *world = open_world("plan", 0);
    const tsh_device *device = tsh_world_device(world);
    char text[64];
    expect_replaced_slots(tshi_cuda_table(), device->ops, false);
    cr_expect_eq(tsh_device_kind_of(device), TSH_CUDA);
    cr_expect_str_eq(tsh_device_describe(device, text, sizeof text),
                     "a dry run of a GPU: kernels are counted, not run");
    tsh_world_destroy(world);
}

/* The bytes at the peak of attention, forward and backward, in a world of one rank. */
static size_t peak_of_attention(const char *backend, int gpus) {
    tsh_world *world = open_world(backend, gpus);
    const tsh_tensor_config config = {.ndim = 4, .shape = {1, 70, 2, 8}};
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    cr_assert_eq(tsh_tape_create(world, &tape), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_create_full(tsh_world_mesh(world), &config, 0.5, &x), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_require_grad(x, true), TSH_OK);
    tsh_tensor *y = tsh_attention(tape, x, x, x, NULL);
    cr_assert_eq(tsh_backward_with(tape, y, NULL), TSH_OK, "%s", tsh_tape_message(tape));
    const size_t peak = tsh_device_stats(tsh_world_device(world)).bytes_peak;
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_world_destroy(world);
    return peak;
}

Test(cuda_dry_run, counts_the_scratch_memory_of_a_gpu) {
    const size_t run = peak_of_attention("local", 1), planned = peak_of_attention("plan", 0);
    cr_expect_eq(run, planned, "the peak is %zu, the plan says %zu", run, planned);
}
