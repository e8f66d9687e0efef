/* failing memory|calls [--seed S] [--seconds T] [--rank R --number N --errno E]: a small training program on two ranks,
 * which saves and loads its parameters too, and in which the n-th allocation, or the n-th system call, fails on one
 * rank. It must end, with a message where a call has failed, and leave no memory, descriptor or mapping behind, and no
 * file that is not whole. Numbers are drawn until T seconds are over, or all have been tried. The program is linked
 * with --wrap for the functions below. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "failing.h"
#include "io/safetensors.h"
#include "support/clock.h"
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 2, RUN_SECONDS = 120, STEPS = 2 };

typedef struct plan {
    bool memory;
    int rank; /* on which it fails */
    long number;
    int error;
    const char *method; /* by which the ranks find each other */
} plan;

/* What a rank says. */
typedef struct report {
    long calls; /* made, of those that could have failed */
    char name[32], words[160];
} report;

/* --- memory ------------------------------------------------------------------------------------------------------- */

typedef struct counter {
    long number, calls, held;
} counter;

static void *give(void *user, size_t size) {
    counter *m = user;
    if (++m->calls == m->number) return NULL;
    m->held++;
    return malloc(size);
}

static void take(void *user, void *pointer) {
    counter *m = user;
    m->held--;
    free(pointer);
}

static bool reserve(void *user, size_t size) {
    counter *m = user;
    (void)size;
    return ++m->calls != m->number;
}

/* --- the program -------------------------------------------------------------------------------------------------- */

typedef struct model {
    tsh_world *world;
    tsh_mesh *mesh;
    tsh_group *half;
    tsh_tape *tape;
    tsh_embedding *table;
    tsh_linear *up, *down;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
    tsh_tensor *ids, *x;
} model;

static tsh_status make(model *m, const tsh_world_config *config) {
    tsh_status status = tsh_world_init(config, &m->world);
    if (status == TSH_OK) status = tsh_mesh_create(m->world, "data=1,model=2", &m->mesh);
    if (status != TSH_OK) return status;
    tsh_group *group = tsh_mesh_group(m->mesh, "model");
    status = tsh_group_split(tsh_world_group(m->world), 0, tsh_world_rank(m->world), &m->half);
    if (status == TSH_OK) status = tsh_tape_create(m->world, &m->tape);
    if (status == TSH_OK) status = tsh_parameters_create(m->world, &m->list);
    if (status != TSH_OK) return status;
    tsh_embedding_create(group, &(tsh_embedding_config){.num_embeddings = 5, .embedding_dim = 4, .shard = TSH_ROW},
                         &m->table);
    tsh_linear_create(
        group, &(tsh_linear_config){.in_features = 4, .out_features = 6, .shard = TSH_COLUMN, .bias = true}, &m->up);
    tsh_linear_create(group, &(tsh_linear_config){.in_features = 6, .out_features = 5, .shard = TSH_ROW}, &m->down);
    if (!m->table || !m->up || !m->down) return TSH_ERR_MEMORY;
    status = tsh_embedding_register(m->table, m->list, "table");
    if (status == TSH_OK) status = tsh_linear_register(m->up, m->list, "up");
    if (status == TSH_OK) status = tsh_linear_register(m->down, m->list, "down");
    if (status == TSH_OK) status = tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 0.1}, &m->optimizer);
    return status;
}

static tsh_status prepare(model *m) {
    static const int64_t ids[6] = {0, 1, 2, 3, 4, 0};
    tsh_group *data = tsh_mesh_group(m->mesh, "data");
    const tsh_data_parallel_config sums = {.model = tsh_mesh_group(m->mesh, "model"), .sequence_parallel = true};
    tsh_status status = tsh_data_parallel_create(m->tape, m->list, data, &sums, &m->dp);
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {6}};
    if (status == TSH_OK) status = tsh_tensor_create(m->mesh, &config, &m->ids);
    if (status == TSH_OK) status = tsh_tensor_write(m->ids, ids, 6);
    config = (tsh_tensor_config){.dtype = TSH_FLOAT32, .ndim = 1, .shape = {3000}};
    return status == TSH_OK ? tsh_tensor_create(tsh_world_mesh(m->world), &config, &m->x) : status;
}

