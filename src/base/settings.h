/* Environment variables, read strictly (number.h says what a number is). An empty variable counts as not set; a
 * malformed one is an error that names the variable, what was found and what is accepted, never a default. */
#ifndef TSHI_SETTINGS_H
#define TSHI_SETTINGS_H

#include "base/base.h"

/* 0 or 1, off or on, no or yes, false or true, in letters of either case; false: the text is none of them. */
bool tshi_parse_switch(const char *text, bool *out);

/* --- variables: TSH_ERR_ARGUMENT when one is malformed; *out is left alone when it is not set ----------------------- */

/* The value of a variable that is set and not empty, else NULL. */
const char *tshi_variable(const char *name);
/* *found (may be NULL) says whether the variable is set. A NULL name is a variable that is not. */
tsh_status tshi_variable_int(const char *name, int low, int high, int *out, bool *found);
tsh_status tshi_variable_number(const char *name, uint64_t *out, bool *found);
tsh_status tshi_variable_bytes(const char *name, size_t low, size_t *out, bool *found);
/* More than 0 seconds, at most high. */
tsh_status tshi_variable_seconds(const char *name, double high, double *out, bool *found);
tsh_status tshi_variable_switch(const char *name, bool *out);
/* A copy in `out`; a text that does not fit is an error. */
tsh_status tshi_variable_text(const char *name, char *out, size_t size, bool *found);
/* *out becomes the place of the value among the n words. */
tsh_status tshi_variable_choice(const char *name, const char *const *words, int n, int *out, bool *found);

#endif
