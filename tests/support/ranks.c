#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/ranks.h"
#include "dist/world.h"
#include "support/clock.h"
#include "support/ports.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT    60.0
#define RENDEZVOUS_SECONDS 60.0
#define DEFAULT_HEAP       ((size_t)256 << 20)

/* A rank's exit code when a check did not hold. */
#define CHECK_FAILED 97

/* Present in a build with AddressSanitizer: _exit skips its look for leaks. */
extern void __lsan_do_leak_check(void) __attribute__((weak));
/* Present where float32 products are oneDNN's. */
extern int dnnl_sgemm(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                      float, float *, int64_t) __attribute__((weak));

bool tshi_check_at(tshi_rank *r, bool condition, const char *file, int line, const char *format, ...) {
    if (condition || r->failed) return condition;
    r->failed = true;
    const char *slash = strrchr(file, '/');
    size_t used = (size_t)snprintf(r->words, sizeof r->words, "%s:%d: ", slash ? slash + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->words + used, sizeof r->words - used, format, arguments);
    va_end(arguments);
    return false;
}

bool tshi_check_status_at(tshi_rank *r, tsh_status got, tsh_status wanted, const char *words, const char *file,
                          int line, const char *call) {
    const char *message = got == TSH_OK ? "" : tsh_error_message();
    if (got == wanted && strstr(message, words)) return true;
    return tshi_check_at(r, false, file, line, "%s: %s \"%s\", wanted %s \"%s\"", call, tsh_status_name(got), message,
                         tsh_status_name(wanted), words);
}

tsh_tensor *tshi_test_vector(tshi_rank *r, tsh_dtype dtype, int64_t n) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = 1, .shape = {n}};
    tsh_tensor *tensor = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &tensor));
    return tensor;
}

tsh_device_kind tshi_test_device(void) {
    const char *name = getenv("TSHARD_TEST_DEVICE");
    if (!name || !strcmp(name, "cpu")) return TSH_CPU;
    if (!strcmp(name, "cuda")) return TSH_CUDA;
    fprintf(stderr, "TSHARD_TEST_DEVICE is '%s'; it must be cpu or cuda\n", name);
    abort();
}

/* "3", or, with weights, "3:1:0"; an axis of one rank has none. */
static void axis_text(int size, bool weights, char text[48]) {
    snprintf(text, 48, weights && size > 1 ? "3:1" : "%d", size);
    for (int i = 2; weights && i < size && i < 16; i++) tshi_append(text, 48, ":%d", i % 3 == 2 ? 0 : i);
}

void tshi_test_each_mesh(tshi_rank *r, tshi_mesh_fn *fn, void *arg) {
    for (int i = 0; i < 2 * r->size; i++) {
        char first[48], second[48], axes[128];
        int data = i / 2 + 1;
        tsh_mesh *mesh = NULL;
        if (r->size % data || (i % 2 && r->size == 1)) continue;
        axis_text(data, i % 2, first);
        axis_text(r->size / data, i % 2, second);
        snprintf(axes, sizeof axes, "data=%s,model=%s", first, second);
        if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh))) continue;
        fn(r, mesh, arg);
        tsh_mesh_destroy(mesh);
    }
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid; /* 0: it has ended */
    bool stopped;
    tshi_outcome outcome;
} child;

/* All that is allocated is reached from here: a rank does not count what it has from its parent as lost. */
typedef struct job {
    tshi_test_options options;
    tshi_rank_fn *fn;
    void *arg;
    tsh_thread_rendezvous *threads;
    int port;     /* where processes meet */
    char *shared; /* [ranks] a tshi_rank and its result */
    size_t stride;
    child *children; /* [ranks] */
} job;

static tshi_rank *rank_at(const job *j, int rank) {
    return (tshi_rank *)(void *)(j->shared + (size_t)rank * j->stride);
}

