/* The page of code, as it is run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINES = 10 };

/* The losses that it prints on so many ranks. */
static void losses(int ranks, const char *axes, double *out) {
    char command[512];
    snprintf(command, sizeof command, TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " TSHARD_BIN_DIR "/mlp %s", ranks,
             axes);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    for (int i = 0; i < LINES; i++) {
        int step = 0;
        cr_assert(fscanf(pipe, " step %d: %lf", &step, &out[i]) == 2 && step == 10 * (i + 1), "%s: line %d", axes, i);
    }
    cr_assert_eq(pclose(pipe), 0, "%s", axes);
}

Test(mlp, learns_the_same_on_any_mesh, .timeout = 120) {
    static const char *const axes[] = {"data=1,model=3", "data=2,model=2", "data=4,model=1"};
    static const int ranks[] = {3, 4, 4};
    double one[LINES], many[LINES];
    losses(1, "", one);
    cr_assert_lt(one[LINES - 1], 0.1);
    for (int a = 0; a < 3; a++) {
        losses(ranks[a], axes[a], many);
        for (int i = 0; i < LINES; i++) {
            cr_assert_lt(fabs(many[i] - one[i]), 1e-4, "%s: %g, one rank %g", axes[a], many[i], one[i]);
        }
    }
}
