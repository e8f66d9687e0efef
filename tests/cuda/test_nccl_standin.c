/* The stand-in of NCCL refuses what NCCL refuses, and waits where NCCL waits. One thread plays the ranks. */
#include "cuda/dies.h"
#include "standin/nccl.h"
#include "standin/standin.h"

TestSuite(nccl_standin, .timeout = 60);

typedef struct pair {
    ncclComm_t comm[2];
    cudaStream_t stream[2];
    float *x[2];
} pair;

static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t now = ncclInProgress;
    for (int i = 0; i < 100 && now == ncclInProgress; i++) ncclCommGetAsyncError(comm, &now);
    return now;
}

static ncclConfig_t config(void) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

static pair open_pair(void) {
    pair p;
    ncclUniqueId id;
    ncclConfig_t c = config();
    standin_reset();
    standin_gpus(2);
    standin_lazy(true);
    ncclGetUniqueId(&id);
    for (int r = 0; r < 2; r++) {
        cudaSetDevice(r);
        cudaStreamCreateWithFlags(&p.stream[r], cudaStreamNonBlocking);
        cudaMalloc((void **)&p.x[r], 4096);
        ncclCommInitRankConfig(&p.comm[r], 2, id, r, &c);
    }
    for (int r = 0; r < 2; r++)
        if (settle(p.comm[r]) != ncclSuccess) abort();
    return p;
}

static void sum(pair *p, int rank, float *x) {
    ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, p->comm[rank], p->stream[rank]);
    settle(p->comm[rank]);
}

Test(nccl_standin, a_split_has_a_result_when_all_ranks_have_come) {
    pair p = open_pair();
    ncclComm_t part[2] = {NULL, NULL};
    ncclConfig_t c = config();
    cr_assert_eq(ncclCommSplit(p.comm[0], 0, 0, &part[0], &c), ncclInProgress);
    cr_expect_eq(settle(p.comm[0]), ncclInProgress);
    cr_expect_null(part[0]);
    cr_assert_eq(ncclCommSplit(p.comm[1], 0, 1, &part[1], &c), ncclInProgress);
    for (int r = 0; r < 2; r++) {
        cr_expect_eq(settle(p.comm[r]), ncclSuccess);
        cr_expect_not_null(part[r]);
    }
}

/* A call is in progress before it is queued: what the host puts on the stream meanwhile goes before it. */
Test(nccl_standin, a_call_is_on_its_stream_when_it_is_done) {
    unsetenv("TSHARD_TEST_SEED");
    pair p = open_pair();
    cudaEvent_t early, late;
    ncclResult_t now = ncclSuccess;
    cudaSetDevice(0);
    cudaEventCreateWithFlags(&early, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&late, cudaEventDisableTiming);
    cr_assert_eq(ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[0]), ncclInProgress);
    cr_assert_eq(ncclCommGetAsyncError(p.comm[0], &now), ncclSuccess);
    cr_assert_eq(now, ncclInProgress);
    cudaEventRecord(early, p.stream[0]);
    cr_assert_eq(settle(p.comm[0]), ncclSuccess);
    cudaEventRecord(late, p.stream[0]);
    cudaEventQuery(early);
    cudaEventQuery(late);
    cr_expect_eq(cudaEventQuery(early), cudaSuccess);
    cr_expect_eq(cudaEventQuery(late), cudaErrorNotReady, "the peer has not come");
}

static void capture_ends_first(void) {
    pair p = open_pair();
    cudaGraph_t graph;
    cudaSetDevice(0);
    cudaStreamBeginCapture(p.stream[0], cudaStreamCaptureModeRelaxed);
    ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[0]);
    cudaStreamEndCapture(p.stream[0], &graph);
    settle(p.comm[0]);
}

static void finalize_first(void) {
    pair p = open_pair();
    ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[0]);
    ncclCommFinalize(p.comm[0]);
}

/* Nothing waits for a call that has not been queued. */
static void abort_first(void) {
    pair p = open_pair();
    ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[0]);
    ncclCommAbort(p.comm[0]);
}

static void split_under_way(void) {
    pair p = open_pair();
    ncclComm_t part = NULL;
    ncclConfig_t c = config();
    sum(&p, 0, p.x[0]);
    ncclCommSplit(p.comm[0], 0, 0, &part, &c);
}

