#include "common/machine.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "tshard machine"

typedef struct work_names {
    const char *list, *what, *axis[MACHINE_AXES], *rate; /* keys of the file */
} work_names;

static const work_names works[MACHINE_WORKS] = {
    [MACHINE_PRODUCTS] = {"products", "form", {"m", "n", "k"}, "gflop_per_s"},
    [MACHINE_ATTENTION] = {"attention", "form", {"queries", "dim"}, "gflop_per_s"},
    [MACHINE_KERNELS] = {"kernels", "family", {"bytes"}, "gb_per_s"},
};

int machine_axes(machine_work work) {
    int axes = 0;
    while (axes < MACHINE_AXES && works[work].axis[axes]) axes++;
    return axes;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

machine_table *machine_add_table(machine *m, machine_work work, const int points[MACHINE_AXES]) {
    size_t rates = 1, count = (size_t)m->count[work];
    machine_table *tables = realloc(m->table[work], (count + 1) * sizeof *tables);
    if (!tables) return NULL;
    m->table[work] = tables;
    machine_table *t = &tables[count];
    *t = (machine_table){.rate = NULL};
    for (int a = 0; a < MACHINE_AXES; a++) {
        t->points[a] = a < machine_axes(work) ? points[a] : 1;
        rates *= (size_t)t->points[a];
    }
    t->rate = calloc(rates, sizeof *t->rate);
    if (!t->rate) return NULL;
    m->count[work]++;
    return t;
}

machine_network *machine_add_network(machine *m) {
    machine_network *networks = realloc(m->network, ((size_t)m->networks + 1) * sizeof *networks);
    if (!networks) return NULL;
    m->network = networks;
    networks[m->networks] = (machine_network){.ranks = 0};
    return &networks[m->networks++];
}

void machine_free(machine *m) {
    for (int w = 0; w < MACHINE_WORKS; w++) {
        for (int i = 0; i < m->count[w]; i++) free(m->table[w][i].rate);
        free(m->table[w]);
    }
    free(m->network);
    *m = (machine){.ranks = 0};
}

static int rates_of(const machine_table *t) {
    return t->points[0] * t->points[1] * t->points[2];
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* A string of a JSON file, with the comma and the blank behind it. */
static void put_text(FILE *to, const char *key, const char *text) {
    json_t *string = *text ? json_string(text) : NULL;
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    if (quoted) fprintf(to, "\"%s\": %s, ", key, quoted);
    free(quoted);
    json_decref(string);
}

static void put_numbers(FILE *to, const char *key, int digits, int n, const double *numbers, const char *end) {
    fprintf(to, "\"%s\": [", key);
    for (int i = 0; i < n; i++) fprintf(to, "%s%.*g", i ? ", " : "", digits, numbers[i]);
    fprintf(to, "]%s", end);
}

static void put_table(FILE *to, machine_work work, const machine_table *t) {
    fputs("    {", to);
    put_text(to, works[work].what, t->what);
    put_text(to, "dtype", t->dtype);
    if (t->working_set > 0) fprintf(to, "\"working_set\": %.12g, ", t->working_set);
    for (int a = 0; a < machine_axes(work); a++) put_numbers(to, works[work].axis[a], 12, t->points[a], t->at[a], ", ");
    put_numbers(to, works[work].rate, 4, rates_of(t), t->rate, "}");
}

static void put_network(FILE *to, const machine_network *n) {
    fputs("    {", to);
    put_text(to, "axis", n->axis);
    put_text(to, "kind", n->kind);
    if (n->ranks) fprintf(to, "\"ranks\": %d, ", n->ranks);
    fprintf(to, "\"latency_us\": %.4g, \"bus_gb_per_s\": %.4g, \"overlaps\": %s}", n->latency_us, n->bus_gb_per_s,
            n->overlaps ? "true" : "false");
}

void machine_write(FILE *to, const machine *m) {
    fputs("{\n  \"format\": \"" FORMAT "\", \"version\": 1,\n  ", to);
    put_text(to, "name", m->name);
    if (m->ranks) fprintf(to, "\"ranks\": %d, ", m->ranks);
    fprintf(to, "\"call_us\": %.4g", m->call_us);
    for (int w = 0; w < MACHINE_WORKS; w++) {
        fprintf(to, ",\n  \"%s\": [\n", works[w].list);
        for (int i = 0; i < m->count[w]; i++) {
            put_table(to, (machine_work)w, &m->table[w][i]);
            fputs(i + 1 < m->count[w] ? ",\n" : "\n", to);
        }
        fputs("  ]", to);
    }
    fputs(",\n  \"networks\": [\n", to);
    for (int i = 0; i < m->networks; i++) {
        put_network(to, &m->network[i]);
        fputs(i + 1 < m->networks ? ",\n" : "\n", to);
    }
    fputs("  ]\n}\n", to);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* What reads the file, and the first thing that is wrong with it. */
typedef struct reading {
    machine *m;
    const char *list; /* that is read now */
    size_t item;
    char *why;
    size_t size;
} reading;

static bool fails(reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fails(reading *r, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (r->list)
        snprintf(r->why, r->size, "%s[%zu]: %s", r->list, r->item, text);
    else
        snprintf(r->why, r->size, "%s", text);
    return false;
}

/* The keys of `object` are among the n in `known`. */
static bool only(reading *r, json_t *object, int n, const char *const *known) {
    const char *key;
    json_t *value;
    if (!json_is_object(object)) return fails(r, "an object is wanted");
    json_object_foreach(object, key, value) {
        bool found = false;
        for (int i = 0; i < n; i++) found = found || (known[i] && !strcmp(key, known[i]));
        if (!found) return fails(r, "\"%.80s\" is not known", key);
    }
    return true;
}

/* Empty where the key is not there. */
static bool take_text(reading *r, const json_t *object, const char *key, char *out, size_t size) {
    const json_t *value = json_object_get(object, key);
    if (!value) return true;
    if (!json_is_string(value) || json_string_length(value) >= size) {
        return fails(r, "\"%s\" wants a text of fewer than %zu characters", key, size);
    }
    snprintf(out, size, "%s", json_string_value(value));
    return true;
}

static bool take_number(reading *r, const json_t *object, const char *key, double least, double *out) {
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    if (json_is_number(value) && isfinite(*out) && *out >= least) return true;
    return fails(r, "\"%s\" wants a number of %g or more", key, least);
}

static bool take_numbers(reading *r, const json_t *object, const char *key, int n, bool ascending, double *out) {
    const json_t *array = json_object_get(object, key), *item;
    bool good = json_array_size(array) == (size_t)n;
    for (int i = 0; i < n && good; i++) {
        item = json_array_get(array, (size_t)i);
        out[i] = json_number_value(item);
        good = json_is_number(item) && isfinite(out[i]) && out[i] > 0 && (!ascending || i == 0 || out[i] > out[i - 1]);
    }
    return good || fails(r, "\"%s\" wants a list of %d numbers above 0%s", key, n, ascending ? ", ascending" : "");
}

static bool take_table(reading *r, machine_work work, json_t *object) {
    const work_names *names = &works[work];
    const char *const known[] = {names->what,    "dtype",        "working_set", names->rate,
                                 names->axis[0], names->axis[1], names->axis[2]};
    int points[MACHINE_AXES] = {0};
    if (!only(r, object, 7, known)) return false;
    for (int a = 0; a < machine_axes(work); a++) {
        size_t n = json_array_size(json_object_get(object, names->axis[a]));
        if (n < 1 || n > MACHINE_POINTS) return fails(r, "\"%s\" wants 1 to %d sizes", names->axis[a], MACHINE_POINTS);
        points[a] = (int)n;
    }
    machine_table *t = machine_add_table(r->m, work, points);
    if (!t) return fails(r, "no memory");
    if (!take_text(r, object, names->what, t->what, sizeof t->what) ||
        !take_text(r, object, "dtype", t->dtype, sizeof t->dtype) ||
        (json_object_get(object, "working_set") && !take_number(r, object, "working_set", 1, &t->working_set))) {
        return false;
    }
    for (int a = 0; a < machine_axes(work); a++) {
        if (!take_numbers(r, object, names->axis[a], points[a], true, t->at[a])) return false;
    }
    return take_numbers(r, object, names->rate, rates_of(t), false, t->rate);
}

static bool take_network(reading *r, json_t *object) {
    static const char *const known[] = {"axis", "kind", "ranks", "latency_us", "bus_gb_per_s", "overlaps"};
    double ranks = 0;
    machine_network *n = machine_add_network(r->m);
    if (!n) return fails(r, "no memory");
    if (!only(r, object, 6, known) || !take_text(r, object, "axis", n->axis, sizeof n->axis) ||
        !take_text(r, object, "kind", n->kind, sizeof n->kind) ||
        !take_number(r, object, "latency_us", 0, &n->latency_us) ||
        !take_number(r, object, "bus_gb_per_s", 1e-9, &n->bus_gb_per_s) ||
        (json_object_get(object, "ranks") && !take_number(r, object, "ranks", 2, &ranks))) {
        return false;
    }
    const json_t *overlaps = json_object_get(object, "overlaps");
    if (overlaps && !json_is_boolean(overlaps)) return fails(r, "\"overlaps\" wants true or false");
    if (ranks > 1e6) return fails(r, "\"ranks\" wants at most 1000000");
    n->ranks = (int)ranks;
    n->overlaps = json_is_true(overlaps);
    return true;
}

static bool take_lists(reading *r, const json_t *all) {
    json_t *item;
    for (int w = 0; w < MACHINE_WORKS; w++) {
        r->list = works[w].list;
        json_array_foreach(json_object_get(all, r->list), r->item, item) {
            if (!take_table(r, (machine_work)w, item)) return false;
        }
    }
    r->list = "networks";
    json_array_foreach(json_object_get(all, r->list), r->item, item) {
        if (!take_network(r, item)) return false;
    }
    r->list = NULL;
    return true;
}

static bool take_machine(reading *r, json_t *all) {
    static const char *const known[] = {"format",   "version",   "name",    "ranks",   "call_us",
                                        "products", "attention", "kernels", "networks"};
    double ranks = 0;
    const char *format = json_string_value(json_object_get(all, "format"));
    if (!format || strcmp(format, FORMAT)) return fails(r, "its \"format\" is not \"" FORMAT "\"");
    if (json_integer_value(json_object_get(all, "version")) != 1) return fails(r, "its \"version\" is not 1");
    if (!only(r, all, 9, known) || !take_text(r, all, "name", r->m->name, sizeof r->m->name) ||
        (json_object_get(all, "ranks") && !take_number(r, all, "ranks", 1, &ranks)) ||
        (json_object_get(all, "call_us") && !take_number(r, all, "call_us", 0, &r->m->call_us))) {
        return false;
    }
    r->m->ranks = ranks < 1e6 ? (int)ranks : 1000000;
    return take_lists(r, all);
}

bool machine_read(const char *path, machine *out, char *why, size_t size) {
    char text[512] = "";
    json_error_t error;
    *out = (machine){.ranks = 0};
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    reading r = {.m = out, .why = text, .size = sizeof text};
    bool good = all              ? take_machine(&r, all)
                : error.line > 0 ? fails(&r, "line %d: %.200s", error.line, error.text)
                                 : fails(&r, "%.240s", error.text);
    json_decref(all);
    if (good) return true;
    machine_free(out);
    snprintf(why, size, "%.200s: %s", path, text);
    return false;
}

/* --- looking up --------------------------------------------------------------------------------------------------- */

/* What a name in the file adds to how well a row fits: `weight`, or 0 where the row names none; -1: another one. */
static int fit(const char *named, const char *wanted, int weight) {
    if (!*named) return 0;
    return strcmp(named, wanted) == 0 ? weight : -1;
}

/* Where x lies among the points: *cell and the share of the way to the next point. */
static double locate(int n, const double *points, double x, int *cell) {
    *cell = 0;
    while (*cell + 2 < n && x >= points[*cell + 1]) ++*cell;
    if (n == 1 || x <= points[*cell]) return 0;
    if (x >= points[*cell + 1]) return 1;
    return log(x / points[*cell]) / log(points[*cell + 1] / points[*cell]);
}

static double interpolate(const machine_table *t, const double at[MACHINE_AXES]) {
    int cell[MACHINE_AXES];
    double share[MACHINE_AXES], sum = 0;
    for (int a = 0; a < MACHINE_AXES; a++) share[a] = locate(t->points[a], t->at[a], at[a], &cell[a]);
    for (int corner = 0; corner < 1 << MACHINE_AXES; corner++) {
        double weight = 1;
        int index = 0;
        for (int a = 0; a < MACHINE_AXES; a++) {
            int next = corner >> a & 1;
            weight *= next ? share[a] : 1 - share[a];
            index = index * t->points[a] + cell[a] + next;
        }
        if (weight > 0) sum += weight * log(t->rate[index]);
    }
    return exp(sum);
}

double machine_rate(const machine *m, machine_work work, const char *what, const char *dtype,
                    const double at[MACHINE_AXES], double working_set) {
    const machine_table *below = NULL, *above = NULL; /* the nearest ones of no more and of no smaller working set */
    int most = 0;
    for (int i = 0; i < m->count[work]; i++) {
        const machine_table *t = &m->table[work][i];
        int named = fit(t->what, what, 2), typed = fit(t->dtype, dtype, 1);
        if (named < 0 || typed < 0 || named + typed < most) continue;
        if (named + typed > most) below = above = NULL;
        most = named + typed;
        if (t->working_set <= working_set && (!below || t->working_set > below->working_set)) below = t;
        if (t->working_set >= working_set && (!above || t->working_set < above->working_set)) above = t;
    }
    if (!below && !above) return 0;
    if (!above || !below || below->working_set <= 0 || above->working_set <= below->working_set) {
        return 1e9 * interpolate(below ? below : above, at);
    }
    double share = log(working_set / below->working_set) / log(above->working_set / below->working_set);
    return 1e9 * pow(interpolate(below, at), 1 - share) * pow(interpolate(above, at), share);
}

const machine_network *machine_find_network(const machine *m, const char *axis, const char *kind, int ranks) {
    const machine_network *best = NULL;
    int most = -1;
    for (int i = 0; i < m->networks; i++) {
        const machine_network *n = &m->network[i];
        int along = fit(n->axis, axis, 4), of = fit(n->kind, kind, 2);
        if (along < 0 || of < 0 || (n->ranks && n->ranks != ranks)) continue;
        int named = along + of + (n->ranks ? 1 : 0);
        if (named <= most) continue;
        most = named;
        best = n;
    }
    return best;
}
