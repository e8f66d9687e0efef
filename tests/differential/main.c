/* differential: random programs of public functions on random meshes and layouts, compared with one rank.
 *
 *     differential [--seed N] [--programs N] [--seconds S] [--ranks N] [--replay SEED] [--verbose]
 *
 * Programs run in a child process, so that a crash or a hang is a failure as any other. A failing program is made
 * smaller, each smaller one in a child of its own, and printed. The last line has the counts; the exit code is 1 after
 * failures, 2 for a wrong command line. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "differential/shrink.h"
#include "differential/team.h"
#include "support/children.h"
#include "support/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    HANG_SECONDS = 150,
    SHRINK_TRIES = 1500,
    SHRINK_SECONDS = 60,
    MOST_FAILURES = 5,
    PROGRAMS_THAT_HAVE_ALL_CALLS = 250
};
/* Refused programs, of all: more is a failure. */
static const double most_refused = 0.01;

typedef struct options {
    uint64_t seed;
    int64_t programs; /* 0: as many as the seconds allow */
    double seconds;   /* 0: no limit */
    int ranks;
    bool replay, verbose;
} options;

/* What a child tells its parent. */
typedef struct shared {
    uint64_t seed; /* of the program that runs */
    int64_t programs, compared, refused, unjudged;
    int64_t calls[CALL_COUNT];
    tshi_verdict verdict; /* of the last */
} shared;

/* --- command line ------------------------------------------------------------------------------------------------- */

static void usage(const char *wrong) {
    fprintf(stderr,
            "differential: %s\nusage: differential [--seed N] [--programs N] [--seconds S] [--ranks N] [--replay SEED] "
            "[--verbose]\n",
            wrong);
    exit(2);
}

static uint64_t whole_number(const char *name, const char *text, uint64_t most) {
    char *end, words[160];
    errno = 0;
    uint64_t value = text && text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (text && text[0] >= '0' && text[0] <= '9' && !*end && !errno && value <= most) return value;
    snprintf(words, sizeof words, "%s wants a whole number up to %llu, '%.40s' given", name, (unsigned long long)most,
             text ? text : "nothing");
    usage(words);
    return 0;
}

static options read_options(int count, char **words) {
    options o = {.seed = 1, .ranks = 4};
    for (int i = 1; i < count; i++) {
        const char *name = words[i], *value = i + 1 < count ? words[i + 1] : NULL;
        if (!strcmp(name, "--verbose")) {
            o.verbose = true;
            continue;
        }
        if (!strcmp(name, "--seed") || !strcmp(name, "--replay")) {
            o.seed = whole_number(name, value, UINT64_MAX);
            o.replay = o.replay || !strcmp(name, "--replay");
        } else if (!strcmp(name, "--programs")) {
            o.programs = (int64_t)whole_number(name, value, INT64_MAX);
        } else if (!strcmp(name, "--seconds")) {
            o.seconds = (double)whole_number(name, value, 1000000);
        } else if (!strcmp(name, "--ranks")) {
            o.ranks = (int)whole_number(name, value, MAX_RANKS);
        } else {
            usage(name);
        }
        i++;
    }
    if (o.ranks < 1) usage("--ranks wants 1 at least");
    if (o.programs == 0 && o.seconds == 0) o.programs = 1000;
    if (o.replay) o.programs = 1;
    return o;
}

/* --- in a child --------------------------------------------------------------------------------------------------- */

static void count_calls(const tshi_program *p, shared *s) {
    for (int k = 0; k < p->steps; k++) s->calls[p->step[k].call]++;
}

static void tell_progress(const shared *s, double begin, double *told) {
    double now = tshi_now();
    if (now - begin < 2 || now - *told < 0.5 || !isatty(STDERR_FILENO)) return;
    *told = now;
    fprintf(stderr, "\r%lld programs ", (long long)s->programs);
}

/* From seed on, until one fails or the run is over. */
static void run_seeds(const options *o, uint64_t seed, double begin, shared *s) {
    tshi_teams *teams = tshi_teams_open();
    tshi_program *p = calloc(1, sizeof *p);
    double told = begin;
    if (!p) abort();
    while ((o->programs == 0 || s->programs < o->programs) && (o->seconds == 0 || tshi_now() - begin < o->seconds)) {
        s->seed = seed++;
        alarm(HANG_SECONDS);
        tshi_program_generate(s->seed, o->ranks, p);
        if (o->verbose) {
            printf("program %llu\n", (unsigned long long)s->seed);
            tshi_program_print(p, stdout);
            fflush(stdout);
        }
        s->programs++;
        tshi_teams_judge(teams, p, &s->verdict);
        s->compared += s->verdict.compared;
        s->refused += s->verdict.kind == VERDICT_REFUSED;
        s->unjudged += s->verdict.kind == VERDICT_UNJUDGED;
        if (o->verbose && s->verdict.kind != VERDICT_SAME)
            printf("%s\n", s->verdict.kind == VERDICT_UNJUDGED ? "not judged" : s->verdict.words);
        if (s->verdict.kind == VERDICT_FAILED) break;
        count_calls(p, s);
        tell_progress(s, begin, &told);
    }
    free(p);
    tshi_teams_close(teams);
}

