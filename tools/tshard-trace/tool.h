/* tshard-trace: reads the files of a traced run, puts the events of all ranks on one clock, finds which ones belong
 * together, and prints a table, a file for Perfetto or a page. */
#ifndef TRACE_TOOL_H
#define TRACE_TOOL_H

#include "device/trace.h"

#include <stdio.h>
#include <string.h>

typedef struct event {
    const tshi_trace_event *raw;
    double begin, end; /* microseconds since the run's first event, on rank 0's clock */
    double waits;      /* of these, for another rank */
    int for_rank;      /* that rank; -1: none */
    int call;          /* index of a collective or message; -1: none */
    int lane;          /* of communication: calls of a group that overlap are in different ones */
    bool unended;      /* the file ends before it does */
    bool inside;       /* a part of another event of computing or communication */
} event;

typedef struct trace_group {
    const char *axis;
    int size;
    const int32_t *ranks;
    int same; /* number of the group of the same ranks among those of this file, from 0 */
    int id;   /* the same on all of its ranks */
} trace_group;

typedef struct rank_trace {
    tshi_trace_header header;
    tshi_trace_event *raw;
    size_t raws;
    bool cut; /* the process ended before it could end its trace */
    char **texts;
    int texts_count, texts_room;
    trace_group *groups;
    int groups_count, groups_room;
    event *events; /* in the order in which they began */
    int count, room;
    double *steps; /* [steps_count + 1] the ends of steps, and the begin of the first */
    int steps_count;
    int lanes; /* of communication */
} rank_trace;

/* A collective or a message: its events on its ranks. */
typedef struct call {
    int group, kind; /* id of the group; 0: collective, 1: agreement, 2: message */
    int from, to;    /* world ranks of a message */
    int64_t number;
    int first, members; /* in run.member */
    int late;           /* the world rank that began last, for which the others wait; -1: not known */
    double ready;       /* when all had begun */
} call;

typedef struct member {
    int rank, event; /* index in run.rank, and in its events */
} member;

typedef struct traces {
    char folder[1024];
    rank_trace *rank;
    int ranks; /* files that were read; run.rank[i].header.rank are ascending */
    int size;  /* of the world */
    call *calls;
    int calls_count;
    member *members;
    int members_count;
    bool by_steps;             /* steps of an optimizer, or resets of a tape */
    int first_step, last_step; /* from 1: what is shown; 0: all */
} traces;

/* What a rank's step is made of, in microseconds on average. */
typedef struct share {
    int rank;
    double step, products, attention, kernels, moving, waiting, rest;
    double hidden; /* communication beside other work */
    double *waits; /* [run.size] for each rank */
} share;

typedef struct row {
    const char *what, *name, *axis; /* what: "product", "attention", "kernel" or "communication"; axis or "" */
    bool backward;
    double calls, time, waits, bytes; /* of a step, of all ranks together; time without waits */
} row;

typedef struct table {
    int steps;     /* of each rank */
    bool left_out; /* the first step is */
    double median; /* of all ranks' steps, microseconds */
    share *share;  /* [run.ranks] */
    row *rows;     /* the longest first */
    int rows_count;
    int worst;                         /* the world rank that others wait for most; -1: none */
    double worst_waits;                /* of all others together, in a step */
    const char *worst_in, *worst_axis; /* where they wait for it most */
    const char *worst_more;            /* what takes it longer than the others, or NULL */
    double worst_extra;                /* by so much, against the mean of the others */
} table;

/* read.c: false after saying why. Files that cannot be used are left out with a word. */
bool run_read(const char *folder, traces *out);
const char *text_of(const rank_trace *r, uint32_t number);
const trace_group *group_of(const rank_trace *r, const event *e);
/* match.c: calls, waits, lanes, steps, and all but the steps that are shown left out; false after saying why. */
bool run_match(traces *r);
/* table.c */
bool table_make(const traces *r, table *out);
void table_print(const traces *r, const table *t, FILE *to);
void table_json(const traces *r, const table *t, FILE *to);
/* json.c: for Perfetto and Chrome. */
void write_json(const traces *r, FILE *to);
/* A JSON string, with its quotes. */
void print_string(FILE *to, const char *text);
/* html.c: a page that needs no other file. */
void write_html(const traces *r, const table *t, FILE *to);

/* A row of communication, as it is called: "model", "messages of data". */
const char *lane_name(const rank_trace *r, int lane, char *text, size_t size);
/* "matmul backward", or its name alone. */
const char *event_name(const rank_trace *r, const event *e, char *text, size_t size);
/* Kernels of attention are products and a softmax at once. */
static inline bool is_attention(const rank_trace *r, const event *e) {
    return e->raw->kind == TSHI_TRACE_KERNEL && !strncmp(text_of(r, e->raw->name), "attention", 9);
}
static inline bool is_call(const tshi_trace_event *raw) {
    return raw->kind == TSHI_TRACE_COLLECTIVE || raw->kind == TSHI_TRACE_SEND || raw->kind == TSHI_TRACE_RECV;
}

#endif
