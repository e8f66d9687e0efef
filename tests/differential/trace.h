/* What a run has seen, in order: values, gradients, norms. A rank and the truth write the same entries; the truth's
 * hold the whole of what the rank's hold a part of. */
#ifndef TSHI_TEST_TRACE_H
#define TSHI_TEST_TRACE_H

#include "differential/program.h"

typedef enum tshi_entry_kind {
    ENTRY_VALUE,
    ENTRY_GRADIENT,
    ENTRY_RETAINED,
    ENTRY_PARAMETER,
    ENTRY_NORM
} tshi_entry_kind;

typedef struct tshi_entry {
    tshi_entry_kind kind;
    int index; /* of a value or a parameter */
    int pass, objective;
    int alias; /* of values: the earlier one that is the same tensor, -1 */
    bool present;
    tshi_dims shape, whole;
    tsh_layout layout[TSH_MAX_AXES];
    int64_t count;
    size_t at; /* first of its numbers */
} tshi_entry;

typedef struct tshi_trace {
    tshi_entry *entries;
    int count, capacity;
    double *numbers;
    size_t used, room;
    /* How it ended. */
    tsh_status status;
    int pass, step; /* that failed; step: steps + objective in backward, -1 elsewhere */
    char words[1024];
} tshi_trace;

void tshi_trace_clear(tshi_trace *t);
void tshi_trace_free(tshi_trace *t);
/* Add an entry; tensor NULL: not present. */
tshi_entry *tshi_trace_tensor(tshi_trace *t, const tshi_entry *what, const tsh_tensor *tensor);
/* The gradient of a parameter, or one of all rows that is made of a sparse one. */
void tshi_trace_gradient(tshi_trace *t, const tshi_entry *what, const tsh_tensor *parameter);
/* An entry with the numbers of another trace's. */
void tshi_trace_copy(tshi_trace *t, const tshi_entry *what, const tshi_trace *from, const tshi_entry *e);
void tshi_trace_number(tshi_trace *t, const tshi_entry *what, double number);
/* The value of step k in a pass, or NULL. */
const tshi_entry *tshi_trace_value(const tshi_trace *t, int pass, int k);

typedef struct tshi_verdict {
    enum {
        VERDICT_SAME,
        VERDICT_REFUSED,  /* for layouts, equal on every rank */
        VERDICT_UNJUDGED, /* numbers too large to be compared, or near a corner of a function, or a backward
                           * that a write to a parameter has spoilt, as all ranks say */
        VERDICT_FAILED
    } kind;
    int64_t compared;
    char words[2048];
} tshi_verdict;

void tshi_verdict_fail(tshi_verdict *v, const char *format, ...) TSH_PRINTF(2, 3);
/* The ranks' traces with the truth's. */
void tshi_compare(const tshi_program *p, const tshi_trace *ranks, const tshi_trace *truths, tshi_verdict *v);
/* The ranks' traces, of a deterministic world, with that of the same program on one rank. */
void tshi_compare_bits(const tshi_program *p, const tshi_trace *ranks, const tshi_trace *one, tshi_verdict *v);
/* True when all ranks have ended with equal results; otherwise false, with a verdict. */
bool tshi_judge_ends(const tshi_program *p, const tshi_trace *ranks, tshi_verdict *v);

#endif
