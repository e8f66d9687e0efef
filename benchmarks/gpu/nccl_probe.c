/* nccl_probe [--ranks N] [CHECK...]: what tshard assumes of NCCL, asked of the NCCL that is here, on one GPU. Ranks are
 * threads of one process. NCCL takes more than one on a GPU only from 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1: where
 * it does not, the exit code is 77. It is built of CUDA's runtime and NCCL alone. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "probe.h"

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 8, SHARE = 32 << 20 /* bytes of a rank */ };

typedef struct rank {
    int number;
    ncclComm_t comm;
    cudaStream_t stream;
    float *data; /* a part of bed.data */
    double took; /* of what was measured last */
    pthread_t thread;
} rank;

static int ranks = 1;
static ncclUniqueId id;
static pthread_barrier_t all;
static void (*check)(rank *r);

static bool first(const rank *r) {
    return r->number == 0;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void need_nccl(ncclResult_t result, const rank *r, const char *call) {
    if (result == ncclSuccess) return;
    printf("  rank %d: %s: %s, %s\n", r->number, call, ncclGetErrorString(result), ncclGetLastError(NULL));
    fflush(stdout);
    _exit(1);
}

static const char *words(ncclResult_t result) {
    return result == ncclSuccess ? "done" : result == ncclInProgress ? "in progress" : ncclGetErrorString(result);
}

/* The result of a call that a communicator of the non-blocking mode may still be at. */
static ncclResult_t settle(ncclComm_t comm, ncclResult_t result) {
    while (result == ncclInProgress) {
        ncclResult_t now = ncclCommGetAsyncError(comm, &result);
        if (now != ncclSuccess) return now;
    }
    return result;
}

static void open_comm(rank *r, bool blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclResult_t result = ncclCommInitRankConfig(&r->comm, ranks, id, r->number, &config);
    result = settle(r->comm, result);
    if (result != ncclSuccess && ranks > 1) {
        printf("  rank %d: NCCL takes no two ranks on one GPU here: %s\n", r->number, ncclGetLastError(NULL));
        fflush(stdout);
        _exit(77);
    }
    need_nccl(result, r, "ncclCommInitRankConfig");
}

static void close_comm(rank *r) {
    need_nccl(settle(r->comm, ncclCommFinalize(r->comm)), r, "ncclCommFinalize");
    need_nccl(ncclCommDestroy(r->comm), r, "ncclCommDestroy");
}

static void sum(rank *r, ncclComm_t comm, void *data, size_t count) {
    need_nccl(settle(comm, ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, r->stream)), r,
              "ncclAllReduce");
}

static void synchronize(rank *r) {
    probe_need(cudaStreamSynchronize(r->stream), "cudaStreamSynchronize");
}

/* --- ranks as threads --------------------------------------------------------------------------------------------- */

static void *live(void *data) {
    rank *r = data;
    probe_need(cudaSetDevice(0), "cudaSetDevice");
    check(r);
    return NULL;
}

