#include "support/losses.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tshi_test_read_losses(const char *text, int steps, double *losses) {
    for (int i = 0; i < steps; i++) losses[i] = NAN;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        int step, read = 0;
        double loss;
        line += *line == '\n';
        if (sscanf(line, "step %d: %lf%n", &step, &loss, &read) == 2 && read && step >= 0 && step < steps)
            losses[step] = loss;
        if (sscanf(line, "%*d ranks go on after step %d%n", &step, &read) == 1 && step > 0 && step <= steps &&
            isnan(losses[step - 1]))
            losses[step - 1] = INFINITY;
        if (!*line) break;
    }
}

int tshi_test_other_loss(int steps, const double *one, const double *losses) {
    for (int i = 0; i < steps; i++) {
        if (!isinf(losses[i]) && !(fabs(losses[i] - one[i]) <= 1e-6 * one[i])) return i;
    }
    return -1;
}
