/* Arrays as text, in the way in which NumPy prints them. */
#ifndef TSHI_FORMAT_H
#define TSHI_FORMAT_H

#include "layout/layout.h"
#include "tshard/device.h"

#include <stdio.h>

typedef struct tshi_format {
    tsh_dtype dtype;
    int ndim;
    const int64_t *shape; /* of the whole array */
    int64_t edge;         /* a dim of more than 2 * edge indices shows `edge` at each end; 0: all are shown */
    int precision;        /* digits after the point, at most */
    int width;            /* columns of a line */
    const void *values;   /* the elements that are shown, row-major, in host memory */
} tshi_format;

/* The number of indices of dim d that are shown. */
int64_t tshi_format_shown(const tshi_format *f, int d);
/* Writes the array, without a newline at its end. */
void tshi_format_write(const tshi_format *f, FILE *to);

#endif