static void run_rank(const job *j, int rank) {
    tshi_rank *r = rank_at(j, rank);
    tsh_world_config config = {
        .threads = j->threads, .heap_bytes = j->options.heap_bytes, .blas_threads = 1, .device = tshi_test_device()};
    double timeout = strtod(j->options.world_timeout, NULL);
    if (j->threads) config.rank = rank;
    config.log = j->options.log;
    /* The rendezvous has time enough on a busy machine; the calls after it have the deadline that the test asks for. */
    config.timeout = timeout < RENDEZVOUS_SECONDS ? RENDEZVOUS_SECONDS : timeout;
    if (!j->options.bare && !tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    if (r->world) r->world->timeout = timeout;
    j->fn(r, j->arg);
    if (!j->options.bare) tsh_world_destroy(r->world);
    r->world = NULL;
}

/* How the memory of a GPU is to be, where the test itself has not said it. */
static void set_memory(const job *j) {
    setenv("TSHARD_CUDA_MANAGED", j->options.own_memory ? "0" : "1", 0);
}

static void set_number(const char *name, long value) {
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

static void set_environment(const job *j, int rank, const char *token) {
    set_number("RANK", rank);
    set_number("WORLD_SIZE", j->options.ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", j->options.ranks);
    set_number("MASTER_PORT", j->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TSHARD_TOKEN", token, 1);
    setenv("TSHARD_BLAS_THREADS", "1", 1);
    setenv("TSHARD_TIMEOUT", j->options.world_timeout, 1);
    set_memory(j);
}

static _Noreturn void rank_process(const job *j, int rank, const char *token, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(CHECK_FAILED);
    set_environment(j, rank, token);
    run_rank(j, rank);
    fflush(NULL);
    if (__lsan_do_leak_check) __lsan_do_leak_check();
    _exit(rank_at(j, rank)->failed ? CHECK_FAILED : 0);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* Differs from that of any other run, so that two runs at once do not join each other. */
static void make_token(char *text, size_t size) {
    static int runs;
    snprintf(text, size, "test-%ld-%d-%.9f", (long)getpid(), ++runs, tshi_now());
}

/* What has become of it since the last look. */
static void look_at(child *c) {
    int status;
    if (c->pid <= 0 || waitpid(c->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != c->pid) return;
    c->stopped = WIFSTOPPED(status);
    if (!WIFEXITED(status) && !WIFSIGNALED(status)) return;
    c->outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    c->outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    c->pid = 0;
}

/* Waits until no rank is left. Ranks that still run at the deadline are killed; stopped ones as soon as all ranks are
 * stopped, because none is left to continue them. */
static void reap(child *children, int n, double deadline) {
    for (int all_stopped = 0;
         ;) { /* looks in a row; a rank may be continued between the look at it and that at the others */
        int left = 0, running = 0;
        for (int i = 0; i < n; i++) {
            look_at(&children[i]);
            left += children[i].pid > 0;
            running += children[i].pid > 0 && !children[i].stopped;
        }
        if (left == 0) return;
        bool late = tshi_now() > deadline;
        all_stopped = running == 0 ? all_stopped + 1 : 0;
        for (int i = 0; i < n && (late || all_stopped > 1); i++) {
            if (children[i].pid <= 0) continue;
            const char *how = children[i].stopped ? "stopped, and killed at the end" : "still there at the deadline";
            snprintf(children[i].outcome.words, sizeof children[i].outcome.words, "rank %d: %s", i, how);
            kill(children[i].pid, SIGKILL);
        }
        tshi_nap(0.0005);
    }
}

int tshi_test_master_port(void) {
    static int port;
    if (!port) port = tshi_test_port();
    return port;
}

/* oneDNN generates its kernels at a process' first product, which takes longer than most runs: where a test makes several
 * runs, its process does it, and the ranks forked from it have them. */
static void prepare_products(void) {
    static int runs;
    float a[64] = {0}, b[64] = {0}, c[64];
    if (++runs == 2 && dnnl_sgemm) dnnl_sgemm('N', 'N', 8, 8, 8, 1, a, 8, b, 8, 0, c, 8);
}

static void run_processes(job *j) {
    char token[64];
    int n = j->options.ranks;
    pid_t parent = getpid();
    j->port = tshi_test_master_port();
    make_token(token, sizeof token);
    prepare_products();
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        j->children[i].pid = fork();
        if (j->children[i].pid == 0) rank_process(j, i, token, parent);
    }
    reap(j->children, n, tshi_now() + j->options.timeout);
}

typedef struct thread_start {
    const job *job;
    int rank;
} thread_start;

static void *thread_main(void *start) {
    const thread_start *s = start;
    run_rank(s->job, s->rank);
    return NULL;
}

static void run_threads(job *j) {
    int n = j->options.ranks;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    thread_start *starts = calloc((size_t)n, sizeof *starts);
    set_memory(j);
    if (tsh_thread_rendezvous_create(n, &j->threads) != TSH_OK) abort();
    for (int i = 0; i < n; i++) {
        starts[i] = (thread_start){j, i};
        if (pthread_create(&threads[i], NULL, thread_main, &starts[i]) != 0) abort();
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    tsh_thread_rendezvous_destroy(j->threads);
    free(threads);
    free(starts);
}

static void judge(const job *j, int rank, tshi_outcome *o) {
    const tshi_rank *r = rank_at(j, rank);
    if (r->failed) {
        snprintf(o->words, sizeof o->words, "rank %d: %s", rank, r->words);
    } else if (o->words[0] == '\0' && o->signal) {
        snprintf(o->words, sizeof o->words, "rank %d: ended by signal %d", rank, o->signal);
    } else if (o->words[0] == '\0' && o->code) {
        snprintf(o->words, sizeof o->words, "rank %d: exited with %d", rank, o->code);
    }
}

const char *tshi_test_run_with(const tshi_test_options *options, tshi_rank_fn *fn, void *arg, tshi_outcome *outcomes,
                               void *results) {
    static char words[sizeof outcomes->words];
    job j = {.options = *options, .fn = fn, .arg = arg};
    if (j.options.timeout <= 0) j.options.timeout = DEFAULT_TIMEOUT;
    if (!j.options.heap_bytes) j.options.heap_bytes = DEFAULT_HEAP;
    if (!j.options.world_timeout) j.options.world_timeout = "60";
    size_t n = (size_t)options->ranks, head = (sizeof(tshi_rank) + 63) / 64 * 64;
    j.stride = (head + options->result_bytes + 63) / 64 * 64;
    j.shared = mmap(NULL, n * j.stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    j.children = calloc(n, sizeof *j.children);
    if (j.shared == MAP_FAILED || !j.children) abort();
    for (int i = 0; i < options->ranks; i++) {
        *rank_at(&j, i) = (tshi_rank){.rank = i, .size = options->ranks};
        rank_at(&j, i)->result = (char *)rank_at(&j, i) + head;
    }
    if (options->threads)
        run_threads(&j);
    else
        run_processes(&j);
    words[0] = '\0';
    for (int i = 0; i < options->ranks; i++) {
        tshi_outcome *outcome = &j.children[i].outcome;
        judge(&j, i, outcome);
        if (!words[0]) memcpy(words, outcome->words, sizeof words);
        if (outcomes) outcomes[i] = *outcome;
        if (results)
            memcpy((char *)results + (size_t)i * options->result_bytes, rank_at(&j, i)->result, options->result_bytes);
    }
    munmap(j.shared, n * j.stride);
    free(j.children);
    return words;
}

void *tshi_test_shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

bool tshi_test_await(tshi_rank *r, const atomic_int *events, int n) {
    double guard = tshi_now() + 60;
    while (atomic_load(events) < n && tshi_now() < guard) tshi_nap(0.001);
    return tshi_check(r, atomic_load(events) >= n, "%d events, waiting for %d", atomic_load(events), n);
}

const char *tshi_test_run(int ranks, tshi_rank_fn *fn, void *arg) {
    tshi_test_options options = {.ranks = ranks};
    return tshi_test_run_with(&options, fn, arg, NULL, NULL);
}

const char *tshi_test_run_threads(int ranks, tshi_rank_fn *fn, void *arg) {
    tshi_test_options options = {.ranks = ranks, .threads = true};
    return tshi_test_run_with(&options, fn, arg, NULL, NULL);
}

const char *tshi_test_run_each(int first, int last, tshi_rank_fn *fn, void *arg) {
    static char words[sizeof((tshi_outcome *)0)->words + 32];
    for (int p = first; p <= last; p++) {
        const char *one = tshi_test_run(p, fn, arg);
        snprintf(words, sizeof words, "%d ranks: %s", p, one);
        if (*one) return words;
    }
    return "";
}

const char *tshi_test_run_meshes(tshi_rank_fn *fn) {
    static char words[sizeof((tshi_outcome *)0)->words + 32];
    static const struct {
        int ranks;
        const char *axes;
    } meshes[] = {{1, "data=1,model=1"},     {2, "data=2,model=1"},      {2, "data=1,model=2"}, {2, "data=1,model=3:1"},
                  {3, "data=2:0:1,model=1"}, {4, "data=2,model=2"},      {4, "data=4,model=1"}, {6, "data=3,model=2"},
                  {4, "data=3:1,model=1:2"}, {6, "data=1:2:1,model=0:1"}};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        const char *one = tshi_test_run(meshes[m].ranks, fn, (void *)(uintptr_t)meshes[m].axes);
        snprintf(words, sizeof words, "%s: %s", meshes[m].axes, one);
        if (*one) return words;
    }
    return "";
}

int tshi_test_report_threads(const char *name, int ranks, tshi_rank_fn *fn) {
    const char *words = tshi_test_run_threads(ranks, fn, NULL);
    printf("%s with %d ranks: %s\n", name, ranks, *words ? words : "passed");
    return *words != '\0';
}
