/* The steps of a phase on a rank, and what comes of them. */
#ifndef TSHI_TEST_TRAINING_RUN_H
#define TSHI_TEST_TRAINING_RUN_H

#include "training_steps/model.h"

#include <stdatomic.h>

enum { MOST_RANKS = 5, MOST_ENTRIES = 2048, MOST_NUMBERS = 1 << 16 };

typedef enum tshi_training_entry_kind {
    ENTRY_LOSS,
    ENTRY_NORM,
    ENTRY_FINITE,
    ENTRY_RETAINED,
    ENTRY_GRADIENT,
    ENTRY_PARAMETER
} tshi_training_entry_kind;

/* Numbers that a run has seen after the steps before `step`. */
typedef struct tshi_training_entry {
    tshi_training_entry_kind kind;
    int step, index; /* index: of a parameter */
    char name[48];
    int count, at;
} tshi_training_entry;

typedef struct tshi_training_trace {
    int entries, numbers;
    tshi_training_entry entry[MOST_ENTRIES];
    double number[MOST_NUMBERS];
} tshi_training_trace;

/* A run: all phases of the program, or all steps on one rank with nothing that the program could do without. */
typedef struct tshi_training_course {
    const tshi_training_program *p;
    const tshi_training_phase *phase;
    bool plain, exact;           /* exact: in float64, without micro-batches, scale and sparse gradients */
    int first, last;             /* steps */
    const char *folder;          /* of checkpoints */
    atomic_int arrived;          /* ranks that wait for the step in which one fails */
    atomic_bool gone;            /* a rank that the others need not wait for */
    tshi_training_trace *traces; /* [ranks] */
} tshi_training_course;

/* A tshi_rank_fn; arg is a course. */
void tshi_course_run(tshi_rank *r, void *arg);

#endif
