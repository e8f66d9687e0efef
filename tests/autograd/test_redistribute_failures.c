/* Redistributions that are refused, that ranks do not agree about, and in which a rank fails or dies; local parts; the
 * log of plans. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/world.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(redistribute_failures, .timeout = 120);

static tsh_mesh *make_mesh(tshi_rank *r, int first, int n, const char *axes) {
    int ranks[8];
    tsh_mesh *mesh = NULL;
    for (int i = 0; i < n; i++) ranks[i] = first + i;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, ranks, n, axes, &mesh));
    return mesh;
}

static tsh_tensor *make_matrix(tshi_rank *r, const tsh_mesh *mesh, int64_t rows, int64_t cols, tsh_layout a,
                               tsh_layout b) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, cols}, .layout = {a, b}};
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, 0, 1, &t));
    return t;
}

/* The tape has failed so, in these words. */
static void check_failure(tshi_rank *r, tsh_tape *tape, const tsh_tensor *y, tsh_status status, const char *words) {
    tsh_status got = tsh_tape_status(tape);
    tshi_check(r, !y && got == status && strstr(tsh_tape_message(tape), words), "%s \"%s\", wanted %s \"%s\"",
               tsh_status_name(got), tsh_tape_message(tape), tsh_status_name(status), words);
}

/* Peers of the rank that has made a mistake get its words, and all ranks go on. */
static void go_on(tshi_rank *r, tsh_tape *tape, bool mistaken) {
    if (!mistaken) tshi_check_status(r, tsh_barrier(tsh_world_group(r->world)), TSH_ERR_PEER, "rank 1: ");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

typedef struct kit {
    tsh_tape *tape;
    tsh_mesh *low, *high;
    tsh_tensor *x, *y, *local;
} kit;

static tsh_tensor *two_meshes(kit *k) {
    return tsh_add(k->tape, k->x, k->y);
}

static tsh_tensor *from_local(kit *k) {
    return tsh_redistribute(k->tape, k->local, k->high, NULL);
}

static tsh_tensor *to_local(kit *k) {
    return tsh_redistribute(k->tape, k->x, k->high, (tsh_layout[]){TSH_REPLICATED, TSH_LOCAL});
}

static tsh_tensor *no_dim(kit *k) {
    return tsh_redistribute(k->tape, k->x, k->high, (tsh_layout[]){TSH_SHARD(2), TSH_REPLICATED});
}

static tsh_tensor *no_kind(kit *k) {
    return tsh_redistribute(k->tape, k->x, k->high, (tsh_layout[]){{.kind = (tsh_layout_kind)9}, TSH_REPLICATED});
}

static tsh_tensor *no_tensor(kit *k) {
    return tsh_redistribute(k->tape, NULL, k->high, NULL);
}

static tsh_tensor *nothing_in_full(kit *k) {
    return tsh_full(k->tape, NULL);
}

static tsh_tensor *nothing_local(kit *k) {
    return tsh_to_local(k->tape, NULL, NULL);
}

static const struct {
    tsh_tensor *(*make)(kit *k);
    tsh_status status;
    const char *words;
} mistakes[] = {
    {two_meshes, TSH_ERR_ARGUMENT, "add: input 0 is on mesh a=2 of ranks 0,1, input 1 on mesh b=1,c=2 of ranks 2,3"},
    {from_local, TSH_ERR_LAYOUT,
     "from mesh a=2 of ranks 0,1 to mesh b=1,c=2 of ranks 2,3: neither may have LOCAL layouts"},
    {to_local, TSH_ERR_LAYOUT, "neither may have LOCAL"},
    {no_dim, TSH_ERR_SHAPE, "redistribute: "},
    {no_kind, TSH_ERR_ARGUMENT, "redistribute: "},
    {no_tensor, TSH_ERR_ARGUMENT, "redistribute: input 0 is NULL"},
    {nothing_in_full, TSH_ERR_ARGUMENT, "redistribute: input 0 is NULL"},
    {nothing_local, TSH_ERR_ARGUMENT, "to_local: input 0 is NULL"},
};

static void refused(tshi_rank *r, void *arg) {
    kit k = {.low = make_mesh(r, 0, 2, "a=2"), .high = make_mesh(r, 2, 2, "b=1,c=2")};
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &k.tape));
    k.x = make_matrix(r, k.low, 4, 3, TSH_SHARD(0), TSH_REPLICATED);
    k.y = make_matrix(r, k.high, 4, 3, TSH_REPLICATED, TSH_SHARD(0));
    k.local = make_matrix(r, k.low, 4, 3, TSH_LOCAL, TSH_REPLICATED);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && !r->failed; i++) {
        if (r->rank == 1) check_failure(r, k.tape, mistakes[i].make(&k), mistakes[i].status, mistakes[i].words);
        go_on(r, k.tape, r->rank == 1);
    }
    tsh_tensor_release(k.x);
    tsh_tensor_release(k.y);
    tsh_tensor_release(k.local);
    tsh_tape_destroy(k.tape);
    tsh_mesh_destroy(k.low);
    tsh_mesh_destroy(k.high);
}

