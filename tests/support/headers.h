/* The functions that the public headers declare, for lists that must not lack one. */
#ifndef TSHI_TEST_HEADERS_H
#define TSHI_TEST_HEADERS_H

#include <stdbool.h>
#include <stddef.h>

/* The number of functions declared in include/tshard. `words` gets those that `lists` does not have, or "". */
int tshi_test_functions(bool (*lists)(const char *name), char *words, size_t size);

/* Those that one of the headers declares. */
int tshi_test_functions_of(const char *header, bool (*lists)(const char *name), char *words, size_t size);

#endif
