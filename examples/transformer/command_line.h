/* Command lines of the programs that run models, and lists of token ids. */
#ifndef TRANSFORMER_COMMAND_LINE_H
#define TRANSFORMER_COMMAND_LINE_H

#include "config.h"

typedef enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_COUNT, OPTION_NUMBER, OPTION_DTYPE } option_kind;

/* "--NAME VALUE" or "--NAME=VALUE". A table ends with a NULL name. */
typedef struct option_row {
    const char *name;
    option_kind kind;
    void *value;      /* bool, const char *, int64_t, double or tsh_dtype: has the default */
    double low, high; /* of counts and numbers */
} option_row;

/* -1 to go on, or the exit code of --help (0) or of wrong use (2). Only a rank that `speaks` prints. */
int command_line_parse(const char *program, const char *help, const option_row *options, int argc, char **argv,
                       bool speaks);

/* The ids of a text like "1,2,3" or "1 2 3"; false, with words, when one is no number or no token of the model, or when
 * there is none. The caller frees *ids. */
bool ids_parse(const char *text, int64_t vocabulary, int64_t **ids, int64_t *count, char words[MODEL_WORDS]);

#endif
