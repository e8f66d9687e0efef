/* Function multiversioning: vector code for several CPUs in one binary. */
#ifndef TSHI_CPU_CLONES_H
#define TSHI_CPU_CLONES_H

#include <stdint.h> /* for __GLIBC__ */

/* Bytes of the widest vectors in use. A test suite that compiles a file with fewer has no clones, because clang
 * would define their resolvers a second time. */
#ifndef WIDEST_VECTORS
#define WIDEST_VECTORS 64
#endif

/* TSHI_CLONES before a static function compiles it for several CPUs, and the loader picks one. Functions that it
 * calls must be inlined into each clone, hence TSHI_INLINE. The levels differ by compiler: GCC matches arch= names
 * of single models exactly; clang 14 lists the x86-64 levels but never picks them. */
#if defined(TSHARD_NO_CLONES) || WIDEST_VECTORS < 64 || !defined(__x86_64__) || !defined(__GLIBC__)
#define TSHI_CLONES
#elif defined(__clang__) && __clang_major__ >= 14
#define TSHI_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#elif !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define TSHI_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TSHI_CLONES
#endif

#if defined(__GNUC__)
#define TSHI_INLINE static inline __attribute__((always_inline))
#else
#define TSHI_INLINE static inline
#endif

/* Code with explicit vectors is also compiled for 32 and 64 bytes where TSHI_X86_LEVELS is defined; WIDEST_VECTORS
 * is the widest in use. The level is chosen when a kernel is called, so that sanitizers instrument what runs. */
#if defined(__x86_64__) && defined(__GNUC__)
#define TSHI_X86_LEVELS
#define TSHI_HAS_256 (WIDEST_VECTORS >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define TSHI_HAS_512                                                                                                   \
    (WIDEST_VECTORS >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&                \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
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

/* Independent accumulators of a reduction over a row: enough to fill the widest vectors. */
#define TSHI_LANES 16

#endif
