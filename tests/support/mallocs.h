/* Counts calls of malloc: the program that includes this, in one of its files, has malloc and its relatives of its own,
 * which call those of the C library; under a sanitizer its hook counts. Memory that oneDNN allocates and frees inside a
 * product is not counted. */
#ifndef TSHARD_TEST_MALLOCS_H
#define TSHARD_TEST_MALLOCS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>
#endif

static _Thread_local int64_t mallocs;

#if defined(__SANITIZE_ADDRESS__)

void __sanitizer_malloc_hook(const volatile void *pointer, size_t size);
void __sanitizer_malloc_hook(const volatile void *pointer, size_t size) {
    (void)pointer, (void)size;
    mallocs++;
}

#else

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *pointer, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    mallocs++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    mallocs++;
    return __libc_calloc(count, size);
}

void *realloc(void *pointer, size_t size) {
    mallocs++;
    return __libc_realloc(pointer, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    mallocs++;
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **pointer, size_t alignment, size_t size) {
    mallocs++;
    *pointer = __libc_memalign(alignment, size);
    return *pointer ? 0 : ENOMEM;
}

#endif

#ifdef TSHARD_HAVE_ONEDNN

/* The library's calls come here first. */
dnnl_status_t dnnl_sgemm(char transpose_a, char transpose_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                         const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
                         dnnl_dim_t ldc) {
    static dnnl_status_t (*real)(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const float *, dnnl_dim_t,
                                 const float *, dnnl_dim_t, float, float *, dnnl_dim_t);
    int64_t before = mallocs;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dnnl_sgemm");
    dnnl_status_t status = real(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    mallocs = before;
    return status;
}

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                     const dnnl_exec_arg_t *arguments) {
    static dnnl_status_t (*real)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *);
    int64_t before = mallocs;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    dnnl_status_t status = real(primitive, stream, count, arguments);
    mallocs = before;
    return status;
}

#endif

#endif
