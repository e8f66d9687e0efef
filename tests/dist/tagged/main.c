/* One scenario as a rank of the transport that TSHARD_BACKEND or the launcher chooses: ranks NAME. Exits with 0 when
 * all that it checked holds on this rank. */
#include "dist/tagged/ranks.h"
#include "dist/world.h"
#include "support/language.h"
#include "support/pipeline.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 8 };

/* The losses of a small language model, for run.sh to compare with those of other backends. */
static void scenario_losses(tshi_rank *r) {
    tshi_language l;
    double loss = 0, norm = 0;
    if (!tshi_check_ok(r, tshi_language_create(r->world, r->size % 2 ? "data=1,model=-1" : "data=2,model=-1", &l))) {
        return;
    }
    for (int step = 0; step < STEPS && !r->failed; step++) {
        if (!tshi_check_ok(r, tshi_language_gradients(&l, &loss, &norm, NULL))) break;
        tshi_check_ok(r, tshi_language_update(&l));
        if (r->rank == 0) printf("loss %.9f %.9f\n", loss, norm);
    }
    tshi_language_destroy(&l);
}

/* One forward, one backward, and all forwards first, on meshes of all ranks. */
static void scenario_pipeline(tshi_rank *r) {
    for (int stages = 1; stages <= TSHI_PIPELINE_BLOCKS && stages <= r->size; stages++) {
        int left = r->size / stages, way = 0;
        for (int data = 1; data <= left && r->size % stages == 0; data++) {
            for (int n = 1; n <= 5 && left % data == 0 && !r->failed; n++) {
                const tshi_pipeline_config config = {.stages = stages,
                                                     .data = data,
                                                     .model = left / data,
                                                     .micro_batches = n,
                                                     .rows = n == 4 ? 4000 : 7, /* messages of 512 KB */
                                                     .features = n == 4 ? 64 : 4,
                                                     .hidden = 5,
                                                     .forwards_first = way & 1,
                                                     .sums = way & 2};
                tshi_pipeline_check_step(r, &config);
                way++;
            }
        }
    }
}

static const char *backend_wanted(void) {
    const char *name = getenv("EXPECT_BACKEND");
    return name ? name : "mpi";
}

/* Groups within a machine share its memory, the others take the transport of the world. */
static void two_machines(tshi_rank *r) {
    tsh_mesh *mesh = NULL;
    if (r->size != 4 || !tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh))) return;
    const char *data = tsh_group_backend(tsh_mesh_group(mesh, "data"));
    const char *model = tsh_group_backend(tsh_mesh_group(mesh, "model"));
    tshi_check(r, !strcmp(data, backend_wanted()) && !strcmp(model, "local"), "data on %s, model on %s", data, model);
    tsh_mesh_destroy(mesh);
}

static void scenario_place(tshi_rank *r) {
    const char *nodes = getenv("EXPECT_NODES");
    int wanted = nodes ? atoi(nodes) : 1;
    tshi_check(r, tsh_world_node_count(r->world) == wanted, "%d machines, not %d", tsh_world_node_count(r->world),
               wanted);
    tshi_check(r, r->size == 1 || !strcmp(tsh_group_backend(tsh_world_group(r->world)), backend_wanted()), "not on %s",
               backend_wanted());
    const tshi_machine *m = &r->world->machine;
    struct sigaction action;
    sigaction(SIGILL, NULL, &action);
    tshi_check(r, action.sa_handler == SIG_DFL || strcmp(backend_wanted(), "ucx") != 0, "UCX handles signals");
    tshi_check(r, !getenv("UCX_HANDLE_ERRORS") && !getenv("UCX_MEM_EVENTS"), "variables of UCX's are left");
    for (int i = 0; r->size > 1 && i < r->size; i++) {
        tshi_check(r, (m->heap[i] != NULL) == (m->node[i] == m->node[r->rank]), "the heap of rank %d", i);
    }
    tshi_check(r, tsh_world_local_rank(r->world) == (wanted == 1 ? r->rank : tsh_world_local_rank(r->world)),
               "local rank %d", tsh_world_local_rank(r->world));
    if (wanted == 2) two_machines(r);
}

