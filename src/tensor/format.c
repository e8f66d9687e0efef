/* Arrays as text, all elements as wide as the longest. */
#include "tensor/format.h"

#include <locale.h>

enum { WORD = 80 }; /* characters of an element */

typedef struct printer {
    const tshi_format *f;
    FILE *to;
    int64_t next; /* the element that is written next */
    int width;    /* of every element */
} printer;

static int element_text(const tshi_format *f, int64_t i, char text[WORD]) {
    if (f->integers) return snprintf(text, WORD, "%lld", (long long)f->integers[i]);
    if (!f->complex) return snprintf(text, WORD, "%.*g", f->precision, f->floats[i]);
    return snprintf(text, WORD, "%.*g%+.*gj", f->precision, f->floats[2 * i], f->precision, f->floats[2 * i + 1]);
}

static void new_lines(printer *p, int lines, int indent) {
    for (int i = 0; i < lines; i++) fputc('\n', p->to);
    fprintf(p->to, "%*s", indent, "");
}

/* Writes a word of a row, on a new line if it would exceed the width. */
static void write_word(printer *p, const char *word, int width, int *column) {
    int indent = p->f->ndim;
    if (*column == 0) {
        *column = indent;
    } else if (*column + 1 + width + indent > p->f->width) {
        new_lines(p, 1, indent);
        *column = indent;
    } else {
        fputc(' ', p->to);
        ++*column;
    }
    fprintf(p->to, "%*s", width, word);
    *column += width;
}

static void write_row(printer *p, int64_t shown, bool abbreviated) {
    char text[WORD];
    int column = 0;
    for (int64_t i = 0; i < shown; i++) {
        if (abbreviated && i == p->f->edge) write_word(p, "...", 3, &column);
        element_text(p->f, p->next++, text);
        write_word(p, text, p->width, &column);
    }
}

static void write_dim(printer *p, int d) {
    const tshi_format *f = p->f;
    int64_t shown = tshi_format_shown(f, d);
    bool abbreviated = shown < f->shape[d];
    int apart = f->ndim - 1 - d;
    fputc('[', p->to);
    if (apart == 0) write_row(p, shown, abbreviated);
    for (int64_t i = 0; apart > 0 && i < shown; i++) {
        if (i > 0) new_lines(p, apart, d + 1);
        if (abbreviated && i == f->edge) {
            fputs("...", p->to);
            new_lines(p, apart, d + 1);
        }
        write_dim(p, d + 1);
    }
    fputc(']', p->to);
}

int64_t tshi_format_shown(const tshi_format *f, int d) {
    return f->edge > 0 && f->shape[d] / 2 >= f->edge && f->shape[d] > 2 * f->edge ? 2 * f->edge : f->shape[d];
}

static void write_array(const tshi_format *f, FILE *to) {
    printer p = {.f = f, .to = to};
    char text[WORD];
    int64_t count = 1;
    for (int d = 0; d < f->ndim; d++) count *= tshi_format_shown(f, d);
    for (int64_t i = 0; i < count; i++) {
        int length = element_text(f, i, text);
        if (length > p.width) p.width = length;
    }
    if (count == 0)
        fputs("[]", to);
    else if (f->ndim == 0)
        fputs(text, to);
    else
        write_dim(&p, 0);
}

void tshi_format_write(const tshi_format *f, FILE *to) {
    /* The program's locale may write a comma for the decimal point. */
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), before = plain ? uselocale(plain) : (locale_t)0;
    write_array(f, to);
    if (!plain) return;
    uselocale(before);
    freelocale(plain);
}
