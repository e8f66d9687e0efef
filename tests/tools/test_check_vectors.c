/* The reader of vectors, and the program check_vectors. */
#define _GNU_SOURCE
#include "support/vectors.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_file(const char *path, const char *text, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(text, 1, size, file) == size && fclose(file) == 0);
}

static void make_directory(char path[64]) {
    snprintf(path, 64, "/tmp/tshard-vectors-XXXXXX");
    cr_assert(mkdtemp(path));
}

/* --- the reader --------------------------------------------------------------------------------------------------- */

Test(vectors, reads_names_shapes_and_values, .timeout = 120) {
    static const char text[] = "# a comment\ntensor x f64 2 2 3\n1 -2.5 3e2 4 5 6\ntensor n i64 0 \n-100\n\n"
                               "tensor empty f64 2 0 4\n\n";
    char directory[64], path[80], error[256];
    tshi_vectors v;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    write_file(path, text, sizeof text - 1);
    cr_assert(tshi_vectors_read(path, &v, error, sizeof error), "%s", error);
    cr_assert_eq(v.count, 3);
    const tshi_vector *x = tshi_vectors_find(&v, "x"), *n = tshi_vectors_find(&v, "n");
    cr_assert(x && x->ndim == 2 && x->shape[0] == 2 && x->shape[1] == 3 && x->count == 6 && !x->integer);
    cr_assert(x->values[1] == -2.5 && x->values[2] == 300 && x->values[5] == 6);
    cr_assert(n && n->ndim == 0 && n->count == 1 && n->integer && n->integers[0] == -100 && n->values[0] == -100);
    cr_assert_eq(tshi_vectors_find(&v, "empty")->count, 0);
    cr_assert_null(tshi_vectors_find(&v, "y"));
    tshi_vectors_free(&v);
    unlink(path);
    rmdir(directory);
}

Test(vectors, says_where_a_file_is_wrong, .timeout = 120) {
    static const struct {
        const char *text, *words;
    } wrong[] = {{"", "middle of a line"},
                 {"# nothing\n", "holds no tensor"},
                 {"tensor x f64 1 3\n1 2 3", "middle of a line"},
                 {"tensor x f64 1 3\n1 2\n", "a.txt:2: tensor x: 2 values, 3 were expected"},
                 {"tensor x f64 1 3\n1 2 3 4\n", "more than 3 values"},
                 {"tensor x f64 1 3\n1 two 3\n", "value 1, 'two 3', is no number"},
                 {"tensor x i64 1 2\n1 2.5\n", "is no number"},
                 {"tensor x i64 1 1\n99999999999999999999\n", "is no number"},
                 {"tensor x f64 1 3\n", "before its values"},
                 {"tensor x f32 1 3\n1 2 3\n", "dtype 'f32'"},
                 {"tensor x f64 9 1 1 1 1 1 1 1 1 1\n1\n", "number of dims"},
                 {"tensor x f64 1 -3\n1 2 3\n", "dim 0 is bad"},
                 {"tensor x f64 2 60000000 60000000\n1\n", "too large"},
                 {"tensor x f64 1 1 7\n1\n", "after its 1 dims"},
                 {"tensor x f64 0\n1\ntensor x f64 0\n1\n", "a.txt:3: tensor x: a second time"},
                 {"\x7f"
                  "ELF\n",
                  "was expected"}};
    char directory[64], path[80], error[256];
    tshi_vectors v;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        write_file(path, wrong[i].text, strlen(wrong[i].text));
        cr_assert(!tshi_vectors_read(path, &v, error, sizeof error), "read file %zu", i);
        cr_assert(strstr(error, wrong[i].words), "file %zu: \"%s\", wanted \"%s\"", i, error, wrong[i].words);
        cr_assert(v.count == 0 && !v.items);
    }
    write_file(path, "tensor x f64 0\n1\0\n", 18);
    cr_assert(!tshi_vectors_read(path, &v, error, sizeof error) && strstr(error, "zero byte"));
    unlink(path);
    cr_assert(!tshi_vectors_read(path, &v, error, sizeof error) && strstr(error, "No such file"), "%s", error);
    rmdir(directory);
}

/* --- the program -------------------------------------------------------------------------------------------------- */

/* Its exit code, with what it printed. */
static int run(const char *arguments, char *out, size_t size) {
    char command[512];
    snprintf(command, sizeof command, "exec " TSHARD_BIN_DIR "/check_vectors %s 2>&1", arguments);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe);
    size_t used = fread(out, 1, size - 1, pipe);
    out[used] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *last_line(char *text) {
    size_t length = strlen(text);
    if (length && text[length - 1] == '\n') text[length - 1] = '\0';
    const char *end = strrchr(text, '\n');
    return end ? end + 1 : text;
}

static char printed[1 << 18];

/* Of each dtype there are at least 25 cases. */
static void passes_every_case_on(int ranks) {
    int passed, failed, skipped;
    char arguments[256];
    snprintf(arguments, sizeof arguments, TSHARD_TEST_DATA "/vectors --ranks %d", ranks);
    int code = run(arguments, printed, sizeof printed);
    const char *last = last_line(printed);
    cr_assert_eq(sscanf(last, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped), 3, "%s", last);
    cr_assert(code == 0 && failed == 0, "%d: %s", code, printed);
    cr_assert_geq(passed, 25 * 3);
}

