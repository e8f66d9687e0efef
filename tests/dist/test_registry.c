/* Which backend a world takes, and the errors for one that this build lacks. */
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void unset_launcher(void) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

/* tsh_world_init fails with the status and a message that has these words. */
static void expect_error(const char *init_method, tsh_status wanted, const char *words) {
    const tsh_world_config config = {.init_method = init_method, .heap_bytes = (size_t)1 << 20};
    tsh_world *world = NULL;
    tsh_status status = tsh_world_init(&config, &world);
    cr_assert_eq(status, wanted, "%s \"%s\"", tsh_status_name(status), tsh_error_message());
    cr_assert(strstr(tsh_error_message(), words), "\"%s\" has no \"%s\"", tsh_error_message(), words);
    cr_assert_null(world);
}

Test(registry, a_backend_that_is_not_built_is_an_error, .timeout = 60) {
    unset_launcher();
    if (!tshi_backend_find("nccl")) {
        setenv("TSHARD_BACKEND", "nccl", 1);
        expect_error(NULL, TSH_ERR_UNSUPPORTED, "the backend nccl is asked for, but this build has none");
    }
    if (!tshi_backend_find("mpi")) {
        setenv("TSHARD_BACKEND", "mpi", 1);
        expect_error(NULL, TSH_ERR_UNSUPPORTED, "-DTSHARD_MPI=ON");
        unsetenv("TSHARD_BACKEND");
        expect_error("mpi://", TSH_ERR_UNSUPPORTED, "the backend mpi is asked for, but this build has none");
    } else {
        setenv("TSHARD_BACKEND", "local", 1);
        expect_error("mpi://", TSH_ERR_ARGUMENT, "init_method is mpi://, but TSHARD_BACKEND is local");
    }
}

Test(registry, what_no_backend_has_is_an_error, .timeout = 60) {
    unset_launcher();
    expect_error("pigeons://", TSH_ERR_ARGUMENT, "init_method is \"pigeons://\"; it must be env://, tcp://HOST:PORT, ");
    expect_error("local://", TSH_ERR_ARGUMENT, "init_method is \"local://\"; it must be env://, ");
    expect_error("file://", TSH_ERR_ARGUMENT, "init_method is \"file://\"; it must be env://, ");
    setenv("TSHARD_BACKEND", "self", 1);
    expect_error(NULL, TSH_ERR_ARGUMENT, "TSHARD_BACKEND is \"self\"; it must be local, mpi, nccl, plan or ucx");
}

Test(registry, backends_are_found_by_name, .timeout = 60) {
    cr_assert_str_eq(tshi_backend_find("self")->name, "self");
    cr_assert_str_eq(tshi_backend_find("local")->name, "local");
    cr_assert_eq(tshi_backend_of_one(), tshi_backend_find("self"));
    cr_assert_eq(tshi_backend_of_machine(), tshi_backend_find("local"));
    cr_assert(tshi_backend_of_machine()->open_bytes(2) > 0, "a dry run counts it");
    cr_assert_str_eq(tshi_backend_names(), "local, mpi, nccl, plan or ucx");
    cr_assert_null(tshi_backend_find("locale"));
    cr_assert(!tsh_backend_supports("hosts", TSH_CUDA, TSH_COLLECTIVE_BARRIER, TSH_FLOAT32, TSH_REDUCE_SUM),
              "hosts only connects ranks");
    cr_assert_null(tshi_backend_find(NULL));
    setenv("TSHARD_BACKEND", "local", 1);
    cr_assert(tshi_backend_is("local") && !tshi_backend_is("mpi"));
}

/* What takes a world of two ranks that the rendezvous has found on so many machines. */
static tsh_status choose(tsh_device_kind device, int machines, const char *asked, const tshi_group_ops **out) {
    static const tsh_world_config config;
    int node[] = {0, machines - 1};
    char host[2][TSHI_HOST_SIZE] = {"node-a", "node-b"};
    tshi_settings settings = {.size = 2, .local_size = 1, .device = device};
    const tshi_roster roster = {.size = 2, .nodes = machines, .node = node, .host = host};
    const tshi_start start = {.config = &config, .settings = &settings, .roster = &roster};
    if (asked)
        setenv("TSHARD_BACKEND", asked, 1);
    else
        unsetenv("TSHARD_BACKEND");
    return tshi_backend_connect(&start, out);
}

