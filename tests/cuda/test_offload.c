/* Activation checkpoints in host memory on a stand-in of a GPU whose work runs late and whose memory is closed to the
 * host: the same bits, fewer bytes on the GPU, host memory that is used again, and words where there is none. */
#include "cuda/standin_device.h"
#include "tshard/autograd.h"
#include "tshard/dist.h"
#include "tshard/functional.h"
#include "tshard/layers.h"
#include "tshard/tensor.h"

TestSuite(cuda_offload, .timeout = 60);

enum { SEGMENTS = 8, N = 1000 };

typedef struct bed {
    tsh_world *world;
    tsh_tape *tape;
    tsh_tensor *leaf;
} bed;

static bed open_bed(void) {
    bed b = {0};
    tsh_world_config config = {.world_size = 1, .device = TSH_CUDA, .heap_bytes = (size_t)1 << 26};
    standin_reset();
    standin_lazy(true);
    standin_protect(true);
    cr_assert_eq(tsh_world_init(&config, &b.world), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tape_create(b.world, &b.tape), TSH_OK);
    const tsh_tensor_config of_leaf = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {N}};
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(b.world), &of_leaf, &b.leaf), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_init(b.leaf, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}), TSH_OK);
    cr_assert_eq(tsh_tensor_require_grad(b.leaf, true), TSH_OK);
    return b;
}

static void close_bed(bed *b) {
    tsh_tensor_release(b->leaf);
    tsh_tape_destroy(b->tape);
    tsh_world_destroy(b->world);
    expect_nothing_left("a world");
}

/* A step of SEGMENTS segments; the leaf's gradient goes to `gradient`, the peak of the GPU's bytes is returned. */
static tsh_status step(const bed *b, bool offload, double *gradient, size_t *peak) {
    tsh_tensor *x = b->leaf;
    tsh_device_reset_peak(tsh_world_device(b->world));
    for (int i = 0; i < SEGMENTS; i++) {
        tsh_mark start = tsh_tape_mark(b->tape);
        x = tsh_mul(b->tape, tsh_silu(b->tape, x), tsh_scale(b->tape, x, 0.5));
        x = tsh_tape_recompute_since_with(b->tape, start, x, &(tsh_recompute_config){.offload = offload});
    }
    tsh_status status = tsh_backward(b->tape, tsh_sum(b->tape, x, TSH_ALL_DIMS));
    if (status == TSH_OK) status = tsh_tensor_read(tsh_tensor_grad(b->leaf), gradient, N);
    *peak = tsh_device_stats(tsh_world_device(b->world)).bytes_peak;
    tsh_tensor_zero_grad(b->leaf);
    return status;
}

Test(cuda_offload, fewer_bytes_and_the_same_gradients) {
    static double kept[N], offloaded[N];
    size_t peak[2];
    bed b = open_bed();
    for (int run = 0; run < 3; run++) { /* what is made once exists after the first */
        cr_assert_eq(step(&b, false, kept, &peak[0]), TSH_OK, "%s", tsh_tape_message(b.tape));
        cr_assert_eq(tsh_tape_reset(b.tape), TSH_OK);
        uint64_t pinned = standin_calls("cudaHostAlloc");
        cr_assert_eq(step(&b, true, offloaded, &peak[1]), TSH_OK, "%s", tsh_tape_message(b.tape));
        cr_assert_eq(tsh_tape_reset(b.tape), TSH_OK);
        if (run > 0) cr_expect_eq(standin_calls("cudaHostAlloc"), pinned, "a steady step takes pinned memory");
        cr_expect_arr_eq(offloaded, kept, sizeof kept);
    }
    const size_t one = N * sizeof(double);
    cr_expect_leq(peak[1] + (SEGMENTS - 3) * one, peak[0], "%zu bytes, offloaded %zu", peak[0], peak[1]);
    close_bed(&b);
}

/* Each request for pinned memory in turn; the first segment's input is a leaf, which stays on the GPU. */
Test(cuda_offload, host_memory_that_is_not_there_fails_the_step_in_words) {
    static double wanted[N], got[N];
    size_t peak;
    for (uint64_t nth = 1; nth < SEGMENTS; nth++) {
        bed b = open_bed();
        cr_assert_eq(step(&b, false, wanted, &peak), TSH_OK, "%s", tsh_tape_message(b.tape));
        cr_assert_eq(tsh_tape_reset(b.tape), TSH_OK);
        standin_fail("cudaHostAlloc", nth, 0);
        cr_expect_eq(step(&b, true, got, &peak), TSH_ERR_MEMORY, "request %d", (int)nth);
        cr_expect_not_null(strstr(tsh_tape_message(b.tape), "cudaHostAlloc for offloading: out of memory"), "%s",
                           tsh_tape_message(b.tape));
        cr_assert_eq(tsh_tape_reset(b.tape), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(step(&b, true, got, &peak), TSH_OK, "%s", tsh_tape_message(b.tape));
        cr_expect_arr_eq(got, wanted, sizeof wanted);
        cr_assert_eq(tsh_tape_reset(b.tape), TSH_OK);
        close_bed(&b);
    }
}