static tsh_status step(model *m) {
    tsh_tensor *h =
        tsh_gelu(m->tape, tsh_linear_forward(m->tape, m->up, tsh_embedding_forward(m->tape, m->table, m->ids)));
    tsh_tensor *loss = tsh_cross_entropy(m->tape, tsh_linear_forward(m->tape, m->down, h), m->ids, NULL);
    tsh_status status = tsh_backward(m->tape, loss);
    if (status == TSH_OK) status = tsh_clip_grad_norm(m->list, 1, NULL);
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    if (status == TSH_OK) tsh_optimizer_zero_grad(m->optimizer);
    return status == TSH_OK ? tsh_tape_reset(m->tape) : status;
}

/* A started call and a message that is too large to be sent at once, and one that is not. */
static tsh_status talk(model *m) {
    tsh_work *work = NULL;
    tsh_status status = tsh_all_reduce_async(m->half, m->x, TSH_REDUCE_SUM, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    bool first = tsh_world_rank(m->world) == 0;
    if (status == TSH_OK) status = first ? tsh_send(m->half, m->x, 1) : tsh_recv(m->half, m->x, 0, NULL);
    if (status == TSH_OK) status = first ? tsh_recv(m->half, m->ids, 1, NULL) : tsh_send(m->half, m->ids, 0);
    return status == TSH_OK ? tsh_barrier(tsh_world_group(m->world)) : status;
}

/* The file that the program writes; its name until it is whole. */
static char saved[64], partial[80];

static tsh_status save_and_load(model *m) {
    tsh_status status = tsh_save(m->list, saved, NULL);
    return status == TSH_OK ? tsh_load(m->list, saved, NULL) : status;
}

/* Nothing is left of a file that is not whole. */
static bool is_whole_or_absent(void) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file;
    if (access(partial, F_OK) == 0) return false;
    if (access(saved, F_OK) != 0) return true;
    bool whole = tshi_safetensors_open(&allocator, saved, &file) == TSH_OK;
    if (whole) tshi_safetensors_close(file);
    return whole;
}

static void end(model *m) {
    tsh_data_parallel_destroy(m->dp);
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->list);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
    tsh_embedding_destroy(m->table);
    tsh_tensor_release(m->ids);
    tsh_tensor_release(m->x);
    tsh_tape_destroy(m->tape);
    tsh_group_destroy(m->half);
    tsh_mesh_destroy(m->mesh);
    tsh_world_destroy(m->world);
}

static tsh_status train(model *m, const tsh_world_config *config) {
    tsh_status status = make(m, config);
    if (status == TSH_OK) status = prepare(m);
    for (int i = 0; i < STEPS && status == TSH_OK; i++) status = step(m);
    if (status == TSH_OK) status = talk(m);
    return status == TSH_OK ? save_and_load(m) : status;
}

/* --- a rank ------------------------------------------------------------------------------------------------------- */

static int open_files(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

/* Of the library's memory files. */
static int mappings(void) {
    char line[512];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) n += strstr(line, "memfd:tshard") != NULL;
    if (maps) fclose(maps);
    return n;
}

