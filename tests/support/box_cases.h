/* Redistributions with known answers: the cases of tests/data/boxes/redistribute.txt and
 * redistribute_weighted.txt, whose heads tell the format. */
#ifndef TSHI_TEST_BOX_CASES_H
#define TSHI_TEST_BOX_CASES_H

#include "layout/box.h"

#include <stdio.h>

enum { TSHI_CASE_RANKS = 16, TSHI_CASE_ELEMENTS = 8192, TSHI_CASE_NAME = 128, TSHI_CASE_WORDS = 512 };

/* What each rank holds, row-major; count -1 where the case does not say it. */
typedef struct tshi_case_parts {
    int count[TSHI_CASE_RANKS];
    double value[TSHI_CASE_RANKS][TSHI_CASE_ELEMENTS];
} tshi_case_parts;

/* What some ranks hold adds up to these values. */
typedef struct tshi_case_sum {
    int ranks[TSHI_CASE_RANKS], n, count;
    double value[TSHI_CASE_ELEMENTS];
} tshi_case_sum;

typedef struct tshi_box_case {
    char name[TSHI_CASE_NAME];
    int world;
    tshi_exchange e; /* its placements point to the lists of ranks and weights below */
    int from_ranks[TSHI_CASE_RANKS], to_ranks[TSHI_CASE_RANKS];
    int64_t from_weights[TSH_MAX_AXES][TSHI_CASE_RANKS], to_weights[TSH_MAX_AXES][TSHI_CASE_RANKS];
    long calls, bytes; /* of forward: at most so many calls of a rank, and the bytes that must change rank; -1: not
                        * said */
    tshi_case_parts in, out, dout, din;
    tshi_case_sum sums[TSHI_CASE_RANKS];
    int sum_count;
} tshi_box_case;

/* A file of cases while it is read. */
typedef struct tshi_box_cases {
    const char *path;
    FILE *file;
    char *line;
    size_t room;
    int number; /* of the line */
    char next[TSHI_CASE_NAME];
    char error[TSHI_CASE_WORDS]; /* "" while the file is right, else "PATH:LINE: ..." */
} tshi_box_cases;

/* False, with cases->error, when the file cannot be read. tshi_box_cases_close releases it either way. */
bool tshi_box_cases_open(tshi_box_cases *cases, const char *path);
/* The next case; false at the end of the file, and with cases->error where a line is wrong. */
bool tshi_box_cases_next(tshi_box_cases *cases, tshi_box_case *out);
void tshi_box_cases_close(tshi_box_cases *cases);

void tshi_case_parts_clear(tshi_case_parts *parts);
/* Compare what the ranks have got with what the case wants of `out` (and of its sums), or of `din`; false with the
 * first difference in `words`. */
bool tshi_box_case_out(const tshi_box_case *c, const tshi_case_parts *got, char words[TSHI_CASE_WORDS]);
bool tshi_box_case_din(const tshi_box_case *c, const tshi_case_parts *got, char words[TSHI_CASE_WORDS]);

#endif
