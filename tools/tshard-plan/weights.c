/* Weights of an axis that follow the ranks' speeds as far as each rank's peak allows. The peak of a dry run is taken to
 * be a line over the rank's share, through zero until two shares are known; plans repeat until all peaks fit. */
#define _GNU_SOURCE
#include "weights.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_PLANS = 12,
    GRAIN = 64 /* shares are multiples of 1 / (GRAIN * parts) once they do not follow the speeds */
};

typedef struct weighed {
    int64_t weight;
    double share, peak;             /* of the last plan */
    double before_share, before_at; /* share and peak of the last plan with another share; 0: none */
} weighed;

typedef struct weighing {
    const weights_search *s;
    int ranks, parts;
    char *const *command;
    weighed part[WEIGHTS_MOST];
} weighing;

const char *weights_add_speeds(weights_search *s, char *text) {
    for (char *word; (word = strsep(&text, ",:"));) {
        if (s->speeds == WEIGHTS_MOST) return "at most 256 of them";
        if (!tshi_parse_int(word, 1, 1000000, &s->speed[s->speeds++])) return "whole numbers from 1 to 1000000";
    }
    return NULL;
}

const char *weights_add_limits(weights_search *s, char *text) {
    for (char *word; (word = strsep(&text, ","));) {
        if (s->limits == WEIGHTS_MOST) return "at most 256 of them";
        if (!tshi_parse_bytes(word, 1, INT64_MAX, &s->limit[s->limits++])) return "bytes, like 80G or 8G,4G,";
    }
    return NULL;
}

static double speed_of(const weights_search *s, int part) {
    return s->speeds ? s->speed[part] : 1;
}

static double limit_of(const weights_search *s, int part) {
    if (!s->limits) return 0x1p62;
    return (double)s->limit[s->limits == 1 ? 0 : part];
}

/* --- a plan ------------------------------------------------------------------------------------------------------- */

/* The distance of neighbouring ranks along the axis with weights, else along the last one of this size. */
static int stride_of(const tshi_record *record, int parts) {
    int stride = 1, found = 1;
    for (int a = record->axes - 1; a >= 0; a--) {
        bool fits = record->axis[a].size == parts;
        if (fits && record->axis[a].weights[0]) return stride;
        if (fits && found == 1) found = stride;
        stride *= record->axis[a].size;
    }
    return found;
}

/* The highest peak of the ranks with each index; where none of them ran, of all ranks. */
static void take_peaks(weighing *w, const plan_result *result) {
    double most = 0;
    for (int i = 0; i < w->parts; i++) w->part[i].peak = 0;
    for (int k = 0; k < result->count; k++) {
        const plan_kind *kind = &result->kinds[k];
        double peak = (double)kind->record->peak;
        int stride = stride_of(kind->record, w->parts);
        most = peak > most ? peak : most;
        for (int i = 0; i < kind->count; i++) {
            weighed *part = &w->part[kind->ranks[i] / stride % w->parts];
            part->peak = peak > part->peak ? peak : part->peak;
        }
    }
    for (int i = 0; i < w->parts; i++) w->part[i].peak = w->part[i].peak > 0 ? w->part[i].peak : most;
}

/* Appends "3:1" to text. */
static void append_weights(const weighing *w, char *text, size_t size) {
    for (int i = 0; i < w->parts; i++) tshi_append(text, size, "%s%lld", i ? ":" : "", (long long)w->part[i].weight);
}

static int make_weighed_plan(weighing *w) {
    static plan_result result;
    char option[16 * WEIGHTS_MOST] = "";
    int given = 0;
    while (w->command[given]) given++;
    char **argv = calloc((size_t)given + 2, sizeof *argv);
    if (!argv) return 1;
    memcpy(argv, w->command, (size_t)given * sizeof *argv);
    tshi_append(option, sizeof option, "--%s=", w->s->option);
    append_weights(w, option, sizeof option);
    argv[given] = option;
    int code = plan_run(w->ranks, argv, &result);
    if (code == 0) take_peaks(w, &result);
    plan_free(&result);
    free(argv);
    return code;
}

static bool peaks_fit(const weighing *w) {
    for (int i = 0; i < w->parts; i++) {
        if (w->part[i].peak > limit_of(w->s, i)) return false;
    }
    return true;
}

/* --- shares ------------------------------------------------------------------------------------------------------- */

/* The largest share with which the rank's peak stays within its limit, as far as its plans tell. */
static double share_limit(const weighing *w, int i) {
    const weighed *p = &w->part[i];
    double limit = limit_of(w->s, i), slope = p->share > 0 ? p->peak / p->share : p->peak * w->parts, base = 0;
    if (p->before_at > 0 && p->before_share != p->share) {
        double line = (p->peak - p->before_at) / (p->share - p->before_share);
        if (line > 0 && line <= slope) slope = line;
    }
    base = p->peak - slope * p->share;
    double most = slope > 0 ? (limit - base) / slope : 1;
    return most < 0 ? 0 : most > 1 ? 1 : most;
}

