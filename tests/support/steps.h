/* The loop of a program in which one rank fails once: what each rank sees of it. */
#ifndef TSHI_STEPS_H
#define TSHI_STEPS_H

#include "support/ranks.h"

enum { TSHI_LOOP_STEPS = 7, TSHI_LOST_STEP = 3 };

/* When the victim fails, or how; the moments of one step in their order. */
typedef enum tshi_moment {
    TSHI_FIRST,
    TSHI_BETWEEN,
    TSHI_AT_END,
    TSHI_LATE,
    TSHI_EVALUATION,
    TSHI_MISMATCH,
    TSHI_BY_HAND,
    TSHI_MOMENTS
} tshi_moment;

typedef struct tshi_story {
    tshi_moment when;
    int victim;
} tshi_story;

/* Of one rank. */
typedef struct tshi_course {
    bool ok[TSHI_LOOP_STEPS], evaluated[TSHI_LOOP_STEPS];
    double loss[TSHI_LOOP_STEPS];
} tshi_course;

/* "before all", ... */
const char *tshi_moment_name(tshi_moment when);
/* Steps with a collective along each of two axes, random numbers and a backward, and between them evaluations on
 * another tape where the story wants them. Each tape is reset after each step, whatever came of it. */
void tshi_run_steps(tshi_rank *r, const tshi_story *story, tshi_course *out);
/* Returns "" if the courses of all ranks are right: steps succeed on all ranks with equal numbers, except around the
 * failure. A rank may get the failure in the step before, in which the victim no longer takes part, or in the next
 * step, which all ranks then skip. */
const char *tshi_check_courses(const tshi_course *all, int ranks, const tshi_story *story);

#endif
