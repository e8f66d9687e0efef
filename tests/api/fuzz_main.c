/* fuzz [--seed S] [--calls N] [--seconds T] [--ranks P] [--processes] [--trace]: runs of EPISODE steps on worlds of 1
 * to 4 ranks, which are threads or processes, until N calls have been made or T seconds are over. What went wrong is
 * printed with the seed of its run, and `fuzz --seed S --calls 1 --ranks P` makes that run again. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fuzz.h"
#include "support/clock.h"
#include "support/headers.h"

#include <dirent.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EPISODE = 250, DEVIATES = 10, RUN_SECONDS = 240, WORLD_SECONDS = 15 };

/* What ranks tell each other apart from the library. */
typedef struct vote {
    tsh_status status;
    bool severe, failed, wrong;
    uint64_t stamps[FUZZ_KINDS][FUZZ_SLOTS];
    bool held[FUZZ_KINDS][FUZZ_SLOTS];
} vote;

typedef struct progress {
    _Atomic uint64_t step;
    const char *_Atomic name;
} progress;

typedef struct shared {
    atomic_int arrived, rounds;
    atomic_int lost; /* ranks that have ended the run */
    vote votes[2][FUZZ_RANKS];
    progress progress[FUZZ_RANKS];
} shared;

typedef struct run {
    uint64_t seed;
    int ranks;
    tsh_thread_rendezvous *threads;
    shared *shared;
} run;

/* --- the ranks in step -------------------------------------------------------------------------------------------- */

/* false when a rank has ended. */
static bool meet(shared *s, int size) {
    int round = atomic_load(&s->rounds);
    if (atomic_fetch_add(&s->arrived, 1) == size - 1) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->rounds, 1);
    }
    while (atomic_load(&s->rounds) == round) {
        if (atomic_load(&s->lost)) return false;
        sched_yield();
    }
    return true;
}

static void *count_alloc(void *user, size_t size) {
    void *pointer = malloc(size);
    if (pointer) ++*(int64_t *)user;
    return pointer;
}

static void count_release(void *user, void *pointer) {
    --*(int64_t *)user;
    free(pointer);
}

static void no_log(void *user, tsh_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

static bool open_world(fuzz *f) {
    tsh_world_config config = {.threads = f->threads,
                               .rank = f->threads ? f->rank->rank : 0,
                               .heap_bytes = (size_t)16 << 20,
                               .blas_threads = 1,
                               .timeout = WORLD_SECONDS,
                               .log = {.fn = no_log},
                               .allocator = {.alloc = count_alloc, .release = count_release, .user = &f->allocated}};
    if (!tshi_check_ok(f->rank, tsh_world_init(&config, &f->world))) return false;
    f->slots[FUZZ_MESH][0] = (fuzz_slot){(void *)(uintptr_t)tsh_world_mesh(f->world), 1, NULL};
    f->slots[FUZZ_GROUP][0] = (fuzz_slot){tsh_world_group(f->world), 1, NULL};
    return true;
}

static void close_world(fuzz *f) {
    fuzz_empty_all(f);
    tsh_world_destroy(f->world);
    f->world = NULL;
    memset(f->slots, 0, sizeof f->slots);
    if (f->allocated) fuzz_wrong(f, "%lld allocations are left of a world", (long long)f->allocated);
}

/* --- after a step that went wrong --------------------------------------------------------------------------------- */

static bool stamps_differ(const vote *votes, int size, fuzz_kind kind, int index) {
    for (int i = 1; i < size; i++) {
        if (votes[i].stamps[kind][index] != votes[0].stamps[kind][index]) return true;
    }
    return false;
}

/* Empties slots whose contents differ by rank, and after a failure those filled in this step, which only some ranks
 * have. */
static void level(fuzz *f, const vote *votes, bool failed) {
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        bool differ = stamps_differ(votes, f->size, FUZZ_MESH, i) || stamps_differ(votes, f->size, FUZZ_GROUP, i) ||
                      stamps_differ(votes, f->size, FUZZ_WORLD, i);
        if (differ) fuzz_empty_above(f);
    }
    for (int kind = FUZZ_KINDS - 1; kind >= 0; kind--) {
        for (int i = 0; i < FUZZ_SLOTS; i++) {
            bool fresh = failed && votes[0].stamps[kind][i] == f->step * 8;
            if (fresh || stamps_differ(votes, f->size, (fuzz_kind)kind, i)) fuzz_empty(f, (fuzz_kind)kind, i);
        }
    }
}

/* What no rank has got leaves its slot. */
static void sweep(fuzz *f, const vote *votes) {
    for (int kind = 0; kind < FUZZ_KINDS; kind++) {
        for (int i = 0; i < FUZZ_SLOTS; i++) {
            bool held = false;
            for (int r = 0; r < f->size; r++) held = held || votes[r].held[kind][i];
            if (!held) f->slots[kind][i].stamp = 0;
        }
    }
}

/* A call with wrong arguments leaves its group usable. A rank that has returned early gets the error in its next
 * call. */
