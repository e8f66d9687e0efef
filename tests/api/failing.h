/* System calls of which one fails, in a program that is linked with --wrap for each of them. */
#ifndef TSHI_TEST_FAILING_H
#define TSHI_TEST_FAILING_H

#include <stddef.h>

/* From here on the calls are counted, and the number-th (from 1, 0: none) fails with `error`. */
void tshi_failing_begin(long number, int error);
/* How many there were; name: of the one that failed, or "". */
long tshi_failing_end(char *name, size_t size);

#endif