Test(redistribute_failures, wrong_arguments_are_refused_in_words) {
    cr_assert_str_empty(tshi_test_run(4, refused, NULL));
}

static void other_world(tshi_rank *r, void *arg) {
    tsh_thread_rendezvous *threads = NULL;
    tsh_world *world = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_thread_rendezvous_create(1, &threads));
    tshi_check_ok(r, tsh_world_init(&(tsh_world_config){.threads = threads, .heap_bytes = 1 << 22}, &world));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (!r->failed) {
        tsh_tensor *mine = make_matrix(r, tsh_world_mesh(r->world), 2, 2, TSH_REPLICATED, TSH_REPLICATED);
        tsh_tensor *other = make_matrix(r, tsh_world_mesh(world), 2, 2, TSH_REPLICATED, TSH_REPLICATED);
        check_failure(r, tape, tsh_redistribute(tape, mine, tsh_world_mesh(world), NULL), TSH_ERR_ARGUMENT,
                      "redistribute: the mesh belongs to another world than the tape");
        tsh_tape_reset(tape);
        check_failure(r, tape, tsh_redistribute(tape, other, tsh_world_mesh(r->world), NULL), TSH_ERR_ARGUMENT,
                      "redistribute: input 0 belongs to another world than the tape");
        tsh_tensor_release(mine);
        tsh_tensor_release(other);
    }
    tsh_tape_destroy(tape);
    tsh_world_destroy(world);
    tsh_thread_rendezvous_destroy(threads);
}

Test(redistribute_failures, a_mesh_of_another_world_is_refused) {
    cr_assert_str_empty(tshi_test_run(1, other_world, NULL));
}

/* --- ranks that do not agree -------------------------------------------------------------------------------------- */

/* From all four ranks, or the first two, to all of them, the first two, or the last two. */
typedef struct meeting {
    int from, from_ranks, to, to_ranks;
    tsh_layout layout, other; /* that rank `odd` asks for */
    int odd;
    bool late; /* a rank that makes no call is missed when the deadline has passed */
} meeting;

