/* training_steps: random models, trained for some steps in random ways on random meshes, compared with one rank.
 *
 *     training_steps [--seed N] [--programs N] [--seconds S] [--ranks N] [--verbose]
 *
 * A program follows from its seed. Its model, optimizer and data are its own; meshes, levels of sharding,
 * micro-batches, recomputation, checkpoints, failed steps and the like must not change its numbers:
 *   float64                the numbers of one rank without any of it, but for the order of additions
 *   a deterministic world  the bits of one rank without meshes, levels, recomputation, checkpoints and failed steps
 *   lower precisions       no further from float64 than some times what one rank of that precision is
 * Programs run in a child process, so that a crash or a hang is a failure as any other. A failing program is made
 * plainer and printed. The last line has the counts; the exit code is 1 after failures, 2 for a wrong command line. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/children.h"
#include "support/clock.h"
#include "support/files.h"
#include "training_steps/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HANG_SECONDS = 90, MOST_FAILURES = 5, SHRINK_SECONDS = 60 };

typedef struct options {
    uint64_t seed;
    int64_t programs; /* 0: as many as the seconds allow */
    double seconds;   /* 0: no limit */
    int ranks;
    bool verbose;
} options;

/* What a child tells its parent. */
typedef struct shared {
    uint64_t seed;
    int64_t programs, numbers;
    bool wrong;
    char words[2048];
} shared;

static TSH_PRINTF(2, 3) bool wrong(shared *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->words, sizeof s->words, format, arguments);
    va_end(arguments);
    s->wrong = true;
    return false;
}

/* --- comparison --------------------------------------------------------------------------------------------------- */

static const tshi_training_entry *find(const tshi_training_trace *t, const tshi_training_entry *like) {
    for (int i = 0; i < t->entries; i++) {
        const tshi_training_entry *e = &t->entry[i];
        if (e->kind == like->kind && e->step == like->step && e->index == like->index) return e;
    }
    return NULL;
}

static double largest(const tshi_training_trace *t, const tshi_training_entry *e) {
    double most = 0;
    for (int i = 0; i < e->count; i++) most = fmax(most, fabs(t->number[e->at + i]));
    return most;
}

/* How far one rank in the program's precision is from the exact numbers. */
static double noise_of(const tshi_training_trace *exact, const tshi_training_entry *e,
                       const tshi_training_trace *plain) {
    const tshi_training_entry *same = find(plain, e);
    double most = 0;
    for (int i = 0; same && i < e->count; i++)
        most = fmax(most, fabs(plain->number[same->at + i] - exact->number[e->at + i]));
    return most;
}

/* How far numbers may be from the exact ones. Where these are small the errors are those of what they are made from, as
 * large as in other numbers of the step; all of these may be sums of larger ones that cancel. */
static double limit_of(const tshi_training_program *p, const tshi_training_trace *exact, const tshi_training_entry *e,
                       const tshi_training_trace *plain) {
    bool narrow = p->precision != PRECISION_FLOAT64;
    double unit = p->precision == PRECISION_FLOAT32 ? 0x1p-24 : 0x1p-9, size = narrow ? 0x1p-6 : 0x1p-10, noise = 0;
    for (int i = 0; i < exact->entries; i++) {
        const tshi_training_entry *other = &exact->entry[i];
        if (other->kind != e->kind || other->step != e->step) continue;
        size = fmax(size, (other == e ? 1 : 1e-3) * largest(exact, other));
        if (narrow) noise = fmax(noise, (other == e ? 1 : 0x1p-4) * noise_of(exact, other, plain));
    }
    /* An element at the bound of a clip by value shows no error, so that few are left to show one rank's. */
    return narrow ? (p->clip_value ? 32 : 16) * noise + 16 * unit * size : 1e-9 * size;
}

