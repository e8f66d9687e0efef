/* The generator of random numbers as device/kernels.h defines it, a number at a time: what the kernels are compared
 * with.
 * */
#ifndef TSHI_TEST_PHILOX_H
#define TSHI_TEST_PHILOX_H

#include <stdint.h>

void tshi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
void tshi_philox_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]);
double tshi_uniform(uint32_t word);
double tshi_normal(uint32_t a, uint32_t b);

#endif
