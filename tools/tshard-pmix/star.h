/* The helpers of the other machines: the hub has a connection to each of them, each of them one to the hub. */
#ifndef HELPER_STAR_H
#define HELPER_STAR_H

#include "helper.h"

/* Connects all helpers. False: the reason has been reported. */
bool helper_star_open(helper *h);
/* The ranks here are in a fence. */
void helper_star_fence(helper *h, helper_blob part);
/* Reads what has come from a machine. */
void helper_star_read(helper *h, int node);
/* Reports a failure to the ranks of all machines, the first alone. */
void helper_star_fail(helper *h, const char *message) __attribute__((nonnull));
/* A machine is not waited for any more. */
void helper_star_lose(helper *h, int node);
/* The deadline has passed, and some machines have not come to the fence. */
void helper_star_give_up(helper *h);
/* The ranks here are done. */
void helper_star_close(helper *h);

#endif
