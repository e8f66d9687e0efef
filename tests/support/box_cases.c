#define _GNU_SOURCE
#include "support/box_cases.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* The first failure of the file is kept. Returns false. */
TSH_PRINTF(2, 3) static bool wrong(tshi_box_cases *cases, const char *format, ...) {
    if (cases->error[0]) return false;
    int used = snprintf(cases->error, sizeof cases->error, "%s:%d: ", cases->path, cases->number);
    if (used < 0 || used >= (int)sizeof cases->error) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cases->error + used, sizeof cases->error - (size_t)used, format, arguments);
    va_end(arguments);
    return false;
}

/* Numbers between separators, at most `room`; -1, with the error set, where there are more or a word is none. */
static int numbers(tshi_box_cases *cases, char *text, const char *separators, int room, double *out) {
    int n = 0;
    char *rest = text;
    for (char *word, *end; (word = strtok_r(rest, separators, &rest));) {
        if (n == room) return wrong(cases, "more than %d values", room), -1;
        out[n] = strtod(word, &end);
        if (*end || end == word) return wrong(cases, "'%s' is no number", word), -1;
        n++;
    }
    return n;
}

/* Whole numbers in [0, most]. */
static int integers(tshi_box_cases *cases, char *text, const char *separators, int room, int most, int *out) {
    double values[TSHI_CASE_RANKS];
    int n = text ? numbers(cases, text, separators, room, values) : 0;
    for (int i = 0; i < n; i++) {
        if (values[i] < 0 || values[i] > most || values[i] != (int)values[i]) {
            return wrong(cases, "%g is not in [0, %d]", values[i], most), -1;
        }
        out[i] = (int)values[i];
    }
    return n;
}

static bool read_layout(tshi_box_cases *cases, const char *word, tsh_layout *out) {
    if (word && (!strcmp(word, "R") || !strcmp(word, "P"))) {
        *out = word[0] == 'R' ? TSH_REPLICATED : TSH_PARTIAL;
        return true;
    }
    if (!word || word[0] != 'S' || word[1] < '0' || word[1] >= '0' + TSH_MAX_DIMS || word[2]) {
        return wrong(cases, "'%s' is no layout", word ? word : "");
    }
    *out = TSH_SHARD(word[1] - '0');
    return true;
}

/* "2x2 0,1,2,3 R,S0 1,0" */
static bool read_placement(tshi_box_cases *cases, char *text, tshi_placement *p, int *ranks) {
    char *axes = strtok_r(text, " ", &text), *list = strtok_r(text, " ", &text), *layouts = strtok_r(text, " ", &text);
    char *order = strtok_r(text, " ", &text);
    int sequence[TSH_MAX_AXES];
    *p = (tshi_placement){.ranks = ranks};
    p->axes = integers(cases, axes, "x", TSH_MAX_AXES, TSHI_CASE_RANKS, p->size);
    if (p->axes < 1) return wrong(cases, "no axes");
    int members = tshi_placement_members(p);
    if (integers(cases, list, ",", TSHI_CASE_RANKS, TSHI_CASE_RANKS - 1, ranks) != members) {
        return wrong(cases, "%d ranks are wanted", members);
    }
    for (int a = 0; a < p->axes; a++) {
        if (!read_layout(cases, layouts ? strtok_r(layouts, ",", &layouts) : NULL, &p->layout[a])) return false;
    }
    if (!order) return true;
    if (integers(cases, order, ",", TSH_MAX_AXES, p->axes - 1, sequence) != p->axes) {
        return wrong(cases, "a split order of %d axes is wanted", p->axes);
    }
    for (int i = 0; i < p->axes; i++) p->layout[sequence[i]].order = i;
    return true;
}

/* "AXIS W0,W1,..." */
static bool read_weights(tshi_box_cases *cases, char *text, tshi_placement *p,
                         int64_t weights[TSH_MAX_AXES][TSHI_CASE_RANKS]) {
    int axis, list[TSHI_CASE_RANKS];
    if (integers(cases, strtok_r(text, " ", &text), " ", 1, p->axes - 1, &axis) != 1) {
        return wrong(cases, "an axis is wanted");
    }
    if (integers(cases, text, ",", TSHI_CASE_RANKS, INT_MAX, list) != p->size[axis]) {
        return wrong(cases, "%d weights are wanted", p->size[axis]);
    }
    for (int i = 0; i < p->size[axis]; i++) weights[axis][i] = list[i];
    p->weights[axis] = tshi_weights_simplify(weights[axis], p->size[axis]);
    return true;
}

