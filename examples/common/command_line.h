/* Command lines of the programs, each of which has a table of its options. */
#ifndef EXAMPLES_COMMAND_LINE_H
#define EXAMPLES_COMMAND_LINE_H

#include "tshard/tshard.h"

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char * */
    OPTION_PATH,   /* const char *, not empty */
    OPTION_COUNT,  /* int64_t, low to high */
    OPTION_NUMBER, /* double, low to high */
    OPTION_RATE,   /* double above 0 */
    OPTION_SEED,   /* uint64_t */
    OPTION_AXIS,   /* const char *, the size of a mesh's axis, or weights: "2", "3:1", "auto" */
    OPTION_DTYPE   /* tsh_dtype, of floating-point numbers */
} option_kind;

/* "--NAME VALUE" or "--NAME=VALUE". A table ends with a NULL name. */
typedef struct option_row {
    const char *name;
    option_kind kind;
    void *value;      /* holds the default */
    double low, high; /* of counts and numbers; DBL_MAX: any number from low on */
} option_row;

/* -1 to continue, or the exit code of --help (0) or of wrong use (2). Only a rank that `speaks` prints: errors to
 * stderr, help to stdout. */
int command_line_parse(const char *program, const char *help, const option_row *options, int argc, char **argv,
                       bool speaks);

#endif
