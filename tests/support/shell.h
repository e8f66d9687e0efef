/* Programs as their users run them. */
#ifndef TSHI_TEST_SHELL_H
#define TSHI_TEST_SHELL_H

#include "tshard/tshard.h"

/* Runs a shell command line. What it prints on both streams comes back, in static memory until the next call. *code is
 * its exit code, -1 where a signal ended it. Aborts the test program where it cannot run. */
char *tshi_test_shell(int *code, const char *format, ...) TSH_PRINTF(2, 3);

#endif
