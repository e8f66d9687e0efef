/* Kills what a program has started, grandchildren that outlive their parents included. */
#ifndef TOOLS_SWEEP_H
#define TOOLS_SWEEP_H

#include <stdbool.h>

/* Kills and reaps every descendant of this process, a subreaper, for at most some seconds; works without /proc too.
 * False: a process that was killed does not end. */
bool sweep_descendants(void);

#endif
