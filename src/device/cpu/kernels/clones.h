/* Vector code for loops, without assuming the build machine's CPU. */
#ifndef TSHI_CPU_CLONES_H
#define TSHI_CPU_CLONES_H

#include <stdint.h> /* for __GLIBC__ */

/* Bytes of the largest vectors that are used. A suite that compiles a file for less has no clones, whose resolvers
 * clang would make a second time. */
#ifndef WIDEST_VECTORS
#define WIDEST_VECTORS 64
#endif

/* TSHI_CLONES before a static function compiles it for several CPUs; the loader picks one. Functions that it calls
 * have to be inlined into each, hence TSHI_INLINE. The levels differ by compiler: GCC matches arch= names of single
 * models exactly, and clang 14 lists the x86-64 levels but never picks them. */
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

/* Code that is written for vectors of one size exists for 32 and 64 bytes too where TSHI_X86_LEVELS is defined.
 * The largest that are used have WIDEST_VECTORS. The choice is made when a kernel is called, so that sanitizers see
 * what runs. */
#if defined(__x86_64__) && defined(__GNUC__)
#define TSHI_X86_LEVELS
#define TSHI_HAS_256 (WIDEST_VECTORS >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define TSHI_HAS_512                                                                                                   \
    (WIDEST_VECTORS >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&                \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
#endif

/* Before a loop of a constant number of iterations, each of which becomes code of its own. */
#if defined(__clang__)
#define TSHI_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define TSHI_UNROLL _Pragma("GCC unroll 16")
#else
#define TSHI_UNROLL
#endif

/* Before a loop whose iterations are independent, also where its output is one of its inputs. */
#if defined(__clang__)
#define TSHI_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
/* Loops around a libm call stay scalar here, which clang would warn of. */
#pragma clang diagnostic ignored "-Wpass-failed"
#elif defined(__GNUC__)
#define TSHI_INDEPENDENT _Pragma("GCC ivdep")
#else
#define TSHI_INDEPENDENT
#endif

/* Independent partial results of a reduction over a row: enough to fill the widest vectors. */
#define TSHI_LANES 16

#endif