Test(check_vectors, passes_every_case_on_one_rank, .timeout = 600) {
    passes_every_case_on(1);
}

Test(check_vectors, passes_every_case_on_two_ranks, .timeout = 600) {
    passes_every_case_on(2);
}

Test(check_vectors, passes_every_case_on_three_ranks, .timeout = 600) {
    passes_every_case_on(3);
}

Test(check_vectors, passes_every_case_on_four_ranks, .timeout = 600) {
    passes_every_case_on(4);
}

Test(check_vectors, passes_every_redistribution_on_the_ranks_that_it_names, .timeout = 600) {
    int code = run(TSHARD_TEST_DATA "/boxes", printed, sizeof printed);
    cr_assert_eq(code, 0, "%s", printed);
    cr_assert(strstr(printed, "K15.3 ") && strstr(printed, "    9  float64"), "%s", printed);
    cr_assert_str_eq(last_line(printed), "256 passed, 0 failed, 0 skipped");
    cr_assert_eq(run(TSHARD_TEST_DATA "/boxes --ranks 3,2", printed, sizeof printed), 0, "%s", printed);
    cr_assert_str_eq(last_line(printed), "27 passed, 0 failed, 0 skipped");
}

/* Weights of 2 to 5 ranks, empty ranks among them. */
static const char *const weights[] = {"1:0", "3:1", "2:1:1", "0:1:1", "5:3:2:1:1"};

/* All rows of a folder pass, at least so many. */
static void passes(const char *arguments, int least) {
    int passed = 0, failed = 0, skipped = 0;
    int code = run(arguments, printed, sizeof printed);
    const char *last = last_line(printed);
    cr_assert_eq(sscanf(last, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped), 3, "%s", last);
    cr_assert(code == 0 && failed == 0 && passed >= least, "%s: %d: %s", arguments, code, printed);
}

static void pass_by_weight(const char *folder, int least, size_t from, size_t end) {
    for (size_t i = from; i < end; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, TSHARD_TEST_DATA "/%s --weights %s", folder, weights[i]);
        passes(arguments, least);
    }
}

Test(check_vectors, passes_every_case_by_weight_of_two_ranks, .timeout = 800) {
    pass_by_weight("vectors", 25 * 3, 0, 2);
}

Test(check_vectors, passes_every_case_by_weight_of_three_ranks, .timeout = 800) {
    pass_by_weight("vectors", 25 * 3, 2, 4);
}

Test(check_vectors, passes_every_model_by_weight_of_two_ranks, .timeout = 1200) {
    pass_by_weight("models", 36, 0, 2);
}

Test(check_vectors, passes_every_model_by_weight_of_three_ranks, .timeout = 1200) {
    pass_by_weight("models", 36, 2, 4);
}

Test(check_vectors, passes_every_model_by_weight_of_five_ranks, .timeout = 1200) {
    pass_by_weight("models", 36, 4, 5);
}

static void passes_every_model_on(int ranks) {
    char arguments[256];
    snprintf(arguments, sizeof arguments, TSHARD_TEST_DATA "/models --ranks %d", ranks);
    passes(arguments, 60);
    cr_assert(strstr(printed, "gpt2-uneven ") && strstr(printed, "qwen3-moe "), "%s", printed);
}

Test(check_vectors, passes_every_model_on_one_rank, .timeout = 1200) {
    passes_every_model_on(1);
}

Test(check_vectors, passes_every_model_on_two_ranks, .timeout = 1200) {
    passes_every_model_on(2);
}

Test(check_vectors, passes_every_model_on_three_ranks, .timeout = 1200) {
    passes_every_model_on(3);
}

/* More ranks than KV heads. */
Test(check_vectors, passes_every_model_on_four_ranks, .timeout = 1200) {
    passes_every_model_on(4);
}

/* Ranks without a head. */
Test(check_vectors, passes_every_model_on_seven_ranks, .timeout = 1200) {
    passes_every_model_on(7);
}

