/* Blocks: which elements of the whole a rank's part holds, for kernels that are keyed by global index. */
#include "support/mesh_view.h"

#include <criterion/criterion.h>

/* The elements of a block have the numbers that they have in the whole tensor. */
static void check_block(const tsh_tensor *t, int64_t number, int64_t *elements) {
    int64_t offset;
    tshi_block b = tshi_tensor_block(t, number, &offset);
    cr_assert_eq(offset, *elements, "block %d begins where the one before ends", (int)number);
    const double *x = (const double *)tsh_tensor_data(t) + offset;
    for (int64_t o = 0; o < b.outer; o++) {
        for (int64_t i = 0; i < b.n; i++) {
            for (int64_t k = 0; k < b.inner; k++) {
                double global = (double)(((o + b.outer_start) * b.global_n + i + b.start) * b.inner + k);
                cr_assert_eq(x[(o * b.n + i) * b.inner + k], global);
            }
        }
    }
    *elements += b.outer * b.n * b.inner;
}

static int64_t check_blocks(const tshi_mesh_view *view, int ndim, const int64_t *shape, const tsh_layout *layout) {
    tsh_tensor *t = tshi_mesh_view_tensor(view, TSH_FLOAT64, ndim, shape, layout);
    int64_t blocks = tshi_tensor_blocks(t), elements = 0;
    for (int64_t i = 0; i < blocks && tsh_tensor_local_numel(t) > 0; i++) check_block(t, i, &elements);
    cr_assert_eq(elements, tsh_tensor_local_numel(t));
    tsh_tensor_release(t);
    return blocks;
}

Test(blocks, blocks_number_elements, .timeout = 120) {
    static const int64_t shape[] = {5, 3, 7};
    for (int rank = 0; rank < 6; rank++) {
        tshi_mesh_view view = tshi_mesh_view_make(2, (int[]){2, 3}, (int[]){rank / 3, rank % 3});
        for (int d = 0; d < 3; d++) {
            cr_assert_eq(check_blocks(&view, 3, shape, (tsh_layout[]){TSH_REPLICATED, TSH_SHARD(d)}), 1);
            cr_assert_eq(check_blocks(&view, 3, shape, (tsh_layout[]){TSH_SHARD(0), TSH_SHARD(d)}), 1);
            cr_assert_eq(check_blocks(&view, 3, shape, (tsh_layout[]){TSH_SHARD(d), TSH_SHARD(0)}), 1);
            cr_assert_eq(check_blocks(&view, 3, shape, (tsh_layout[]){TSH_SHARD(d), TSH_SHARD(d)}), 1);
        }
        check_blocks(&view, 1, (int64_t[]){11}, (tsh_layout[]){TSH_SHARD(0), TSH_SHARD(0)});
        check_blocks(&view, 0, NULL, (tsh_layout[]){TSH_REPLICATED, TSH_REPLICATED});
        /* Neither dim is the first: a block for each index in it. */
        cr_assert_eq(check_blocks(&view, 3, shape, (tsh_layout[]){TSH_SHARD(1), TSH_SHARD(2)}), 5);
        tshi_mesh_view_free(&view);
    }
}

Test(blocks, blocks_of_three_sharded_dims, .timeout = 120) {
    static const int64_t shape[] = {5, 3, 2, 7}, thin[] = {4, 1, 3, 1};
    for (int rank = 0; rank < 12; rank++) {
        tshi_mesh_view view = tshi_mesh_view_make(3, (int[]){2, 3, 2}, (int[]){rank / 6, rank / 2 % 3, rank % 2});
        check_blocks(&view, 4, shape, (tsh_layout[]){TSH_SHARD(0), TSH_SHARD(1), TSH_SHARD(3)});
        check_blocks(&view, 4, shape, (tsh_layout[]){TSH_SHARD(3), TSH_SHARD(2), TSH_SHARD(1)});
        check_blocks(&view, 4, thin, (tsh_layout[]){TSH_SHARD(0), TSH_SHARD(1), TSH_SHARD(2)});
        tshi_mesh_view_free(&view);
    }
}
