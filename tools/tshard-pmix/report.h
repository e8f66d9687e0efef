/* What the helper says of a failure, to the ranks of its machine and on stderr. */
#ifndef HELPER_REPORT_H
#define HELPER_REPORT_H

#include "helper.h"

/* "!" and the message, to the ranks here. */
void report_line(const char *message);
/* A line that stderr does not take at once is dropped: serving the ranks does not wait for a reader. */
void report_on_stderr(const char *level, const char *message);
/* Both, for the first failure alone: MPI_Init may end a process instead of returning. */
void report_failure(helper *h, const char *message);
/* The ranks on a machine: "ranks 2, 3". */
const char *report_ranks(const helper *h, int node, char *text, size_t size);

#endif
