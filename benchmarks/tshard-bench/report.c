/* Rows for people, or for programs. */
#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Wide enough for the name and for the values that are to be expected. */
static int column_width(const bench_field *field) {
    const int usual[] = {14, 10, 10};
    int name = (int)strlen(field->name);
    return name > usual[field->kind] ? name : usual[field->kind];
}

static void print_json_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", (unsigned)c);
        else
            putchar(c);
    }
    putchar('"');
}

/* JSON knows neither infinity nor NaN. */
static void print_json_value(const bench_field *field) {
    switch (field->kind) {
    case BENCH_FIELD_TEXT: print_json_text(field->text); break;
    case BENCH_FIELD_COUNT: printf("%" PRId64, field->count); break;
    case BENCH_FIELD_REAL:
        if (isfinite(field->real))
            printf("%.6g", field->real);
        else
            fputs("null", stdout);
        break;
    }
}

static void print_json(const bench_field *fields, int n) {
    for (int i = 0; i < n; i++) {
        fputs(i ? ", " : "{", stdout);
        print_json_text(fields[i].name);
        fputs(": ", stdout);
        print_json_value(&fields[i]);
    }
    puts("}");
}

void bench_print_real(int width, double value) {
    double size = fabs(value);
    int decimals = size >= 1000 ? 1 : size >= 10 ? 2 : size >= 1 || size == 0 ? 3 : 4;
    printf("%*.*f", width, decimals, value);
}

static void print_table(bench_report *report, const bench_field *fields, int n) {
    for (int i = 0; !report->headed && i < n; i++) {
        int width = column_width(&fields[i]);
        printf("%s%*s", i ? "  " : "", fields[i].kind == BENCH_FIELD_TEXT ? -width : width, fields[i].name);
        if (i == n - 1) putchar('\n');
    }
    report->headed = true;
    for (int i = 0; i < n; i++) {
        int width = column_width(&fields[i]);
        if (i) fputs("  ", stdout);
        switch (fields[i].kind) {
        case BENCH_FIELD_TEXT: printf("%-*s", width, fields[i].text); break;
        case BENCH_FIELD_COUNT: printf("%*" PRId64, width, fields[i].count); break;
        case BENCH_FIELD_REAL: bench_print_real(width, fields[i].real); break;
        }
    }
    putchar('\n');
}

void bench_report_row(bench_report *report, const bench_field *fields, int n) {
    if (report->silent) return;
    if (report->json)
        print_json(fields, n);
    else
        print_table(report, fields, n);
    fflush(stdout); /* a row is worth seeing while the next one is measured */
}
