/* A program as one of its ranks runs it: where it is, and its segments. */
#ifndef TSHI_TEST_RUN_H
#define TSHI_TEST_RUN_H

#include "differential/rank.h"

typedef struct tshi_run {
    const tshi_part *part;
    const tshi_program *p;
    tshi_bench bench;
    tsh_data_parallel *dp;
    tsh_tensor *leaf[MAX_STEPS], *value[MAX_STEPS];
    int owned_count;
    tshi_owned owned[MAX_PARAMETERS];
    tsh_tensor *parameter[MAX_PARAMETERS];
    int pass, step; /* where it is */
    bool fails;     /* in a step that fails on purpose */
} tshi_run;

/* Note the first failure; the status. */
tsh_status tshi_run_note(tshi_run *r, tsh_status status, const char *what);

void tshi_run_put(tsh_tensor *t, int64_t i, double value);
tsh_layout tshi_run_layout(const tshi_run *r, const tsh_tensor *x, int axis);

/* --- writes.c ----------------------------------------------------------------------------------------------------- */

/* To all parameters; between forward and backward, to what the program spoils. */
tsh_status tshi_run_rewrite(tshi_run *r);
tsh_status tshi_run_spoil(tshi_run *r);

/* --- segments.c --------------------------------------------------------------------------------------------------- */

enum { MOST_OPEN = 2 };

/* Those that have begun, one within the other. */
typedef struct tshi_open_segments {
    int count, first[MOST_OPEN], last[MOST_OPEN]; /* steps */
    tsh_mark mark[MOST_OPEN];
} tshi_open_segments;

/* The salt of a step says whether a segment begins with it, and how many steps that has. */
void tshi_run_begin_segment(const tshi_run *r, int k, tshi_open_segments *open);
/* After step k. What is used later is retained until the segment has ended. */
tsh_status tshi_run_end_segments(tshi_run *r, int k, tshi_open_segments *open);

#endif
