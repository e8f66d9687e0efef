/* Arrays as text. */
#include "tensor/format.h"

#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

static char *written(const tshi_format *f) {
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    tshi_format_write(f, to);
    fclose(to);
    return text;
}

static void check_text(tshi_format f, const char *wanted) {
    if (!f.precision) f.precision = 6;
    if (!f.width) f.width = 75;
    char *text = written(&f);
    cr_assert_str_eq(text, wanted, "%s\nwanted\n%s", text, wanted);
    free(text);
}

#define SHAPE(...)                                                                                                     \
    .shape = (const int64_t[]) {                                                                                       \
        __VA_ARGS__                                                                                                    \
    }

Test(format, numbers_are_aligned_in_columns, .timeout = 120) {
    const double x[] = {0, -0.5, 1.0 / 3, 1e9, 123456789, 1e-12, INFINITY, -INFINITY, NAN};
    check_text((tshi_format){.ndim = 2, SHAPE(3, 3), .floats = x}, "[[          0        -0.5    0.333333]\n"
                                                                   " [      1e+09 1.23457e+08       1e-12]\n"
                                                                   " [        inf        -inf         nan]]");
    check_text((tshi_format){.ndim = 1, SHAPE(3), .floats = x, .precision = 17},
               "[                  0                -0.5 0.33333333333333331]");
    check_text((tshi_format){.ndim = 1, SHAPE(2), .floats = x + 1, .complex = true},
               "[    -0.5+0.333333j 1e+09+1.23457e+08j]");
}

Test(format, integers_are_plain, .timeout = 120) {
    const int64_t x[] = {7, -40000000000, 0, 1};
    check_text((tshi_format){.ndim = 1, SHAPE(4), .integers = x},
               "[           7 -40000000000            0            1]");
    check_text((tshi_format){.ndim = 0, .integers = x}, "7");
    check_text((tshi_format){.ndim = 2, SHAPE(0, 3), .integers = x}, "[]");
    check_text((tshi_format){.ndim = 3, SHAPE(2, 2, 1), .integers = x},
               "[[[           7]\n  [-40000000000]]\n\n [[           0]\n  [           1]]]");
}

Test(format, large_arrays_show_their_edges, .timeout = 120) {
    const int64_t x[] = {0, 1, 8, 9, 10, 11, 18, 19, 80, 81, 88, 89, 90, 91, 98, 99};
    const tshi_format f = {.ndim = 2, SHAPE(10, 10), .edge = 2, .integers = x};
    cr_assert_eq(tshi_format_shown(&f, 0), 4);
    check_text(f, "[[ 0  1 ...  8  9]\n [10 11 ... 18 19]\n ...\n [80 81 ... 88 89]\n [90 91 ... 98 99]]");
}

Test(format, long_rows_are_broken, .timeout = 120) {
    const int64_t x[] = {100, 200, 300, 400, 500};
    check_text((tshi_format){.ndim = 1, SHAPE(5), .integers = x, .width = 13}, "[100 200 300\n 400 500]");
    check_text((tshi_format){.ndim = 1, SHAPE(3), .integers = x, .width = 1}, "[100\n 200\n 300]");
}

/* A program's locale changes nothing of it, and stays what it is. */
Test(format, has_a_point_in_every_locale, .timeout = 120) {
    const double x[] = {0.5, 1e-9};
    const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char now[16];
        if (!setlocale(LC_ALL, names[i])) continue;
        check_text((tshi_format){.ndim = 1, SHAPE(2), .floats = x}, "[  0.5 1e-09]");
        snprintf(now, sizeof now, "%.1f", 0.5);
        cr_assert_eq(now[1], *localeconv()->decimal_point);
    }
}
