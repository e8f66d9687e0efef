/* Patterns, matched with PCRE2. */
#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct tshi_pattern {
    tsh_allocator allocator;
    tshi_bytes text;  /* of a literal one; of an expression as PCRE2 takes it */
    pcre2_code *code; /* NULL: a literal one */
    pcre2_match_data *data;
    pcre2_match_context *context;
    bool compiled; /* to machine code */
};

/* Unicode's White_Space: PCRE2 counts U+180E too. */
#define SPACES                                                                                                         \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS                                                                                                          \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define DIGITS "\\p{Nd}"

/* The text that stands for an escape: inside a class the members alone. NULL: PCRE2 has the same escape. */
static const char *translated(char letter, bool in_class) {
    if (letter == 's') return in_class ? SPACES : "[" SPACES "]";
    if (letter == 'w') return in_class ? WORDS : "[" WORDS "]";
    if (letter == 'd') return DIGITS;
    if (letter == 'S' && !in_class) return "[^" SPACES "]";
    if (letter == 'W' && !in_class) return "[^" WORDS "]";
    return NULL;
}

/* Appends the expression in PCRE2's syntax. PCRE2 lacks Oniguruma's intersections of classes and nested classes. */
static tsh_status translate(const char *text, tshi_bytes *out) {
    bool in_class = false;
    for (const char *p = text; *p; p++) {
        if (*p == '\\' && p[1]) {
            const char *other = translated(*++p, in_class);
            if (*p == 'h' || *p == 'H')
                return tshi_fail(TSH_ERR_UNSUPPORTED, "the regular expression '%.100s' has \\%c, which is not built in",
                                 text, *p);
            if (other) {
                tshi_bytes_add(out, other, strlen(other));
            } else {
                tshi_bytes_add(out, p - 1, 2);
            }
            continue;
        }
        if (in_class && ((*p == '[' && p[1] != ':') || (*p == '&' && p[1] == '&')))
            return tshi_fail(TSH_ERR_UNSUPPORTED,
                             "the regular expression '%.100s' has a class in a class, which is not built in", text);
        if (in_class && *p == '[') { /* [:alpha:] */
            const char *end = strstr(p, ":]");
            size_t length = end ? (size_t)(end + 2 - p) : 1;
            tshi_bytes_add(out, p, length);
            p += length - 1;
            continue;
        }
        tshi_bytes_add(out, p, 1);
        if (!in_class && *p == '[') {
            in_class = true;
            if (p[1] == '^') tshi_bytes_add(out, ++p, 1);
            if (p[1] == ']') tshi_bytes_add(out, ++p, 1);
        } else if (in_class && *p == ']') {
            in_class = false;
        }
    }
    return out->failed ? TSH_ERR_MEMORY : TSH_OK;
}

static tsh_status compile(tshi_pattern *pattern, const char *text) {
    int error;
    size_t where;
    PCRE2_UCHAR words[120];
    tsh_status status = translate(text, &pattern->text);
    if (status != TSH_OK) return status;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)pattern->text.data, pattern->text.length,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &where, NULL);
    if (!pattern->code) {
        pcre2_get_error_message(error, words, sizeof words);
        return tshi_fail(TSH_ERR_IO, "the regular expression '%.100s' is malformed: %s", text, (char *)words);
    }
    pattern->compiled = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    pattern->data = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    pattern->context = pcre2_match_context_create(NULL);
    if (!pattern->data || !pattern->context) return tshi_fail(TSH_ERR_MEMORY, "no memory for a regular expression");
    pcre2_set_match_limit(pattern->context, 10000000);
    pcre2_set_heap_limit(pattern->context, 1 << 18); /* KiB */
    return TSH_OK;
}

tsh_status tshi_pattern_create(const tsh_allocator *allocator, const char *text, bool regex, tshi_pattern **out) {
    tshi_pattern *pattern = *out = tshi_calloc(allocator, 1, sizeof *pattern);
    if (!pattern) return TSH_ERR_MEMORY;
    pattern->allocator = *allocator;
    pattern->text.allocator = &pattern->allocator;
    if (!regex) tshi_bytes_add(&pattern->text, text, strlen(text));
    tsh_status status = regex ? compile(pattern, text) : pattern->text.failed ? TSH_ERR_MEMORY : TSH_OK;
    if (status == TSH_OK) return TSH_OK;
    tshi_pattern_free(pattern);
    *out = NULL;
    return status;
}

void tshi_pattern_free(tshi_pattern *pattern) {
    if (!pattern) return;
    pcre2_match_context_free(pattern->context);
    pcre2_match_data_free(pattern->data);
    pcre2_code_free(pattern->code);
    tsh_allocator allocator = pattern->allocator;
    tshi_bytes_free(&pattern->text);
    tshi_free(&allocator, pattern);
}

static tsh_status find_literal(const tshi_pattern *pattern, const char *text, size_t length, size_t at, bool *found,
                               size_t *start, size_t *end) {
    size_t n = pattern->text.length;
    const char *place = NULL;
    if (n == 1 && at < length)
        place = memchr(text + at, pattern->text.data[0], length - at);
    else if (n && at < length)
        place = memmem(text + at, length - at, pattern->text.data, n);
    *found = place != NULL;
    if (!place) return TSH_OK;
    *start = (size_t)(place - text);
    *end = *start + n;
    return TSH_OK;
}

tsh_status tshi_pattern_find(const tshi_pattern *pattern, const char *text, size_t length, size_t at, bool *found,
                             size_t *start, size_t *end) {
    if (!pattern->code) return find_literal(pattern, text, length, at, found, start, end);
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int count = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->compiled)
        count = pcre2_jit_match(pattern->code, subject, length, at, 0, pattern->data, pattern->context);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT)
        count = pcre2_match(pattern->code, subject, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, pattern->data,
                            pattern->context);
    *found = count > 0;
    if (count > 0) {
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(pattern->data);
        *start = place[0];
        *end = place[1] < place[0] ? place[0] : place[1]; /* \K may put the start past the end */
        if (*start < at) *start = at;
        return TSH_OK;
    }
    if (count == PCRE2_ERROR_NOMATCH) return TSH_OK;
    PCRE2_UCHAR words[120];
    pcre2_get_error_message(count, words, sizeof words);
    return tshi_fail(TSH_ERR_IO, "the tokenizer's regular expression fails at byte %zu of a text: %s", at,
                     (char *)words);
}
