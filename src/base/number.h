/* Numbers as a user writes them: in a variable, on a command line, in a file. The whole text is a decimal number: a
 * space, a '+', a '-' where `low` is not negative, or text after the number is an error, and so is a number that does
 * not fit. Every program and every setting uses these functions. When they return false, *out does not change. */
#ifndef TSHI_NUMBER_H
#define TSHI_NUMBER_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TSHI_TOOLS bool tshi_parse_int(const char *text, int low, int high, int *out);
TSHI_TOOLS bool tshi_parse_int64(const char *text, int64_t low, int64_t high, int64_t *out);
bool tshi_parse_uint64(const char *text, uint64_t low, uint64_t high, uint64_t *out);
/* The first `length` characters of text. */
TSHI_TOOLS bool tshi_parse_part(const char *text, size_t length, int64_t low, int64_t high, int64_t *out);
/* "4096", "16K", "64m", "2G", "1T": powers of 1024. */
TSHI_TOOLS bool tshi_parse_bytes(const char *text, int64_t low, int64_t high, int64_t *out);
/* "0.5", "3", "1e-3", with a decimal point in every locale; no inf, nan or hexadecimal. */
TSHI_TOOLS bool tshi_parse_real(const char *text, double low, double high, double *out);

#endif
