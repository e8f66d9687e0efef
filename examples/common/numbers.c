#include "numbers.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and the like skip blanks and take signs; here every character of a number is a digit. */
static bool all_of(const char *from, const char *characters) {
    return from[0] >= '0' && from[0] <= '9' && strspn(from, characters) == strlen(from);
}

bool parse_seed(const char *from, uint64_t *out) {
    errno = 0;
    unsigned long long value = all_of(from, "0123456789") ? strtoull(from, NULL, 10) : 0;
    if (errno || !all_of(from, "0123456789")) return false;
    *out = value;
    return true;
}

bool parse_count(const char *from, int64_t low, int64_t high, int64_t *out) {
    uint64_t value;
    if (!parse_seed(from, &value) || value < (uint64_t)low || value > (uint64_t)high) return false;
    *out = (int64_t)value;
    return true;
}

bool parse_number(const char *from, double low, double high, double *out) {
    char *end = NULL;
    double value = all_of(from, "0123456789.eE+-") ? strtod(from, &end) : 0;
    if (!end || *end || !(value >= low && value <= high)) return false;
    *out = value;
    return true;
}

number_text json_number(double value) {
    number_text t = {"null"};
    if (isfinite(value)) snprintf(t.text, sizeof t.text, "%.9g", value);
    return t;
}
