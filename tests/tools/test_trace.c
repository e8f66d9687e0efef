/* tshard-trace on traces of runs whose course is known: which rank is slow, who was killed, what a file lacks. */
#include "tshard/tshard.h"

#include "base/clock.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOOL  TSHARD_BIN_DIR "/tshard-trace"
#define STEPS 8

typedef struct plan {
    char folder[64];
    int slow;   /* the rank that sleeps in each step, or -1 */
    int killed; /* the rank that kills itself after the fifth step, or -1 */
} plan;

static plan plan_of(int slow, int killed) {
    plan p = {.folder = "/tmp/tshard-trace-XXXXXX", .slow = slow, .killed = killed};
    cr_assert(mkdtemp(p.folder));
    return p;
}

static void remove_folder(const plan *p) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", p->folder);
    cr_assert_eq(system(command), 0);
}

/* Runs a command, whose output is kept; its exit code. */
static int run(const char *command, char *output, size_t size) {
    FILE *pipe = popen(command, "r");
    cr_assert(pipe);
    size_t n = fread(output, 1, size - 1, pipe);
    output[n] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_tool(const plan *p, const char *options, char *output, size_t size) {
    char command[512];
    snprintf(command, sizeof command, TOOL " '%s' %s 2>&1", p->folder, options);
    return run(command, output, size);
}

static int run_trace_py(const plan *p, const char *options, char *output, size_t size) {
    char command[768];
    snprintf(command, sizeof command, "python3 " TSHARD_SOURCE_DIR "/tests/tools/trace.py " TOOL " '%s' 4 3 %s 2>&1",
             p->folder, options);
    return run(command, output, size);
}

/* --- a program ---------------------------------------------------------------------------------------------------- */

typedef struct model {
    tsh_mesh *mesh;
    tsh_linear *up, *down;
    tsh_tensor *x, *word;
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
} model;

static bool make_model(tshi_rank *r, const char *axes, model *m) {
    tsh_linear_config wide = {.in_features = 16, .out_features = 32, .shard = TSH_COLUMN, .bias = true};
    tsh_linear_config narrow = {.in_features = 32, .out_features = 16, .shard = TSH_ROW, .bias = true};
    tsh_tensor_config batch = {.ndim = 2, .shape = {8, 16}, .layout = {TSH_SHARD(0)}};
    bool good = tshi_check_ok(r, tsh_mesh_create(r->world, axes, &m->mesh));
    tsh_group *group = good ? tsh_mesh_group(m->mesh, "model") : NULL;
    m->word = good ? tshi_test_vector(r, TSH_FLOAT32, 4096) : NULL;
    return m->word && tshi_check_ok(r, tsh_linear_create(group, &wide, &m->up)) &&
           tshi_check_ok(r, tsh_linear_create(group, &narrow, &m->down)) &&
           tshi_check_ok(r, tsh_tensor_create(m->mesh, &batch, &m->x)) &&
           tshi_check_ok(r, tsh_tape_create(r->world, &m->tape)) &&
           tshi_check_ok(r, tsh_parameters_create(r->world, &m->parameters)) &&
           tshi_check_ok(r, tsh_linear_register(m->up, m->parameters, "up")) &&
           tshi_check_ok(r, tsh_linear_register(m->down, m->parameters, "down")) &&
           tshi_check_ok(r, tsh_sgd_create(m->parameters, &(tsh_sgd_config){.lr = 0.01}, &m->optimizer));
}

static void free_model(model *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->parameters);
    tsh_tape_destroy(m->tape);
    tsh_tensor_release(m->x);
    tsh_tensor_release(m->word);
    tsh_linear_destroy(m->down);
    tsh_linear_destroy(m->up);
    tsh_mesh_destroy(m->mesh);
}

/* A message from rank 0 to rank 1, and a sum that goes on beside other work. */
static void talk(tshi_rank *r, const model *m) {
    tsh_group *all = tsh_world_group(r->world);
    tsh_work *work = NULL;
    if (r->rank == 0) tshi_check_ok(r, tsh_send(all, m->word, 1));
    if (r->rank == 1) tshi_check_ok(r, tsh_recv(all, m->word, TSH_ANY_RANK, NULL));
    if (!tshi_check_ok(r, tsh_all_reduce_async(all, m->word, TSH_REDUCE_MAX, &work))) return;
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
}

