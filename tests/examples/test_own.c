/* The examples of a function and of a layer of a program's own, as they are run: at any number of ranks alike. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(own, .timeout = 120);

static void run(int ranks, const char *program, char *said, int size) {
    char command[768];
    snprintf(command, sizeof command, TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " TSHARD_BIN_DIR "/%s", ranks,
             program);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    if (!fgets(said, size, pipe)) said[0] = '\0';
    cr_assert_eq(pclose(pipe), 0, "%s", command);
}

Test(own, function_has_the_gradients_of_central_differences) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        char said[256];
        run(ranks, "own_function", said, sizeof said);
        cr_expect_str_eq(said, "gradients agree with central differences, whole and split along each dim\n");
    }
}

Test(own, layer_learns_alike_on_any_number_of_ranks) {
    char first[256] = "", said[256];
    for (int ranks = 1; ranks <= 4; ranks++) {
        double before = 0, after = 1;
        run(ranks, "own_layer own_layer_of_test.safetensors", said, sizeof said);
        cr_assert_eq(sscanf(said, "loss %lf, after 50 steps %lf", &before, &after), 2, "%s", said);
        cr_expect(after < before / 4, "%s", said);
        if (ranks == 1) memcpy(first, said, sizeof first);
        cr_expect_str_eq(said, first, "%d ranks: %s", ranks, said);
    }
    remove("own_layer_of_test.safetensors");
}
