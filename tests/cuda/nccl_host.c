/* nccl_host WHAT [RANK FILE]: a rank over NCCL's stand-in that is a process, for test_nccl_hosts.sh. The environment
 * says who it is, as torchrun sets it, and in EXPECT_NODES on how many machines the ranks are. WHAT:
 *   run           sums, meshes and messages, whose results it checks
 *   endless       the same, over and over, until there is an error; "begun" is printed after the first
 *   lacks, gpuless    run, on a rank without NCCL, or without a GPU
 *   recover       as run, while each rank in turn reports a failure, after which the world recovers
 *   kill, stop    RANK does so to itself in the middle of that, and writes the time to FILE; the others go on until
 *                 they have an error, and print it with the seconds since then
 *   leave         RANK destroys its world then, and ends */
#include "standin/standin.h"
#include "support/clock.h"
#include "tshard/tshard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000 };

static tsh_world *world;
static tsh_tensor *x, *y;
static float host[N];

static tsh_status wrong(const char *what, float got, float wanted) {
    fprintf(stderr, "rank %d: %s is %g, not %g\n", tsh_world_rank(world), what, (double)got, (double)wanted);
    return TSH_ERR_STATE;
}

static tsh_status check_sum(tsh_group *group, float wanted) {
    tsh_status status = tsh_tensor_fill(x, tsh_world_rank(world) + 1);
    if (status == TSH_OK) status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(x, host, N);
    return status == TSH_OK && host[N - 1] != wanted ? wrong("a sum", host[N - 1], wanted) : status;
}

/* The ranks of an axis are `step` apart, from `first`. */
static tsh_status check_axis(const tsh_mesh *mesh, const char *axis, int first, int step) {
    float wanted = 0;
    tsh_group *group = tsh_mesh_group(mesh, axis);
    for (int i = 0; i < tsh_group_size(group); i++) wanted += (float)(first + i * step + 1);
    return check_sum(group, wanted);
}

static tsh_status check_ring(void) {
    int rank = tsh_world_rank(world), size = tsh_world_size(world), before = (rank + size - 1) % size;
    tsh_work *work = NULL;
    tsh_status status = tsh_tensor_fill(x, rank);
    if (status == TSH_OK) status = tsh_send_async(tsh_world_group(world), x, (rank + 1) % size, &work);
    if (status == TSH_OK) status = tsh_recv(tsh_world_group(world), y, before, NULL);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    if (status == TSH_OK) status = tsh_tensor_read(y, host, N);
    return status == TSH_OK && host[0] != (float)before ? wrong("a message", host[0], (float)before) : status;
}

static tsh_status step(const tsh_mesh *mesh) {
    int rank = tsh_world_rank(world), size = tsh_world_size(world), half = size / 2;
    tsh_status status = check_sum(tsh_world_group(world), (float)(size * (size + 1) / 2));
    if (status == TSH_OK) status = check_axis(mesh, "data", rank % half, half);
    if (status == TSH_OK) status = check_axis(mesh, "model", rank / half * half, 1);
    return status == TSH_OK ? check_ring() : status;
}

/* One rank reports a failure after its step. The others hear of it in their next one, or at the end of this. */
static tsh_status step_and_recover(const tsh_mesh *mesh, int failing) {
    const char *words = "it has had enough";
    bool fails = tsh_world_rank(world) == failing;
    tsh_status status = step(mesh);
    if (fails && status == TSH_OK) tsh_world_fail(world, words);
    if (!fails && status == TSH_OK) status = step(mesh);
    if (!fails && status == TSH_OK) return wrong("the status after a failure", 0, 1);
    if (!fails && (status != TSH_ERR_PEER || !strstr(tsh_error_message(), words))) return status;
    return fails && status != TSH_OK ? status : tsh_world_recover(world);
}

static void end_here(const char *what, const char *file) {
    FILE *to = fopen(file, "w");
    fprintf(to, "%.4f\n", tshi_now());
    fclose(to);
    raise(strcmp(what, "kill") ? SIGSTOP : SIGKILL);
}

/* The world is of so many machines, and NCCL moves its data. */
static tsh_status check_world(void) {
    const char *nodes = getenv("EXPECT_NODES"), *backend = tsh_group_backend(tsh_world_group(world));
    if (nodes && tsh_world_node_count(world) != atoi(nodes))
        return wrong("the number of machines", (float)tsh_world_node_count(world), (float)atoi(nodes));
    if (!strcmp(backend, "nccl")) return TSH_OK;
    fprintf(stderr, "the world has the backend %s\n", backend);
    return TSH_ERR_STATE;
}

static int report(tsh_status status, const char *file) {
    double now = tshi_now(), then = now;
    FILE *from = file ? fopen(file, "r") : NULL;
    if (from && fscanf(from, "%lf", &then) != 1) then = now;
    if (from) fclose(from);
    printf("rank %d: %.3f s: %s: %s\n", tsh_world_rank(world), now - then, tsh_status_name(status),
           tsh_error_message());
    return status == TSH_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    const tsh_tensor_config config = {.ndim = 1, .shape = {N}};
    const char *what = argc > 1 ? argv[1] : "run", *file = argc > 3 ? argv[3] : NULL;
    int victim = argc > 3 ? atoi(argv[2]) : -1;
    tsh_mesh *mesh = NULL;
    standin_gpus(8);
    standin_lazy(true);
    if (!strcmp(what, "gpuless")) standin_gpus(0);
    if (!strcmp(what, "lacks")) standin_lack("ncclGetVersion");
    tsh_status status = tsh_world_init(NULL, &world);
    if (status == TSH_OK) status = check_world();
    if (status == TSH_OK) status = tsh_mesh_create(world, "data=2,model=-1", &mesh);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(world), &config, &x);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(world), &config, &y);
    bool endless = file || !strcmp(what, "endless");
    for (int i = 0; status == TSH_OK && (endless || i < 5); i++) {
        if (i == 1) printf("begun\n");
        fflush(stdout);
        bool ends = i == 3 && tsh_world_rank(world) == victim;
        if (ends && !strcmp(what, "leave")) break;
        if (ends) end_here(what, file);
        status = strcmp(what, "recover") ? step(mesh) : step_and_recover(mesh, i % tsh_world_size(world));
    }
    int code = report(status, file);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_mesh_destroy(mesh);
    tsh_world_destroy(world);
    return code;
}
