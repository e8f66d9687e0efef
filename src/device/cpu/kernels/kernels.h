/* The CPU's kernels that have no vector code of their own; device/kernels.h says what each does. Only matrix products
 * use the device argument, for its threads, its vector kernels and scratch memory; all other kernels accept NULL. */
#ifndef TSHI_CPU_KERNELS_H
#define TSHI_CPU_KERNELS_H

#include "device/kernels.h"

/* copy.c */
tshi_copy_fn tshi_cpu_copy;
tshi_copy_strided_fn tshi_cpu_copy_strided;
tshi_zero_fn tshi_cpu_zero;
/* Fills with `n` copies of an element of `size` bytes by doubling memcpy, up to `most` bytes at a time. */
void tshi_cpu_repeat(size_t size, const void *element, int64_t n, size_t most, void *to);

/* permute.c */
tshi_permute_fn tshi_cpu_permute;

/* gemm.c */
tshi_gemm_fn tshi_cpu_gemm;
tshi_gemm_batch_fn tshi_cpu_gemm_batch;
tshi_affine_fn tshi_cpu_affine;
tshi_affine_backward_fn tshi_cpu_affine_backward;
tshi_gemm_unary_backward_fn tshi_cpu_gemm_unary_backward;
/* Bytes of scratch memory of `count` products. */
size_t tshi_cpu_product_scratch(const tsh_device *device, tsh_dtype dtype, int64_t count, bool transpose_a,
                                bool transpose_b, int64_t m, int64_t n, int64_t k);
void tshi_cpu_product_threads(int threads);
/* Writes the names of the matrix product libraries in use. */
void tshi_cpu_product_libraries(const tsh_device *device, char *text, size_t size);

/* check.c */
tshi_targets_check_fn tshi_cpu_targets_check;
tshi_ids_check_fn tshi_cpu_ids_check;
tshi_row_numbers_fn tshi_cpu_row_numbers;

#endif