/* "RANK VALUES..." */
static bool read_part(tshi_box_cases *cases, char *text, tshi_case_parts *p) {
    int rank;
    if (integers(cases, strtok_r(text, " ", &text), " ", 1, TSHI_CASE_RANKS - 1, &rank) != 1) {
        return wrong(cases, "a rank is wanted");
    }
    p->count[rank] = numbers(cases, text, " ", TSHI_CASE_ELEMENTS, p->value[rank]);
    return p->count[rank] >= 0;
}

/* "RANKS VALUES..." */
static bool read_sum(tshi_box_cases *cases, char *text, tshi_box_case *c) {
    if (c->sum_count == TSHI_CASE_RANKS) return wrong(cases, "too many sums");
    tshi_case_sum *s = &c->sums[c->sum_count++];
    char *ranks = strtok_r(text, " ", &text);
    s->n = integers(cases, ranks, ",", TSHI_CASE_RANKS, TSHI_CASE_RANKS - 1, s->ranks);
    s->count = s->n < 1 ? -1 : numbers(cases, text, " ", TSHI_CASE_ELEMENTS, s->value);
    return s->count >= 0 || wrong(cases, "ranks and values are wanted");
}

static bool read_shape(tshi_box_cases *cases, char *text, tshi_exchange *e) {
    int dims[TSH_MAX_DIMS];
    e->ndim = integers(cases, text, " ", TSH_MAX_DIMS, TSHI_CASE_ELEMENTS, dims);
    for (int d = 0; d < e->ndim; d++) e->shape[d] = dims[d];
    return e->ndim >= 0;
}

static bool read_count(tshi_box_cases *cases, const char *text, long most, long *out) {
    char *end;
    *out = strtol(text, &end, 10);
    return (end != text && !*end && *out >= 0 && *out <= most) || wrong(cases, "'%s' is no number of them", text);
}

static bool read_line(tshi_box_cases *cases, tshi_box_case *c, const char *key, char *text) {
    long world;
    if (!strcmp(key, "world")) {
        if (!read_count(cases, text, TSHI_CASE_RANKS, &world)) return false;
        c->world = (int)world;
        return true;
    }
    if (!strcmp(key, "calls")) return read_count(cases, text, LONG_MAX, &c->calls);
    if (!strcmp(key, "bytes")) return read_count(cases, text, LONG_MAX, &c->bytes);
    if (!strcmp(key, "from")) return read_placement(cases, text, &c->e.from, c->from_ranks);
    if (!strcmp(key, "to")) return read_placement(cases, text, &c->e.to, c->to_ranks);
    if (!strcmp(key, "weights-from")) return read_weights(cases, text, &c->e.from, c->from_weights);
    if (!strcmp(key, "weights-to")) return read_weights(cases, text, &c->e.to, c->to_weights);
    if (!strcmp(key, "shape")) return read_shape(cases, text, &c->e);
    if (!strcmp(key, "in")) return read_part(cases, text, &c->in);
    if (!strcmp(key, "out")) return read_part(cases, text, &c->out);
    if (!strcmp(key, "dout")) return read_part(cases, text, &c->dout);
    if (!strcmp(key, "din")) return read_part(cases, text, &c->din);
    if (!strcmp(key, "sum")) return read_sum(cases, text, c);
    return wrong(cases, "'%s' is no key", key);
}

/* --- cases -------------------------------------------------------------------------------------------------------- */

bool tshi_box_cases_open(tshi_box_cases *cases, const char *path) {
    *cases = (tshi_box_cases){.path = path, .file = fopen(path, "r")};
    if (cases->file) return true;
    snprintf(cases->error, sizeof cases->error, "%s: %s", path, strerror(errno));
    return false;
}

void tshi_box_cases_close(tshi_box_cases *cases) {
    if (cases->file) fclose(cases->file);
    free(cases->line);
}

static void begin(tshi_box_case *c, const char *name) {
    memset(c, 0, sizeof *c);
    tshi_case_parts_clear(&c->in);
    tshi_case_parts_clear(&c->out);
    tshi_case_parts_clear(&c->dout);
    tshi_case_parts_clear(&c->din);
    c->calls = c->bytes = -1;
    snprintf(c->name, sizeof c->name, "%s", name);
}

