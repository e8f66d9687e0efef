/* Children in which a test runs what may crash or hang. */
#ifndef TSHI_TEST_CHILDREN_H
#define TSHI_TEST_CHILDREN_H

#include <stddef.h>
#include <sys/types.h>

/* Forks a child that ends with its parent: 0 in the child. */
pid_t tshi_test_fork(void);
/* Waits for a child. words [size] becomes what ended it, "" where it left with 0. */
void tshi_test_reap(pid_t child, char *words, size_t size);

#endif
