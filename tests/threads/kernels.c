/* Ranks that are threads, each with a team of threads for its kernels: losses and gradients have the bits that one
 * thread gives them. */
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200, COLS = 320, RANKS = 3, STEPS = 20 };

typedef struct member {
    tsh_thread_rendezvous *threads;
    tshi_rank rank;
    int team;
    double loss;
    float dx[ROWS * COLS], dgamma[COLS];
} member;

typedef struct values {
    tsh_tape *tape;
    tsh_tensor *x, *gamma;
} values;

static bool create(tshi_rank *r, values *v) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_tensor_config of_x = {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {ROWS, COLS}};
    const tsh_tensor_config of_gamma = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {COLS}};
    return tshi_check_ok(r, tsh_tape_create(r->world, &v->tape)) &&
           tshi_check_ok(r, tsh_tensor_create_normal(mesh, &of_x, 0, 1, &v->x)) &&
           tshi_check_ok(r, tsh_tensor_create_uniform(mesh, &of_gamma, 0.5, 1.5, &v->gamma)) &&
           tshi_check_ok(r, tsh_tensor_require_grad(v->x, true)) &&
           tshi_check_ok(r, tsh_tensor_require_grad(v->gamma, true));
}

/* Kernels that are split by elements, by rows and by columns. */
static bool step(member *m, const values *v) {
    tshi_rank *r = &m->rank;
    tsh_tensor *y = tsh_layer_norm(v->tape, v->x, v->gamma, NULL, 1e-5);
    tsh_tensor *z = tsh_mul(v->tape, tsh_softmax(v->tape, tsh_gelu(v->tape, y), 1), tsh_tanh(v->tape, v->x));
    tsh_tensor *loss = tsh_mean(v->tape, z, TSH_ALL_DIMS);
    if (!tshi_check(r, loss != NULL, "%s", tsh_tape_message(v->tape))) return false;
    m->loss = tsh_tensor_item(loss);
    return tshi_check_ok(r, tsh_backward(v->tape, loss)) && tshi_check_ok(r, tsh_tape_reset(v->tape)) &&
           tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
}

static void *live(void *arg) {
    member *m = arg;
    tshi_rank *r = &m->rank;
    values v = {NULL, NULL, NULL};
    const tsh_world_config config = {.threads = m->threads,
                                     .rank = r->rank,
                                     .heap_bytes = (size_t)32 << 20,
                                     .blas_threads = m->team,
                                     .timeout = 60,
                                     .seed = 3};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return NULL;
    bool good = create(r, &v);
    for (int i = 0; i < STEPS && good; i++) good = step(m, &v);
    if (good) {
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(v.x), m->dx, ROWS * COLS));
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(v.gamma), m->dgamma, COLS));
    }
    tsh_tensor_release(v.x);
    tsh_tensor_release(v.gamma);
    tsh_tape_destroy(v.tape);
    tsh_world_destroy(r->world);
    return NULL;
}

/* Ranks with teams of these sizes. */
static int run(const int teams[RANKS], member *members) {
    tsh_thread_rendezvous *meet;
    pthread_t threads[RANKS];
    int failed = 0;
    if (tsh_thread_rendezvous_create(RANKS, &meet) != TSH_OK) abort();
    for (int i = 0; i < RANKS; i++) {
        members[i] = (member){.threads = meet, .rank = {.rank = i, .size = RANKS}, .team = teams[i]};
        if (pthread_create(&threads[i], NULL, live, &members[i]) != 0) abort();
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        if (members[i].rank.failed) printf("rank %d: %s\n", i, members[i].rank.words);
        failed += members[i].rank.failed;
    }
    tsh_thread_rendezvous_destroy(meet);
    return failed;
}

static bool same(const member *a, const member *b) {
    return a->loss == b->loss && !memcmp(a->dx, b->dx, sizeof a->dx) && !memcmp(a->dgamma, b->dgamma, sizeof a->dgamma);
}

int main(void) {
    static member alone[RANKS], together[RANKS];
    int failed = run((int[RANKS]){1, 1, 1}, alone) + run((int[RANKS]){2, 3, 5}, together);
    for (int i = 0; i < RANKS && !failed; i++) {
        if (same(&alone[0], &alone[i]) && same(&alone[0], &together[i])) continue;
        printf("rank %d: other bits with %d threads\n", i, together[i].team);
        failed++;
    }
    return failed ? 1 : 0;
}
