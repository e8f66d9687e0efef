/* The stand-in of the CUDA runtime from the inside: what its files share. All state is under one lock. */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include "standin/standin.h"

#include <pthread.h>
#include <stddef.h>

/* --- state.c: the lock, and failures ------------------------------------------------------------------------------ */

void standin_enter(void); /* recursive */
void standin_leave(void);
_Noreturn void standin_die(const char *message);
/* A call that has to fail: its code. */
bool standin_fails(const char *name, cudaError_t usual, cudaError_t *error);
/* What the environment said when CUDA began, with the first call: the queues of a GPU, and whether kernels are loaded
 * at once. */
bool standin_has_begun(void);
int standin_queues(void);
bool standin_loads_at_once(void);
/* The last error of this thread, which it returns. */
cudaError_t standin_note(cudaError_t error);

/* --- memory.c ----------------------------------------------------------------------------------------------------- */

typedef enum standin_kind { STANDIN_DEVICE, STANDIN_MANAGED, STANDIN_PINNED, STANDIN_MAPPED } standin_kind;

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
    int opened;                  /* MAPPED: times that it was opened and not closed, */
    unsigned openers;            /* and by which GPUs */
    bool closed;                 /* to the kernel that runs */
    struct standin_piece *next;
} standin_piece;

/* What cudaMalloc and cudaFree do, and their like. */
cudaError_t standin_take(const char *name, standin_kind kind, size_t size, void **out);
cudaError_t standin_give(const char *name, standin_kind kind, void *pointer);
standin_piece *standin_memory_at(const void *pointer);
/* Dies where [pointer, pointer + bytes) is not a device's. */
void standin_check_memory(const void *pointer, size_t bytes);

/* --- gpu.c -------------------------------------------------------------------------------------------------------- */

#define STANDIN_GPUS 16

bool standin_can_reach(int from, int to);
/* The first has been given access to the second's memory. */
bool standin_has_access(int from, int to);
size_t standin_total_memory(void);

/* --- streams.c ---------------------------------------------------------------------------------------------------- */

#define STANDIN_STREAMS 256

/* One recording of an event, which may be recorded again, on another stream, before the first is reached. */
typedef struct mark {
    struct CUstream_st *stream;
    bool reached;
    int uses;
} mark;

typedef struct operation {
    bool (*ready)(void *data);
    void (*run)(void *data);
    void *data;
    void (*drop)(void *data);
    mark *wait; /* instead: until this is reached */
    mark *reach;
    uint64_t number;
    struct operation *next;
} operation;

/* The nodes of a capture that what comes next has to come behind. */
#define STANDIN_FRONT 64
typedef struct front {
    int count, node[STANDIN_FRONT];
} front;

/* An operation in a graph. again (may be NULL) makes the data of each launch, which is dropped behind it. */
typedef struct node {
    operation op;
    void *(*again)(void *data);
    front behind;
} node;

typedef struct capture {
    node *nodes;
    int count, room, uses;
    uint64_t number, launches;
    enum cudaStreamCaptureMode mode;
    pthread_t thread; /* that began it */
    bool invalid;
} capture;

struct CUstream_st {
    operation *first, *last;
    capture *capture;
    front front; /* of the capture */
    int gpu, queue;
    bool origin, unjoined;
};

void standin_capture_add(struct CUstream_st *stream, const operation *op, void *(*again)(void *data));
void standin_front_add(front *to, const front *more);
/* Queue on a stream that is not captured. */
void standin_stream_queue(struct CUstream_st *stream, const operation *what);

extern struct CUstream_st *standin_streams[STANDIN_STREAMS];
bool standin_is_stream(const struct CUstream_st *stream);
/* Dies where it is none. */
struct CUstream_st *standin_stream(cudaStream_t stream);
/* Returns when `stream` is empty, for which other threads may have to do something first. */
void standin_drain(struct CUstream_st *stream);
/* A stream that is captured: the host must not ask it for anything. The capture is over then. */
bool standin_asked_capture(struct CUstream_st *stream);

/* --- modes.c ------------------------------------------------------------------------------------------------------ */

/* A call that no graph can hold: true, with the error, where a capture forbids it. The capture is over then. */
bool standin_unsafe(cudaError_t *error);
/* A call that waits for the whole GPU, which every capture forbids. */
bool standin_waits_for_device(cudaError_t *error);

#endif
