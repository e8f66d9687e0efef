#include "support/vectors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_VALUES ((int64_t)1 << 26)
#define MOST_BYTES  ((long)1 << 30)

typedef struct reader {
    const char *path;
    char *text, *next; /* the whole file, and the line to come */
    int line;
    char *error;
    size_t error_size;
} reader;

__attribute__((format(printf, 2, 3))) static bool complain(const reader *r, const char *format, ...) {
    int used = snprintf(r->error, r->error_size, r->line ? "%s:%d: " : "%s: ", r->path, r->line);
    va_list arguments;
    va_start(arguments, format);
    if (used >= 0 && (size_t)used < r->error_size) {
        vsnprintf(r->error + used, r->error_size - (size_t)used, format, arguments);
    }
    va_end(arguments);
    return false;
}

/* The whole file with a NUL at its end. */
static bool load(reader *r) {
    FILE *file = fopen(r->path, "rb");
    if (!file) return complain(r, "%s", strerror(errno));
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    bool good = size >= 0 && size <= MOST_BYTES && fseek(file, 0, SEEK_SET) == 0;
    r->text = good ? malloc((size_t)size + 1) : NULL;
    good = r->text && fread(r->text, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!good) return complain(r, "cannot be read");
    r->text[size] = '\0';
    if (strlen(r->text) != (size_t)size) return complain(r, "holds a zero byte: no text file");
    if (size == 0 || r->text[size - 1] != '\n') return complain(r, "ends in the middle of a line");
    r->next = r->text;
    return true;
}

/* The next line without its end, or NULL. */
static char *take_line(reader *r) {
    char *line = r->next, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = '\0';
    if (end > line && end[-1] == '\r') end[-1] = '\0';
    r->next = end + 1;
    r->line++;
    return line;
}

static bool read_count(char **at, int64_t most, int64_t *out) {
    char *end;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    bool good = end != *at && errno == 0 && value >= 0 && value <= most && (*end == ' ' || *end == '\0');
    *at = end;
    *out = value;
    return good;
}

static bool read_shape(const reader *r, char *at, tshi_vector *v) {
    int64_t ndim;
    if (!read_count(&at, TSHI_VECTOR_DIMS, &ndim)) {
        return complain(r, "tensor %s: no number of dims from 0 to %d", v->name, TSHI_VECTOR_DIMS);
    }
    v->ndim = (int)ndim;
    v->count = 1;
    for (int d = 0; d < v->ndim; d++) {
        if (!read_count(&at, MOST_VALUES, &v->shape[d])) return complain(r, "tensor %s: dim %d is bad", v->name, d);
        v->count *= v->shape[d]; /* below 2^52 at each step */
        if (v->count > MOST_VALUES) return complain(r, "tensor %s: too large", v->name);
    }
    if (at[strspn(at, " ")]) return complain(r, "tensor %s: '%.20s' after its %d dims", v->name, at, v->ndim);
    return true;
}

static bool read_header(const reader *r, const char *line, tshi_vector *v) {
    char dtype[8];
    int used = 0;
    if (sscanf(line, "tensor %63s %7s%n", v->name, dtype, &used) != 2) {
        return complain(r, "'%.30s': a line 'tensor NAME DTYPE NDIM DIMS...' was expected", line);
    }
    v->integer = strcmp(dtype, "i64") == 0;
    if (!v->integer && strcmp(dtype, "f64") != 0) {
        return complain(r, "tensor %s: dtype '%s' is neither f64 nor i64", v->name, dtype);
    }
    char rest[256];
    if (snprintf(rest, sizeof rest, "%s", line + used) >= (int)sizeof rest) {
        return complain(r, "tensor %s: the line is too long", v->name);
    }
    return read_shape(r, rest, v);
}

static bool read_value(const tshi_vector *v, int64_t i, char **at) {
    char *end;
    errno = 0;
    if (v->integer) {
        v->integers[i] = strtoll(*at, &end, 10);
        v->values[i] = (double)v->integers[i];
    } else {
        v->values[i] = strtod(*at, &end);
    }
    bool range = v->integer && errno == ERANGE;
    bool good = end != *at && !range && (*end == ' ' || *end == '\0');
    *at = end;
    return good;
}

static bool read_values(const reader *r, char *at, tshi_vector *v) {
    v->values = calloc((size_t)v->count + 1, sizeof *v->values);
    if (v->integer) v->integers = calloc((size_t)v->count + 1, sizeof *v->integers);
    if (!v->values || (v->integer && !v->integers)) return complain(r, "tensor %s: no memory", v->name);
    for (int64_t i = 0; i < v->count; i++) {
        at += strspn(at, " ");
        if (*at == '\0') {
            return complain(r, "tensor %s: %lld values, %lld were expected", v->name, (long long)i,
                            (long long)v->count);
        }
        if (!read_value(v, i, &at)) {
            return complain(r, "tensor %s: value %lld, '%.20s', is no number", v->name, (long long)i, at);
        }
    }
    if (at[strspn(at, " ")]) return complain(r, "tensor %s: more than %lld values", v->name, (long long)v->count);
    return true;
}

/* One more tensor into the list, from its header line and the line after it. */
static bool read_tensor(reader *r, const char *header, tshi_vectors *out) {
    tshi_vector *items = realloc(out->items, sizeof *items * (size_t)(out->count + 1));
    if (!items) return complain(r, "no memory");
    out->items = items;
    tshi_vector v = {0};
    if (!read_header(r, header, &v)) return false;
    if (tshi_vectors_find(out, v.name)) return complain(r, "tensor %s: a second time", v.name);
    char *values = take_line(r);
    if (!values) return complain(r, "tensor %s: the file ends before its values", v.name);
    bool good = read_values(r, values, &v);
    out->items[out->count++] = v;
    return good;
}

bool tshi_vectors_read(const char *path, tshi_vectors *out, char *error, size_t size) {
    reader r = {.path = path, .error = error, .error_size = size};
    *out = (tshi_vectors){0};
    bool good = load(&r);
    char *line;
    while (good && (line = take_line(&r))) {
        if (line[0] == '#' || line[strspn(line, " ")] == '\0') continue;
        good = read_tensor(&r, line, out);
    }
    if (good && out->count == 0) good = complain(&r, "holds no tensor");
    free(r.text);
    if (!good) tshi_vectors_free(out);
    return good;
}

void tshi_vectors_free(tshi_vectors *vectors) {
    for (int i = 0; i < vectors->count; i++) {
        free(vectors->items[i].values);
        free(vectors->items[i].integers);
    }
    free(vectors->items);
    *vectors = (tshi_vectors){0};
}

const tshi_vector *tshi_vectors_find(const tshi_vectors *vectors, const char *name) {
    for (int i = 0; i < vectors->count; i++) {
        if (strcmp(vectors->items[i].name, name) == 0) return &vectors->items[i];
    }
    return NULL;
}
