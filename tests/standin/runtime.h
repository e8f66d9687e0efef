/* The stand-in of the CUDA runtime from the inside: what its files share. All state is under one lock. */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include "standin/standin.h"

#include <stddef.h>

/* --- state.c: the lock, and failures ------------------------------------------------------------------------------ */

void standin_enter(void); /* recursive */
void standin_leave(void);
_Noreturn void standin_die(const char *message);
/* A call that has to fail: its code. */
bool standin_fails(const char *name, cudaError_t usual, cudaError_t *error);
/* The last error of this thread, which it returns. */
cudaError_t standin_note(cudaError_t error);

/* --- memory.c ----------------------------------------------------------------------------------------------------- */

typedef enum standin_kind {
    STANDIN_DEVICE,
    STANDIN_MANAGED,
    STANDIN_PINNED,
    STANDIN_MAPPED,
    STANDIN_NCCL
} standin_kind;

/* What another process needs to map a piece, as CUDA's opaque handle holds it. */
typedef struct standin_handle {
    uint64_t number; /* of the piece in its process */
    size_t size;
    int process, file, gpu;
} standin_handle;

typedef struct standin_piece {
    char *base;
    size_t size;
    standin_kind kind;
    standin_handle handle;       /* DEVICE and MAPPED */
    struct standin_users *users; /* processes that have it mapped; in the file, behind the memory */
    int opened;                  /* MAPPED: times that it was opened and not closed */
    struct standin_piece *next;
} standin_piece;

/* What cudaMalloc and cudaFree do, and their like. */
cudaError_t standin_take(const char *name, standin_kind kind, size_t size, void **out);
cudaError_t standin_give(const char *name, standin_kind kind, void *pointer);
standin_piece *standin_memory_at(const void *pointer);
/* Dies where [pointer, pointer + bytes) is not a device's. */
void standin_check_memory(const void *pointer, size_t bytes);

/* --- gpu.c -------------------------------------------------------------------------------------------------------- */

int standin_current(void); /* this thread's GPU */
bool standin_can_reach(int from, int to);
size_t standin_total_memory(void);

/* --- streams.c ---------------------------------------------------------------------------------------------------- */

#define STANDIN_STREAMS 256

/* One recording of an event, which may be recorded again, on another stream, before the first is reached. */
typedef struct mark {
    struct CUstream_st *stream;
    bool reached;
    double at; /* milliseconds, by the clock of events */
    int uses;
} mark;

typedef struct operation {
    bool (*ready)(void *data);
    void (*run)(void *data);
    void *data;
    void (*drop)(void *data);
    mark *wait; /* instead: until this is reached */
    mark *reach;
    struct operation *next;
} operation;

typedef struct capture {
    operation *first, *last;
    int uses;
    bool invalid;
} capture;

struct CUstream_st {
    operation *first, *last;
    capture *capture;
    bool origin, unjoined;
};

extern struct CUstream_st *standin_streams[STANDIN_STREAMS];
bool standin_is_stream(const struct CUstream_st *stream);
/* Dies where it is none. */
struct CUstream_st *standin_stream(cudaStream_t stream);

#endif
