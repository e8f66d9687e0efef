/* What a rank does when: events with the time of each, in a file that is mapped, so that they are there when the
 * process ends, however it does. tshard-trace reads the files of all ranks.
 *
 * A file is a header and events of one size, one after the other; a few kinds are followed by bytes of text or ranks,
 * filled up to whole events. An event whose `end` is 0 had not ended. The numbers of texts and groups are the
 * file's. */
#ifndef TSHI_TRACE_H
#define TSHI_TRACE_H

#include "base/clock.h"
#include "device/device.h"

#define TSHI_TRACE_MAGIC "tshard trace 1"
#define TSHI_TRACE_FILE  "rank" /* FOLDER/rank.3 */
#define TSHI_TRACE_CHUNK 65536  /* events that are mapped at a time */
#define TSHI_TRACE_MOST  256    /* chunks */
#define TSHI_TRACE_DEPTH 64     /* functions, or a program's ranges, inside of each other */

typedef enum tshi_trace_kind {
    TSHI_TRACE_NONE = 0,   /* the file ends here */
    TSHI_TRACE_PAD,        /* nothing up to the end of a chunk */
    TSHI_TRACE_TEXT,       /* name: its number; a: its length; the text follows */
    TSHI_TRACE_GROUP,      /* group: its number; name: its axis; a: its ranks, which follow, an int32_t each */
    TSHI_TRACE_CLOCK,      /* begin: ticks; end: nanoseconds of CLOCK_MONOTONIC at that time */
    TSHI_TRACE_OFFSET,     /* begin: ticks; a: nanoseconds that this clock is ahead of rank 0's; b: at most so wrong */
    TSHI_TRACE_FUNCTION,   /* name; detail: tensors; a: bytes in use at its end; b: at the peak so far */
    TSHI_TRACE_PRODUCT,    /* name; a, b, c: m, n, k */
    TSHI_TRACE_KERNEL,     /* name: its family; a: bytes that it reads and writes */
    TSHI_TRACE_COLLECTIVE, /* name; group; a: bytes of the whole; b: its number in the group; peer: the root */
    TSHI_TRACE_SEND,       /* group; a: bytes; peer: the other rank in the group; b: its number among such messages */
    TSHI_TRACE_RECV,       /* as SEND */
    TSHI_TRACE_WAIT,       /* the wait for a call that was started before: name, group, b and peer are that call's */
    TSHI_TRACE_STEP,       /* an optimizer's step */
    TSHI_TRACE_RESET,      /* a tape is reset; begin alone */
    TSHI_TRACE_RANGE,      /* name: backward, or one of the program's own */
    TSHI_TRACE_KIND_COUNT
} tshi_trace_kind;

enum {
    TSHI_TRACE_BACKWARD = 1, /* in a backward */
    TSHI_TRACE_BLOCKS = 2,   /* a collective or message that its caller waits for */
    TSHI_TRACE_AGREES = 4    /* a collective that compares texts; numbered apart */
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
    uint32_t number; /* 0: the place is free */
} tshi_trace_text;

/* A group's calls, for their numbers. */
typedef struct tshi_trace_group {
    int64_t collectives, agreements;
    int64_t *messages; /* [2 * ranks] sent to and received from each */
} tshi_trace_group;

typedef struct tshi_trace_file {
    tsh_allocator allocator;
    const tsh_log_sink *log;
    tshi_trace_header header;
    int file;
    char path[1024];
    tshi_trace_event *chunk[TSHI_TRACE_MOST];
    int chunks, used;  /* used: events of the last one */
    bool full;         /* events go nowhere from now on */
    bool common_clock; /* all ranks have one */
    tshi_trace_event nowhere;
    tshi_trace_text *texts; /* [texts_size], by key */
    uint32_t texts_count, texts_size;
    tshi_trace_group *groups; /* a group's number less 1 */
    int groups_count, groups_room;
    tshi_trace_event *function[TSHI_TRACE_DEPTH], *range[TSHI_TRACE_DEPTH];
    int functions, ranges;
    /* The device's own kernels, and the table that it has meanwhile, whose kernels are events (device/plan). */
    const tshi_device_ops *behind;
    struct tshi_planned *timed;
} tshi_trace_file;

/* Makes the folder, unless it is there, and the file in it, whose name has the header's rank. */
tsh_status tshi_trace_create(const tsh_allocator *allocator, const tsh_log_sink *log, const char *folder,
                             const tshi_trace_header *header, tshi_trace_file **out);
/* The file gets the length of what is in it. NULL is fine. */
void tshi_trace_destroy(tshi_trace_file *trace);

/* An event that begins now; its `end` is the caller's to set, as the rest of it is. Never NULL: events that find no
 * room go nowhere, which has been logged. */
tshi_trace_event *tshi_trace_open(tshi_trace_file *trace, tshi_trace_kind kind);
static inline void tshi_trace_close(tshi_trace_event *event) {
    event->end = tshi_ticks();
}

/* The number of a text, which is written when it is new; 0 without memory. */
uint32_t tshi_trace_name(tshi_trace_file *trace, const char *text);
/* tshi_trace_name in two steps, for a text that is costly to make: the number of what has this key, or 0; then the
 * text is written. */
uint32_t tshi_trace_known(const tshi_trace_file *trace, uint64_t key);
uint32_t tshi_trace_define(tshi_trace_file *trace, uint64_t key, const char *text);

/* Writes a group down; its number, 0 without memory. */
uint32_t tshi_trace_add_group(tshi_trace_file *trace, const char *axis, const int *ranks, int n);
/* Pairs of ticks and clock: each says how long the ticks before it are. */
void tshi_trace_clock(tshi_trace_file *trace);

/* The program's own ranges. */
void tshi_trace_range_begin(tshi_trace_file *trace, const char *name);
void tshi_trace_range_end(tshi_trace_file *trace);

/* A function runs, on top of those that it is called by. */
void tshi_trace_function_begin(tshi_trace_file *trace, const tsh_device *device, const char *name);
/* detail: number of a text. */
void tshi_trace_function_end(tshi_trace_file *trace, const tsh_device *device, uint32_t detail);

#endif