/* Each rank gets an error, of the redistribution or of the barrier after it, and then all go on. */
static void disagree(tshi_rank *r, void *arg) {
    const meeting *m = arg;
    tsh_tape *tape = NULL;
    char axes[2][8];
    snprintf(axes[0], sizeof axes[0], "a=%d", m->from_ranks);
    snprintf(axes[1], sizeof axes[1], "a=%d", m->to_ranks);
    tsh_mesh *from = make_mesh(r, m->from, m->from_ranks, axes[0]), *to = make_mesh(r, m->to, m->to_ranks, axes[1]);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_matrix(r, from, 8, 8, TSH_SHARD(0), TSH_REPLICATED);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (m->late) r->world->timeout = 2;
    tsh_tensor *y = tsh_redistribute(tape, x, to, r->rank == m->odd ? &m->other : &m->layout);
    tshi_check(r, !y || tsh_barrier(tsh_world_group(r->world)) != TSH_OK, "rank %d has not got an error", r->rank);
    if (!m->late) {
        tshi_check_ok(r, tsh_tape_reset(tape));
        y = tsh_redistribute(tape, x, to, &m->layout);
        tshi_check(r, y, "after the failure: %s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(from);
    tsh_mesh_destroy(to);
}

Test(redistribute_failures, layouts_that_differ_by_rank_are_an_error_on_every_rank) {
    static const tsh_layout whole = TSH_REPLICATED_INIT, rows = TSH_SHARD_INIT(0), cols = TSH_SHARD_INIT(1),
                            term = TSH_PARTIAL_INIT;
    const meeting meetings[] = {
        {0, 4, 0, 2, cols, whole, 1, false}, {0, 4, 0, 2, cols, rows, 3, false},  {0, 2, 0, 4, cols, term, 0, true},
        {0, 4, 0, 4, cols, whole, 2, false}, {0, 2, 2, 2, cols, whole, 2, false}, {0, 2, 2, 2, whole, cols, 0, false},
        {0, 2, 2, 2, whole, term, 1, true},
    };
    tshi_test_options options = {.ranks = 4};
    for (size_t i = 0; i < sizeof meetings / sizeof *meetings; i++) {
        meeting m = meetings[i];
        const char *words = tshi_test_run_with(&options, disagree, &m, NULL, NULL);
        cr_assert_str_empty(words, "meeting %zu: %s", i, words);
    }
}

/* --- ranks that fail or die --------------------------------------------------------------------------------------- */

typedef struct loss {
    int from, from_ranks, to, to_ranks;
    int victim;
    bool dies;
} loss;

/* The victim has words for its peers, or none any more. */
static void lose_one(tshi_rank *r, void *arg) {
    const loss *l = arg;
    tsh_tape *tape = NULL;
    char axes[2][8];
    snprintf(axes[0], sizeof axes[0], "a=%d", l->from_ranks);
    snprintf(axes[1], sizeof axes[1], "a=%d", l->to_ranks);
    tsh_mesh *from = make_mesh(r, l->from, l->from_ranks, axes[0]), *to = make_mesh(r, l->to, l->to_ranks, axes[1]);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_matrix(r, from, 8, 8, TSH_SHARD(0), TSH_REPLICATED);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank == l->victim) {
        if (l->dies) raise(SIGKILL);
        tsh_world_fail(r->world, "the disk is full");
    } else {
        tsh_tensor *y = tsh_redistribute(tape, x, to, (tsh_layout[]){TSH_SHARD(1)});
        tsh_status status = y ? tsh_barrier(tsh_world_group(r->world)) : tsh_tape_status(tape);
        const char *words = y ? tsh_error_message() : tsh_tape_message(tape);
        char wanted[48];
        snprintf(wanted, sizeof wanted, "rank %d%s", l->victim, l->dies ? "" : ": the disk is full");
        tshi_check(r, status == TSH_ERR_PEER && strstr(words, wanted), "%s \"%s\"", tsh_status_name(status), words);
    }
    tsh_status reset = tsh_tape_reset(tape);
    if (!l->dies) {
        tshi_check(r, reset == TSH_OK, "the reset: %s", tsh_error_message());
        tshi_check(r, tsh_redistribute(tape, x, to, NULL), "after the failure: %s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(from);
    tsh_mesh_destroy(to);
}

Test(redistribute_failures, peers_of_a_rank_that_fails_or_dies_get_its_words) {
    static const loss losses[] = {{0, 4, 0, 2, 3, false}, {0, 4, 0, 2, 3, true},  {0, 2, 2, 2, 0, false},
                                  {0, 2, 2, 2, 0, true},  {0, 2, 2, 2, 3, false}, {0, 2, 2, 2, 3, true},
                                  {0, 3, 1, 3, 2, false}, {0, 3, 1, 3, 2, true}};
    tshi_test_options options = {.ranks = 4, .world_timeout = "20", .timeout = 40};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        loss l = losses[i];
        tshi_outcome outcomes[4];
        tshi_test_run_with(&options, lose_one, &l, outcomes, NULL);
        for (int rank = 0; rank < 4; rank++) {
            if (l.dies && rank == l.victim) {
                cr_assert_eq(outcomes[rank].signal, SIGKILL);
            } else {
                cr_assert_str_empty(outcomes[rank].words, "loss %zu: %s", i, outcomes[rank].words);
            }
        }
    }
}

/* --- local parts -------------------------------------------------------------------------------------------------- */

static const tsh_layout whole = TSH_REPLICATED_INIT, rows = TSH_SHARD_INIT(0), term = TSH_PARTIAL_INIT,
                        own = TSH_LOCAL_INIT;

/* The gradient of x's local part is the rank's number + 1 everywhere: x's gradient is `wanted` on this rank. */
static void check_local(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, tsh_layout layout, const tsh_layout *named,
                        double wanted) {
    tsh_tensor *x = make_matrix(r, mesh, 5, 3, layout, TSH_REPLICATED), *dy = NULL;
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tsh_tensor *y = tsh_to_local(tape, x, named);
    if (tshi_check(r, y, "%s", tsh_tape_message(tape))) {
        tshi_check(r, tsh_tensor_data(y) == tsh_tensor_data(x), "the local part has memory of its own");
        tshi_check(r, tsh_tensor_layout(y, mesh->axis[0].group).kind == TSH_KIND_LOCAL, "it is not LOCAL");
        tshi_check(r, tsh_tensor_local_numel(y) == tsh_tensor_local_numel(x), "it has other elements");
        tshi_check(r, tsh_tensor_shape(y)[0] == tsh_tensor_local_shape(x)[0], "its shape is not x's local one");
        tshi_check_ok(r, tsh_tensor_clone(y, &dy));
        tshi_check_ok(r, tsh_tensor_fill(dy, mesh->member + 1));
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
        const tsh_tensor *dx = tsh_tensor_grad(x);
        for (int64_t i = 0; dx && i < tsh_tensor_local_numel(dx); i++) {
            tshi_check(r, tshi_test_element(dx, i) == wanted, "the gradient is %g, %g wanted", tshi_test_element(dx, i),
                       wanted);
        }
    }
    tsh_tensor_release(dy);
    tsh_tensor_release(x);
    tsh_tape_reset(tape);
}

static void refuse_local(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, tsh_layout layout, tsh_layout named) {
    bool exists = (int)named.kind != 7;
    tsh_tensor *x = make_matrix(r, mesh, 5, 3, layout, TSH_REPLICATED);
    if (r->rank == 1) {
        check_failure(r, tape, tsh_to_local(tape, x, &named), exists ? TSH_ERR_LAYOUT : TSH_ERR_ARGUMENT,
                      exists ? "to_local: the gradient of a local part of float64 ["
                             : "to_local: axis a has an unknown layout kind, 7");
    }
    tsh_tensor_release(x);
    go_on(r, tape, r->rank == 1);
}

static void local_parts(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tsh_mesh *mesh = make_mesh(r, 1, 3, "a=3");
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    double mine = mesh->member + 1;
    check_local(r, tape, mesh, whole, NULL, 1 + 2 + 3);
    check_local(r, tape, mesh, whole, &whole, mine);
    check_local(r, tape, mesh, whole, &term, 1 + 2 + 3);
    check_local(r, tape, mesh, rows, NULL, mine);
    check_local(r, tape, mesh, rows, &rows, mine);
    check_local(r, tape, mesh, term, NULL, mine);
    check_local(r, tape, mesh, term, &term, 1 + 2 + 3);
    check_local(r, tape, mesh, own, NULL, mine);
    const tsh_layout last = TSH_SHARD(-2), units = TSH_SHARD_UNITS(-2, 5, 0);
    check_local(r, tape, mesh, rows, &last, mine);
    check_local(r, tape, mesh, rows, &units, mine);
    check_local(r, tape, mesh, units, &rows, mine);
    const tsh_layout refusals[][2] = {
        {whole, rows},        {whole, own}, {rows, whole}, {rows, term},
        {rows, TSH_SHARD(1)}, {term, rows}, {own, term},   {rows, {.kind = (tsh_layout_kind)7}}};
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals && !r->failed; i++) {
        refuse_local(r, tape, mesh, refusals[i][0], refusals[i][1]);
    }
    tsh_tape_destroy(tape);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_mesh_destroy(mesh);
}

Test(redistribute_failures, local_parts_and_what_their_gradients_may_be) {
    cr_assert_str_empty(tshi_test_run(4, local_parts, NULL));
}

/* --- the log of plans --------------------------------------------------------------------------------------------- */

enum { LINES = 8, LINE = 256 };

typedef struct lines {
    int count;
    char line[LINES][LINE];
} lines;

static void keep_line(void *user, tsh_log_level level, const char *line) {
    lines *l = user;
    if (level == TSH_LOG_INFO && l->count < LINES) snprintf(l->line[l->count], LINE, "%s", line);
    if (level == TSH_LOG_INFO) l->count++;
}

/* What a world with this setting logs of three redistributions and of what two functions insert. Without `fn` it goes
 * to stderr. */
static void log_plans(tshi_rank *r, const char *setting, tsh_log_fn *fn, lines *l) {
    tsh_tape *tape = NULL;
    setenv("TSHARD_PLAN", setting, 1);
    tsh_world_config config = {.log = {fn, l}, .heap_bytes = (size_t)64 << 20, .blas_threads = 1};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_mesh *mesh = make_mesh(r, 0, 4, "a=2,b=2"), *pair = make_mesh(r, 2, 2, "m=2");
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_matrix(r, mesh, 8, 4, TSH_SHARD(0), TSH_SHARD(1));
    tsh_tensor *w = make_matrix(r, mesh, 4, 6, TSH_REPLICATED, TSH_SHARD(0));
    tshi_check_ok(r, tsh_tensor_require_grad(w, true));
    memset(l, 0, sizeof *l);
    tsh_redistribute(tape, x, mesh, (tsh_layout[]){TSH_SHARD(0), TSH_REPLICATED});
    tsh_redistribute(tape, x, mesh, (tsh_layout[]){TSH_SHARD_ORDER(1, 1), TSH_SHARD(1)});
    tsh_redistribute(tape, x, pair, (tsh_layout[]){TSH_SHARD(1)});
    tsh_gelu(tape, tsh_matmul(tape, x, w));
    tshi_check(r, tsh_tape_status(tape) == TSH_OK, "%s", tsh_tape_message(tape));
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(w);
    tsh_tape_destroy(tape);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_mesh_destroy(mesh);
    tsh_mesh_destroy(pair);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

static void plans_in_the_log(tshi_rank *r, void *arg) {
    static const char *const wanted[] = {
        "redistribute: float64 [4,2] of [8,4] a=SHARD(0) b=SHARD(1) -> a=SHARD(0) b=REPLICATED: all_gather, 64 bytes",
        "redistribute: float64 [4,2] of [8,4] a=SHARD(0) b=SHARD(1) -> a=SHARD(1,1) b=SHARD(1): ",
        "redistribute: float64 [4,2] of [8,4] a=SHARD(0) b=SHARD(1) -> m=SHARD(1) on mesh m=2 of ranks 2,3: ",
        ("matmul: float64 [2,6] of [4,6] a=REPLICATED b=SHARD(0) -> a=LOCAL b=SHARD(0): no data moves, 0 bytes sent; "
         "backward: all_reduce, 96 bytes sent"),
        "gelu: float64 [4,6] of [8,6] a=SHARD(0) b=PARTIAL -> a=SHARD(0) b=REPLICATED: all_reduce, "};
    lines l = {0};
    (void)arg;
    log_plans(r, "1", keep_line, &l);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        tshi_check(r, !strncmp(l.line[i], wanted[i], strlen(wanted[i])), "line %zu is \"%s\"", i, l.line[i]);
    }
    tshi_check(r, l.count == sizeof wanted / sizeof *wanted, "%d lines", l.count);
}

static void no_plans_in_the_log(tshi_rank *r, void *arg) {
    lines l = {0};
    (void)arg;
    log_plans(r, "0", keep_line, &l);
    tshi_check(r, l.count == 0, "%d lines, such as \"%s\"", l.count, l.line[0]);
}

static void plans_on_stderr(tshi_rank *r, void *arg) {
    char text[4096] = "";
    lines l = {0};
    FILE *file = tmpfile();
    (void)arg;
    if (!tshi_check(r, file && dup2(fileno(file), STDERR_FILENO) >= 0, "no file")) return;
    log_plans(r, "1", NULL, &l);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    tshi_check(r, strstr(text, "tshard info: gelu: float64 [4,6]"), "\"%s\"", text);
    fclose(file);
}

Test(redistribute_failures, the_log_shows_each_step_of_a_plan) {
    tshi_test_options options = {.ranks = 4, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, plans_in_the_log, NULL, NULL, NULL));
    cr_assert_str_empty(tshi_test_run_with(&options, plans_on_stderr, NULL, NULL, NULL));
    cr_assert_str_empty(tshi_test_run_with(&options, no_plans_in_the_log, NULL, NULL, NULL));
}

