/* A pattern that a step of a tokenizer searches for: a literal text, or a regular expression in Oniguruma's syntax,
 * which PCRE2 matches. */
#ifndef TSHI_TOKENIZER_PATTERN_H
#define TSHI_TOKENIZER_PATTERN_H

#include "io/tokenizer/text.h"

typedef struct tshi_pattern tshi_pattern;

/* Compiles a literal text or a regular expression. The caller frees it. TSH_ERR_IO for one that is malformed,
 * _UNSUPPORTED for what PCRE2 lacks, _MEMORY; the message has no path. */
tsh_status tshi_pattern_create(const tsh_allocator *allocator, const char *text, bool regex, tshi_pattern **out);
void tshi_pattern_free(tshi_pattern *pattern);

/* The first match that begins at `at` or later: [*start, *end), and *found. An empty text is never found. TSH_ERR_IO
 * for an expression that takes too long. */
tsh_status tshi_pattern_find(const tshi_pattern *pattern, const char *text, size_t length, size_t at, bool *found,
                             size_t *start, size_t *end);

#endif
