/* Elements of any dtype from small whole numbers, exact in all of them, and plain-loop references. */
#ifndef TSHI_TEST_VALUES_H
#define TSHI_TEST_VALUES_H

#include "tshard/dist.h"

/* Bits that look random, the same for the same x. */
uint64_t tshi_mix(uint64_t x);

/* A whole number, or two for complex dtypes. */
typedef struct tshi_number {
    double re, im;
} tshi_number;

/* The value of element i on `rank`: in [-8, 8] (uint8: [0, 8]); for products small enough that seven ranks' fit. */
tshi_number tshi_value(tsh_dtype dtype, tsh_reduce_op reduce, int rank, int64_t i);
/* a op b. */
tshi_number tshi_reduce_numbers(tsh_reduce_op reduce, tshi_number a, tshi_number b);
/* Write a number as element i of `data`. */
void tshi_put(tsh_dtype dtype, void *data, int64_t i, tshi_number value);
/* True when element i of `data` is that number, bit for bit (complex: apart from the sign of zeros). */
bool tshi_is(tsh_dtype dtype, const void *data, int64_t i, tshi_number value);

#endif
