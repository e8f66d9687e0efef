/* The example of a pipeline, as it is run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINES = 10 };

/* The losses that it prints on so many ranks. */
static void losses(int ranks, const char *arguments, double *out) {
    char command[512];
    snprintf(command, sizeof command, TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " TSHARD_BIN_DIR "/pipeline %s",
             ranks, arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    for (int i = 0; i < LINES; i++) {
        int step = 0;
        cr_assert(fscanf(pipe, " step %d: %lf", &step, &out[i]) == 2 && step == 10 * (i + 1), "%s: line %d", arguments,
                  i);
    }
    cr_assert_eq(pclose(pipe), 0, "%s", arguments);
}

Test(pipeline, learns_the_same_in_any_stages, .timeout = 120) {
    static const struct {
        int ranks;
        const char *arguments;
    } runs[] = {{1, "stage=1,data=1,model=1 1"},
                {2, ""},
                {4, ""},
                {3, "stage=3,data=1,model=1 5"},
                {4, "stage=2,data=2,model=1 3"},
                {8, "stage=2,data=2,model=2 7"}};
    double one[LINES], many[LINES];
    losses(1, "", one);
    cr_assert_lt(one[LINES - 1], 0.001);
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        losses(runs[k].ranks, runs[k].arguments, many);
        for (int i = 0; i < LINES; i++) {
            cr_assert_lt(fabs(many[i] - one[i]), 1e-4, "%s: %g, one rank %g", runs[k].arguments, many[i], one[i]);
        }
    }
}

Test(pipeline, wants_an_even_number_of_ranks_unless_told, .timeout = 120) {
    char line[512] = "";
    FILE *pipe = popen(TSHARD_BIN_DIR "/tshard-run -n 3 --no-prefix " TSHARD_BIN_DIR "/pipeline 2>&1", "r");
    cr_assert_not_null(pipe);
    cr_assert_not_null(fgets(line, sizeof line, pipe));
    cr_assert(strstr(line, "a multiple of 2 ranks, the world has 3"), "%s", line);
    while (fgets(line, sizeof line, pipe)) continue;
    cr_assert_neq(pclose(pipe), 0);
}
