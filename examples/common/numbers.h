/* Numbers on a command line: false unless the whole text is a number in the range. Numbers in JSON. */
#ifndef EXAMPLES_NUMBERS_H
#define EXAMPLES_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

bool parse_seed(const char *from, uint64_t *out);
bool parse_count(const char *from, int64_t low, int64_t high, int64_t *out);
bool parse_number(const char *from, double low, double high, double *out);

typedef struct number_text {
    char text[32];
} number_text;
/* A number as JSON: null if it is not finite. */
number_text json_number(double value);

#endif