static bool compare(const tshi_training_program *p, const tshi_training_trace *exact, const tshi_training_trace *plain,
                    const tshi_training_trace *got, const char *who, shared *s) {
    static const char *const kinds[] = {"the loss",         "the norm",         "whether all is finite",
                                        "the gradient of ", "the gradient of ", "the parameter "};
    const tshi_training_trace *truth = p->deterministic ? plain : exact;
    for (int k = 0; k < got->entries; k++) {
        const tshi_training_entry *e = &got->entry[k], *wanted = find(truth, e);
        if (!wanted)
            return wrong(s, "%s: step %d: nothing to compare %s%s with", who, e->step, kinds[e->kind], e->name);
        double limit = p->deterministic ? 0 : limit_of(p, truth, wanted, plain);
        for (int i = 0; i < e->count; i++) {
            double a = got->number[e->at + i], b = truth->number[wanted->at + i];
            s->numbers++;
            if (p->deterministic ? !memcmp(&a, &b, sizeof a) || a == b : fabs(a - b) <= limit) continue;
            return wrong(s, "%s: step %d: %s%s, element %d is %.17g, wanted %.17g", who, e->step, kinds[e->kind],
                         e->name, i, a, b);
        }
    }
    return true;
}

/* --- one program -------------------------------------------------------------------------------------------------- */

