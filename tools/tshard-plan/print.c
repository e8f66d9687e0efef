/* Prints a plan as a table or as JSON. */
#include "plan.h"

#include <inttypes.h>
#include <string.h>

#define LABEL 22
#define CELL  26

/* In the order of the table. */
static const tsh_memory_purpose purposes[] = {TSH_MEMORY_PARAMETERS,  TSH_MEMORY_GRADIENTS,     TSH_MEMORY_OPTIMIZER,
                                              TSH_MEMORY_ACTIVATIONS, TSH_MEMORY_COMMUNICATION, TSH_MEMORY_OTHER};
#define PURPOSES ((int)(sizeof purposes / sizeof *purposes))

/* The collectives of one kind along one axis, in a step. */
typedef struct row {
    const char *name, *axis;
    int ranks;
} row;

typedef struct total {
    uint64_t calls, early;
    double bytes;
} total;

static bool is_in(const tshi_record_entry *e, const row *r) {
    return e->call.kind == TSHI_RECORD_COLLECTIVE && e->calls && !strcmp(e->call.name, r->name) &&
           !strcmp(e->call.axis, r->axis) && e->call.size[0] == r->ranks;
}

static total total_of(const tshi_record *record, const row *r) {
    total t = {0};
    for (int i = 0; i < record->count; i++) {
        const tshi_record_entry *e = &record->entries[i];
        if (!is_in(e, r)) continue;
        t.calls += e->calls;
        t.early += e->call.early ? e->calls : 0;
        t.bytes += (double)e->calls * (double)e->bytes;
    }
    return t;
}

enum { MOST_ROWS = 64 };

/* The rows that any of the kinds has. */
static int rows_of(const plan_result *result, int first, int count, row rows[MOST_ROWS]) {
    int n = 0;
    for (int k = first; k < first + count; k++) {
        const tshi_record *record = result->kinds[k].record;
        for (int i = 0; i < record->count; i++) {
            const tshi_record_entry *e = &record->entries[i];
            int at = 0;
            while (at < n && !is_in(e, &rows[at])) at++;
            if (at < n || n == MOST_ROWS || e->call.kind != TSHI_RECORD_COLLECTIVE || !e->calls) continue;
            rows[n++] = (row){e->call.name, e->call.axis, (int)e->call.size[0]};
        }
    }
    return n;
}

static double gflop(const tshi_record *record) {
    double flops = 0;
    for (int i = 0; i < record->count; i++) flops += record->entries[i].flops * (double)record->entries[i].calls;
    return flops / 1e9;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const char *bytes_text(double bytes, char *text, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, size, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

static void print_cells(const char *label, int count, char cells[][CELL * 4]) {
    printf("%-*s", LABEL, label);
    for (int k = 0; k < count; k++) printf("  %*s", CELL - 2, cells[k]);
    putchar('\n');
}

static void ranks_text(const plan_result *result, const plan_kind *kind, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "rank%s", kind->count > 1 ? "s" : "");
    if (result->uniform && result->size > 2) {
        snprintf(text, size, "ranks 0 to %d", result->size - 1);
        return;
    }
    for (int i = 0; i < kind->count && used + 12 < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? ", " : " ", kind->ranks[i]);
    }
}

static void print_memory(const plan_result *result, int first, int count) {
    char cells[PLAN_MAX_RUNS][CELL * 4];
    for (int p = 0; p < PURPOSES; p++) {
        for (int k = 0; k < count; k++) {
            size_t bytes = result->kinds[first + k].record->memory.at_peak[purposes[p]];
            bytes_text((double)bytes, cells[k], sizeof cells[k]);
        }
        print_cells(tsh_memory_purpose_name(purposes[p]), count, cells);
    }
    for (int k = 0; k < count; k++)
        bytes_text((double)result->kinds[first + k].record->peak, cells[k], sizeof cells[k]);
    print_cells("peak", count, cells);
    for (int k = 0; k < count; k++) {
        const tsh_memory_use *m = &result->kinds[first + k].record->memory;
        snprintf(cells[k], sizeof cells[k], "%s", m->function[0] ? m->function : "no function");
    }
    print_cells("  in", count, cells);
    for (int k = 0; k < count; k++) {
        const tsh_memory_use *m = &result->kinds[first + k].record->memory;
        snprintf(cells[k], sizeof cells[k], "%s", m->backward ? "backward" : m->function[0] ? "forward" : "-");
    }
    print_cells("", count, cells);
    for (int k = 0; k < count; k++) {
        const tsh_memory_use *m = &result->kinds[first + k].record->memory;
        snprintf(cells[k], sizeof cells[k], "%.30s", m->layer[0] ? m->layer : "-");
    }
    print_cells("  at", count, cells);
}

static void print_collectives(const plan_result *result, int first, int count) {
    char cells[PLAN_MAX_RUNS][CELL * 4], label[96], bytes[32];
    row rows[MOST_ROWS];
    int n = rows_of(result, first, count, rows);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < count; k++) {
            total t = total_of(result->kinds[first + k].record, &rows[i]);
            snprintf(cells[k], sizeof cells[k], "%" PRIu64 " x, %s", t.calls, bytes_text(t.bytes, bytes, sizeof bytes));
        }
        snprintf(label, sizeof label, "%s %s", rows[i].name, rows[i].axis);
        print_cells(label, count, cells);
    }
    if (n == 0) printf("%-*s\n", LABEL, "no collectives");
}

