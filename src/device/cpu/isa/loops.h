/* Vector code: what a loop is marked with, and the width of explicit vectors. Files of this folder are compiled once
 * for each instruction set (device/cpu/isa.h). */
#ifndef TSHI_CPU_LOOPS_H
#define TSHI_CPU_LOOPS_H

/* Bytes of explicit vectors. */
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define TSHI_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TSHI_VECTOR_BYTES 32
#else
#define TSHI_VECTOR_BYTES 16
#endif
#if TSHI_VECTOR_BYTES > 16
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Vectors of 64 bytes come with 32 registers; so do those of 64-bit ARM. */
#if TSHI_VECTOR_BYTES == 64 || defined(__aarch64__)
#define TSHI_VECTOR_REGISTERS 32
#else
#define TSHI_VECTOR_REGISTERS 16
#endif

/* Dot products of bfloat16 that accumulate in float32. */
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define TSHI_MULTIPLIES_BFLOAT16
#endif

/* Dot products of four bytes that accumulate in 32 bits, for vectors of 64 bytes. */
#if TSHI_VECTOR_BYTES == 64 && defined(__AVX512VNNI__)
#define TSHI_MULTIPLIES_INT8
#endif

#if defined(__GNUC__)
#define TSHI_INLINE static inline __attribute__((always_inline))
#else
#define TSHI_INLINE static inline
#endif

/* Unrolls a loop with a constant number of iterations completely. */
#if defined(__clang__)
#define TSHI_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define TSHI_UNROLL _Pragma("GCC unroll 16")
#else
#define TSHI_UNROLL
#endif

/* Promises that a loop's iterations are independent, even where an output is also an input. */
#if defined(__clang__)
#define TSHI_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
/* clang does not vectorise loops around a libm call, and would warn. */
#pragma clang diagnostic ignored "-Wpass-failed"
#elif defined(__GNUC__)
#define TSHI_INDEPENDENT _Pragma("GCC ivdep")
#else
#define TSHI_INDEPENDENT
#endif

/* Independent accumulators of a reduction over a row: enough to keep additions of doubles, which take four cycles, in
 * flight, and no more than there are registers for. */
#if TSHI_VECTOR_BYTES > 16
#define TSHI_LANES 32
#else
#define TSHI_LANES 16
#endif

#endif
