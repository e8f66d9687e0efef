/* Text of arrays. Columns are as wide as the longest number needs; a number has the fewest digits that tell it from its
 * neighbours in the dtype, up to a precision. */
#include "tensor/format.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER = 64 }; /* characters of one number, or of a part of a complex one */

/* --- digits ------------------------------------------------------------------------------------------------------- */

/* A binary float: the bits of its significand, the exponent of its least positive number, and from where on NumPy writes
 * an exponent, in arrays and alone. */
typedef struct kind {
    int bits, least;
    double large, large_alone;
} kind;

static const kind *kind_of(tsh_dtype dtype) {
    static const kind float64 = {53, -1074, 1e8, 1e16}, float32 = {24, -149, 1e6, 1e6}, float16 = {11, -24, 1e3, 1e3},
                      bfloat16 = {8, -133, 1e3, 1e3};
    if (dtype == TSH_FLOAT16) return &float16;
    if (dtype == TSH_BFLOAT16) return &bfloat16;
    return dtype == TSH_FLOAT32 || dtype == TSH_COMPLEX64 ? &float32 : &float64;
}

static double rounded(const kind *k, double x) {
    int exponent;
    if (k->bits == 53 || !isfinite(x) || x == 0) return x;
    frexp(x, &exponent);
    int last = exponent - k->bits < k->least ? k->least : exponent - k->bits;
    return ldexp(nearbyint(ldexp(x, -last)), last);
}

/* So many digits of x are rounded to x. The neighbour of a power of two towards zero is nearer than the other one: the
 * next number of so many digits may be in reach where the nearest is not. */
static bool suffice(const kind *k, double x, int digits, char *text) {
    snprintf(text, NUMBER, "%.*e", digits - 1, x);
    double nearest = strtod(text, NULL);
    if (rounded(k, nearest) == x || fabs(nearest) > fabs(x)) return rounded(k, nearest) == x;
    double step = pow(10, atoi(strchr(text, 'e') + 1) - digits + 1);
    snprintf(text, NUMBER, "%.*e", digits - 1, nearest + copysign(step, x));
    return rounded(k, strtod(text, NULL)) == x;
}

/* Writes the fewest digits that are rounded to x, as "d.ddde+dd", and returns how many they are. */
static int shortest(const kind *k, double x, char *text) {
    int low = 1, high = 17;
    while (low < high) {
        int middle = (low + high) / 2;
        if (suffice(k, x, middle, text))
            high = middle;
        else
            low = middle + 1;
    }
    suffice(k, x, low, text);
    return low;
}

/* Drops the zeros behind the point, before the exponent where there is one. */
static void trim(char *text) {
    char *end = strchr(text, 'e'), *last;
    if (!end) end = text + strlen(text);
    for (last = end; last > text && last[-1] == '0';) last--;
    memmove(last, end, strlen(end) + 1);
}

/* With at most `precision` digits behind the point, and no zeros at the end; a value that is cut is rounded again. `sign`
 * is "+" or "". */
static void positional(const kind *k, double x, int precision, const char *sign, char *text) {
    char format[16];
    int digits = shortest(k, x, text), after = digits - 1 - atoi(strchr(text, 'e') + 1);
    bool cut = after > precision;
    double value = cut ? x : strtod(text, NULL);
    snprintf(format, sizeof format, "%%%s#.*f", sign);
    snprintf(text, NUMBER, format, cut ? precision : after > 0 ? after : 0, value);
    if (cut) trim(text);
}

/* As positional, with an exponent; `zeros`: with exactly `precision` digits behind the point. */
static void scientific(const kind *k, double x, int precision, bool zeros, const char *sign, char *text) {
    char format[16];
    int behind = shortest(k, x, text) - 1;
    double value = behind == precision || (behind < precision && !zeros) ? strtod(text, NULL) : x;
    snprintf(format, sizeof format, "%%%s#.*e", sign);
    snprintf(text, NUMBER, format, zeros || behind > precision ? precision : behind, value);
    if (!zeros && behind > precision) trim(text);
}

/* --- elements ----------------------------------------------------------------------------------------------------- */

static double float16_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double x = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent == 0 ? ldexp(fraction, -24)
                               : ldexp(fraction | 1024, exponent - 25);
    return h >> 15 ? -x : x;
}