static void barriers(fuzz *f) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < 3; i++) status = tsh_barrier(tsh_world_group(f->world));
    if (status != TSH_OK) fuzz_wrong(f, "after wrong arguments: barrier: %s", tsh_error_message());
}

/* By tsh_world_recover, or by the reset of a tape that has failed on every rank. */
static void recover(fuzz *f) {
    tsh_tape *tape = f->slots[FUZZ_TAPE][0].object;
    bool by_tape = fuzz_chance(f, 50) && tape;
    if (by_tape) tsh_gelu(tape, NULL);
    tsh_status status = by_tape ? tsh_tape_reset(tape) : tsh_world_recover(f->world);
    if (status != TSH_OK) fuzz_wrong(f, "%s: %s", by_tape ? "tape_reset" : "recover", tsh_error_message());
}

typedef struct verdict {
    bool timeout, failed, severe, differ;
    bool tape; /* each rank has the same tape in slot 0 */
} verdict;

static verdict count_votes(const vote *votes, int size) {
    verdict v = {.tape = !stamps_differ(votes, size, FUZZ_TAPE, 0)};
    for (int i = 0; i < size; i++) {
        v.timeout = v.timeout || votes[i].status == TSH_ERR_TIMEOUT;
        v.failed = v.failed || votes[i].failed;
        v.severe = v.severe || votes[i].severe;
        v.differ = v.differ || votes[i].status != votes[0].status;
    }
    return v;
}

/* After a call that a deadline has ended, the world can only be destroyed. */
static bool repair(fuzz *f, shared *s, const vote *votes) {
    verdict v = count_votes(votes, f->size);
    if (v.timeout) {
        close_world(f);
        return !f->threads && meet(s, f->size) && open_world(f); /* a thread joins once */
    }
    if (v.failed) {
        void *tape = f->slots[FUZZ_TAPE][0].object;
        if (!v.tape) f->slots[FUZZ_TAPE][0].object = NULL;
        recover(f);
        f->slots[FUZZ_TAPE][0].object = tape;
    } else if (v.severe) {
        barriers(f);
    }
    if (v.failed) {
        for (int i = 0; i < FUZZ_SLOTS; i++) fuzz_renew_tape(f, i);
    }
    level(f, votes, v.failed || v.severe || v.differ);
    sweep(f, votes);
    return true;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static const fuzz_call *const tables[] = {fuzz_tensor_calls, fuzz_dist_calls,  fuzz_autograd_calls,
                                          fuzz_train_calls,  fuzz_layer_calls, fuzz_io_calls};
enum { TABLES = sizeof tables / sizeof tables[0] };

static const fuzz_call *draw_call(fuzz *f) {
    int total = 0;
    for (int t = 0; t < TABLES; t++) {
        for (const fuzz_call *c = tables[t]; c->name; c++) total += c->weight;
    }
    int draw = fuzz_below(f, total);
    for (int t = 0; t < TABLES; t++) {
        for (const fuzz_call *c = tables[t]; c->name; c++) {
            draw -= c->weight;
            if (draw < 0) return c;
        }
    }
    return NULL;
}

static bool trace; /* --trace: each call and what it said */

static bool step(fuzz *f, shared *s) {
    f->draw = f->seed * 1000003 + f->step * 7919;
    f->stamp = f->step * 8;
    f->status = TSH_OK;
    f->severe = f->failed = false;
    f->deviates = f->size > 1 && fuzz_chance(f, DEVIATES);
    uint64_t common = f->draw;
    if (f->deviates) {
        f->draw += 0xABCDEFu * (uint64_t)(f->rank->rank + 1);
        f->stamp += (uint64_t)f->rank->rank + 1;
    }
    if (!f->deviates) fuzz_furnish(f);
    const fuzz_call *call = draw_call(f);
    atomic_store(&s->progress[f->rank->rank].name, call->name);
    atomic_store(&s->progress[f->rank->rank].step, f->step);
    call->make(f, call->function);
    if (trace) {
        fprintf(stderr, "rank %d %s step %d %s: %s %s\n", f->rank->rank, f->deviates ? "alone" : "", (int)f->step,
                call->name, tsh_status_name(f->status), f->status == TSH_OK ? "" : tsh_error_message());
    }
    if (!f->deviates && f->status == TSH_ERR_TIMEOUT) fuzz_wrong(f, "%s", tsh_error_message());
    if (f->deviates) tsh_world_fail(f->world, "a call of its own");
    if (f->wrong[0]) tshi_check(f->rank, false, "step %d, %s: %s", (int)f->step, call->name, f->wrong);

    vote *votes = s->votes[f->step % 2], *mine = &votes[f->rank->rank];
    *mine = (vote){f->status, f->severe, f->failed || f->deviates, f->wrong[0] != '\0', {{0}}, {{0}}};
    for (int k = 0; k < FUZZ_KINDS; k++) {
        for (int i = 0; i < FUZZ_SLOTS; i++) {
            mine->stamps[k][i] = f->slots[k][i].stamp;
            mine->held[k][i] = f->slots[k][i].object != NULL;
        }
    }
    if (!meet(s, f->size)) return false;
    f->draw = common;
    if (!repair(f, s, votes)) return false;
    if (f->wrong[0]) tshi_check(f->rank, false, "step %d, after %s: %s", (int)f->step, call->name, f->wrong);
    return !f->rank->failed;
}

static int open_files(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

static void live(tshi_rank *r, void *arg) {
    const run *job = arg;
    static _Thread_local fuzz f;
    f = (fuzz){.rank = r, .threads = job->threads, .size = r->size, .seed = job->seed};
    int files = job->threads ? 0 : open_files();
    bool going = open_world(&f);
    for (f.step = 1; going && f.step <= EPISODE; f.step++) going = step(&f, job->shared);
    if (!going) atomic_store(&job->shared->lost, 1);
    if (f.world) close_world(&f);
    if (f.wrong[0]) tshi_check(r, false, "step %d, the end: %s", (int)f.step, f.wrong);
    int left = job->threads ? 0 : open_files() - files;
    tshi_check(r, left <= 0 || r->failed, "%d descriptors are left open", left);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static run *current;

static void say_progress(void) {
    for (int i = 0; i < current->ranks; i++) {
        const progress *p = &current->shared->progress[i];
        const char *name = atomic_load(&p->name);
        fprintf(stderr, "  rank %d: step %d, %s\n", i, (int)atomic_load(&p->step), name ? name : "start");
    }
}

/* Threads that do not end cannot be ended. */
static void too_long(int signal) {
    (void)signal;
    fprintf(stderr, "fuzz: seed %llu, %d threads: not over after %d s\n", (unsigned long long)current->seed,
            current->ranks, RUN_SECONDS);
    say_progress();
    _exit(1);
}

static bool run_once(run *r, bool processes) {
    memset(r->shared, 0, sizeof *r->shared);
    tshi_test_options options = {
        .ranks = r->ranks, .bare = true, .threads = !processes, .timeout = RUN_SECONDS, .world_timeout = "15"};
    current = r;
    r->threads = NULL;
    if (!processes && tsh_thread_rendezvous_create(r->ranks, &r->threads) != TSH_OK) return false;
    if (!processes) alarm(RUN_SECONDS);
    const char *words = tshi_test_run_with(&options, live, r, NULL, NULL);
    alarm(0);
    tsh_thread_rendezvous_destroy(r->threads);
    if (!words[0]) return true;
    fprintf(stderr, "fuzz: --seed %llu --ranks %d%s: %s\n", (unsigned long long)r->seed, r->ranks,
            processes ? " --processes" : "", words);
    say_progress();
    return false;
}

static bool named(const char *name) {
    size_t length = strlen(name);
    for (int t = 0; t < TABLES; t++) {
        for (const fuzz_call *c = tables[t]; c->name; c++) {
            for (const char *at = c->name; (at = strstr(at, name)) != NULL; at += length) {
                bool start = at == c->name || at[-1] == ' ';
                if (start && (at[length] == '\0' || at[length] == ' ')) return true;
            }
        }
    }
    return false;
}

static double number(int argc, char **argv, const char *name, double otherwise) {
    for (int i = 1; i + 1 < argc; i++) {
        if (!strcmp(argv[i], name)) return strtod(argv[i + 1], NULL);
    }
    return otherwise;
}

static bool has(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name)) return true;
    }
    return false;
}

