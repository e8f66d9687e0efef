/* A world belongs to the thread that has created it: not to another thread, and not to a process forked from its
 * own. */
#include "dist/world.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "tshard/autograd.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char forked[] = "this process was forked from the one that created the world";
static const char another[] = "this thread did not create the world";

/* What a stranger may not do; `words`: why. All return at once. */
static void trespass(tshi_rank *r, tsh_tensor *x, tsh_work *work, tsh_tape *tape, const char *words) {
    tsh_group *world = tsh_world_group(r->world), *group = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {4}};
    tsh_mesh *mesh = NULL;
    tsh_tensor *y = NULL;
    tsh_work *other = NULL;
    bool done = false;
    int peer = (r->rank + 1) % r->size;
    tshi_check_status(r, tsh_all_reduce(world, x, TSH_REDUCE_SUM), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_all_reduce_async(world, x, TSH_REDUCE_SUM, &other), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_send(world, x, peer), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_recv_async(world, x, peer, &other), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_work_test(work, &done), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_work_wait(work), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_world_recover(r->world), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_group_split(world, 0, 0, &group), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_group_create(r->world, (int[]){0}, 1, &group), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_mesh_create(r->world, "data=2", &mesh), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &y), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_tensor_clone(x, &y), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_tensor_fill(x, 99), TSH_ERR_STATE, words);
    tshi_check_status(r, tsh_tape_reset(tape), TSH_ERR_STATE, words);
    tsh_world_fail(r->world, "a stranger's reason");
    tsh_work_release(work);
    tsh_world_destroy(r->world);
}

/* The world goes on as if the stranger had not come. */
static void go_on(tshi_rank *r, tsh_tensor *x, tsh_work *work, tsh_tape *tape) {
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    const float *data = tsh_tensor_data(x);
    tshi_check(r, data[0] == 3 && data[7] == 3, "the sum is %g, %g", (double)data[0], (double)data[7]);
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 3000);
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

typedef struct visitor {
    tshi_rank *r;
    tsh_tensor *x;
    tsh_work *work;
    tsh_tape *tape;
} visitor;

static visitor prepare(tshi_rank *r) {
    visitor v = {.r = r, .x = tshi_test_vector(r, TSH_FLOAT32, 8)};
    tshi_check_ok(r, tsh_tape_create(r->world, &v.tape));
    tshi_check_ok(r, tsh_tensor_fill(v.x, 1 + r->rank));
    tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), v.x, TSH_REDUCE_SUM, &v.work));
    return v;
}

/* The child ends by exit, as a program's child does that calls no exec. */
static void forks(tshi_rank *r, void *arg) {
    (void)arg;
    visitor v = prepare(r);
    pid_t child = r->rank == 1 ? fork() : 1;
    if (child == 0) {
        trespass(r, v.x, v.work, v.tape, forked);
        exit(0);
    }
    if (r->rank == 1) waitpid(child, NULL, 0);
    go_on(r, v.x, v.work, v.tape);
}

Test(owner, a_forked_child, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, forks, NULL));
    setenv("TSHARD_CHECK", "1", 1);
    cr_assert_str_empty(tshi_test_run(2, forks, NULL));
}

static void *visit(void *arg) {
    const visitor *v = arg;
    trespass(v->r, v->x, v->work, v->tape, another);
    return NULL;
}

static void has_a_visitor(tshi_rank *r, void *arg) {
    (void)arg;
    visitor v = prepare(r);
    pthread_t thread;
    if (r->rank == 1 && tshi_check(r, pthread_create(&thread, NULL, visit, &v) == 0, "no thread")) {
        pthread_join(thread, NULL);
    }
    go_on(r, v.x, v.work, v.tape);
}

Test(owner, another_thread_checked, .timeout = 120) {
    setenv("TSHARD_CHECK", "1", 1);
    cr_assert_str_empty(tshi_test_run(2, has_a_visitor, NULL));
}

/* Without the check another thread is warned of; two at once are an error all the same. */
typedef struct crowd {
    tshi_rank *r;
    atomic_int *refused;
    tsh_status status;
    char words[TSHI_TEST_WORDS];
} crowd;

static void *join_in(void *arg) {
    crowd *c = arg;
    double guard = tshi_now() + 60;
    while (atomic_load(&c->r->world->owner.inside) == 0 && tshi_now() < guard) tshi_nap(0.001);
    c->status = tsh_barrier(tsh_world_group(c->r->world));
    snprintf(c->words, sizeof c->words, "%s", c->status == TSH_OK ? "" : tsh_error_message());
    atomic_store(c->refused, 1);
    return NULL;
}

/* Rank 0 comes when rank 1's other thread is through, so that its own is inside a call until then. */
static void has_a_crowd(tshi_rank *r, void *arg) {
    crowd c = {.r = r, .refused = arg};
    pthread_t thread;
    bool oversubscribed = r->rank == 1;
    if (oversubscribed && !tshi_check(r, pthread_create(&thread, NULL, join_in, &c) == 0, "no thread")) return;
    if (!oversubscribed) tshi_test_await(r, c.refused, 1);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (!oversubscribed) return;
    pthread_join(thread, NULL);
    tshi_check(r, c.status == TSH_ERR_STATE && strstr(c.words, "another thread is in a call"), "%s: %s",
               tsh_status_name(c.status), c.words);
}

static void no_line(void *user, tsh_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

Test(owner, two_threads_at_once, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .log = {no_line, NULL}};
    atomic_int *refused = tshi_test_shared(sizeof *refused);
    cr_assert_str_empty(tshi_test_run_with(&options, has_a_crowd, refused, NULL, NULL));
}