static void say_nothing(void *user, tsh_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

static bool run_course(tshi_training_course *c, int ranks, bool loud, shared *s, const char *who) {
    const tshi_test_options how = {
        .ranks = ranks, .threads = true, .heap_bytes = (size_t)64 << 20, .log = {.fn = loud ? NULL : say_nothing}};
    setenv("TSHARD_CHECK", c->p->check && !c->plain ? "1" : "0", 1);
    setenv("TSHARD_DETERMINISTIC", c->p->deterministic && !c->exact ? "1" : "0", 1);
    for (int i = 0; i < ranks; i++) c->traces[i].entries = c->traces[i].numbers = 0;
    const char *words = tshi_test_run_with(&how, tshi_course_run, c, NULL, NULL);
    return !*words || wrong(s, "%s: %s", who, words);
}

static bool run_alone(const tshi_training_program *p, bool exact, bool loud, tshi_training_trace *trace, shared *s) {
    static const tshi_training_phase plain;
    tshi_training_course c = {.p = p,
                              .phase = &plain,
                              .plain = true,
                              .exact = exact,
                              .first = 1,
                              .last = tshi_program_steps(p),
                              .traces = trace};
    return run_course(&c, 1, loud, s, exact ? "one rank in float64" : "one rank");
}

/* `folder`: for checkpoints, empty. */
static bool judge_in(const char *folder, const tshi_training_program *p, bool loud, shared *s) {
    static tshi_training_trace exact, plain, traces[MOST_RANKS];
    bool needs_plain = p->deterministic || p->precision != PRECISION_FLOAT64;
    s->wrong = false;
    if (!p->deterministic && !run_alone(p, true, loud, &exact, s)) return false;
    if (needs_plain && !run_alone(p, false, loud, &plain, s)) return false;
    int first = 1;
    for (int i = 0; i <= p->more_phases; i++) {
        const tshi_training_phase *phase = &p->phase[i];
        tshi_training_course c = {.p = p,
                                  .phase = phase,
                                  .first = first,
                                  .last = first + phase->more_steps,
                                  .folder = folder,
                                  .traces = traces};
        char who[48];
        snprintf(who, sizeof who, "phase %d", i);
        if (!run_course(&c, tshi_phase_ranks(phase), loud, s, who)) return false;
        for (int r = 0; r < tshi_phase_ranks(phase); r++) {
            snprintf(who, sizeof who, "phase %d, rank %d", i, r);
            if (!compare(p, &exact, &plain, &traces[r], who, s)) return false;
        }
        first = c.last + 1;
    }
    return true;
}

static bool judge(const tshi_training_program *p, bool loud, shared *s) {
    const char *folder = tshi_test_folder(0);
    bool good = judge_in(folder, p, loud, s);
    tshi_test_remove(folder);
    return good;
}

/* --- children ----------------------------------------------------------------------------------------------------- */

static void run_seeds(const options *o, uint64_t seed, double begin, shared *s) {
    while ((o->programs == 0 || s->programs < o->programs) && (o->seconds == 0 || tshi_now() - begin < o->seconds)) {
        tshi_training_program p;
        s->seed = seed++;
        alarm(HANG_SECONDS);
        tshi_training_generate(s->seed, o->ranks, &p);
        if (o->verbose) tshi_training_print(&p, stdout);
        if (o->verbose) fflush(stdout);
        s->programs++;
        if (!judge(&p, o->verbose, s)) break;
    }
}

/* Wait for a child; what it died of is a failure. */
static void reap(pid_t child, shared *s) {
    char words[128];
    tshi_test_reap(child, words, sizeof words);
    if (*words && !s->wrong) wrong(s, "%s", words);
}

typedef struct attempt {
    shared *s;
    double deadline;
} attempt;

static bool fails(const tshi_training_program *p, void *user) {
    attempt *a = user;
    if (tshi_now() > a->deadline) return false;
    a->s->wrong = false;
    pid_t child = tshi_test_fork();
    if (child == 0) {
        alarm(HANG_SECONDS);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        judge(p, false, a->s);
        exit(0);
    }
    reap(child, a->s);
    return a->s->wrong;
}

static void report(const options *o, const char *program, shared *s) {
    tshi_training_program p;
    attempt a = {s, tshi_now() + SHRINK_SECONDS};
    uint64_t seed = s->seed;
    tshi_training_generate(seed, o->ranks, &p);
    printf("program %llu is wrong: %s\n", (unsigned long long)seed, s->words);
    fflush(stdout);
    tshi_training_shrink(&p, fails, &a);
    a.deadline += HANG_SECONDS;
    printf("made plainer%s: %s\n", fails(&p, &a) ? "" : " (it is not wrong every time)", s->words);
    tshi_training_print(&p, stdout);
    printf("  again: %s --ranks %d --seed %llu --programs 1\n", program, o->ranks, (unsigned long long)seed);
    fflush(stdout);
}

/* --- command line ------------------------------------------------------------------------------------------------- */

static void usage(const char *what) {
    fprintf(stderr,
            "training_steps: %s\n"
            "usage: training_steps [--seed N] [--programs N] [--seconds S] [--ranks N] [--verbose]\n",
            what);
    exit(2);
}

static options read_options(int count, char **words) {
    options o = {.seed = 1, .ranks = 4};
    for (int i = 1; i < count; i++) {
        const char *name = words[i];
        if (!strcmp(name, "--verbose")) {
            o.verbose = true;
            continue;
        }
        char *end = NULL;
        unsigned long long value = i + 1 < count ? strtoull(words[++i], &end, 10) : 0;
        if (!end || *end || end == words[i]) usage(name);
        if (!strcmp(name, "--seed"))
            o.seed = value;
        else if (!strcmp(name, "--programs"))
            o.programs = (int64_t)value;
        else if (!strcmp(name, "--seconds"))
            o.seconds = (double)value;
        else if (!strcmp(name, "--ranks") && value >= 1 && value <= MOST_RANKS)
            o.ranks = (int)value;
        else
            usage(name);
    }
    if (o.programs == 0 && o.seconds == 0) o.programs = 200;
    return o;
}

int main(int count, char **words) {
    options o = read_options(count, words);
    shared *s = tshi_test_shared(sizeof *s);
    double begin = tshi_now();
    int failures = 0;
    s->wrong = true;
    for (uint64_t seed = o.seed; s->wrong && failures <= MOST_FAILURES; seed = s->seed + 1) {
        s->wrong = false;
        pid_t child = tshi_test_fork();
        if (child == 0) {
            run_seeds(&o, seed, begin, s);
            exit(0);
        }
        reap(child, s);
        if (!s->wrong) break;
        failures++;
        report(&o, words[0], s);
        s->wrong = true;
    }
    printf("%lld programs, %lld numbers compared, %d wrong\n", (long long)s->programs, (long long)s->numbers, failures);
    return failures > 0;
}
