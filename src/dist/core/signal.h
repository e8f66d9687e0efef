/* SIGUSR1 asks for the last calls of all groups; the log gets them the next time that a backend waits. */
#ifndef TSHI_SIGNAL_H
#define TSHI_SIGNAL_H

#include "tshard/dist.h"

/* wanted: TSHARD_SIGUSR1=1. A handler of the program's own is left alone. */
void tshi_signal_open(tsh_world *world, bool wanted);
/* Backends call it while they wait. */
void tshi_signal_look(tsh_world *world);

#endif