static double bfloat16_value(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* The real part of element i, or with part 1 the imaginary one. */
static double float_at(const tshi_format *f, int64_t i, int part) {
    switch (f->dtype) {
    case TSH_FLOAT32: return (double)((const float *)f->values)[i];
    case TSH_FLOAT16: return float16_value(((const uint16_t *)f->values)[i]);
    case TSH_BFLOAT16: return bfloat16_value(((const uint16_t *)f->values)[i]);
    case TSH_COMPLEX64: return (double)((const float *)f->values)[2 * i + part];
    case TSH_COMPLEX128: return ((const double *)f->values)[2 * i + part];
    default: return ((const double *)f->values)[i];
    }
}

static int64_t integer_at(const tshi_format *f, int64_t i) {
    switch (f->dtype) {
    case TSH_INT32: return ((const int32_t *)f->values)[i];
    case TSH_UINT8: return ((const uint8_t *)f->values)[i];
    default: return ((const int64_t *)f->values)[i];
    }
}

static bool is_float(tsh_dtype dtype) {
    return dtype != TSH_INT32 && dtype != TSH_INT64 && dtype != TSH_UINT8;
}

static bool is_complex(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 || dtype == TSH_COMPLEX128;
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

/* How all numbers of an array, or all their real or imaginary parts, are written. */
typedef struct column {
    const kind *kind;
    const char *sign;
    bool exponent;
    int left, right; /* characters before the point, and behind it */
    int precision;
    int exponent_digits;
} column;

typedef struct printer {
    const tshi_format *f;
    FILE *to;
    int64_t count; /* elements that are shown */
    int64_t next;  /* of them, the one that comes next */
    column part[2];
    int width;  /* of an integer */
    int line;   /* characters in the line so far */
    int spaces; /* at its end, not written yet: a line does not end in any */
} printer;

static void longer(int *length, long n) {
    if (*length < n) *length = (int)n;
}

/* NumPy writes exponents where the largest number is large, the smallest small, or their ratio is. */
static bool needs_exponent(const printer *p, const kind *k, int part) {
    double least = INFINITY, most = 0;
    for (int64_t i = 0; i < p->count; i++) {
        double x = fabs(float_at(p->f, i, part));
        if (!isfinite(x) || x == 0) continue;
        least = fmin(least, x);
        most = fmax(most, x);
    }
    return most > 0 && (most >= k->large || least < rounded(k, 1e-4) || rounded(k, most / least) > 1000);
}

static void measure_number(column *c, int precision, double x) {
    char text[NUMBER];
    if (!c->exponent) {
        positional(c->kind, x, precision, c->sign, text);
    } else {
        scientific(c->kind, x, precision, false, c->sign, text);
        char *e = strchr(text, 'e');
        longer(&c->exponent_digits, (long)strlen(e + 2));
        *e = '\0';
    }
    char *point = strchr(text, '.');
    longer(&c->left, point - text);
    longer(c->exponent ? &c->precision : &c->right, (long)strlen(point + 1));
}

static column measure(const printer *p, int part) {
    bool plus = part == 1, negative = plus, all_finite = true;
    column c = {.kind = kind_of(p->f->dtype), .sign = plus ? "+" : ""};
    c.exponent = needs_exponent(p, c.kind, part);
    for (int64_t i = 0; i < p->count; i++) {
        double x = float_at(p->f, i, part);
        if (isfinite(x))
            measure_number(&c, p->f->precision, x);
        else
            all_finite = false;
        if (isinf(x) && x < 0) negative = true;
    }
    if (c.exponent)
        c.right = c.precision + 2 + c.exponent_digits;
    else
        c.precision = p->f->precision;
    if (!all_finite) longer(&c.left, 3 + (negative ? 1 : 0) - (c.right + 1));
    return c;
}

static void write_integer_width(printer *p) {
    char text[32];
    for (int64_t i = 0; i < p->count; i++) {
        longer(&p->width, snprintf(text, sizeof text, "%lld", (long long)integer_at(p->f, i)));
    }
}

/* --- words -------------------------------------------------------------------------------------------------------- */

/* Puts spaces before the text, so that `have` characters become `want`. */
static void pad_left(char *text, long have, long want) {
    if (want <= have) return;
    memmove(text + (want - have), text, strlen(text) + 1);
    memset(text, ' ', (size_t)(want - have));
}

/* As many digits in every exponent. */
static void pad_exponent(const column *c, char *text) {
    char *digits = strchr(text, 'e') + 2;
    long missing = c->exponent_digits - (long)strlen(digits);
    if (missing <= 0) return;
    memmove(digits + missing, digits, strlen(digits) + 1);
    memset(digits, '0', (size_t)missing);
}

static void number_word(const column *c, double x, char *text) {
    if (!isfinite(x)) {
        snprintf(text, NUMBER, "%s%s", x < 0 ? "-" : c->sign, isnan(x) ? "nan" : "inf");
        pad_left(text, (long)strlen(text), c->left + c->right + 1);
        return;
    }
    if (c->exponent) {
        scientific(c->kind, x, c->precision, true, c->sign, text);
        pad_exponent(c, text);
    } else {
        positional(c->kind, x, c->precision, c->sign, text);
        long after = (long)strlen(strchr(text, '.') + 1);
        snprintf(text + strlen(text), NUMBER - strlen(text), "%*s", (int)(c->right - after), "");
    }
    pad_left(text, strchr(text, '.') - text, c->left);
}

/* The j comes before the spaces at the end. */
static void complex_word(const printer *p, int64_t i, char *text) {
    number_word(&p->part[0], float_at(p->f, i, 0), text);
    char *imaginary = text + strlen(text);
    number_word(&p->part[1], float_at(p->f, i, 1), imaginary);
    char *end = imaginary + strlen(imaginary);
    while (end[-1] == ' ') end--;
    memmove(end + 1, end, strlen(end) + 1);
    *end = 'j';
}

static void word(const printer *p, int64_t i, char *text) {
    if (!is_float(p->f->dtype))
        snprintf(text, NUMBER, "%*lld", p->width, (long long)integer_at(p->f, i));
    else if (is_complex(p->f->dtype))
        complex_word(p, i, text);
    else
        number_word(&p->part[0], float_at(p->f, i, 0), text);
}

/* --- a number without an array around it -------------------------------------------------------------------------- */

/* With all digits that tell it from its neighbours; `after` is how many of them follow the point at least. */
static void alone(const kind *k, double x, const char *sign, int after, char *text) {
    char format[16];
    if (!isfinite(x)) {
        snprintf(text, NUMBER, "%s%s", x < 0 ? "-" : sign, isnan(x) ? "nan" : "inf");
        return;
    }
    int digits = shortest(k, x, text);
    bool exponent = x != 0 && (fabs(x) < 1e-4 || fabs(x) >= k->large_alone);
    int behind = digits - 1 - (exponent ? 0 : atoi(strchr(text, 'e') + 1));
    snprintf(format, sizeof format, "%%%s.*%c", sign, exponent ? 'e' : 'f');
    if (exponent) after = 0;
    snprintf(text, NUMBER, format, behind > after ? behind : after, strtod(text, NULL));
}

static void write_alone(const printer *p) {
    const tshi_format *f = p->f;
    char text[NUMBER], imaginary[NUMBER];
    if (!is_float(f->dtype)) {
        fprintf(p->to, "%lld", (long long)integer_at(f, 0));
    } else if (!is_complex(f->dtype)) {
        alone(kind_of(f->dtype), float_at(f, 0, 0), "", 1, text);
        fprintf(p->to, "%s", text);
    } else {
        double real = float_at(f, 0, 0);
        bool both = real != 0 || signbit(real);
        alone(kind_of(f->dtype), real, "", 0, text);
        alone(kind_of(f->dtype), float_at(f, 0, 1), both ? "+" : "", 0, imaginary);
        if (both)
            fprintf(p->to, "(%s%sj)", text, imaginary);
        else
            fprintf(p->to, "%sj", imaginary);
    }
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

static void put(printer *p, const char *text) {
    size_t body = strlen(text);
    while (body > 0 && text[body - 1] == ' ') body--;
    if (body > 0) {
        fprintf(p->to, "%*s%.*s", p->spaces, "", (int)body, text);
        p->spaces = 0;
    }
    p->spaces += (int)(strlen(text) - body);
    p->line += (int)strlen(text);
}

static void new_lines(printer *p, int lines, int indent) {
    for (int i = 0; i < lines; i++) fputc('\n', p->to);
    p->spaces = p->line = indent;
}

/* A word of a row. It goes into a new line where it passes the width, unless it would be no shorter there. */
static void put_word(printer *p, const char *text) {
    int indent = p->f->ndim;
    if (p->line + (int)strlen(text) > p->f->width - indent && p->line > indent) new_lines(p, 1, indent);
    put(p, text);
}

static void write_row(printer *p, int64_t shown, bool abbreviated) {
    char text[2 * NUMBER];
    p->line = p->f->ndim; /* the brackets */
    for (int64_t i = 0; i < shown; i++) {
        if (i > 0) put(p, " ");
        if (abbreviated && i == p->f->edge) {
            put_word(p, "...");
            put(p, " ");
        }
        word(p, p->next++, text);
        put_word(p, text);
    }
}

static void write_dim(printer *p, int d) {
    const tshi_format *f = p->f;
    int64_t shown = tshi_format_shown(f, d);
    bool abbreviated = shown < f->shape[d];
    int apart = f->ndim - 1 - d;
    put(p, "[");
    if (apart == 0) write_row(p, shown, abbreviated);
    for (int64_t i = 0; apart > 0 && i < shown; i++) {
        if (i > 0) new_lines(p, apart, d + 1);
        if (abbreviated && i == f->edge) {
            put(p, "...");
            new_lines(p, apart, d + 1);
        }
        write_dim(p, d + 1);
    }
    put(p, "]");
}

int64_t tshi_format_shown(const tshi_format *f, int d) {
    return f->edge > 0 && f->shape[d] / 2 >= f->edge && f->shape[d] > 2 * f->edge ? 2 * f->edge : f->shape[d];
}

static void write_array(printer *p) {
    if (p->f->ndim == 0) {
        write_alone(p);
        return;
    }
    if (!is_float(p->f->dtype)) write_integer_width(p);
    for (int part = 0; is_float(p->f->dtype) && part < (is_complex(p->f->dtype) ? 2 : 1); part++) {
        p->part[part] = measure(p, part);
    }
    write_dim(p, 0);
}

void tshi_format_write(const tshi_format *f, FILE *to) {
    printer p = {.f = f, .to = to, .count = 1};
    for (int d = 0; d < f->ndim; d++) p.count *= tshi_format_shown(f, d);
    /* A program may have set a locale whose point is a comma. */
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), before = plain ? uselocale(plain) : (locale_t)0;
    if (p.count == 0)
        fputs("[]", to);
    else
        write_array(&p);
    if (!plain) return;
    uselocale(before);
    freelocale(plain);
}