/* Each rank of the meshes is one of the world, and holds in `in` as much as its box. */
static bool check_case(tshi_box_cases *cases, const tshi_box_case *c) {
    const tshi_placement *sides[] = {&c->e.from, &c->e.to};
    for (int s = 0; s < 2; s++) {
        if (!sides[s]->axes) return wrong(cases, "case %s lacks a side", c->name);
        for (int m = 0; m < tshi_placement_members(sides[s]); m++) {
            int rank = tshi_placement_rank(sides[s], m);
            if (rank >= c->world) return wrong(cases, "case %s: its world has no rank %d", c->name, rank);
            tsh_box box = tshi_placement_box(sides[s], c->e.ndim, c->e.shape, m);
            const tshi_case_parts *parts = s ? &c->dout : &c->in;
            if (parts->count[rank] == tshi_box_numel(c->e.ndim, &box)) continue;
            return wrong(cases, "case %s: %s of rank %d is not its box", c->name, s ? "dout" : "in", rank);
        }
    }
    return true;
}

bool tshi_box_cases_next(tshi_box_cases *cases, tshi_box_case *out) {
    begin(out, cases->next);
    cases->next[0] = '\0';
    for (ssize_t length; (length = getline(&cases->line, &cases->room, cases->file)) >= 0;) {
        char *rest = cases->line;
        cases->number++;
        cases->line[strcspn(cases->line, "\n")] = '\0';
        char *key = strtok_r(rest, " ", &rest);
        if (!key || key[0] == '#') continue;
        if (!strcmp(key, "case")) {
            char *name = out->name[0] ? cases->next : out->name;
            snprintf(name, TSHI_CASE_NAME, "%s", rest);
            if (name == cases->next) return check_case(cases, out);
        } else if (!out->name[0]) {
            return wrong(cases, "'%s' stands before the first case", key);
        } else if (!read_line(cases, out, key, rest)) {
            return false;
        }
    }
    if (ferror(cases->file)) return wrong(cases, "%s", strerror(errno));
    return out->name[0] ? check_case(cases, out) : false;
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

void tshi_case_parts_clear(tshi_case_parts *parts) {
    for (int r = 0; r < TSHI_CASE_RANKS; r++) parts->count[r] = -1;
}

static bool same_parts(int world, const tshi_case_parts *wanted, const tshi_case_parts *got, const char *what,
                       char words[TSHI_CASE_WORDS]) {
    for (int r = 0; r < world; r++) {
        int n = wanted->count[r];
        if (n < 0) continue;
        if (got->count[r] != n) {
            snprintf(words, TSHI_CASE_WORDS, "%s of rank %d has %d elements, %d wanted", what, r, got->count[r], n);
            return false;
        }
        for (int i = 0; i < n; i++) {
            if (got->value[r][i] == wanted->value[r][i]) continue;
            snprintf(words, TSHI_CASE_WORDS, "%s of rank %d at %d is %g, %g wanted", what, r, i, got->value[r][i],
                     wanted->value[r][i]);
            return false;
        }
    }
    return true;
}

static bool same_sum(const tshi_case_sum *s, const tshi_case_parts *got, char words[TSHI_CASE_WORDS]) {
    for (int j = 0; j < s->n; j++) {
        if (got->count[s->ranks[j]] == s->count) continue;
        snprintf(words, TSHI_CASE_WORDS, "rank %d has %d elements of a sum of %d", s->ranks[j], got->count[s->ranks[j]],
                 s->count);
        return false;
    }
    for (int i = 0; i < s->count; i++) {
        double total = 0;
        for (int j = 0; j < s->n; j++) total += got->value[s->ranks[j]][i];
        if (total == s->value[i]) continue;
        snprintf(words, TSHI_CASE_WORDS, "the sum at %d is %g, %g wanted", i, total, s->value[i]);
        return false;
    }
    return true;
}

bool tshi_box_case_out(const tshi_box_case *c, const tshi_case_parts *got, char words[TSHI_CASE_WORDS]) {
    bool same = same_parts(c->world, &c->out, got, "out", words);
    for (int i = 0; same && i < c->sum_count; i++) same = same_sum(&c->sums[i], got, words);
    return same;
}

bool tshi_box_case_din(const tshi_box_case *c, const tshi_case_parts *got, char words[TSHI_CASE_WORDS]) {
    return same_parts(c->world, &c->din, got, "din", words);
}