static void no_log(void *user, tsh_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

static void live(tshi_rank *r, void *arg) {
    const plan *p = arg;
    report *said = r->result;
    bool struck = p->rank == r->rank;
    counter m = {.number = struck && p->memory ? p->number : 0};
    tsh_world_config config = {.init_method = p->method,
                               .heap_bytes = (size_t)16 << 20,
                               .log = {.fn = no_log},
                               .allocator = {.alloc = give, .release = take, .reserve = reserve, .user = &m}};
    model made = {0};
    int files = open_files();
    tshi_failing_begin(struck && !p->memory ? p->number : 0, p->error);
    tsh_status status = train(&made, &config);
    snprintf(said->words, sizeof said->words, "%s", status == TSH_OK ? "" : tsh_error_message());
    end(&made);
    said->calls = p->memory ? m.calls : tshi_failing_end(said->name, sizeof said->name);
    if (p->memory) snprintf(said->name, sizeof said->name, "memory");
    tshi_check(r, status == TSH_OK || said->words[0], "%s, without words", tsh_status_name(status));
    tshi_check(r, r->rank > 0 || is_whole_or_absent(), "a part of a file is left");
    tshi_check(r, m.held == 0, "%ld allocations are left", m.held);
    tshi_check(r, open_files() <= files, "%d descriptors are left", open_files() - files);
    tshi_check(r, mappings() == 0, "%d mappings are left", mappings());
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static bool run_once(const plan *p, report said[RANKS]) {
    plan copy = *p;
    tshi_test_options options = {.ranks = RANKS,
                                 .bare = true,
                                 .timeout = RUN_SECONDS,
                                 .world_timeout = p->rank < 0 ? "60" : "3",
                                 .result_bytes = sizeof(report)};
    memset(said, 0, RANKS * sizeof *said);
    unlink(saved);
    const char *words = tshi_test_run_with(&options, live, &copy, NULL, said);
    if (!words[0]) return true;
    const char *name = p->rank >= 0 ? said[p->rank].name : "";
    fprintf(stderr, "failing %s --rank %d --number %ld --errno %d --method %s (%s): %s\n",
            p->memory ? "memory" : "calls", p->rank, p->number, p->error, p->method, name, words);
    for (int i = 0; i < RANKS; i++) fprintf(stderr, "  rank %d: %s\n", i, said[i].words);
    return false;
}

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Every number once, in a drawn order; the number of failures. */
static int try_all(const plan *first, const report counted[RANKS], uint64_t seed, double seconds) {
    static const int errors[] = {ENOMEM, EMFILE, EINTR, EIO, ECONNRESET, ENOSYS};
    report said[RANKS];
    double until = tshi_now() + seconds;
    long total = counted[0].calls + counted[1].calls, tried = 0;
    int bad = 0;
    static long *order; /* ranks, which look for memory that nothing points to, have it too */
    order = calloc((size_t)total, sizeof *order);
    for (long i = 0; order && i < total; i++) {
        long j = (long)(next(&seed) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (; order && tried < total && tshi_now() < until && bad < 20; tried++) {
        plan p = *first;
        p.rank = order[tried] >= counted[0].calls;
        p.error = errors[next(&seed) % 6];
        p.number = 1 + order[tried] - (p.rank ? counted[0].calls : 0);
        bad += !run_once(&p, said);
    }
    free(order);
    printf("%s with %s: %ld of %ld tried, %d went wrong\n", first->memory ? "allocations" : "system calls",
           first->method, tried, total, bad);
    return bad;
}

/* What there is to fail is counted first, in a run in which nothing does. */
static int try_method(const plan *p, uint64_t seed, double seconds) {
    report counted[RANKS];
    if (!run_once(p, counted)) return 1;
    for (int i = 0; i < RANKS; i++) {
        if (p->rank >= 0) printf("rank %d: %s: %s\n", i, counted[i].name, counted[i].words);
        if (p->rank < 0 && counted[i].words[0]) fprintf(stderr, "nothing fails, but: %s\n", counted[i].words);
    }
    if (p->rank >= 0) return 0;
    bool ran = !counted[0].words[0] && !counted[1].words[0] && counted[0].calls > 10 && counted[1].calls > 10;
    return ran ? try_all(p, counted, seed, seconds) : 1;
}

static double number(int argc, char **argv, const char *name, double otherwise) {
    for (int i = 2; i + 1 < argc; i++) {
        if (!strcmp(argv[i], name)) return strtod(argv[i + 1], NULL);
    }
    return otherwise;
}

int main(int argc, char **argv) {
    bool memory = argc > 1 && !strcmp(argv[1], "memory");
    char file[64];
    int bad = 0;
    if (argc < 2 || (!memory && strcmp(argv[1], "calls") != 0)) {
        fprintf(stderr, "usage: failing memory|calls [--seed S] [--seconds T] [--rank R --number N --errno E]\n");
        return 2;
    }
    snprintf(file, sizeof file, "file:///tmp/tshard-failing-%ld", (long)getpid());
    snprintf(saved, sizeof saved, "/tmp/tshard-failing-%ld.safetensors", (long)getpid());
    snprintf(partial, sizeof partial, "%s.partial", saved);
    const char *const methods[] = {"env://", file};
    uint64_t seed = (uint64_t)number(argc, argv, "--seed", 1);
    double seconds = number(argc, argv, "--seconds", 1e9) / 2;
    for (int i = 0; i < 2; i++) {
        plan p = {.memory = memory,
                  .rank = (int)number(argc, argv, "--rank", -1),
                  .number = (long)number(argc, argv, "--number", 0),
                  .error = (int)number(argc, argv, "--errno", EIO),
                  .method = methods[i]};
        bad += try_method(&p, seed, seconds);
    }
    unlink(file + strlen("file://"));
    unlink(saved);
    return bad > 0;
}