static void run_ranks(void (*what)(rank *r)) {
    rank list[MOST_RANKS] = {{0}};
    probe_open();
    check = what;
    need_nccl(ncclGetUniqueId(&id), &list[0], "ncclGetUniqueId");
    if (pthread_barrier_init(&all, NULL, (unsigned)ranks) != 0) exit(1);
    for (int i = 0; i < ranks; i++) {
        list[i].number = i;
        list[i].data = (float *)bed.data + (size_t)i * (SHARE / sizeof(float));
        probe_need(cudaStreamCreateWithFlags(&list[i].stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        if (pthread_create(&list[i].thread, NULL, live, &list[i]) != 0) exit(1);
    }
    for (int i = 0; i < ranks; i++) pthread_join(list[i].thread, NULL);
}

/* --- the checks --------------------------------------------------------------------------------------------------- */

static void init(rank *r) {
    int version = 0;
    double begin = probe_now();
    open_comm(r, false);
    double made = probe_now();
    sum(r, r->comm, r->data, 1);
    synchronize(r);
    double summed = probe_now();
    close_comm(r);
    need_nccl(ncclGetVersion(&version), r, "ncclGetVersion");
    if (first(r))
        printf("  NCCL %d, ranks: %d; communicator %.1f ms, first sum %.1f ms, end %.1f ms\n", version, ranks,
               1e3 * (made - begin), 1e3 * (summed - made), 1e3 * (probe_now() - summed));
}

static void split(rank *r) {
    ncclComm_t part = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    open_comm(r, false);
    double begin = probe_now();
    need_nccl(settle(r->comm, ncclCommSplit(r->comm, 0, r->number, &part, &config)), r, "ncclCommSplit");
    double done = probe_now();
    need_nccl(settle(part, ncclInProgress), r, "ncclCommSplit");
    sum(r, part, r->data, 1);
    synchronize(r);
    if (first(r))
        printf("  %.1f ms; its communicator is %s when the call is over\n", 1e3 * (done - begin),
               part ? "there" : "NOT THERE");
    need_nccl(settle(part, ncclCommFinalize(part)), r, "ncclCommFinalize");
    need_nccl(ncclCommDestroy(part), r, "ncclCommDestroy");
    close_comm(r);
}

static void time_sums(rank *r, const char *mode, size_t count, int calls) {
    for (int i = 0; i < 5; i++) sum(r, r->comm, r->data, count);
    synchronize(r);
    pthread_barrier_wait(&all);
    double begin = probe_now();
    for (int i = 0; i < calls; i++) sum(r, r->comm, r->data, count);
    double host = probe_now() - begin;
    synchronize(r);
    if (first(r))
        printf("  %-12s %9zu bytes: %8.2f us a call on the host, %8.2f us in all\n", mode, count * sizeof(float),
               1e6 * host / calls, 1e6 * (probe_now() - begin) / calls);
}

static void time_mode(rank *r, bool blocking) {
    const char *mode = blocking ? "blocking" : "non-blocking";
    open_comm(r, blocking);
    time_sums(r, mode, 1, 200);
    time_sums(r, mode, SHARE / sizeof(float), 20);
    close_comm(r);
}

static void cost(rank *r) {
    time_mode(r, false);
}

static void cost_blocking(rank *r) {
    time_mode(r, true);
}

static cudaGraphExec_t capture_sums(rank *r, int calls) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    probe_need(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    for (int i = 0; i < calls; i++) sum(r, r->comm, r->data, 1024);
    probe_need(cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
    probe_need(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    probe_need(cudaGraphDestroy(graph), "cudaGraphDestroy");
    probe_need(cudaGraphLaunch(exec, r->stream), "cudaGraphLaunch");
    synchronize(r);
    return exec;
}

static void graph(rank *r) {
    enum { SUMS = 20 };
    open_comm(r, false);
    sum(r, r->comm, r->data, 1024);
    synchronize(r);
    cudaGraphExec_t exec = capture_sums(r, SUMS);
    double begin = probe_now();
    for (int i = 0; i < 50; i++) probe_need(cudaGraphLaunch(exec, r->stream), "cudaGraphLaunch");
    synchronize(r);
    if (first(r)) printf("  %.2f us a sum of 4 KiB in a graph of %d\n", 1e6 * (probe_now() - begin) / 50 / SUMS, SUMS);
    probe_need(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    close_comm(r);
}

static void say_abort(const rank *r, const char *what, double begin, ncclResult_t result) {
    printf("  rank %d: %s: %s, %.1f ms\n", r->number, what, words(result), 1e3 * (probe_now() - begin));
}

/* Of a sum that no rank can begin: it stands behind held work. */
static void abort_held(rank *r) {
    open_comm(r, false);
    probe_need(gpu_hold(r->stream, bed.flag), "a kernel");
    sum(r, r->comm, r->data, 1024);
    if (first(r)) probe_release_in(1);
    double begin = probe_now();
    say_abort(r, "abort behind held work (1 s)", begin, ncclCommAbort(r->comm));
    synchronize(r);
}

static bool alone(void) {
    if (ranks == 1) printf("  needs two ranks: a sum of one rank cannot be stuck\n");
    return ranks == 1;
}

/* Of a sum that the last rank does not take part in. */
static void abort_stuck(rank *r) {
    if (alone()) return;
    open_comm(r, false);
    if (r->number < ranks - 1) sum(r, r->comm, r->data, 1024);
    probe_nap(0.2);
    double begin = probe_now();
    say_abort(r, "abort of a sum without its peer", begin, ncclCommAbort(r->comm));
    synchronize(r);
}

/* Two communicators, stuck sums on both, which one group aborts. */
static void abort_group(rank *r) {
    ncclComm_t part = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (alone()) return;
    open_comm(r, false);
    need_nccl(settle(r->comm, ncclCommSplit(r->comm, 0, r->number, &part, &config)), r, "ncclCommSplit");
    need_nccl(settle(part, ncclInProgress), r, "ncclCommSplit");
    if (r->number < ranks - 1) {
        sum(r, r->comm, r->data, 1024);
        sum(r, part, r->data, 1024);
    }
    probe_nap(0.2);
    double begin = probe_now();
    need_nccl(ncclGroupStart(), r, "ncclGroupStart");
    need_nccl(ncclCommAbort(part), r, "ncclCommAbort");
    need_nccl(ncclCommAbort(r->comm), r, "ncclCommAbort");
    say_abort(r, "abort of two communicators in one group", begin, ncclGroupEnd());
    synchronize(r);
}

static void abort_graph(rank *r, bool destroyed) {
    open_comm(r, false);
    sum(r, r->comm, r->data, 1024);
    synchronize(r);
    cudaGraphExec_t exec = capture_sums(r, 2);
    if (destroyed) probe_need(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    double begin = probe_now();
    say_abort(r, destroyed ? "abort after its graph" : "abort with a live graph", begin, ncclCommAbort(r->comm));
    if (!destroyed) probe_need(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
}

static void after_graph(rank *r) {
    abort_graph(r, true);
}

static void with_graph(rank *r) {
    abort_graph(r, false);
}

/* --- main --------------------------------------------------------------------------------------------------------- */

static void check_init(void) {
    run_ranks(init);
}
static void check_split(void) {
    run_ranks(split);
}
static void check_cost(void) {
    run_ranks(cost);
}
static void check_blocking(void) {
    run_ranks(cost_blocking);
}
static void check_graph(void) {
    run_ranks(graph);
}
static void check_abort_held(void) {
    run_ranks(abort_held);
}
static void check_abort_stuck(void) {
    run_ranks(abort_stuck);
}
static void check_abort_group(void) {
    run_ranks(abort_group);
}
static void check_after_graph(void) {
    run_ranks(after_graph);
}
static void check_with_graph(void) {
    run_ranks(with_graph);
}

int main(int argc, char **argv) {
    const probe_check checks[] = {{"init", check_init, false},
                                  {"split", check_split, false},
                                  {"cost", check_cost, false},
                                  {"cost-blocking", check_blocking, false},
                                  {"graph", check_graph, false},
                                  {"abort-held", check_abort_held, false},
                                  {"abort-stuck", check_abort_stuck, false},
                                  {"abort-group", check_abort_group, false},
                                  {"abort-after-graph", check_after_graph, false},
                                  {"abort-with-graph", check_with_graph, true},
                                  {NULL, NULL, false}};
    if (argc > 2 && strcmp(argv[1], "--ranks") == 0) {
        ranks = atoi(argv[2]);
        argv += 2;
    }
    if (ranks >= 1 && ranks <= MOST_RANKS) return probe_run(checks, argv + 1);
    fprintf(stderr, "nccl_probe: --ranks wants a number, 1 to %d\n", MOST_RANKS);
    return 2;
}