/* --- in the parent ------------------------------------------------------------------------------------------------ */

/* Wait for a child; what it died of goes into the verdict. */
static void reap(pid_t child, shared *s) {
    char words[128];
    tshi_test_reap(child, words, sizeof words);
    if (*words && s->verdict.kind != VERDICT_FAILED) tshi_verdict_fail(&s->verdict, "%s", words);
}

typedef struct attempt {
    shared *s;
    char first[2048]; /* message of the failure that is shrunk */
    double deadline;  /* what hangs is not tried for long */
} attempt;

/* Two failures are of one kind when the beginnings of their messages are equal. */
static bool fails_alike(const tshi_program *p, void *user) {
    attempt *a = user;
    if (tshi_now() > a->deadline) return false;
    a->s->verdict.kind = VERDICT_SAME;
    pid_t child = tshi_test_fork();
    if (child == 0) {
        int nothing = freopen("/dev/null", "w", stderr)
                          ? 0
                          : 1; /* a smaller program that crashes keeps the message of the first crash */
        alarm(HANG_SECONDS);
        tshi_teams *teams = tshi_teams_open();
        tshi_teams_judge(teams, p, &a->s->verdict);
        tshi_teams_close(teams);
        exit(nothing);
    }
    reap(child, a->s);
    return a->s->verdict.kind == VERDICT_FAILED && !strncmp(a->s->verdict.words, a->first, 5);
}

static void report(const options *o, const char *program, uint64_t seed, shared *s) {
    tshi_program *p = calloc(1, sizeof *p);
    attempt a = {.s = s, .deadline = tshi_now() + SHRINK_SECONDS};
    if (!p) abort();
    snprintf(a.first, sizeof a.first, "%s", s->verdict.words);
    tshi_program_generate(seed, o->ranks, p);
    printf("program %llu fails: %s\n", (unsigned long long)seed, a.first);
    fflush(stdout);
    tshi_program_shrink(p, SHRINK_TRIES, fails_alike, &a);
    a.deadline += HANG_SECONDS;
    bool still = fails_alike(p, &a);
    printf("made smaller%s: %s\n", still ? "" : " (it does not fail every time)", still ? s->verdict.words : a.first);
    tshi_program_print(p, stdout);
    printf("  again: %s --ranks %d --replay %llu\n", program, o->ranks, (unsigned long long)seed);
    fflush(stdout);
    free(p);
}

/* Calls that no program has made, where there were enough programs. */
static int check_calls(const shared *s) {
    int missing = 0;
    for (int c = 0; c < CALL_COUNT && s->programs >= PROGRAMS_THAT_HAVE_ALL_CALLS; c++) {
        if (s->calls[c]) continue;
        printf("no program had %s\n", tshi_verbs[c].name);
        missing++;
    }
    return missing;
}

static int conclude(const shared *s, int failures) {
    double refused = s->programs ? (double)s->refused / (double)s->programs : 0;
    printf("%lld programs, %lld numbers compared, %.2f %% refused for layouts, %.2f %% not judged, %d failures\n",
           (long long)s->programs, (long long)s->compared, 100 * refused,
           s->programs ? 100 * (double)s->unjudged / (double)s->programs : 0, failures);
    bool many = refused > most_refused && s->programs >= PROGRAMS_THAT_HAVE_ALL_CALLS;
    if (many) printf("more than %g %% are refused\n", 100 * most_refused);
    return check_calls(s) + failures > 0 || many;
}

int main(int count, char **words) {
    options o = read_options(count, words);
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) abort();
    int failures = 0;
    double begin = tshi_now();
    uint64_t seed = o.seed;
    while (failures < MOST_FAILURES) {
        s->verdict.kind = VERDICT_SAME;
        pid_t child = tshi_test_fork();
        if (child == 0) {
            run_seeds(&o, seed, begin, s);
            exit(0);
        }
        reap(child, s);
        if (s->verdict.kind != VERDICT_FAILED) break;
        failures++;
        seed = s->seed + 1;
        report(&o, words[0], s->seed, s);
    }
    return conclude(s, failures);
}
