#define _GNU_SOURCE
#include "search.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTED = 20, PATIENCE = 2 /* seconds */ };

/* What the plan of one combination says. */
typedef struct variant {
    int choice[SEARCH_OPTIONS]; /* indices of values */
    double peak, seconds; /* of the rank with the highest peak, bytes; of the slowest rank's step, or 0 if unknown */
} variant;

typedef struct searching {
    const search *s;
    int ranks;
    const machine *machine;
    char *const *command;
    variant *found; /* those that fit */
    variant least;  /* the one that needs least, of those over the limit */
    int tried, all, fit, large, failed;
    int screen; /* a copy of stderr; plans write theirs to `words` */
    double since;
    FILE *words;
    char failure[512]; /* the last words of the first combination that failed */
} searching;

/* --- lists of values ---------------------------------------------------------------------------------------------- */

const char *search_add(search *s, char *text) {
    char *values = strchr(text, '=');
    if (s->options == SEARCH_OPTIONS) return "fewer options";
    if (!values || values == text || !values[1]) return "NAME=A,B,...";
    search_option *o = &s->option[s->options];
    *values++ = '\0';
    while (*text == '-') text++;
    *o = (search_option){.name = text};
    for (char *value; (value = strsep(&values, ","));) {
        if (!*value) return "values that are not empty";
        if (o->values == SEARCH_VALUES) return "at most 64 values";
        o->value[o->values++] = value;
    }
    int64_t all = 1;
    for (int i = 0; i <= s->options; i++) all *= s->option[i].values;
    if (all > SEARCH_MOST) return "at most 4096 combinations";
    s->options++;
    return NULL;
}

/* "on" is a bare option, "off" none; else --NAME=VALUE. False without memory. */
static bool add_argument(const search_option *o, int choice, char **argv, int *n) {
    const char *value = o->value[choice];
    if (!strcmp(value, "off")) return true;
    bool bare = !strcmp(value, "on");
    if (asprintf(&argv[*n], "--%s%s%s", o->name, bare ? "" : "=", bare ? "" : value) < 0) return false;
    ++*n;
    return true;
}

/* --- one plan ----------------------------------------------------------------------------------------------------- */

/* The peak of the fullest kind of ranks, the step of the slowest. */
static void take_plan(const searching *w, const plan_result *result, variant *v) {
    for (int k = 0; k < result->count; k++) {
        double peak = (double)result->kinds[k].record->peak;
        if (peak > v->peak) v->peak = peak;
    }
    if (w->machine) v->seconds = plan_slowest(result, w->machine).all;
}

/* Plans with these arguments; returns the exit code. */
static int make_plan(const searching *w, char **argv, variant *v) {
    static plan_result result;
    fflush(NULL);
    rewind(w->words);
    if (ftruncate(fileno(w->words), 0) != 0 || dup2(fileno(w->words), STDERR_FILENO) < 0) return 1;
    int code = plan_run(w->ranks, argv, &result);
    fflush(stderr);
    dup2(w->screen, STDERR_FILENO);
    if (code == 0) take_plan(w, &result, v);
    plan_free(&result);
    return code;
}

/* The last line that a plan has written, other than this program's own. */
static void take_last_words(FILE *from, char *out, size_t size) {
    char line[512];
    rewind(from);
    while (fgets(line, sizeof line, from)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] && (!out[0] || strncmp(line, "tshard-plan: ", 13) != 0)) snprintf(out, size, "%s", line);
    }
}

static int plan_variant(searching *w, variant *v) {
    int given = 0, n, code = 1;
    while (w->command[given]) given++;
    char **argv = calloc((size_t)(given + SEARCH_OPTIONS + 1), sizeof *argv);
    bool good = argv != NULL;
    if (good) memcpy(argv, w->command, (size_t)given * sizeof *argv);
    n = given;
    for (int i = 0; i < w->s->options && good; i++) {
        good = add_argument(&w->s->option[i], v->choice[i], argv, &n);
    }
    if (good) code = make_plan(w, argv, v);
    for (int i = given; argv && i < n; i++) free(argv[i]);
    free(argv);
    if (code != 0 && !w->failure[0]) take_last_words(w->words, w->failure, sizeof w->failure);
    return code;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* "model-parallel=2 zero=1" */
static const char *describe(const search *s, const variant *v, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < s->options && used < size; i++) {
        const search_option *o = &s->option[i];
        used += (size_t)snprintf(text + used, size - used, "%s%s=%s", i ? " " : "", o->name, o->value[v->choice[i]]);
    }
    return text;
}

