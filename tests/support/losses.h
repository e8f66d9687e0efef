/* The losses that a program prints as "step S: LOSS", while ranks die and join. */
#ifndef TSHI_TEST_LOSSES_H
#define TSHI_TEST_LOSSES_H

/* losses [steps]: the last loss that each step has printed, or NAN. A rank 0 that dies may take the loss of its last
 * complete step with it, which the ranks that go on after that step do not print again: its loss is infinite. */
void tshi_test_read_losses(const char *text, int steps, double *losses);
/* The first step whose loss differs from `one` by more than 1e-6 relative, or is missing; -1: none. */
int tshi_test_other_loss(int steps, const double *one, const double *losses);

#endif
