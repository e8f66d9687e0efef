/* Ranks that no launcher of MPI has started. Replaces MPI_Init_thread: TEST_INIT="RANK SIGNAL MILLISECONDS" sends that
 * signal to that rank so long after its call has begun. Replaces MPI_Finalize: with TEST_END="PATH" it creates a file,
 * PATH and the rank, and waits as long as the file exists. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/transport/mpi/ranks.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void trouble(int number, long milliseconds) {
    const struct timespec nap = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    pid_t parent = getpid();
    if (milliseconds == 0) raise(number);
    if (milliseconds == 0 || fork() != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    nanosleep(&nap, NULL);
    kill(parent, number);
    _exit(0);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const char *text = getenv("TEST_INIT"), *mine = getenv("RANK");
    int rank, number;
    long milliseconds;
    if (text && mine && sscanf(text, "%d %d %ld", &rank, &number, &milliseconds) == 3 && rank == atoi(mine)) {
        trouble(number, milliseconds);
    }
    return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Finalize(void) {
    const struct timespec nap = {.tv_nsec = 10000000};
    const char *text = getenv("TEST_END"), *mine = getenv("RANK");
    char path[512];
    if (text && mine) {
        snprintf(path, sizeof path, "%s%s", text, mine);
        FILE *file = fopen(path, "w");
        if (file) fclose(file);
        while (access(path, F_OK) == 0) nanosleep(&nap, NULL);
    }
    return PMPI_Finalize();
}

static double sum_of_ones(tshi_rank *r, tsh_world *world) {
    double value = 1;
    tsh_tensor *one = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(world), &config, &one));
    if (r->failed) return 0;
    tshi_check_ok(r, tsh_tensor_write(one, &value, 1));
    if (!r->failed && tsh_all_reduce(tsh_world_group(world), one, TSH_REDUCE_SUM) != TSH_OK) value = -1;
    if (value > 0) tshi_check_ok(r, tsh_tensor_read(one, &value, 1));
    tsh_tensor_release(one);
    return value;
}

void scenario_twice(tshi_rank *r) {
    tsh_world *other = NULL;
    double sum = sum_of_ones(r, r->world);
    tshi_check(r, sum == r->size, "the first world's sum is %g", sum);
    tsh_world_destroy(r->world);
    r->world = NULL;
    tshi_check(r, !getenv("PMIX_RANK") && !getenv("JSM_JSRUN_PORT"), "variables of MPI's start are left");
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    sum = sum_of_ones(r, r->world);
    tshi_check(r, sum == r->size, "the second world's sum is %g", sum);
    tshi_check(r, !strcmp(tsh_group_backend(tsh_world_group(r->world)), "mpi"), "the second world is not on mpi");
    /* MPI keeps its ranks: a world of other ranks is an error. */
    if (r->rank % 2 || r->size < 4) return;
    char text[16];
    snprintf(text, sizeof text, "%d", r->size / 2);
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", r->rank / 2);
    setenv("RANK", text, 1);
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    tsh_status status = tsh_world_init(NULL, &other);
    tshi_check(r, status == TSH_ERR_STATE && strstr(tsh_error_message(), "starts once"), "a world of some: %s",
               status == TSH_OK ? "made" : tsh_error_message());
}

/* Makes calls until one fails. */
void scenario_linger(tshi_rank *r) {
    const struct timespec nap = {.tv_nsec = 10000000};
    printf("lingering\n");
    fflush(stdout);
    for (int i = 0; i < 2000 && sum_of_ones(r, r->world) == r->size; i++) nanosleep(&nap, NULL);
    printf("told: %s\n", tsh_error_message());
    fflush(stdout);
    r->failed = true;
}
