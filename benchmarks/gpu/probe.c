#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "probe.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

probe_bed bed;
static pthread_t timer;
static bool timer_runs;

double probe_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void probe_nap(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))}, NULL);
}

void probe_need(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    printf("  %s: %s\n", call, cudaGetErrorString(error));
    fflush(stdout);
    _exit(1);
}

void probe_open(void) {
    void *flag = NULL, *data = NULL;
    cudaError_t error = cudaSetDevice(0);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
        printf("  no GPU here: %s\n", cudaGetErrorString(error));
        fflush(stdout);
        _exit(77);
    }
    probe_need(error, "cudaSetDevice");
    probe_need(cudaHostAlloc(&flag, 64, cudaHostAllocDefault), "cudaHostAlloc");
    probe_need(cudaMalloc(&data, 256 << 20), "cudaMalloc");
    probe_need(cudaStreamCreateWithFlags(&bed.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    probe_need(cudaStreamCreateWithFlags(&bed.other, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    bed.flag = flag;
    *bed.flag = 0;
    bed.data = data;
}

void probe_hold(void) {
    *bed.flag = 0;
    probe_need(gpu_hold(bed.stream, bed.flag), "a kernel");
}

static void *release(void *seconds) {
    probe_nap(*(double *)seconds);
    free(seconds);
    *bed.flag = 1;
    return NULL;
}

void probe_release_in(double seconds) {
    double *kept = malloc(sizeof *kept);
    if (!kept) exit(1);
    *kept = seconds;
    if (pthread_create(&timer, NULL, release, kept) != 0) exit(1);
    timer_runs = true;
}

void probe_release(void) {
    if (timer_runs) pthread_join(timer, NULL); /* it would release the next hold */
    timer_runs = false;
    *bed.flag = 1;
    probe_need(cudaStreamSynchronize(bed.stream), "cudaStreamSynchronize");
    probe_need(cudaStreamSynchronize(bed.other), "cudaStreamSynchronize");
}

/* A driver that hangs may not let the check die: it is left behind then. */
static int run_one(const probe_check *check) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check->run();
        fflush(stdout);
        _exit(0);
    }
    int state = 0;
    double begin = probe_now();
    while (child > 0 && waitpid(child, &state, WNOHANG) == 0) {
        probe_nap(0.01);
        if (probe_now() - begin < PROBE_LIMIT) continue;
        kill(child, SIGKILL);
        printf("  %s after %d s\n", check->endless ? "not done, as expected," : "NOT DONE", PROBE_LIMIT);
        return check->endless ? 0 : 1;
    }
    if (WIFSIGNALED(state)) printf("  ended by signal %d\n", WTERMSIG(state));
    return child > 0 && WIFEXITED(state) ? WEXITSTATUS(state) : 1;
}

static bool named(const probe_check *check, char **words) {
    for (char **word = words; *word; word++)
        if (strcmp(*word, check->name) == 0) return true;
    return !*words;
}

int probe_run(const probe_check *checks, char **words) {
    int result = 0, ran = 0;
    for (const probe_check *c = checks; c->name; c++) {
        if (!named(c, words)) continue;
        printf("%s\n", c->name);
        int code = run_one(c);
        if (code == 77 && ran == 0) return 77;
        if (code != 0) result = 1;
        ran++;
    }
    return result;
}
