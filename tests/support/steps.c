#include "support/steps.h"
#include "support/clock.h"
#include "tshard/tshard.h"

#include <stdio.h>

enum { N = 16 };

const char *tshi_moment_name(tshi_moment when) {
    static const char *const names[TSHI_MOMENTS] = {
        "before all",       "between two collectives", "after the last one", "long after it",
        "in an evaluation", "by a mismatch",           "and says it itself"};
    return names[when];
}

typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_tape *train, *evaluate;
    tsh_tensor *terms, *wide, *values; /* LOCAL on both axes, the same with more elements, REPLICATED */
} kit;

static bool open_kit(kit *k) {
    tshi_rank *r = k->r;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {N}};
    double ones[2 * N];
    for (int i = 0; i < 2 * N; i++) ones[i] = 1;
    bool good = tshi_check_ok(r, tsh_mesh_create(r->world, r->size % 2 ? "a=1,b=-1" : "a=2,b=-1", &k->mesh)) &&
                tshi_check_ok(r, tsh_tape_create(r->world, &k->train)) &&
                tshi_check_ok(r, tsh_tape_create(r->world, &k->evaluate)) &&
                tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &k->values)) &&
                tshi_check_ok(r, tsh_tensor_write(k->values, ones, N));
    config.layout[0] = config.layout[1] = TSH_LOCAL;
    good = good && tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &k->terms)) &&
           tshi_check_ok(r, tsh_tensor_write(k->terms, ones, N));
    config.shape[0] = 2 * N;
    good = good && tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &k->wide)) &&
           tshi_check_ok(r, tsh_tensor_write(k->wide, ones, 2 * N));
    if (!good) return false;
    tsh_tensor_require_grad(k->values, true);
    tsh_tensor_require_grad(k->terms, true);
    tsh_tape_set_recording(k->evaluate, false);
    return true;
}

static void close_kit(kit *k) {
    tsh_tensor_release(k->terms);
    tsh_tensor_release(k->wide);
    tsh_tensor_release(k->values);
    tsh_tape_destroy(k->train);
    tsh_tape_destroy(k->evaluate);
    tsh_mesh_destroy(k->mesh);
}

static void fail_at(kit *k, tsh_tape *tape, bool here) {
    if (here) tsh_reshape(tape, k->values, 1, (int64_t[]){N + 1});
}

/* One collective along each axis, random numbers, a backward. `here`: this rank fails in this step. */
static tsh_status make_step(kit *k, const tshi_story *s, bool here, double *loss) {
    tsh_tape *tape = k->train;
    fail_at(k, tape, here && s->when == TSHI_FIRST);
    tsh_tensor *random = tsh_dropout(tape, k->values, 0.5);
    tsh_tensor *x = here && s->when == TSHI_MISMATCH ? k->wide : k->terms;
    tsh_tensor *y = tsh_reduce(tape, x, tsh_mesh_group(k->mesh, "a"));
    fail_at(k, tape, here && s->when == TSHI_BETWEEN);
    y = tsh_reduce(tape, y, tsh_mesh_group(k->mesh, "b"));
    if (here && s->when == TSHI_LATE) tshi_nap(0.05);
    fail_at(k, tape, here && (s->when == TSHI_AT_END || s->when == TSHI_LATE));
    if (here && s->when == TSHI_BY_HAND) tsh_world_fail(k->r->world, "no more");
    tsh_tensor *sum = tsh_sum(tape, tsh_add(tape, y, random), 0);
    tsh_status status = tsh_backward(tape, sum);
    if (status == TSH_OK) status = tsh_tensor_read(sum, loss, 1);
    if (here && s->when == TSHI_BY_HAND) {
        tshi_check_ok(k->r, tsh_world_recover(k->r->world));
        status = TSH_ERR_STATE;
    }
    return status;
}

static tsh_status evaluate(kit *k, bool here) {
    double value;
    tsh_tensor *y = tsh_reduce(k->evaluate, k->terms, tsh_mesh_group(k->mesh, "b"));
    fail_at(k, k->evaluate, here);
    y = tsh_sum(k->evaluate, y, 0);
    return y ? tsh_tensor_read(y, &value, 1) : tsh_tape_status(k->evaluate);
}

void tshi_run_steps(tshi_rank *r, const tshi_story *s, tshi_course *out) {
    kit k = {.r = r};
    *out = (tshi_course){0};
    if (!open_kit(&k)) return;
    for (int i = 0; i < TSHI_LOOP_STEPS && !r->failed; i++) {
        bool here = r->rank == s->victim && i == TSHI_LOST_STEP;
        out->ok[i] = make_step(&k, s, here, &out->loss[i]) == TSH_OK;
        tshi_check_ok(r, tsh_tape_reset(k.train));
        if (s->when != TSHI_EVALUATION) continue;
        out->evaluated[i] = evaluate(&k, here) == TSH_OK;
        tshi_check_ok(r, tsh_tape_reset(k.evaluate));
    }
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    close_kit(&k);
}

/* --- what came of it ---------------------------------------------------------------------------------------------- */

static const char *wrong(const char *what, int rank, int step) {
    static char words[128];
    snprintf(words, sizeof words, "rank %d, step %d: %s", rank, step, what);
    return words;
}

static const char *check_one(const tshi_course *all, int rank, int i, const tshi_story *s) {
    const tshi_course *o = &all[rank];
    bool victim = rank == s->victim && i == TSHI_LOST_STEP;
    if (victim && (s->when == TSHI_EVALUATION ? o->evaluated[i] : o->ok[i])) return wrong("it did not fail", rank, i);
    if ((i < TSHI_LOST_STEP - 1 || i > TSHI_LOST_STEP + 1) && !o->ok[i]) return wrong("it failed", rank, i);
    if (i == TSHI_LOST_STEP - 1 || i == TSHI_LOST_STEP) return "";
    bool together = o->ok[i] == all[0].ok[i] && o->evaluated[i] == all[0].evaluated[i];
    if (!together) return wrong("it is not together with rank 0", rank, i);
    if (o->ok[i] && o->loss[i] != all[0].loss[i]) return wrong("its loss is not that of rank 0", rank, i);
    return "";
}

const char *tshi_check_courses(const tshi_course *all, int ranks, const tshi_story *s) {
    for (int i = 0; i < TSHI_LOOP_STEPS; i++) {
        for (int rank = 0; rank < ranks; rank++) {
            const char *words = check_one(all, rank, i, s);
            if (words[0]) return words;
        }
    }
    return "";
}
