#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Only digits; false for an empty text, another character, or a number that does not fit. */
static bool read_digits(const char *text, size_t length, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = 10 * value + digit;
    }
    *out = value;
    return length > 0;
}

bool tshi_parse_part(const char *text, size_t length, int64_t low, int64_t high, int64_t *out) {
    bool negative = length > 0 && text[0] == '-' && low < 0;
    uint64_t size, most = (uint64_t)INT64_MAX + negative;
    if (!read_digits(text + negative, length - negative, &size) || size > most) return false;
    int64_t value = !negative ? (int64_t)size : size == most ? INT64_MIN : -(int64_t)size;
    if (value < low || value > high) return false;
    *out = value;
    return true;
}

bool tshi_parse_int64(const char *text, int64_t low, int64_t high, int64_t *out) {
    return tshi_parse_part(text, strlen(text), low, high, out);
}

bool tshi_parse_int(const char *text, int low, int high, int *out) {
    int64_t value;
    if (!tshi_parse_int64(text, low, high, &value)) return false;
    *out = (int)value;
    return true;
}

bool tshi_parse_uint64(const char *text, uint64_t low, uint64_t high, uint64_t *out) {
    uint64_t value;
    if (!read_digits(text, strlen(text), &value) || value < low || value > high) return false;
    *out = value;
    return true;
}

bool tshi_parse_bytes(const char *text, int64_t low, int64_t high, int64_t *out) {
    static const char letters[] = "kKmMgGtT";
    size_t length = strlen(text);
    const char *letter = length > 1 ? strchr(letters, text[length - 1]) : NULL;
    int shift = letter ? 10 * (int)((letter - letters) / 2 + 1) : 0;
    int64_t value;
    if (!tshi_parse_part(text, length - (letter != NULL), 0, INT64_MAX >> shift, &value)) return false;
    value <<= shift;
    if (value < low || value > high) return false;
    *out = value;
    return true;
}

bool tshi_parse_real(const char *text, double low, double high, double *out) {
    const char *first = text[0] == '-' && low < 0 ? text + 1 : text;
    char *end = NULL;
    if ((*first < '0' || *first > '9') && *first != '.') return false;
    if (strspn(first, "0123456789.eE+-") != strlen(first)) return false;
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain) return false;
    double value = strtod_l(text, &end, plain);
    freelocale(plain);
    if (*end || end == text || !isfinite(value) || value < low || value > high) return false;
    *out = value;
    return true;
}