Test(registry, gpus_on_several_machines_need_no_mpi, .timeout = 60) {
    const tshi_group_ops *hosts = tshi_backend_find("hosts"), *taken;
    unset_launcher();
    if (hosts) {
        cr_assert_eq(choose(TSH_CUDA, 2, NULL, &taken), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(taken, hosts);
        cr_assert_eq(choose(TSH_CUDA, 2, "nccl", &taken), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(taken, hosts);
        cr_assert_eq(choose(TSH_CPU, 2, "nccl", &taken), TSH_ERR_ARGUMENT);
        cr_assert_str_eq(tsh_error_message(),
                         "world_init: TSHARD_BACKEND is nccl, which is for GPUs, but device is TSH_CPU");
    } else if (!tshi_backend_find("ucx")) {
        cr_assert_eq(choose(TSH_CUDA, 2, NULL, &taken), TSH_ERR_UNSUPPORTED);
        cr_assert_str_eq(tsh_error_message(),
                         "world_init: the ranks are on 2 machines (node-a: rank 0; node-b: rank 1); ranks on several "
                         "need a build with -DTSHARD_UCX=ON, or on GPUs with -DTSHARD_NCCL=ON, or mpirun");
    }
    cr_assert_eq(choose(TSH_CUDA, 2, "local", &taken), TSH_ERR_ARGUMENT, "not hosts: %s", tsh_error_message());
    cr_assert_eq(choose(TSH_CUDA, 2, "hosts", &taken), TSH_ERR_ARGUMENT, "nobody asks for it");
    for (int device = TSH_CPU; device <= TSH_CUDA; device++) {
        cr_assert_eq(choose((tsh_device_kind)device, 1, NULL, &taken), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(taken, tshi_backend_of_machine());
    }
}

/* The control backend moves the data, and a group is its own control group, where there is one backend. */
static void one_backend(tshi_rank *r, void *arg) {
    const tsh_world *world = r->world;
    tsh_group *group = tsh_world_group(world), *alone = NULL;
    int me = r->rank;
    tshi_check(r, world->control == tshi_backend_find(arg) && world->data == world->control, "not %s", (char *)arg);
    tshi_check(r, group->control == group && group->ops == world->data, "the world's group");
    tshi_check_ok(r, tsh_group_split(group, me, 0, &alone));
    tshi_check(r, alone && alone->ops == tshi_backend_of_one() && alone->control == alone, "the group of one rank");
    tshi_check_ok(r, tshi_group_agree(alone, "any", TSH_OK));
    tsh_group_destroy(alone);
}

Test(registry, one_backend_is_both_control_and_data, .timeout = 60) {
    unset_launcher();
    cr_assert_str_empty(tshi_test_run(1, one_backend, "self"));
    cr_assert_str_empty(tshi_test_run(2, one_backend, "local"));
    cr_assert_str_empty(tshi_test_run_threads(2, one_backend, "local"));
}

static void gathers(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_device *host = r->world->host;
    const char mine[3] = {'a', (char)('0' + r->rank), 'z'};
    (void)arg;
    tsh_status status = TSH_OK;
    char *all = tshi_group_gather(group, "gather", mine, sizeof mine, &status);
    if (!tshi_check(r, status == TSH_OK && all, "%s", tsh_error_message())) return;
    for (int i = 0; i < r->size; i++) {
        tshi_check(r, all[3 * i] == 'a' && all[3 * i + 1] == '0' + i && all[3 * i + 2] == 'z', "the part of rank %d",
                   i);
    }
    host->ops->memory.release(host, all);
    status = r->rank == 0 ? tshi_fail(TSH_ERR_SYSTEM, "no disk") : TSH_OK;
    tshi_check(r, !tshi_group_gather(group, "gather", mine, sizeof mine, &status), "the gather did not fail");
    tshi_check(r, status == (r->rank == 0 ? TSH_ERR_SYSTEM : TSH_ERR_PEER), "%s", tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "no disk") != NULL, "%s", tsh_error_message());
}

Test(registry, a_gather_of_facts_has_every_ranks_or_an_error, .timeout = 60) {
    unset_launcher();
    for (int ranks = 1; ranks <= 3; ranks++) cr_assert_str_empty(tshi_test_run(ranks, gathers, NULL));
}
