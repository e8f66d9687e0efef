/* The memory of data parallelism that shares out states, gradients and parameters: what the formula says. */
#include "support/tensors.h"
#include "tensor/dlpack.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

enum { WIDTH = 256, LAYERS = 13, RANKS = 2 };

typedef struct account {
    double elements;
    size_t bytes[4]; /* of parameters, gradients and states, at each level */
    size_t peak[4];  /* of all tensors, at this level or a later one */
} account;

static size_t live(const tsh_world *world) {
    const tsh_memory_use report = tsh_device_memory(tsh_world_device(world));
    return report.live[TSH_MEMORY_PARAMETERS] + report.live[TSH_MEMORY_GRADIENTS] + report.live[TSH_MEMORY_OPTIMIZER];
}

/* One axis has the copies, and the blocks are whole on each: they are made on a mesh with an axis of one rank. */
static void remember_bytes(tshi_rank *r, void *arg) {
    account *out = r->result;
    (void)arg;
    for (int level = 3; level >= 0 && !r->failed; level--) {
        const tsh_data_parallel_config config = {.level = (tsh_zero_level)level};
        const tsh_tensor_config rows = {.ndim = 2, .shape = {RANKS, WIDTH}, .layout = {TSH_SHARD(0)}};
        tsh_mesh *mesh = NULL;
        tsh_tape *tape = NULL;
        tsh_parameters *list = NULL;
        tsh_data_parallel *dp = NULL;
        tsh_optimizer *optimizer = NULL;
        tsh_tensor *x = NULL;
        tsh_block *blocks[LAYERS] = {0};
        const tsh_block_config block = {
            .embed = WIDTH, .attention = {.heads = 4}, .mlp = {.hidden = 4 * WIDTH, .activation = TSH_ACTIVATION_GELU}};
        tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=1", &mesh));
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_tape_create(r->world, &tape));
        for (int i = 0; i < LAYERS && !r->failed; i++) {
            char name[32];
            snprintf(name, sizeof name, "layers.%d", i);
            tshi_check_ok(r, tsh_block_create(tsh_mesh_group(mesh, "model"), &block, &blocks[i]));
            tshi_check_ok(r, tsh_block_register(blocks[i], list, name));
        }
        tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &config, &dp));
        tshi_check_ok(r, tsh_adamw_create(list, &(tsh_adamw_config){.lr = 1e-3}, &optimizer));
        tshi_check_ok(r, tsh_tensor_create(mesh, &rows, &x));
        if (r->failed) return;
        tsh_tensor_fill(x, 0.5);
        tsh_tensor *y = x;
        const tsh_sequences sequences = {.batch = RANKS};
        for (int i = 0; i < LAYERS; i++) y = tsh_block_forward(tape, blocks[i], y, &sequences);
        tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
        tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        out->bytes[level] = live(r->world);
        out->peak[level] = tsh_device_stats(tsh_world_device(r->world)).bytes_peak;
        out->elements = 0;
        for (int i = 0; i < tsh_parameters_count(list); i++)
            out->elements += (double)tshi_shape_numel(&tsh_parameters_tensor(list, i)->shape);
        tsh_tensor_release(x);
        tsh_optimizer_destroy(optimizer);
        tsh_data_parallel_destroy(dp);
        tsh_parameters_destroy(list);
        for (int i = 0; i < LAYERS; i++) tsh_block_destroy(blocks[i]);
        tsh_tape_destroy(tape);
        tsh_mesh_destroy(mesh);
    }
}

/* Bytes an element of float32 AdamW on d ranks: 16, then 16/d between steps, to which the first two levels add 4 in a
 * step. Buckets do not take what a level saves. */
Test(sharding_memory, is_what_the_formula_says, .timeout = 240) {
    account accounts[RANKS] = {{0}};
    const double wanted[] = {16, 16.0 / RANKS, 16.0 / RANKS, 16.0 / RANKS};
    tshi_test_options options = {.ranks = RANKS, .heap_bytes = (size_t)1 << 30, .result_bytes = sizeof *accounts};
    cr_assert_str_empty(tshi_test_run_with(&options, remember_bytes, NULL, NULL, accounts));
    cr_assert_gt(accounts[0].elements, 10e6);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int level = 0; level < 4; level++) {
            double each = (double)accounts[rank].bytes[level] / accounts[rank].elements;
            cr_assert(fabs(each - wanted[level]) <= 0.02 * wanted[level],
                      "level %d, rank %d: %.3f bytes an element, wanted %.3f", level, rank, each, wanted[level]);
            if (level % 2 == 0)
                cr_assert_gt(accounts[rank].peak[level], accounts[rank].peak[level + 1],
                             "rank %d: level %d has a peak below %zu bytes", rank, level, accounts[rank].peak[level]);
        }
    }
}

/* --- arrays of parameters ----------------------------------------------------------------------------------------- */

/* Other tensors do not get the memory of a DLPack array whose parameter is split afterwards. */
static void keep_an_array(tshi_rank *r, void *arg) {
    enum { N = 1000, OTHERS = 8 };
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *sums = NULL;
    tsh_tensor *p = NULL, *other[OTHERS] = {NULL};
    struct DLManagedTensor *array = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {N}};
    const tsh_data_parallel_config split = {.level = TSH_ZERO_PARAMETERS};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &p));
    tshi_check_ok(r, tsh_tensor_require_grad(p, true));
    tshi_check_ok(r, tsh_tensor_fill(p, 3));
    tshi_check_ok(r, tsh_parameters_add(list, "p", p));
    tshi_check_ok(r, tsh_tensor_to_dlpack(p, &array));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world), &split, &sums));
    for (int i = 0; i < OTHERS; i++) {
        tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &other[i]));
        tshi_check_ok(r, tsh_tensor_fill(other[i], 7));
    }
    const double *values = array ? array->tensor.data : NULL;
    for (int i = 0; values && i < N && !r->failed; i++) tshi_check(r, values[i] == 3, "%g at %d", values[i], i);
    for (int i = 0; i < OTHERS; i++) tsh_tensor_release(other[i]);
    if (array) array->deleter(array);
    tsh_data_parallel_destroy(sums);
    tsh_parameters_destroy(list);
    tsh_tensor_release(p);
    tsh_tape_destroy(tape);
}

Test(sharding_memory, an_array_keeps_its_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, keep_an_array, NULL));
}