/* Shows progress on a terminal once a search has taken some seconds. */
static void show_progress(const searching *w, const variant *v) {
    char text[512];
    if (!isatty(STDERR_FILENO) || tshi_clock() - w->since < PATIENCE) return;
    fprintf(stderr, "\r\033[Ktshard-plan: %d of %d: %s", w->tried + 1, w->all, describe(w->s, v, text, sizeof text));
}

/* The last option's value changes fastest. */
static void choose(const search *s, int number, variant *v) {
    for (int i = s->options - 1; i >= 0; i--) {
        v->choice[i] = number % s->option[i].values;
        number /= s->option[i].values;
    }
}

/* Returns 0, or the exit code after a signal. */
static int try_all(searching *w) {
    for (; w->tried < w->all; w->tried++) {
        variant v = {.peak = 0};
        choose(w->s, w->tried, &v);
        show_progress(w, &v);
        int code = plan_variant(w, &v);
        if (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP || code == 128 + SIGQUIT) return code;
        if (code != 0)
            w->failed++;
        else if (!w->s->memory_limit || v.peak <= (double)w->s->memory_limit)
            w->found[w->fit++] = v;
        else if (w->large++ == 0 || v.peak < w->least.peak)
            w->least = v;
    }
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    return 0;
}

static int compare(const void *left, const void *right) {
    const variant *a = left, *b = right;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    return (a->peak > b->peak) - (a->peak < b->peak);
}

/* --- what is printed ---------------------------------------------------------------------------------------------- */

static void print_table(const searching *w) {
    const search *s = w->s;
    for (int i = 0; i < s->options; i++) printf("%*s  ", (int)strlen(s->option[i].name), s->option[i].name);
    printf("%12s%s\n", "peak MiB", w->machine ? "      step ms" : "");
    for (int k = 0; k < w->fit && k < LISTED; k++) {
        const variant *v = &w->found[k];
        for (int i = 0; i < s->options; i++) {
            printf("%*s  ", (int)strlen(s->option[i].name), s->option[i].value[v->choice[i]]);
        }
        printf("%12.1f", v->peak / (1 << 20));
        if (w->machine) printf(" %12.3f", 1e3 * v->seconds);
        putchar('\n');
    }
    printf("%d of %d combinations fit", w->fit, w->all);
    if (s->memory_limit) printf(" into %lld bytes a rank; %d need more", (long long)s->memory_limit, w->large);
    if (w->fit == 0 && w->large > 0) {
        char text[512];
        printf(", the least of them %.0f: %s", w->least.peak, describe(s, &w->least, text, sizeof text));
    }
    if (w->failed) printf("; %d do not run, the first of them: %s", w->failed, w->failure);
    putchar('\n');
}

static void print_json(const searching *w) {
    const search *s = w->s;
    json_t *list = json_array();
    for (int k = 0; k < w->fit; k++) {
        const variant *v = &w->found[k];
        json_t *options = json_object();
        for (int i = 0; i < s->options; i++) {
            json_object_set_new(options, s->option[i].name, json_string(s->option[i].value[v->choice[i]]));
        }
        json_t *item = json_pack("{s:o, s:I}", "options", options, "peak_bytes", (json_int_t)v->peak);
        if (w->machine) json_object_set_new(item, "step_seconds", json_real(v->seconds));
        json_array_append_new(list, item);
    }
    json_t *all =
        json_pack("{s:o, s:i, s:i, s:i}", "best", list, "tried", w->all, "too_large", w->large, "failed", w->failed);
    if (w->failed) json_object_set_new(all, "first_failure", json_string(w->failure));
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(all);
}

int search_run(const search *s, int ranks, const machine *m, bool json, char *const *command) {
    searching w = {.s = s, .ranks = ranks, .machine = m, .command = command, .all = 1, .since = tshi_clock()};
    for (int i = 0; i < s->options; i++) w.all *= s->option[i].values;
    w.found = calloc((size_t)w.all, sizeof *w.found);
    w.words = tmpfile();
    w.screen = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    int code = 1;
    if (!w.found || !w.words || w.screen < 0)
        plan_say("cannot search: %s", strerror(errno));
    else
        code = try_all(&w);
    if (code == 0) {
        qsort(w.found, (size_t)w.fit, sizeof *w.found, compare);
        if (json)
            print_json(&w);
        else
            print_table(&w);
        if (w.fit == 0) code = 1;
    }
    if (w.words) fclose(w.words);
    if (w.screen >= 0) close(w.screen);
    free(w.found);
    return code;
}
