/* Copies, with non-temporal stores for large ones. */
#include "device/cpu/kernels/kernels.h"

#include <string.h>

/* --- large copies ------------------------------------------------------------------------------------------------- */

#if defined(__SSE2__) && !defined(TSHARD_SANITIZED) /* a sanitizer cannot check intrinsic stores */
#include <emmintrin.h>

#define LINE  64
#define PAGE  4096
#define AHEAD 256
/* From this size on source and destination do not fit L2. A non-temporal store saves the read of the destination's
 * line, which is a third of the traffic. */
#define STREAM_BYTES ((size_t)2 << 20)

static inline void stream_line(const char *from, char *to) {
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

/* Copies four pages at a time, interleaved, because the hardware prefetcher does not cross a page. Returns the bytes
 * copied: all but less than four pages. `to` is aligned to a cache line. */
static size_t stream(size_t bytes, const char *from, char *to) {
    size_t done = 0;
    for (; bytes - done >= 4 * PAGE; done += 4 * PAGE) {
        for (size_t at = done; at < done + PAGE; at += LINE) {
            for (size_t page = at; page < at + 4 * PAGE; page += PAGE) {
                _mm_prefetch(from + page + AHEAD, _MM_HINT_T0);
                stream_line(from + page, to + page);
            }
        }
    }
    _mm_sfence(); /* orders the non-temporal stores before later stores of this rank */
    return done;
}

static void copy_bytes(size_t bytes, const char *from, char *to) {
    if (bytes < STREAM_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    memcpy(to, from, head);
    size_t done = head + stream(bytes - head, from + head, to + head);
    memcpy(to + done, from + done, bytes - done);
}
#else
static void copy_bytes(size_t bytes, const char *from, char *to) {
    memcpy(to, from, bytes);
}
#endif

/* --- kernels ------------------------------------------------------------------------------------------------------ */

void tshi_cpu_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    if (bytes > 0 && from != to) copy_bytes(bytes, from, to);
}

static inline void copy_runs(int64_t outer, size_t bytes, const char *from, size_t from_stride, char *to,
                             size_t to_stride) {
    for (int64_t o = 0; o < outer; o++) memcpy(to + (size_t)o * to_stride, from + (size_t)o * from_stride, bytes);
}

/* A copy of a few elements is ten times as fast with a constant size. */
void tshi_cpu_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                           void *to, size_t to_stride) {
    switch (bytes) {
    case 0: break;
    case 1: copy_runs(outer, 1, from, from_stride, to, to_stride); break;
    case 2: copy_runs(outer, 2, from, from_stride, to, to_stride); break;
    case 4: copy_runs(outer, 4, from, from_stride, to, to_stride); break;
    case 8: copy_runs(outer, 8, from, from_stride, to, to_stride); break;
    case 16: copy_runs(outer, 16, from, from_stride, to, to_stride); break;
    case 32: copy_runs(outer, 32, from, from_stride, to, to_stride); break;
    default: copy_runs(outer, bytes, from, from_stride, to, to_stride);
    }
}

void tshi_cpu_zero(tsh_device *device, size_t bytes, void *to) {
    if (bytes > 0) memset(to, 0, bytes);
}

void tshi_cpu_repeat(size_t size, const void *element, int64_t n, size_t most, void *to) {
    size_t bytes = (size_t)n * size;
    if (bytes == 0) return;
    size_t whole = size < most ? most / size * size : size;
    memcpy(to, element, size);
    for (size_t done = size, more; done < bytes; done += more) {
        more = done < bytes - done ? done : bytes - done;
        if (more > whole) more = whole;
        memcpy((char *)to + done, to, more);
    }
}
