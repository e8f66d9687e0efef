#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "differential/team.h"
#include "differential/rank.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESHES = 128, AXES_TEXT = 256 };
static const double world_timeout = 60;

/* --- meshes of a world, kept -------------------------------------------------------------------------------------- */

typedef struct meshes {
    int count;
    char axes[MAX_MESHES][AXES_TEXT];
    int order[MAX_MESHES];
    tsh_mesh *mesh[MAX_MESHES];
} meshes;

static void axes_text(const tshi_program *p, bool alone, char *text) {
    text[0] = '\0';
    for (int a = 0; a < p->axes; a++) {
        tshi_append(text, AXES_TEXT, "%s%c=", a ? "," : "", 'a' + a);
        tshi_parts_append(alone ? (tshi_parts){.count = 1} : tshi_program_parts(p, a), text, AXES_TEXT);
    }
}

static void free_meshes(meshes *all) {
    for (int i = 0; i < all->count; i++) tsh_mesh_destroy(all->mesh[i]);
    all->count = 0;
}

/* The mesh of a program; alone: the one of as many axes of one rank. */
static tsh_mesh *find_mesh(meshes *all, tsh_world *world, const tshi_program *p, bool alone) {
    char axes[AXES_TEXT];
    int ranks[MAX_RANKS], order = alone ? 0 : p->order, k = all->count;
    axes_text(p, alone, axes);
    for (int i = 0; i < k; i++) {
        if (!strcmp(all->axes[i], axes) && all->order[i] == order) return all->mesh[i];
    }
    if (k == MAX_MESHES) {
        free_meshes(all);
        k = 0;
    }
    snprintf(all->axes[k], AXES_TEXT, "%s", axes);
    all->order[k] = order;
    tshi_program_order(p, ranks);
    tsh_status status = order ? tsh_mesh_create_on(world, ranks, tshi_program_ranks(p), axes, &all->mesh[k])
                              : tsh_mesh_create(world, axes, &all->mesh[k]);
    if (status != TSH_OK) return NULL;
    return all->mesh[all->count++];
}

/* --- a team ------------------------------------------------------------------------------------------------------- */

struct tshi_gate {
    pthread_barrier_t barrier;
    int ranks;
    bool failed[MAX_RANKS];
};

bool tshi_gate_pass(tshi_gate *gate, int rank, bool failed) {
    bool any = false;
    gate->failed[rank] = failed;
    pthread_barrier_wait(&gate->barrier);
    for (int r = 0; r < gate->ranks; r++) any = any || gate->failed[r];
    pthread_barrier_wait(&gate->barrier);
    return any;
}

typedef struct team team;

typedef struct member {
    team *team;
    int rank;
    pthread_t thread;
    bool usable;
} member;

struct team {
    int ranks;
    tsh_thread_rendezvous *threads;
    tshi_gate gate;
    pthread_barrier_t start, finish; /* barriers at the start and the end of a program; the judge takes part in both */
    const tshi_program *program;     /* NULL: leave */
    bool careful;
    member members[MAX_RANKS];
    tshi_trace traces[MAX_RANKS];
};

/* A rank is numbered by its place in the mesh. */
static int number_of(const tshi_program *p, int rank) {
    int ranks[MAX_RANKS], number = 0;
    tshi_program_order(p, ranks);
    while (ranks[number] != rank) number++;
    return number;
}

static void run_program(member *m, tsh_world *world, meshes *all) {
    team *t = m->team;
    int number = number_of(t->program, m->rank);
    tshi_trace *trace = &t->traces[number];
    tshi_trace_clear(trace);
    const tsh_mesh *mesh = world ? find_mesh(all, world, t->program, false) : NULL;
    const tshi_part part = {t->program, world, mesh, number, &t->gate, t->careful, trace};
    m->usable = mesh && tshi_part_run(&part);
    if (mesh) return;
    trace->status = TSH_ERR_SYSTEM;
    snprintf(trace->words, sizeof trace->words, "no mesh: %s", tsh_error_message());
}

