/* SIGUSR1 asks for the last calls of all groups; the log gets them the next time that a backend waits. */
#ifndef TSHI_SIGNAL_H
#define TSHI_SIGNAL_H

#include "tshard/dist.h"

/* wanted: TSHARD_SIGUSR1. A handler of the program's own, or a signal that it ignores, stays. */
void tshi_signal_open(tsh_world *world, bool wanted);
/* After the last world the signal does again what it did before. */
void tshi_signal_close(tsh_world *world);
/* Backends call it while they wait, and each step calls it when it ends. */
void tshi_signal_poll(tsh_world *world);

#endif
