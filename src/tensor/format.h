/* Arrays as text, in NumPy's brackets. */
#ifndef TSHI_FORMAT_H
#define TSHI_FORMAT_H

#include "layout/layout.h"

#include <stdio.h>

typedef struct tshi_format {
    int ndim;
    const int64_t *shape; /* of the whole array */
    int64_t edge;         /* a dim of more than 2 * edge indices shows `edge` at each end; 0: all are shown */
    int precision;        /* significant digits of a float */
    int width;            /* columns of a line */
    /* The shown elements, row-major, in one of the two arrays. */
    const int64_t *integers;
    const double *floats;
    bool complex; /* an element is two floats, real and imaginary */
} tshi_format;

/* The number of indices of dim d that are shown. */
int64_t tshi_format_shown(const tshi_format *f, int d);
/* Writes the array, without a final newline. */
void tshi_format_write(const tshi_format *f, FILE *to);

#endif
