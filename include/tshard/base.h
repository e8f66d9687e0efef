/* base: status codes, messages, log sink, allocator hooks, version. Conventions of all headers:
 *  - A function that can fail returns tsh_status and sets *out to NULL on failure, or returns NULL. tsh_error_message()
 *    (for a tape: tsh_tape_message()) says why.
 *  - A NULL where an object is needed is TSH_ERR_ARGUMENT. Queries of NULL (tsh_tensor_ndim, tsh_group_rank) return 0,
 *    NULL, false, -1 for a rank or TSH_DTYPE_COUNT; void functions ignore NULL.
 *  - _create, _clone and _retain give a reference; _release and _destroy take one and accept NULL. Arguments are
 *    borrowed.
 *  - A world and all that belongs to it is used by the thread that created it (docs/threads.md).
 *
 * Thread safety: any thread may call all functions of this header, at any time. */
#ifndef TSHARD_BASE_H
#define TSHARD_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the library exports, and functions whose arguments follow a format as printf's do. */
#if defined(__GNUC__)
#define TSH_API                         __attribute__((visibility("default")))
#define TSH_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define TSH_API
#define TSH_PRINTF(format_index, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the headers; before 1.0 each minor version may change the interface. */
#define TSH_VERSION_MAJOR 0
#define TSH_VERSION_MINOR 2
#define TSH_VERSION_PATCH 0

/* The result of a call; tsh_error_message says why it failed. */
typedef enum tsh_status {
    TSH_OK = 0,
    TSH_ERR_ARGUMENT,    /* a NULL, a negative count, an unknown name, a bad configuration */
    TSH_ERR_SHAPE,       /* shapes that do not fit each other */
    TSH_ERR_DTYPE,       /* an element type that the operation does not take */
    TSH_ERR_LAYOUT,      /* layouts for which no rule exists */
    TSH_ERR_RANGE,       /* an id or a rank out of range, or a value that is not finite */
    TSH_ERR_OVERFLOW,    /* a size that does not fit its type */
    TSH_ERR_MEMORY,      /* no memory */
    TSH_ERR_IO,          /* a file that cannot be read or written, or holds something else */
    TSH_ERR_SYSTEM,      /* an operating system call failed; errno's words are in the message */
    TSH_ERR_STATE,       /* a call at the wrong time: backward twice, a destroyed group */
    TSH_ERR_UNSUPPORTED, /* not built in, or not on this device */
    TSH_ERR_MISMATCH,    /* ranks called different collectives; the message prints both sides */
    TSH_ERR_TIMEOUT,     /* the deadline passed; the message names the missing ranks */
    TSH_ERR_PEER,        /* another rank failed or died; the message names it and its cause */
    TSH_STATUS_COUNT
} tsh_status;

/* "TSH_OK", "TSH_ERR_SHAPE", ...; "unknown status" for any other value. Never NULL. */
TSH_API const char *tsh_status_name(tsh_status status);

/* The message of the last failure on this thread: valid until the next failure; "" when nothing has failed. Never
 * NULL. */
TSH_API const char *tsh_error_message(void);

/* The version of the linked library, "0.2.0"; TSH_VERSION_* are those of the headers. */
TSH_API const char *tsh_version(void);

/* The severity of a log line. */
typedef enum tsh_log_level { TSH_LOG_DEBUG, TSH_LOG_INFO, TSH_LOG_WARNING, TSH_LOG_ERROR } tsh_log_level;

/* Receives each line of the log, without a newline. `user` is tsh_log_sink::user. Called by the world's thread, and by
 * a thread of the library while the world's thread is in a long MPI call. */
typedef void tsh_log_fn(void *user, tsh_log_level level, const char *line);

/* The log sink of a world. A NULL fn prints TSH_LOG_WARNING and above to stderr. */
typedef struct tsh_log_sink {
    tsh_log_fn *fn; /* gets each line */
    void *user;     /* the first argument of fn */
} tsh_log_sink;

/* Where a world's host memory comes from, and a veto on its device memory. NULL members take the defaults.
 *  alloc    returns `size` bytes aligned to 16, or NULL
 *  release  frees memory that alloc returned; never called with NULL
 *  reserve  called before each allocation of tensor memory on the device; false makes it fail.
 *           For budgets, and for tests that inject failures.
 *  user     the first argument of all three */
typedef struct tsh_allocator {
    void *(*alloc)(void *user, size_t size);
    void (*release)(void *user, void *pointer);
    bool (*reserve)(void *user, size_t size);
    void *user;
} tsh_allocator;

#ifdef __cplusplus
}
#endif

#endif
