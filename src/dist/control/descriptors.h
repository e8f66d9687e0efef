/* A descriptor table of its own for a thread. */
#ifndef TSHI_DESCRIPTORS_H
#define TSHI_DESCRIPTORS_H

#include <stdbool.h>

/* Gives the calling thread a descriptor table of its own in which only `kept` ([n], ascending) are open: what the other
 * threads of the process close stays open here, and a process that they fork does not inherit it. False if the system
 * refuses: the thread then shares the process's table as before. */
bool tshi_descriptors_own(const int *kept, int n);

#endif
