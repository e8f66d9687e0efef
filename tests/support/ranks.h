/* Run a function as several ranks: processes forked from the test, or threads. A rank never asserts: it notes what is
 * wrong, and the test asserts on what comes back.
 *
 *     static void adds_up(tshi_rank *r, void *arg) {
 *         tshi_check(r, tsh_world_size(r->world) == 2, "size is %d", tsh_world_size(r->world));
 *     }
 *     Test(dist, adds_up, .timeout = 120) {
 *         cr_assert_str_empty(tshi_test_run(2, adds_up, NULL));
 *     }
 */
#ifndef TSHI_TEST_RANKS_H
#define TSHI_TEST_RANKS_H

#include "tshard/dist.h"

#include <stdatomic.h>

#define TSHI_TEST_WORDS 1024

/* What a rank's function gets. */
typedef struct tshi_rank {
    int rank, size;
    tsh_world *world; /* NULL in a bare run; one that the function destroyed must be set to NULL */
    void *result;     /* tshi_test_options.result_bytes zeroed bytes that the parent sees */
    bool failed;
    char words[TSHI_TEST_WORDS];
} tshi_rank;

typedef void tshi_rank_fn(tshi_rank *r, void *arg);

typedef struct tshi_test_options {
    int ranks;
    bool threads;              /* as threads of this process instead of processes */
    bool bare;                 /* make no world; the environment is set */
    double timeout;            /* seconds until a rank is killed, default 60: a guard against what hangs */
    size_t heap_bytes;         /* 0: 256 MiB */
    const char *world_timeout; /* TSHARD_TIMEOUT, default "60" */
    size_t result_bytes;
    tsh_log_sink log; /* of every rank's world: threads share it */
    bool own_memory;  /* on a GPU: its own memory, which only tsh_tensor_read and its like can look into */
} tshi_test_options;

/* How a rank ended. */
typedef struct tshi_outcome {
    int code;                         /* exit code, or -1 */
    int signal;                       /* that ended it, or 0 */
    char words[TSHI_TEST_WORDS + 64]; /* "" when all its checks held */
} tshi_outcome;

/* TSHARD_TEST_DEVICE: cpu, the default, or cuda. There, unless a run wants otherwise, tensors lie in memory that the
 * host may read and every kernel is waited for, so that tests may look at tensors through pointers. */
tsh_device_kind tshi_test_device(void);

/* Runs ranks as processes, with a world each. Returns "" when every rank succeeded and every check held, else the
 * message of the first failure, in static memory. */
const char *tshi_test_run(int ranks, tshi_rank_fn *fn, void *arg);
/* Runs with `first` ranks, with one more, ... up to `last`; a failure's message begins with the number of ranks. */
const char *tshi_test_run_each(int first, int last, tshi_rank_fn *fn, void *arg);
/* Runs on meshes of data x model, 1 to 6 ranks, some with weights, with the mesh's text as the argument:
 * "data=2,model=1". */
const char *tshi_test_run_meshes(tshi_rank_fn *fn);
/* Runs ranks as threads of this process; otherwise as tshi_test_run. A test that does both forks first: where threads
 * have used CUDA, no process that is forked afterwards can. */
const char *tshi_test_run_threads(int ranks, tshi_rank_fn *fn, void *arg);
/* The long way. outcomes [ranks] and results [ranks * result_bytes] may be NULL. */
const char *tshi_test_run_with(const tshi_test_options *options, tshi_rank_fn *fn, void *arg, tshi_outcome *outcomes,
                               void *results);

/* MASTER_PORT of all ranks that this process runs. */
int tshi_test_master_port(void);
/* Memory of zeros that the test and the ranks of its later runs share. Never released. */
void *tshi_test_shared(size_t bytes);
/* Wait until *events is at least n. Noted, and false, when it is not within the minute that guards against what
 * hangs. */
bool tshi_test_await(tshi_rank *r, const atomic_int *events, int n);

/* For programs without a test framework: run as threads, print how that went, and return the number of failures. */
int tshi_test_report_threads(const char *name, int ranks, tshi_rank_fn *fn);

/* Record file, line and message when `condition` is false; the first record is kept. Returns the condition. */
#define tshi_check(r, condition, ...) tshi_check_at((r), (condition), __FILE__, __LINE__, __VA_ARGS__)
bool tshi_check_at(tshi_rank *r, bool condition, const char *file, int line, const char *format, ...) TSH_PRINTF(5, 6);
/* The call has returned TSH_OK; its name and message are noted otherwise. */
#define tshi_check_ok(r, call) tshi_check_status_at((r), (call), TSH_OK, "", __FILE__, __LINE__, #call)
/* Checks that a call has returned `status` and that its message contains `words`. */
#define tshi_check_status(r, call, status, words)                                                                      \
    tshi_check_status_at((r), (call), (status), (words), __FILE__, __LINE__, #call)
bool tshi_check_status_at(tshi_rank *r, tsh_status got, tsh_status wanted, const char *words, const char *file,
                          int line, const char *call);

/* fn on "data=D,model=M" for every D that divides the number of ranks, without and with weights. */
typedef void tshi_mesh_fn(tshi_rank *r, tsh_mesh *mesh, void *arg);
void tshi_test_each_mesh(tshi_rank *r, tshi_mesh_fn *fn, void *arg);

/* A replicated tensor of one dim on the world's mesh, or NULL with the failure noted. */
tsh_tensor *tshi_test_vector(tshi_rank *r, tsh_dtype dtype, int64_t n);

#endif
