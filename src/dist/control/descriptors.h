/* A thread with open files of its own. */
#ifndef TSHI_DESCRIPTORS_H
#define TSHI_DESCRIPTORS_H

#include <stdbool.h>

/* Gives the calling thread a descriptor table of its own in which only `kept` ([n], ascending) are open: what the other
 * threads of the process close stays open here, and a process that they fork inherits none of it. False: the system
 * has no way, and the thread shares its table as before. */
bool tshi_descriptors_own(const int *kept, int n);

#endif
