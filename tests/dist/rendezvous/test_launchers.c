/* The variables of each launcher, with the values that it sets. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/environment.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the environment by "A=1 B=2". */
static tsh_status settings_with(const tsh_world_config *config, const char *variables, tshi_settings *out) {
    char text[1024], *next = NULL;
    clearenv();
    snprintf(text, sizeof text, "%s", variables);
    for (char *word = strtok_r(text, " ", &next); word; word = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
    return tshi_settings_read(config, out);
}

static tsh_status settings_of(const char *variables, tshi_settings *out) {
    static const tsh_world_config config = {.heap_bytes = 4096, .blas_threads = 1};
    return settings_with(&config, variables, out);
}

Test(launchers, variables_say_rank_and_size, .timeout = 120) {
    static const struct {
        const char *variables;
        int rank, size, local_rank, local_size;
        const char *address;
    } cases[] = {
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1234", 5, 8, 1, 4, "a"},
        {"OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
         "PMIX_RANK=5 PMIX_NAMESPACE=prterun-1@1",
         5, 8, 1, 4, "127.0.0.1"},
        {"PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4", 5, 8, 1, 4, "127.0.0.1"},
        {"MV2_COMM_WORLD_RANK=5 MV2_COMM_WORLD_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=4", 5, 8, 1,
         4, "127.0.0.1"},
        {"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_JOB_ID=77 SLURM_STEP_ID=0 "
         "SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_STEP_NODELIST=node[07-08]",
         5, 8, 1, 4, "node07"},
        {"SLURM_PROCID=7 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=3 SLURM_NNODES=4 SLURM_TASKS_PER_NODE=2(x2),3,1 "
         "SLURM_JOB_NODELIST=rack1-n[3,5].site,other",
         7, 8, 0, 1, "rack1-n3.site"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=b,a", 0, 2, 0, 2, "b"},
        {"PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.77.0 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1", 5, 8, 1, 8,
         "127.0.0.1"},
        /* PMI_* of `srun --mpi=pmi2` do not say where the ranks are; those of a launcher of MPI that srun has started
         * do. */
        {"PMI_RANK=3 PMI_SIZE=4 PMI_JOBID=6.0 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
         "SLURM_NNODES=2 "
         "SLURM_JOB_ID=6 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=n[1-2]",
         3, 4, 1, 2, "n1"},
        {"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0", 3,
         4, 1, 2, "127.0.0.1"},
        /* A launcher that sets RANK comes before one from whose variables the rank follows. */
        {"RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", 1, 2, 1, 2, "127.0.0.1"},
        /* torchrun's agents may be ranks of another launcher. */
        {"RANK=0 WORLD_SIZE=1 PMI_RANK=1 PMI_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True", 0, 1, 0, 1, "127.0.0.1"},
        /* A batch script is no step: it is one process. */
        {"SLURM_PROCID=0 SLURM_JOB_ID=77", 0, 1, 0, 1, "127.0.0.1"},
        {"SLURM_PROCID=0 SLURM_NTASKS=1 MASTER_ADDR=here", 0, 1, 0, 1, "here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tshi_settings s;
        cr_assert_eq(settings_of(cases[i].variables, &s), TSH_OK, "%s: %s", cases[i].variables, tsh_error_message());
        cr_assert(s.rank == cases[i].rank && s.size == cases[i].size, "%s: rank %d of %d", cases[i].variables, s.rank,
                  s.size);
        cr_assert(s.local_rank == cases[i].local_rank, "%s: local rank %d", cases[i].variables, s.local_rank);
        cr_assert(s.local_size == cases[i].local_size, "%s: local size %d", cases[i].variables, s.local_size);
        cr_assert_str_eq(s.address, cases[i].address, "%s", cases[i].variables);
    }
}

Test(launchers, jobs_have_different_names, .timeout = 120) {
    tshi_settings a, b;
    static const char *const pairs[][2] = {
        {"RANK=0 WORLD_SIZE=2 TSHARD_TOKEN=x", "RANK=0 WORLD_SIZE=2 TSHARD_TOKEN=y"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=1000", "RANK=0 WORLD_SIZE=2 MASTER_PORT=1001"},
        {"RANK=0 WORLD_SIZE=2 TSHARD_GROUP=x", "RANK=0 WORLD_SIZE=2"},
        {"RANK=0 WORLD_SIZE=2 TSHARD_GROUP=x", "RANK=0 WORLD_SIZE=2 TSHARD_TOKEN=x"},
        {"RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=1", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=2"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_STEP_ID=0",
         "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_STEP_ID=1"},
        {"RANK=0 WORLD_SIZE=2 TSHARD_INIT=file:///a", "RANK=0 WORLD_SIZE=2 TSHARD_INIT=file:///b"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        cr_assert_eq(settings_of(pairs[i][0], &a), TSH_OK);
        cr_assert_eq(settings_of(pairs[i][1], &b), TSH_OK);
        cr_assert_neq(memcmp(a.key, b.key, sizeof a.key), 0, "%s and %s", pairs[i][0], pairs[i][1]);
        cr_assert_eq(settings_of(pairs[i][0], &b), TSH_OK);
        cr_assert_eq(memcmp(a.key, b.key, sizeof a.key), 0, "%s", pairs[i][0]);
    }
    /* Ranks of one job have one job name. */
    cr_assert_eq(settings_of("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", &a), TSH_OK);
    cr_assert_eq(settings_of("RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", &b), TSH_OK);
    cr_assert_eq(memcmp(a.key, b.key, sizeof a.key), 0);
}

Test(launchers, agents_store_keeps_its_port, .timeout = 120) {
    tshi_settings s;
    cr_assert_eq(settings_of("RANK=0 WORLD_SIZE=2 MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=True", &s), TSH_OK);
    cr_assert_eq(s.port, 4001);
    cr_assert_eq(settings_of("RANK=0 WORLD_SIZE=2 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True", &s), TSH_OK);
    cr_assert_eq(s.port, 65534);
    cr_assert_eq(settings_of("RANK=0 WORLD_SIZE=2 MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=False", &s), TSH_OK);
    cr_assert_eq(s.port, 4000);
}

/* A launcher of as many ranks still says which machine has which; one of another number says nothing but its job. */
Test(launchers, the_configuration_wins, .timeout = 120) {
    static const struct {
        const char *variables;
        int local_rank, local_size;
        const char *address, *job;
    } cases[] = {
        {"", 2, 4, "127.0.0.1", ""},
        {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a TORCHELASTIC_RUN_ID=j", 1, 2, "a", "j."},
        {"RANK=0 WORLD_SIZE=4", 2, 4, "127.0.0.1", ""},
        {"RANK=6 WORLD_SIZE=9 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a TORCHELASTIC_RUN_ID=j", 2, 4, "a", "j."},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 "
         "PMIX_RANK=0 PMIX_NAMESPACE=n",
         2, 4, "127.0.0.1", "n."},
        {"RANK=x WORLD_SIZE=2", 2, 4, "127.0.0.1", ""},
        {"RANK=7 WORLD_SIZE=2", 2, 4, "127.0.0.1", ""},
        {"RANK=7", 2, 4, "127.0.0.1", ""},
        {"PMIX_RANK=3 PMIX_NAMESPACE=x", 2, 4, "127.0.0.1", ""},
        {"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_JOB_ID=77 SLURM_STEP_ID=0 "
         "SLURM_STEP_NODELIST=node[07-08]",
         2, 4, "127.0.0.1", "77.0"},
    };
    const tsh_world_config config = {.rank = 2, .world_size = 4, .heap_bytes = 4096, .blas_threads = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tshi_settings s;
        cr_assert_eq(settings_with(&config, cases[i].variables, &s), TSH_OK, "%s", tsh_error_message());
        cr_assert(s.rank == 2 && s.size == 4, "%s: rank %d of %d", cases[i].variables, s.rank, s.size);
        cr_assert(s.local_rank == cases[i].local_rank && s.local_size == cases[i].local_size, "%s: %d of %d",
                  cases[i].variables, s.local_rank, s.local_size);
        cr_assert(!strcmp(s.address, cases[i].address) && s.port == 29500, "%s: %s:%d", cases[i].variables, s.address,
                  s.port);
        cr_assert_str_eq(s.job, cases[i].job, "%s", cases[i].variables);
    }
}

Test(launchers, contradictions_are_errors, .timeout = 120) {
    static const char *const cases[][2] = {
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=3",
         "OMPI_COMM_WORLD_LOCAL_SIZE is 3, but OMPI_COMM_WORLD_SIZE is 2"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=2",
         "OMPI_COMM_WORLD_LOCAL_RANK is 2, but OMPI_COMM_WORLD_LOCAL_SIZE is 2"},
        {"PMI_RANK=2 PMI_SIZE=2", "PMI_RANK is 2, but PMI_SIZE is 2"},
        {"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=3", "MPI_LOCALNRANKS is 3, but PMI_SIZE is 2"},
        {"MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=2",
         "MV2_COMM_WORLD_LOCAL_RANK is 2, but MV2_COMM_WORLD_SIZE is 2"},
        {"RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
         "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE is 2"},
        {"RANK=0 WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=3", "WORLD_SIZE is 1, but PMI_SIZE is 3"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=2", "SLURM_LOCALID is 2, but SLURM_NTASKS is 2"},
        {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=3", "3 tasks on this node, but SLURM_NTASKS is 2"},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=2(x2)",
         "SLURM_LOCALID is 2, but SLURM_STEP_TASKS_PER_NODE is 2"},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NODEID=2 SLURM_NNODES=2", "SLURM_NODEID is 2, but SLURM_NNODES is 2"},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_NODEID=2"},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=2x", "SLURM_TASKS_PER_NODE is \"2x\""},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=+2", "SLURM_TASKS_PER_NODE is \"+2\""},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=2(x2),", "SLURM_TASKS_PER_NODE is \"2(x2),\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tshi_settings s;
        cr_assert_eq(settings_of(cases[i][0], &s), TSH_ERR_ARGUMENT, "%s", cases[i][0]);
        cr_assert(strstr(tsh_error_message(), cases[i][1]), "%s: %s", cases[i][0], tsh_error_message());
    }
}

Test(launchers, a_name_that_does_not_fit_is_an_error, .timeout = 120) {
    static const char *const names[] = {"TSHARD_TOKEN", "TORCHELASTIC_RUN_ID", "TSHARD_GROUP", "MASTER_ADDR"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tshi_settings s;
        char text[600];
        int used = snprintf(text, sizeof text, "RANK=0 WORLD_SIZE=2 %s=", names[i]);
        memset(text + used, 'x', 256);
        text[used + 256] = '\0';
        cr_assert_eq(settings_of(text, &s), TSH_ERR_ARGUMENT, "%s", names[i]);
    }
}

Test(launchers, a_rank_without_a_world_is_an_error, .timeout = 120) {
    tshi_settings s;
    cr_assert_eq(settings_of("PMIX_RANK=3 PMIX_NAMESPACE=x", &s), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "no variable says how many ranks there are"));
    cr_assert_eq(settings_of("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODEID=x", &s), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "SLURM_NODEID is \"x\""));
}
