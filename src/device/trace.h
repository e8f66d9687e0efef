/* The trace of a rank: timed events in a mapped file, which is complete up to the moment when the process ends, even
 * if it is killed. tshard-trace reads the files of all ranks.
 *
 * A file is a header and then events of one size; some kinds are followed by the bytes of a text or of ranks, padded
 * to whole events. An event whose `end` is 0 was still open. Numbers of texts and groups count within the file. */
#ifndef TSHI_TRACE_H
#define TSHI_TRACE_H

#include "base/clock.h"
#include "device/device.h"

#define TSHI_TRACE_MAGIC      "tshard trace 1"
#define TSHI_TRACE_FILE       "rank" /* FOLDER/rank.3 */
#define TSHI_TRACE_CHUNK      65536  /* events in a mapped chunk */
#define TSHI_TRACE_MAX_CHUNKS 256    /* most chunks of a file */
#define TSHI_TRACE_DEPTH      64     /* nested functions, or nested ranges of a program */

typedef enum tshi_trace_kind {
    TSHI_TRACE_NONE = 0,   /* the file ends here */
    TSHI_TRACE_PAD,        /* padding up to the end of a chunk */
    TSHI_TRACE_TEXT,       /* name: its number; a: its length; the text follows */
    TSHI_TRACE_GROUP,      /* group: its number; name: its axis; a: its ranks, which follow, an int32_t each */
    TSHI_TRACE_CLOCK,      /* begin: ticks; end: nanoseconds of CLOCK_MONOTONIC at that time */
    TSHI_TRACE_OFFSET,     /* begin: ticks; a: this clock minus rank 0's, nanoseconds; b: a bound on its error */
    TSHI_TRACE_FUNCTION,   /* name; detail: tensors; a: bytes in use at its end; b: at the peak so far */
    TSHI_TRACE_PRODUCT,    /* name; a, b, c: m, n, k */
    TSHI_TRACE_KERNEL,     /* name: its family; a: bytes that it reads and writes */
    TSHI_TRACE_COLLECTIVE, /* name; group; a: bytes of the whole; b: its number in the group; peer: the root */
    TSHI_TRACE_SEND,       /* group; a: bytes; peer: the other rank in the group; b: its number among such messages */
    TSHI_TRACE_RECV,       /* as SEND */
    TSHI_TRACE_WAIT,       /* the wait for a call that was started before: name, group, b and peer are that call's */
    TSHI_TRACE_STEP,       /* an optimizer's step */
    TSHI_TRACE_RESET,      /* a tape is reset; only begin is set */
    TSHI_TRACE_RANGE,      /* name: backward, or one of the program's own */
    TSHI_TRACE_KIND_COUNT
} tshi_trace_kind;

enum {
    TSHI_TRACE_BACKWARD = 1, /* during a backward */
    TSHI_TRACE_BLOCKS = 2,   /* a collective or message that its caller waits for */
    TSHI_TRACE_AGREES = 4    /* an agreement (a collective that compares texts), numbered separately */
};

typedef struct tshi_trace_event {
    uint64_t begin, end; /* ticks */
    uint32_t kind;       /* a tshi_trace_kind */
    uint32_t flags;
    uint32_t name, detail; /* numbers of texts; 0: none */
    uint32_t group;
    int32_t peer;
    int64_t a, b, c;
} tshi_trace_event;

typedef struct tshi_trace_header {
    char magic[16];
    int32_t rank, size;
    uint32_t event_bytes;
    uint32_t order;   /* 0x01020304 */
    uint64_t run;     /* the same in all files of a run */
    uint64_t machine; /* ranks of one machine have the same clock */
    uint64_t unused[2];
} tshi_trace_header;

_Static_assert(sizeof(tshi_trace_event) == 64 && sizeof(tshi_trace_header) == 64, "the format of the files");

typedef struct tshi_trace_text {
    uint64_t key;
    uint32_t number; /* 0: a free slot of the table */
} tshi_trace_text;

/* Counters that number a group's messages. */
typedef struct tshi_trace_group {
    int64_t collectives, agreements;
    int64_t *messages; /* [2 * ranks] messages sent to and received from each rank */
} tshi_trace_group;

typedef struct tshi_trace_file {
    tsh_allocator allocator;
    const tsh_log_sink *log;
    tshi_trace_header header;
    int file;
    char path[1024];
    tshi_trace_event *chunk[TSHI_TRACE_MAX_CHUNKS];
    int chunks, used;  /* chunks mapped; events used in the last one */
    bool full;         /* no room: further events are dropped */
    bool common_clock; /* all ranks share one clock */
    tshi_trace_event nowhere;
    tshi_trace_text *texts; /* [texts_size], by key */
    uint32_t texts_count, texts_size;
    tshi_trace_group *groups; /* group number n is at n - 1 */
    int groups_count, groups_room;
    tshi_trace_event *function[TSHI_TRACE_DEPTH], *range[TSHI_TRACE_DEPTH];
    int functions, ranges;
    struct tshi_planned *timed;     /* the device's table during the trace, which times its kernels (device/plan) */
    const tshi_range_ops *profiler; /* gets the ranges, too; NULL: there is none */
} tshi_trace_file;

/* Creates the folder, if it does not exist, and in it the file FOLDER/rank.R. */
tsh_status tshi_trace_create(const tsh_allocator *allocator, const tsh_log_sink *log, const char *folder,
                             const tshi_trace_header *header, tshi_trace_file **out);
/* Truncates the file to its events and closes it. NULL is ignored. */
void tshi_trace_destroy(tshi_trace_file *trace);

/* Opens an event that begins now; the caller fills it and sets `end`. Never NULL: where no room is left, which has
 * been logged, it is an event outside the file. */
tshi_trace_event *tshi_trace_open(tshi_trace_file *trace, tshi_trace_kind kind);
static inline void tshi_trace_close(tshi_trace_event *event) {
    event->end = tshi_ticks();
}

/* The number of a text, which is written to the file at its first use; 0 without memory. */
uint32_t tshi_trace_name(tshi_trace_file *trace, const char *text);
/* tshi_trace_name in two steps, for texts that are costly to make: `known` gives the number of the text with this
 * key, or 0; `define` writes it. */
uint32_t tshi_trace_known(const tshi_trace_file *trace, uint64_t key);
uint32_t tshi_trace_define(tshi_trace_file *trace, uint64_t key, const char *text);

/* Writes a group to the file; returns its number, 0 without memory. */
uint32_t tshi_trace_add_group(tshi_trace_file *trace, const char *axis, const int *ranks, int n);
/* Writes a pair of ticks and clock: two pairs give the length of the ticks between them. */
void tshi_trace_clock(tshi_trace_file *trace);

/* Ranges that the program opens and closes. */
void tshi_trace_range_begin(tshi_trace_file *trace, const char *name);
void tshi_trace_range_end(tshi_trace_file *trace);

/* A function begins, nested in those that called it. */
void tshi_trace_function_begin(tshi_trace_file *trace, const tsh_device *device, const char *name);
/* detail: the number of a text that lists its tensors. */
void tshi_trace_function_end(tshi_trace_file *trace, const tsh_device *device, uint32_t detail);

#endif