/* late: seconds that this rank sleeps. */
static double step(tshi_rank *r, const model *m, double late) {
    tsh_trace_begin(r->world, "own \"work\" <1>\n");
    if (late > 0) tshi_sleep(late);
    tsh_trace_end(r->world);
    tsh_tensor *h = tsh_gelu(m->tape, tsh_linear_forward(m->tape, m->up, m->x));
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, h);
    tsh_tensor *loss = tsh_mean(m->tape, y, TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(m->tape, loss) == TSH_OK, "%s", tsh_tape_message(m->tape));
    double value = tsh_tensor_item(loss);
    tshi_check_ok(r, tsh_optimizer_step(m->optimizer));
    tsh_optimizer_zero_grad(m->optimizer);
    tshi_check_ok(r, tsh_tape_reset(m->tape));
    return value;
}

/* Seconds that make a rank the slowest one by far, however busy the machine is: six of the longest of three steps. */
static double far_too_late(tshi_rank *r, const model *m) {
    double longest = 4e-3;
    step(r, m, 0);
    for (int i = 0; i < 3; i++) {
        double since = tshi_clock();
        step(r, m, 0);
        longest = fmax(longest, tshi_clock() - since);
    }
    return 6 * longest;
}

static void train(tshi_rank *r, void *arg) {
    const plan *p = arg;
    model m = {0};
    if (!make_model(r, r->size == 4 ? "data=2,model=2" : "data=1,model=-1", &m)) return;
    double late = far_too_late(r, &m);
    if (!tshi_check_ok(r, tsh_trace_start(r->world, p->folder))) return;
    tshi_check_status(r, tsh_trace_start(r->world, p->folder), TSH_ERR_STATE, "traced already");
    for (int i = 0; i < STEPS && !r->failed; i++) {
        if (r->rank == p->killed && i == 5) raise(SIGKILL);
        step(r, &m, r->rank == p->slow ? late : 0);
        talk(r, &m);
    }
    tshi_check_ok(r, tsh_trace_stop(r->world));
    tshi_check_ok(r, tsh_trace_stop(r->world));
    free_model(&m);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* Rank 3 is late along `model`, where rank 2 waits for it; the ranks 0 and 1 wait for these along `data`. */
Test(trace, a_slow_rank_is_named, .timeout = 120) {
    plan p = plan_of(3, -1);
    char output[16384];
    cr_assert_str_empty(tshi_test_run(4, train, &p));
    cr_assert_eq(run_tool(&p, "--table", output, sizeof output), 0, "%s", output);
    cr_assert(strstr(output, "4 ranks, 7 steps each (without the first)"), "%s", output);
    cr_assert(strstr(output, "Rank 3 is the one that the others wait for"), "%s", output);
    cr_assert(strstr(output, "more than the others on average for its own work between the calls"), "%s", output);
    cr_assert(strstr(output, "all_reduce (model)"), "%s", output);
    cr_assert_eq(run_trace_py(&p, "", output, sizeof output), 0, "%s", output);
    cr_assert_eq(run_tool(&p, "--steps 3-4 --table", output, sizeof output), 0, "%s", output);
    cr_assert(strstr(output, "4 ranks, 2 steps each, median"), "%s", output);
    cr_assert(strstr(output, "Rank 3 is the one that the others wait for"), "%s", output);
    cr_assert(strstr(output, "communication  all_reduce (model)"), "%s", output);
    cr_assert_eq(run_tool(&p, "--steps 8", output, sizeof output), 0, "%s", output);
    cr_assert(strstr(output, "4 ranks, 1 step each, median"), "%s", output);
    cr_assert_eq(run_tool(&p, "--steps 9-12", output, sizeof output), 1, "%s", output);
    cr_assert(strstr(output, "rank 0 has 8 steps, and none from 9 to 12"), "%s", output);
    static const char *const wrong[] = {"--steps 0", "--steps 4-3", "--steps 3-", "--steps -3", "--steps x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(run_tool(&p, wrong[i], output, sizeof output), 2, "%s: %s", wrong[i], output);
    }
    remove_folder(&p);
}

Test(trace, a_browser_shows_the_page, .timeout = 240) {
    plan p = plan_of(3, -1);
    char output[16384];
    cr_assert_str_empty(tshi_test_run(4, train, &p));
    int code = run_trace_py(&p, "--browser", output, sizeof output);
    remove_folder(&p);
    if (code == 77) cr_skip_test("there is no headless browser");
    cr_assert_eq(code, 0, "%s", output);
}

Test(trace, the_file_of_a_killed_rank_is_read, .timeout = 120) {
    plan p = plan_of(-1, 1);
    char output[16384];
    tshi_outcome outcomes[2];
    tshi_test_run_with(&(tshi_test_options){.ranks = 2, .world_timeout = "5"}, train, &p, outcomes, NULL);
    cr_assert_eq(outcomes[1].signal, SIGKILL);
    cr_assert_eq(run_tool(&p, "--table", output, sizeof output), 0, "%s", output);
    cr_assert(strstr(output, "rank 1 ended before its trace did"), "%s", output);
    cr_assert(strstr(output, "2 ranks, 4 steps each"), "%s", output);
    remove_folder(&p);
}

static void cut(const plan *p, long length) {
    char path[128];
    snprintf(path, sizeof path, "%s/rank.1", p->folder);
    cr_assert_eq(truncate(path, length), 0);
}

static void spoil(const plan *p, long at, unsigned char byte) {
    char path[128];
    snprintf(path, sizeof path, "%s/rank.0", p->folder);
    FILE *file = fopen(path, "r+");
    cr_assert(file);
    fseek(file, at, SEEK_SET);
    fputc(byte, file);
    fclose(file);
}

/* Bytes of a file of events change one after the other, so that it is damaged more and more. */
Test(trace, files_that_are_cut_or_damaged_crash_nothing, .timeout = 300) {
    plan p = plan_of(-1, -1);
    char output[65536];
    cr_assert_str_empty(tshi_test_run(2, train, &p));
    for (long length = 40000; length > 0; length = length * 2 / 3) {
        cut(&p, length);
        cr_assert_eq(run_tool(&p, "--table --html /dev/null", output, sizeof output), 0, "%ld: %s", length, output);
    }
    cr_assert(strstr(output, "this is no trace of tshard"), "%s", output);
    cr_assert(strstr(output, "there are traces of 1 of 2 ranks"), "%s", output);
    uint32_t random = 1;
    for (int i = 0; i < 60; i++) {
        random = random * 1664525u + 1013904223u;
        spoil(&p, 64 + (long)(random >> 8) % 30000, (unsigned char)(random >> 24));
        int code = run_tool(&p, "--json --out /dev/null --html /dev/null", output, sizeof output);
        cr_assert(code == 0 || code == 1, "%d at %d: %s", code, i, output);
    }
    spoil(&p, 0, 'T');
    cr_assert_eq(run_tool(&p, "--table", output, sizeof output), 1);
    cr_assert(strstr(output, "there is no trace of a rank"), "%s", output);
    remove_folder(&p);
}

static void compare(tshi_rank *r, void *arg) {
    plan p = *(const plan *)arg;
    model m = {0};
    double plain, traced;
    if (!make_model(r, "data=1,model=-1", &m)) return;
    plain = step(r, &m, 0);
    tsh_world_seed(r->world, 0);
    free_model(&m);
    m = (model){0};
    tshi_check_ok(r, tsh_trace_start(r->world, p.folder));
    if (!make_model(r, "data=1,model=-1", &m)) return;
    traced = step(r, &m, 0);
    tshi_check(r, plain == traced, "%.17g and %.17g", plain, traced);
    free_model(&m); /* the world ends its trace */
}

Test(trace, a_traced_run_computes_the_same, .timeout = 120) {
    plan p = plan_of(-1, -1);
    char output[16384];
    cr_assert_str_empty(tshi_test_run(3, compare, &p));
    cr_assert_eq(run_tool(&p, "", output, sizeof output), 0, "%s", output);
    cr_assert(strstr(output, "3 ranks, 1 step each"), "%s", output);
    remove_folder(&p);
}

static void fail_alone(tshi_rank *r, void *arg) {
    const plan *p = arg;
    tsh_status status = tsh_trace_start(r->world, r->rank == 1 ? "/dev/null/trace" : p->folder);
    tshi_check(r, status == (r->rank == 1 ? TSH_ERR_SYSTEM : TSH_ERR_PEER), "%s", tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "/dev/null/trace") != NULL, "%s", tsh_error_message());
}

Test(trace, a_rank_that_cannot_write_is_an_error_on_all, .timeout = 120) {
    plan p = plan_of(-1, -1);
    cr_assert_str_empty(tshi_test_run(2, fail_alone, &p));
    remove_folder(&p);
}