/* Rank 0's call has no peer, and its communicator is not aborted: the other one's memory cannot be freed. */
static void abort_beside(void) {
    pair p = open_pair();
    ncclUniqueId id;
    ncclConfig_t c = config();
    ncclComm_t alone = NULL;
    ncclGetUniqueId(&id);
    cudaSetDevice(0);
    ncclCommInitRankConfig(&alone, 1, id, 0, &c);
    settle(alone);
    sum(&p, 0, p.x[0]);
    ncclCommAbort(alone);
}

static void abort_together(void) {
    pair p = open_pair();
    sum(&p, 0, p.x[0]);
    ncclGroupStart();
    ncclCommAbort(p.comm[0]);
    ncclCommAbort(p.comm[1]);
    ncclGroupEnd();
}

static void end_before_its_graph(void) {
    pair p = open_pair();
    cudaGraph_t graph;
    cudaStreamBeginCapture(p.stream[0], cudaStreamCaptureModeRelaxed);
    sum(&p, 0, p.x[0]);
    cudaStreamEndCapture(p.stream[0], &graph);
    ncclCommAbort(p.comm[0]);
}

static void call_before_the_last_is_done(void) {
    pair p = open_pair();
    for (int i = 0; i < 2; i++) ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[0]);
}

static void stream_of_another(void) {
    pair p = open_pair();
    ncclAllReduce(p.x[0], p.x[0], 16, ncclFloat32, ncclSum, p.comm[0], p.stream[1]);
}

static void memory_of_another(void) {
    pair p = open_pair();
    sum(&p, 0, p.x[1]);
}

static void memory_of_the_host(void) {
    pair p = open_pair();
    static float x[16];
    sum(&p, 0, x);
}

static void past_the_end(void) {
    pair p = open_pair();
    ncclAllGather(p.x[0], p.x[0], 1024, ncclFloat32, p.comm[0], p.stream[0]);
}

/* Rank 1's part belongs 64 bytes into what all ranks have. */
static void gather(size_t offset) {
    pair p = open_pair();
    ncclAllGather(p.x[1] + offset, p.x[1], 16, ncclFloat32, p.comm[1], p.stream[1]);
}

static void gather_in_place(void) {
    gather(16);
}

static void gather_askew(void) {
    gather(0);
}

static void exchange(float *from, float *to, const pair *p) {
    ncclGroupStart();
    ncclSend(from, 16, ncclFloat32, 1, p->comm[0], p->stream[0]);
    ncclRecv(to, 16, ncclFloat32, 1, p->comm[0], p->stream[0]);
    ncclGroupEnd();
}

static void exchange_in_place(void) {
    pair p = open_pair();
    exchange(p.x[0], p.x[0] + 8, &p);
}

static void exchange_apart(void) {
    pair p = open_pair();
    exchange(p.x[0], p.x[0] + 16, &p);
}

Test(nccl_standin, misuse_is_refused) {
    expect_end("a split", split_under_way, "is split while it has calls under way");
    expect_end("a capture that ends before its call", capture_ends_first, "while a call is enqueued");
    expect_end("an end before the last call's", finalize_first, "before the last is done");
    expect_end("an abort before the last call's end", abort_first, NULL);
    expect_end("one abort beside a stuck call", abort_beside, "waits for ever");
    expect_end("aborts in a group", abort_together, NULL);
    expect_end("an abort before the graph's end", end_before_its_graph, "a graph that lives");
    expect_end("two calls at once", call_before_the_last_is_done, "before the last is done");
    expect_end("a stream of another GPU", stream_of_another, "a stream of another GPU");
    expect_end("memory of another GPU", memory_of_another, "memory of another GPU");
    expect_end("memory of the host", memory_of_the_host, "not the device's");
    expect_end("memory that is too small", past_the_end, "past the end");
    expect_end("in place", gather_in_place, NULL);
    expect_end("in place at another place", gather_askew, "not in place");
    expect_end("a message over another", exchange_in_place, "the same memory");
    expect_end("messages apart", exchange_apart, NULL);
}