static void print_time(const plan_result *result, const machine *m, int first, int count) {
    char cells[PLAN_MAX_RUNS][CELL * 4];
    plan_part parts[PLAN_PARTS] = {{NULL, NULL, 0}};
    for (int i = 0; i < PLAN_PARTS && m; i++) {
        for (int k = 0; k < count; k++) {
            step_time t;
            step_time_of(m, result->kinds[first + k].record, &t);
            plan_parts(&t, parts);
            snprintf(cells[k], sizeof cells[k], "%.4g ms", 1e3 * parts[i].seconds);
        }
        print_cells(parts[i].label, count, cells);
    }
}

/* Kinds side by side in a table. */
enum { COLUMNS = 4 };

static void print_columns(const plan_result *result, const machine *m, int first, int count) {
    char cells[PLAN_MAX_RUNS][CELL * 4];
    for (int k = 0; k < count; k++) ranks_text(result, &result->kinds[first + k], cells[k], CELL - 1);
    print_cells("", count, cells);
    print_memory(result, first, count);
    for (int k = 0; k < count; k++) {
        snprintf(cells[k], sizeof cells[k], "%.4g GFLOP", gflop(result->kinds[first + k].record));
    }
    print_cells("arithmetic of a step", count, cells);
    print_time(result, m, first, count);
    printf("collectives of a step, and the bytes that a rank sends\n");
    print_collectives(result, first, count);
}

/* Notes on what the numbers leave out. */
static void print_notes(const plan_result *result, const machine *m) {
    const tshi_record *r = result->kinds[0].record;
    fflush(stdout);
    if (r->reads) {
        plan_say(
            "the program reads values, first after %s. In a plan they are zeros: if the program branches on them, a "
            "run may differ from the plan",
            r->read_in[0] ? r->read_in : "no function");
    }
    if (r->steps == 0) plan_say("the program made no optimizer's step, so a step of the plan ends with tsh_tape_reset");
    step_time slowest = {.all = 0};
    if (m) slowest = plan_slowest(result, m);
    if (slowest.missing[0]) {
        plan_say("the machine file has no rate for %s, which the predicted time leaves out", slowest.missing);
    }
    if (r->lost) plan_say("the record lacks calls for which there was no memory");
}

void plan_print(const plan_result *result, const machine *m) {
    const tshi_record *r = result->kinds[0].record;
    printf("plan of %d rank%s", result->size, result->size == 1 ? "" : "s");
    for (int a = 0; a < r->axes; a++) {
        const tshi_record_axis *axis = &r->axis[a];
        printf("%s%s=", a ? "," : ", ", axis->name);
        if (axis->weights[0])
            printf("%s", axis->weights);
        else
            printf("%d", axis->size);
    }
    putchar('\n');
    for (int k = 0; k < result->count; k += COLUMNS) {
        putchar('\n');
        print_columns(result, m, k, result->count - k < COLUMNS ? result->count - k : COLUMNS);
    }
    print_notes(result, m);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static void print_string(const char *text) {
    putchar('"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') putchar('\\');
        if ((unsigned char)*c >= ' ') putchar(*c);
    }
    putchar('"');
}

static void print_kind(const plan_result *result, const machine *m, int k) {
    const plan_kind *kind = &result->kinds[k];
    const tshi_record *r = kind->record;
    row rows[MOST_ROWS];
    int n = rows_of(result, k, 1, rows);
    printf("{\"ranks\": [");
    for (int i = 0; i < kind->count; i++) printf("%s%d", i ? ", " : "", kind->ranks[i]);
    printf("], \"bytes\": {");
    for (int p = 0; p < PURPOSES; p++) {
        printf("\"%s\": %zu, ", tsh_memory_purpose_name(purposes[p]), r->memory.at_peak[purposes[p]]);
    }
    printf("\"peak\": %zu}, \"peak_function\": ", r->peak);
    print_string(r->memory.function);
    printf(", \"peak_layer\": ");
    print_string(r->memory.layer);
    printf(", \"peak_backward\": %s, \"steps\": %" PRIu64 ", \"gflop\": %.9g, \"collectives\": [",
           r->memory.backward ? "true" : "false", r->steps, gflop(r));
    for (int i = 0; i < n; i++) {
        total t = total_of(r, &rows[i]);
        printf("%s{\"name\": \"%s\", \"axis\": \"%s\", \"ranks\": %d, \"calls\": %" PRIu64 ", \"early\": %" PRIu64
               ", \"bytes\": %.0f}",
               i ? ", " : "", rows[i].name, rows[i].axis, rows[i].ranks, t.calls, t.early, t.bytes);
    }
    printf("], ");
    step_time t;
    if (m) {
        step_time_of(m, r, &t);
        plan_print_time_json(&t);
        printf(", ");
    }
    printf("\"reads_values\": %s}", r->reads ? "true" : "false");
}

void plan_print_json(const plan_result *result, const machine *m) {
    const tshi_record *r = result->kinds[0].record;
    printf("{\"ranks\": %d, \"mesh\": {", result->size);
    for (int a = 0; a < r->axes; a++) printf("%s\"%s\": %d", a ? ", " : "", r->axis[a].name, r->axis[a].size);
    printf("}, \"weights\": {");
    for (int a = 0, n = 0; a < r->axes; a++) {
        if (r->axis[a].weights[0]) printf("%s\"%s\": \"%s\"", n++ ? ", " : "", r->axis[a].name, r->axis[a].weights);
    }
    printf("}, ");
    if (m) {
        step_time slowest = plan_slowest(result, m);
        plan_print_time_json(&slowest);
        printf(", ");
    }
    printf("\"uniform\": %s, \"kinds\": [", result->uniform ? "true" : "false");
    for (int k = 0; k < result->count; k++) {
        if (k) printf(", ");
        print_kind(result, m, k);
    }
    printf("]}\n");
}