/* A weight, a gradient, a token and a row of hidden features that differ; files that are none. */
Test(check_vectors, fails_a_model_that_differs, .timeout = 300) {
    static const struct {
        const char *name, *command, *words;
    } wrong[] = {{"llama", "sed -i 's/\"rms_norm_eps\": 1e-05/\"rms_norm_eps\": 1e-02/' config.json", "FAILED"},
                 {"llama", "sed -i 's/\"num_key_value_heads\": 2/\"num_key_value_heads\": 3/' config.json",
                  "model.layers.0.self_attn.k_proj.weight"},
                 {"gpt2", "sed -i 's/\"vocab_size\": 97/\"vocab_size\": 96/' config.json", "transformer.wte.weight"},
                 {"gpt2", "sed -i 's/\"n_layer\": 2/\"n_layer\": 1/' config.json", "transformer.h.1."},
                 {"bert", "sed -i 's/\"hidden_act\": \"gelu\"/\"hidden_act\": \"relu\"/' config.json", "FAILED"},
                 {"bert", "sed -i 's/\"bert\"/\"t5\"/' config.json", "\"model_type\" is \"t5\""},
                 {"qwen2", "truncate -s 1000 expected.safetensors", "expected.safetensors: "},
                 {"qwen2", "truncate -s -8 model.safetensors", "model.safetensors: "}};
    char directory[64], command[256];
    make_directory(directory);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(command, sizeof command, "cp -r " TSHARD_TEST_DATA "/models/%s %s/m && chmod -R u+w %s/m",
                 wrong[i].name, directory, directory);
        cr_assert_eq(system(command), 0);
        snprintf(command, sizeof command, "cd %s/m && %s", directory, wrong[i].command);
        cr_assert_eq(system(command), 0);
        snprintf(command, sizeof command, "%s --ranks 2", directory);
        cr_assert_eq(run(command, printed, sizeof printed), 1, "%zu: %s", i, printed);
        cr_assert(strstr(printed, wrong[i].words), "%zu: \"%s\" is not in %s", i, wrong[i].words, printed);
        snprintf(command, sizeof command, "rm -r %s/m", directory);
        cr_assert_eq(system(command), 0);
    }
    rmdir(directory);
}

/* A wrong value of each kind, too many calls, too many bytes, and a line that is none. */
Test(check_vectors, fails_a_redistribution_that_differs, .timeout = 300) {
    static const struct {
        const char *lines, *words;
    } wrong[] = {{"out 0 3", "out of rank 0 at 0 is 2, 3 wanted"},
                 {"out 0 2 2", "out of rank 0 has 1 elements, 2 wanted"},
                 {"sum 0,1 5", "the sum at 0 is 4, 5 wanted"},
                 {"din 1 8", "din of rank 1 at 0 is 7, 8 wanted"},
                 {"calls 0", "1 collective calls, at most 0 wanted"},
                 {"bytes 8", "16 bytes sent, 8 wanted"},
                 {"outt 0 1", "'outt' is no key"},
                 {"out 0 one", "'one' is no number"},
                 {"from 2 0,2 R", "its world has no rank 2"},
                 {"in 1 1 1", "in of rank 1 is not its box"},
                 {"to 2x2 0,1 R,R", "4 ranks are wanted"}};
    char directory[64], path[128];
    make_directory(directory);
    snprintf(path, sizeof path, "%s/redistribute.txt", directory);
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        FILE *file = fopen(path, "w");
        bool right = i == sizeof wrong / sizeof *wrong;
        cr_assert(file);
        fprintf(file,
                "case a sum\nworld 2\nshape\nfrom 2 0,1 P\nto 2 0,1 R\nin 0 1\nin 1 1\n"
                "dout 0 7\ndout 1 7\ndin 0 7\ndin 1 7\n%s\n",
                right ? "calls 1" : wrong[i].lines);
        fclose(file);
        int code = run(directory, printed, sizeof printed);
        cr_assert(code == !right && (right || strstr(printed, wrong[i].words)), "file %zu: %s", i, printed);
    }
    unlink(path);
    rmdir(directory);
}

/* One wrong digit, an unknown case, a truncated file: the first and the last fail, and say why. */
Test(check_vectors, fails_what_is_wrong_and_skips_what_it_does_not_know, .timeout = 300) {
    char directory[64], path[128], arguments[128];
    make_directory(directory);
    static const char relu[] = "tensor x f64 2 1 2\n1 -1\ntensor y f64 2 1 2\n1 0\ntensor dy f64 2 1 2\n1 1\n"
                               "tensor dx f64 2 1 2\n1 0.000001\n";
    const struct {
        const char *name, *text;
    } files[] = {{"relu", relu}, {"warp_drive", "tensor x f64 0\n1\n"}, {"silu", "tensor x f64 1 3\n1 2\n"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.txt", directory, files[i].name);
        write_file(path, files[i].text, strlen(files[i].text));
    }
    snprintf(arguments, sizeof arguments, "%s --ranks 2", directory);
    cr_assert_eq(run(arguments, printed, sizeof printed), 1);
    cr_assert(strstr(printed, "warp_drive") && strstr(printed, "skipped: a case"), "%s", printed);
    cr_assert(strstr(printed, "silu.txt:2: tensor x: 2 values, 3 were expected"), "%s", printed);
    /* 1e-6 is too much in float64 and little enough in float32 and bfloat16, in each of three shardings. */
    cr_assert_str_eq(last_line(printed), "6 passed, 4 failed, 1 skipped");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.txt", directory, files[i].name);
        unlink(path);
    }
    cr_assert_eq(run(directory, printed, sizeof printed), 2);
    cr_assert(strstr(printed, "no .txt files"), "%s", printed);
    rmdir(directory);
    cr_assert_eq(run(directory, printed, sizeof printed), 2);
    cr_assert_eq(run("--ranks 1", printed, sizeof printed), 2);
    cr_assert_eq(run("/tmp --ranks 1,x", printed, sizeof printed), 2);
    cr_assert_eq(run("/tmp --ranks 0", printed, sizeof printed), 2);
}