/* Programs are strange enough to be warned of. */
static void no_log(void *user, tsh_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

static void *live(void *argument) {
    member *m = argument;
    const tsh_world_config config = {.threads = m->team->threads,
                                     .log = {.fn = no_log},
                                     .rank = m->rank,
                                     .heap_bytes = (size_t)64 << 20,
                                     .blas_threads = 1,
                                     .timeout = world_timeout};
    tsh_world *world = NULL;
    meshes all = {0};
    tsh_world_init(&config, &world);
    while (true) {
        pthread_barrier_wait(&m->team->start);
        if (!m->team->program) break;
        run_program(m, world, &all);
        pthread_barrier_wait(&m->team->finish);
    }
    free_meshes(&all);
    tsh_world_destroy(world);
    return NULL;
}

static team *open_team(int ranks) {
    team *t = calloc(1, sizeof *t);
    if (!t || tsh_thread_rendezvous_create(ranks, &t->threads) != TSH_OK) abort();
    t->ranks = t->gate.ranks = ranks;
    pthread_barrier_init(&t->gate.barrier, NULL, (unsigned)ranks);
    pthread_barrier_init(&t->start, NULL, (unsigned)ranks + 1);
    pthread_barrier_init(&t->finish, NULL, (unsigned)ranks + 1);
    for (int r = 0; r < ranks; r++) {
        t->members[r] = (member){.team = t, .rank = r};
        if (pthread_create(&t->members[r].thread, NULL, live, &t->members[r])) abort();
    }
    return t;
}

static void close_team(team *t) {
    if (!t) return;
    t->program = NULL;
    pthread_barrier_wait(&t->start);
    for (int r = 0; r < t->ranks; r++) {
        pthread_join(t->members[r].thread, NULL);
        tshi_trace_free(&t->traces[r]);
    }
    tsh_thread_rendezvous_destroy(t->threads);
    pthread_barrier_destroy(&t->gate.barrier);
    pthread_barrier_destroy(&t->start);
    pthread_barrier_destroy(&t->finish);
    free(t);
}

/* false: its worlds are of no more use. */
static bool run_team(team *t, const tshi_program *p, bool careful) {
    bool usable = true;
    t->program = p;
    t->careful = careful;
    pthread_barrier_wait(&t->start);
    pthread_barrier_wait(&t->finish);
    for (int r = 0; r < t->ranks; r++) usable = usable && t->members[r].usable;
    return usable;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

struct tshi_teams {
    team *of[MAX_RANKS + 1];
    tsh_world *world; /* of one rank */
    meshes meshes;
    tshi_trace truths[MAX_RANKS];
};

tshi_teams *tshi_teams_open(void) {
    tshi_teams *all = calloc(1, sizeof *all);
    const tsh_world_config config = {.log = {.fn = no_log},
                                     .rank = 0,
                                     .world_size = 1,
                                     .heap_bytes = (size_t)64 << 20,
                                     .blas_threads = 1,
                                     .timeout = world_timeout};
    if (!all || tsh_world_init(&config, &all->world) != TSH_OK) abort();
    return all;
}

void tshi_teams_close(tshi_teams *all) {
    for (int ranks = 0; ranks <= MAX_RANKS; ranks++) close_team(all->of[ranks]);
    free_meshes(&all->meshes);
    tsh_world_destroy(all->world);
    for (int r = 0; r < MAX_RANKS; r++) tshi_trace_free(&all->truths[r]);
    free(all);
}

/* A failure reaches ranks wherever they are; to be compared it must reach them at the same step. */
static bool judge_ends(team *t, const tshi_program *p, tshi_verdict *v) {
    bool ended = true;
    for (int r = 0; r < t->ranks; r++) ended = ended && t->traces[r].status == TSH_OK;
    if (ended) return true;
    if (!run_team(t, p, true)) {
        tshi_judge_ends(p, t->traces, v);
        tshi_verdict_fail(v, "the world could not be recovered after: %.900s", v->words);
        return false;
    }
    if (!tshi_judge_ends(p, t->traces, v)) return false;
    tshi_verdict_fail(v, "a failure that does not come again when ranks wait for each other");
    return false;
}

/* A deterministic world has the bits of one rank. */
static void judge_bits(tshi_teams *all, const tshi_trace *traces, const tshi_program *p, tshi_verdict *v) {
    tshi_program *alone = malloc(sizeof *alone);
    if (!alone) abort();
    *alone = *p;
    alone->order = 0;
    for (int a = 0; a < p->axes; a++) alone->size[a] = 1;
    if (!all->of[1]) all->of[1] = open_team(1);
    if (!run_team(all->of[1], alone, false) || all->of[1]->traces[0].status != TSH_OK)
        tshi_verdict_fail(v, "on one rank: %s", all->of[1]->traces[0].words);
    else
        tshi_compare_bits(p, traces, all->of[1]->traces, v);
    free(alone);
}

void tshi_teams_judge(tshi_teams *all, const tshi_program *p, tshi_verdict *v) {
    int ranks = tshi_program_ranks(p);
    *v = (tshi_verdict){.kind = VERDICT_SAME};
    if (!all->of[ranks]) all->of[ranks] = open_team(ranks);
    team *t = all->of[ranks];
    bool usable = run_team(t, p, false);
    if (!usable) {
        tshi_judge_ends(p, t->traces, v);
        tshi_verdict_fail(v, "the world could not be recovered after: %.900s", v->words);
    } else if (judge_ends(t, p, v)) {
        tsh_mesh *mesh = find_mesh(&all->meshes, all->world, p, true);
        tshi_truth_run(p, all->world, mesh, t->traces, all->truths, v);
        tshi_compare(p, t->traces, all->truths, v);
        if (p->deterministic && ranks > 1 && v->kind == VERDICT_SAME) judge_bits(all, t->traces, p, v);
    }
    if (v->kind != VERDICT_FAILED) return;
    close_team(t);
    all->of[ranks] = NULL;
}