static int run_all(int argc, char **argv) {
    bool processes = has(argc, argv, "--processes");
    uint64_t seed = (uint64_t)number(argc, argv, "--seed", 1);
    double calls = number(argc, argv, "--calls", 20000), made = 0;
    double end = tshi_now() + number(argc, argv, "--seconds", 1e9);
    int ranks = (int)number(argc, argv, "--ranks", 0);
    run r = {.shared = mmap(NULL, sizeof *r.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    if (r.shared == MAP_FAILED) return 1;
    trace = has(argc, argv, "--trace");
    signal(SIGALRM, too_long);
    for (r.seed = seed; made < calls && tshi_now() < end; r.seed++) {
        r.ranks = ranks > 0 ? ranks : 1 + (int)(r.seed % FUZZ_RANKS);
        if (!run_once(&r, processes)) return 1;
        made += EPISODE * r.ranks;
    }
    printf("%.0f calls in %llu runs: nothing went wrong\n", made, (unsigned long long)(r.seed - seed));
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    remove(path);
    return 0;
}

int main(int argc, char **argv) {
    char missing[4096];
    int functions = tshi_test_functions(named, missing, sizeof missing);
    if (functions < 180 || missing[0]) {
        fprintf(stderr, "fuzz: of %d functions these are never called: %s\n", functions, missing);
        return 1;
    }
    char folder[] = "/tmp/tshard-fuzz-XXXXXX";
    fuzz_folder = mkdtemp(folder);
    if (!fuzz_folder) return 1;
    int code = run_all(argc, argv);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return code;
}
