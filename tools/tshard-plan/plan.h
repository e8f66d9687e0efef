/* Dry runs: the ranks of a world that are run, one process each, and what they have counted. */
#ifndef PLAN_H
#define PLAN_H

#include "common/step_time.h"

#define PLAN_MAX_RUNS 64

/* A kind of rank: the ranks with as many collectives, and within a thousandth the same peak, bytes and arithmetic. */
typedef struct plan_kind {
    tshi_record *record; /* of the kind's first rank */
    int ranks[PLAN_MAX_RUNS];
    int count; /* how many of them were run */
} plan_kind;

typedef struct plan_result {
    int size;     /* of the world */
    bool uniform; /* true when the first and the last rank are of one kind: no others were run */
    plan_kind kinds[PLAN_MAX_RUNS];
    int count;
} plan_result;

/* plan.c: "tshard-plan: ..." and a newline to stderr. */
void plan_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Runs ranks of a world of `size` of the program and drops their output: the first and the last rank and, where
 * those differ, the ranks in the middle and at the end of each axis of the mesh, or all ranks along an axis with
 * weights or of pipeline stages. Returns 0, or the exit code after printing why. */
int plan_run(int size, char **command, plan_result *out);
void plan_free(plan_result *result);

/* print.c: to stdout, as a table or as JSON; with the time of a step unless m is NULL. */
void plan_print(const plan_result *result, const machine *m);
void plan_print_json(const plan_result *result, const machine *m);

/* time.c: the step of the slowest kind. */
step_time plan_slowest(const plan_result *result, const machine *m);
/* A row of the table for each part of the time: its name, and seconds of a step. */
#define PLAN_PARTS 7
typedef struct plan_part {
    const char *label, *name; /* for people; for programs */
    double seconds;
} plan_part;
void plan_parts(const step_time *t, plan_part parts[PLAN_PARTS]);
/* "step_seconds": 1, "step_parts": {...} */
void plan_print_time_json(const step_time *t);

#endif
