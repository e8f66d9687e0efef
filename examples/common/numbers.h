/* Numbers of a command line, all of whose characters count. False where the text is none in the range. */
#ifndef EXAMPLES_NUMBERS_H
#define EXAMPLES_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

bool parse_seed(const char *from, uint64_t *out);
bool parse_count(const char *from, int64_t low, int64_t high, int64_t *out);
bool parse_number(const char *from, double low, double high, double *out);

#endif