static const struct {
    const char *name;
    void (*run)(tshi_rank *r);
} scenarios[] = {
    {"matrix", scenario_matrix},       {"short", scenario_short},       {"chunks", scenario_chunks},
    {"cases", scenario_cases},         {"large", scenario_large},       {"messages", scenario_messages},
    {"groups", scenario_groups},       {"misuse", scenario_misuse},     {"recover", scenario_recover},
    {"late", scenario_late},           {"leave", scenario_leave},       {"stopped", scenario_stopped},
    {"killed", scenario_killed},       {"losses", scenario_losses},     {"guest", scenario_guest},

    {"place", scenario_place},         {"troubles", scenario_troubles}, {"lost", scenario_lost},
    {"ring", scenario_ring},           {"twice", scenario_twice},       {"linger", scenario_linger},
    {"pairs", scenario_pairs},         {"blame", scenario_blame},       {"steps", scenario_steps},
    {"exchanges", scenario_exchanges}, {"exits", scenario_exits},       {"named", scenario_named},
    {"pipeline", scenario_pipeline},   {"forks", scenario_forks},       {"vanishes", scenario_vanishes},
    {"levels", scenario_levels},       {"weights", scenario_weights},
};

/* Ends at once: MPI_Finalize would wait for a rank that does not come. */
static void absent(int argc, char **argv) {
    int rank = 0, size = 0;
    const char *own = getenv("RANK"), *all = getenv("WORLD_SIZE");
    if (own && all) {
        rank = atoi(own);
        size = atoi(all);
    } else {
        guest_begin(argc, argv, &rank, &size);
    }
    scenario_absent(rank, size);
    fflush(NULL);
    _exit(0);
}

static void arrived_file(char *path, size_t size, int rank) {
    const char *folder = getenv("TEST_FOLDER");
    snprintf(path, size, "%s/arrived-%d", folder ? folder : "/tmp", rank);
}

void pause_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

void signal_later(int number, double seconds) {
    pid_t me = getpid();
    if (fork() != 0) return;
    pause_for(seconds);
    kill(me, number);
    _exit(0);
}

void rank_arrives(int rank) {
    char path[256];
    arrived_file(path, sizeof path, rank);
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}

void await_rank(int rank) {
    char path[256];
    double guard = tshi_now() + 60;
    arrived_file(path, sizeof path, rank);
    while (access(path, F_OK) != 0 && tshi_now() < guard) tshi_nap(0.005);
}

/* The deadline of a scenario in which one passes; the rendezvous has the usual one. Agreements, unlike messages, reach
 * the peers of a rank that is killed right after them. */
static void set_deadline(tshi_rank *r) {
    const char *seconds = getenv("TEST_DEADLINE");
    if (seconds && tshi_check_ok(r, tshi_group_agree(tsh_world_group(r->world), "deadline", TSH_OK)))
        r->world->timeout = strtod(seconds, NULL);
}

int main(int argc, char **argv) {
    tshi_rank r = {0};
    if (argc > 1 && !strcmp(argv[1], "absent")) absent(argc, argv);
    size_t i = 0, n = sizeof scenarios / sizeof *scenarios;
    while (argc > 1 && i < n && strcmp(argv[1], scenarios[i].name) != 0) i++;
    if (argc < 2 || i == n) return 2;
    bool guest = !strcmp(argv[1], "guest");
    int unused;
    if (guest) guest_begin(argc, argv, &unused, &unused);
    if (tsh_world_init(NULL, &r.world) != TSH_OK) {
        fprintf(stderr, "world_init: %s\n", tsh_error_message());
        return 3;
    }
    r.rank = tsh_world_rank(r.world);
    r.size = tsh_world_size(r.world);
    set_deadline(&r);
    scenarios[i].run(&r);
    if (r.failed) fprintf(stderr, "rank %d of %d, %s: %s\n", r.rank, r.size, argv[1], r.words);
    tsh_world_destroy(r.world);
    if (guest) guest_end();
    return r.failed;
}