/* Shares by speed, none above its limit; where all limits together are too small, in proportion to them. */
static void choose_shares(const weighing *w, double share[WEIGHTS_MOST]) {
    double limit[WEIGHTS_MOST], left = 1, all = 0;
    bool full[WEIGHTS_MOST] = {false};
    for (int i = 0; i < w->parts; i++) all += limit[i] = share_limit(w, i);
    for (int i = 0; i < w->parts; i++) share[i] = all > 0 ? limit[i] / all : 1.0 / w->parts;
    for (bool changed = all >= 1; changed;) {
        double speeds = 0, rest = left;
        changed = false;
        for (int i = 0; i < w->parts; i++) speeds += full[i] ? 0 : speed_of(w->s, i);
        for (int i = 0; i < w->parts; i++) {
            if (full[i]) continue;
            share[i] = rest * speed_of(w->s, i) / speeds;
            if (share[i] <= limit[i]) continue;
            share[i] = limit[i];
            left -= limit[i];
            full[i] = changed = true;
        }
    }
}

/* Whole weights near the shares: each rounded down, and the rest to those that are farthest below. */
static void round_shares(weighing *w, const double share[WEIGHTS_MOST]) {
    int64_t all = (int64_t)GRAIN * w->parts, left = all;
    for (int i = 0; i < w->parts; i++) {
        weighed *p = &w->part[i];
        if (p->share != share[i]) p->before_share = p->share, p->before_at = p->peak;
        p->weight = (int64_t)(share[i] * (double)all + 1e-6);
        left -= p->weight;
    }
    for (; left > 0; left--) {
        int next = 0;
        double most = -1e300;
        for (int i = 0; i < w->parts; i++) {
            double room = share_limit(w, i) - (double)w->part[i].weight / (double)all;
            if (room > most) most = room, next = i;
        }
        w->part[next].weight++;
    }
    for (int i = 0; i < w->parts; i++) w->part[i].share = (double)w->part[i].weight / (double)all;
}

/* --- the search --------------------------------------------------------------------------------------------------- */

static void start_shares(weighing *w) {
    double all = 0;
    for (int i = 0; i < w->parts; i++) all += speed_of(w->s, i);
    for (int i = 0; i < w->parts; i++) {
        w->part[i].weight = (int64_t)speed_of(w->s, i);
        w->part[i].share = (double)w->part[i].weight / all;
    }
}

static void divide_weights(weighing *w) {
    int64_t divisor = 0;
    for (int i = 0; i < w->parts; i++) {
        for (int64_t a = w->part[i].weight; a;) {
            int64_t rest = divisor % a;
            divisor = a;
            a = rest;
        }
    }
    for (int i = 0; i < w->parts; i++) w->part[i].weight /= divisor;
}

static void print_weights(const weighing *w, bool fit) {
    char text[16 * WEIGHTS_MOST] = "";
    append_weights(w, text, sizeof text);
    printf("%6s %10s %8s %12s%s\n", "rank", "weight", "share", "peak MiB", w->s->limits ? "    limit MiB" : "");
    for (int i = 0; i < w->parts; i++) {
        const weighed *p = &w->part[i];
        printf("%6d %10lld %7.1f%% %12.1f", i, (long long)p->weight, 100 * p->share, p->peak / (1 << 20));
        if (w->s->limits) printf(" %12.1f", limit_of(w->s, i) / (1 << 20));
        putchar('\n');
    }
    if (fit)
        printf("--%s=%s\n", w->s->option, text);
    else
        printf("no weights fit in %d plans; the last are %s\n", MOST_PLANS, text);
}

static void print_weights_json(const weighing *w, bool fit) {
    char text[16 * WEIGHTS_MOST] = "";
    json_t *list = json_array();
    append_weights(w, text, sizeof text);
    for (int i = 0; i < w->parts; i++) {
        const weighed *p = &w->part[i];
        json_t *item = json_pack("{s:I, s:f, s:I}", "weight", (json_int_t)p->weight, "share", p->share, "peak_bytes",
                                 (json_int_t)p->peak);
        if (w->s->limits) json_object_set_new(item, "limit_bytes", json_integer((json_int_t)limit_of(w->s, i)));
        json_array_append_new(list, item);
    }
    json_t *all =
        json_pack("{s:b, s:s, s:s, s:o}", "fits", fit, "option", w->s->option, "weights", text, "ranks", list);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(all);
}

int weights_run(const weights_search *s, int ranks, bool json, char *const *command) {
    static weighing w;
    w = (weighing){.s = s, .ranks = ranks, .parts = ranks, .command = command};
    if (s->limits > 1) w.parts = s->limits;
    if (s->speeds) w.parts = s->speeds;
    bool differ = s->speeds && s->limits > 1 && s->speeds != s->limits;
    if (differ || w.parts > WEIGHTS_MOST || ranks % w.parts) {
        plan_say("%d speeds and %d memory limits: an axis of the %d ranks has as many, at most %d", s->speeds,
                 s->limits, ranks, WEIGHTS_MOST);
        return 2;
    }
    start_shares(&w);
    int code = make_weighed_plan(&w);
    for (int plans = 1; code == 0 && plans < MOST_PLANS && !peaks_fit(&w); plans++) {
        double share[WEIGHTS_MOST];
        choose_shares(&w, share);
        round_shares(&w, share);
        code = make_weighed_plan(&w);
    }
    if (code != 0) return code;
    bool fit = peaks_fit(&w);
    divide_weights(&w);
    if (json)
        print_weights_json(&w, fit);
    else
        print_weights(&w, fit);
    return fit ? 0 : 1;
}
