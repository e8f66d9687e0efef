/* Arrays as text, against NumPy's (tests/data/print). */
#include "tensor/format.h"

#include <criterion/criterion.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

typedef struct numpy_case {
    tshi_format format;
    int64_t shape[TSH_MAX_DIMS];
    unsigned char *values;
    char *text;
} numpy_case;

static tsh_dtype dtype_of(const char *name) {
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        if (!strcmp(tsh_dtype_name((tsh_dtype)d), name)) return (tsh_dtype)d;
    }
    cr_assert_fail("no dtype %s", name);
    return TSH_DTYPE_COUNT;
}

static void read_head(const char *line, numpy_case *c) {
    char dtype[32];
    int threshold, used, ndim;
    int64_t numel = 1;
    cr_assert_eq(sscanf(line, "array %31s %d %d %ld %d %d%n", dtype, &c->format.precision, &threshold, &c->format.edge,
                        &c->format.width, &ndim, &used),
                 6, "%s", line);
    for (int d = 0; d < ndim; d++) {
        line += used;
        cr_assert_eq(sscanf(line, "%ld%n", &c->shape[d], &used), 1);
        numel *= c->shape[d];
    }
    if (numel <= threshold) c->format.edge = 0;
    c->format.dtype = dtype_of(dtype);
    c->format.ndim = ndim;
    c->format.shape = c->shape;
}

static void read_values(const char *line, numpy_case *c) {
    size_t n = strlen(line) / 2;
    c->values = malloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        cr_assert_eq(sscanf(line + 2 * i, "%2x", &byte), 1);
        c->values[i] = (unsigned char)byte;
    }
    c->format.values = c->values;
}

/* The text of a case is kept with the newline of each of its lines. */
static bool read_case(FILE *file, numpy_case *c) {
    char *line = NULL;
    size_t room = 0, size;
    int next;
    *c = (numpy_case){0};
    if (getline(&line, &room, file) < 0) {
        free(line);
        return false;
    }
    read_head(line, c);
    cr_assert_geq(getline(&line, &room, file), 0);
    line[strcspn(line, "\n")] = '\0';
    read_values(line, c);
    FILE *text = open_memstream(&c->text, &size);
    while ((next = fgetc(file)) == '|') {
        cr_assert_geq(getline(&line, &room, file), 0);
        fputs(line, text);
    }
    if (next != EOF) ungetc(next, file);
    fclose(text);
    free(line);
    return true;
}

static char *written(const tshi_format *f) {
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    tshi_format_write(f, to);
    fputc('\n', to);
    fclose(to);
    return text;
}

/* The number of cases whose text differs. */
static int compare_cases(int *cases) {
    FILE *file = fopen(TSHARD_TEST_DATA "/print/numpy.txt", "r");
    numpy_case c;
    int bad = 0;
    cr_assert(file != NULL);
    while (read_case(file, &c)) {
        char *text = written(&c.format);
        ++*cases;
        if (strcmp(text, c.text) && bad++ < 5) {
            cr_log_error("case %d, %s:\n%s\nNumPy writes\n%s", *cases, tsh_dtype_name(c.format.dtype), text, c.text);
        }
        free(text);
        free(c.text);
        free(c.values);
    }
    fclose(file);
    return bad;
}

Test(format, is_that_of_numpy, .timeout = 120) {
    int cases = 0;
    cr_assert_eq(compare_cases(&cases), 0);
    cr_assert_geq(cases, 400);
}

/* A program's locale changes nothing of it, and stays what it is. */
Test(format, has_a_point_in_every_locale, .timeout = 120) {
    const double x[] = {0.5, 1e-9};
    const int64_t shape[] = {2};
    const tshi_format f = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = shape, .precision = 8, .width = 75, .values = x};
    const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!setlocale(LC_ALL, names[i])) continue;
        char *text = written(&f), now[16];
        cr_assert_str_eq(text, "[5.e-01 1.e-09]\n");
        free(text);
        snprintf(now, sizeof now, "%.1f", 0.5);
        cr_assert_eq(now[1], *localeconv()->decimal_point);
    }
}

/* bfloat16, which NumPy does not have: the fewest digits that tell it from its neighbours, 0.0996 and 0.1006. */
Test(format, bfloat16_has_few_digits, .timeout = 120) {
    const uint16_t x[] = {0x3dcd, 0x3f80, 0xc040, 0x7f80};
    const int64_t shape[] = {4};
    const tshi_format f = {.dtype = TSH_BFLOAT16, .ndim = 1, .shape = shape, .precision = 8, .width = 75, .values = x};
    char *text = written(&f);
    cr_assert_str_eq(text, "[ 0.1  1.  -3.   inf]\n");
    free(text);
}