/* --- what all ranks refuse ---------------------------------------------------------------------------------------- */

/* Half of the ranks refuse, and have not ended the step, while the others have not begun the gather before: that ends
 * well. */
static void refuse_alike(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = make_mesh(r, 0, 4, "a=2,b=2");
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_matrix(r, mesh, 4, 3, TSH_LOCAL, TSH_SHARD(0));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank < 2) usleep(200000);
    tsh_tensor *gathered = tsh_gather(tape, x, tsh_mesh_group(mesh, "b"), 0);
    tshi_check(r, gathered, "%s", tsh_tape_message(tape));
    tsh_tensor *y = tsh_gather(tape, gathered, tsh_mesh_group(mesh, "a"), 0);
    check_failure(r, tape, y, TSH_ERR_LAYOUT, "gather: x is float64");
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(redistribute_failures, what_all_ranks_refuse_ends_alike_on_all) {
    cr_assert_str_empty(tshi_test_run(4, refuse_alike, NULL));
}

/* A rank that refuses alone, and ends with its tape and not with a step, tells its peers in words. */
static void refuse_alone(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = make_mesh(r, 0, 3, "a=3");
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_matrix(r, mesh, 4, 3, TSH_REPLICATED, TSH_REPLICATED);
    tsh_group *group = tsh_mesh_group(mesh, "a");
    if (r->rank == 1) {
        check_failure(r, tape, tsh_gather(tape, x, group, 0), TSH_ERR_LAYOUT, "gather: x is float64");
    } else {
        tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 1: gather: x is float64");
    }
    tsh_tape_destroy(tape);
    tshi_check_ok(r, tsh_world_recover(r->world));
    tsh_tensor_release(x);
    tsh_mesh_destroy(mesh);
}

Test(redistribute_failures, a_rank_that_refuses_alone_tells_its_peers_with_its_tape) {
    cr_assert_str_empty(tshi_test_run(3, refuse_alone, NULL));
}
