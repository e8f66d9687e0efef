/* The example of data parallelism, as it is run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

Test(data_parallel, finds_the_weights, .timeout = 120) {
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        char command[512];
        double g[2], w[2];
        snprintf(command, sizeof command,
                 TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " TSHARD_BIN_DIR "/data_parallel", ranks);
        FILE *pipe = popen(command, "r");
        cr_assert_not_null(pipe);
        cr_assert_eq(fscanf(pipe, " first gradient %lf, %lf w = (%lf, %lf)", &g[0], &g[1], &w[0], &w[1]), 4);
        cr_assert_eq(pclose(pipe), 0);
        cr_assert(g[0] == -165 && g[1] == -220, "first gradient %g, %g", g[0], g[1]);
        cr_assert(fabs(w[0] - 2) < 1e-3 && fabs(w[1] - 3) < 1e-3, "w = (%g, %g)", w[0], w[1]);
    }
}
