/* Encoding a text: added tokens are cut out of it, the rest is normalized, further added tokens are cut out of the
 * normalized text, and what is left is split into words, whose ids the model gives. */
#include "io/tokenizer/tokenizer.h"

/* A piece of text on its way through the splitters. */
typedef struct passage {
    const char *text;
    size_t length;
    bool first; /* it begins where the whole text does */
} passage;

static tsh_status split_from(tsh_tokenizer *t, int step, passage p);

/* --- splits ------------------------------------------------------------------------------------------------------- */

/* A part of the passage between matches, or a match. */
typedef struct span {
    size_t start, end;
    bool match;
} span;

/* The first match at or after `at`. Without one, an empty match at the end of the passage. */
static tsh_status next_match(const tshi_text_step *step, passage p, size_t at, span *out) {
    bool found = false;
    *out = (span){.start = p.length, .end = p.length, .match = true};
    if (step->kind == TSHI_STEP_SPLIT) {
        size_t start, end;
        tsh_status status = tshi_pattern_find(step->pattern, p.text, p.length, at, &found, &start, &end);
        if (status == TSH_OK && found) *out = (span){.start = start, .end = end, .match = true};
        return status;
    }
    for (size_t from = at; at < p.length && !found; from = at) {
        found = tshi_class_has(step->members, tshi_utf8_next(p.text, &at));
        if (found) *out = (span){.start = from, .end = at, .match = true};
    }
    return TSH_OK;
}

/* True if a span joins the one before it. */
static bool joins(tshi_behavior behavior, span last, span s) {
    switch (behavior) {
    case TSHI_CONTIGUOUS: return s.match == last.match;
    case TSHI_MERGED_WITH_PREVIOUS: return s.match && !last.match;
    case TSHI_MERGED_WITH_NEXT: return !s.match && last.match;
    case TSHI_REMOVED:
    case TSHI_ISOLATED: break;
    }
    return false;
}

static tsh_status encode_span(tsh_tokenizer *t, int step, passage p, span s) {
    bool removed = t->splitters.items[step].behavior == TSHI_REMOVED && s.match;
    if (removed || s.start == s.end) return TSH_OK;
    const passage part = {.text = p.text + s.start, .length = s.end - s.start, .first = p.first && s.start == 0};
    return split_from(t, step + 1, part);
}

/* Joins a span to the open one, or encodes the open one, which the span then becomes. */
static tsh_status add_span(tsh_tokenizer *t, int step, passage p, span *open, span s) {
    const tshi_text_step *with = &t->splitters.items[step];
    tsh_status status = TSH_OK;
    if (s.start == s.end) return TSH_OK;
    s.match = s.match != with->invert;
    if (open->end > open->start && joins(with->behavior, *open, s)) {
        s.start = open->start;
    } else {
        status = encode_span(t, step, p, *open);
    }
    *open = s;
    return status;
}

static tsh_status split(tsh_tokenizer *t, int step, passage p) {
    span open = {0}, match;
    tsh_status status = TSH_OK;
    for (size_t at = 0, done = 0; status == TSH_OK && at < p.length;) {
        status = next_match(&t->splitters.items[step], p, at, &match);
        if (status == TSH_OK)
            status = add_span(t, step, p, &open, (span){.start = done, .end = match.start, .match = false});
        if (status == TSH_OK) status = add_span(t, step, p, &open, match);
        done = at = match.end;
        if (match.end == match.start && at < p.length) at += tshi_utf8_length(p.text[at]);
    }
    return status == TSH_OK ? encode_span(t, step, p, open) : status;
}

/* The passage goes through this step and those after it, then to the model. */
static tsh_status split_from(tsh_tokenizer *t, int step, passage p) {
    for (; step < t->splitters.count; step++) {
        tshi_text_step *s = &t->splitters.items[step];
        if (s->kind == TSHI_STEP_SPLIT || s->kind == TSHI_STEP_SPLIT_CLASS) return split(t, step, p);
        tsh_status status = tshi_step_change(s, &t->codes, p.first, &p.text, &p.length);
        if (status != TSH_OK) return status;
    }
    return tshi_model_encode(t, p.text, p.length);
}

/* --- added tokens ------------------------------------------------------------------------------------------------- */

static tsh_status encode_normalized(tsh_tokenizer *t, passage p) {
    tsh_status status = TSH_OK;
    tshi_added_piece token;
    size_t at = 0, done = 0;
    while (status == TSH_OK && tshi_added_next(&t->normalized, p.text, p.length, done, &at, &token)) {
        const passage before = {.text = p.text + done, .length = token.start - done, .first = p.first && done == 0};
        if (before.length) status = split_from(t, 0, before);
        if (status == TSH_OK) status = tshi_ids_add(t, token.id);
        done = token.end;
    }
    const passage rest = {.text = p.text + done, .length = p.length - done, .first = p.first && done == 0};
    return status == TSH_OK && rest.length ? split_from(t, 0, rest) : status;
}

static tsh_status encode_passage(tsh_tokenizer *t, passage p) {
    for (int i = 0; i < t->normalizers.count; i++) {
        const char *before = p.text;
        size_t length = p.length;
        tshi_text_step *step = &t->normalizers.items[i];
        tsh_status status = tshi_step_change(step, &t->codes, p.first, &p.text, &p.length);
        if (status != TSH_OK) return status;
        bool trimmed = step->kind == TSHI_STEP_STRIP && step->left && length && p.length && before[0] != p.text[0];
        p.first = p.first && !trimmed;
    }
    return p.length ? encode_normalized(t, p) : TSH_OK;
}

static tsh_status encode_text(tsh_tokenizer *t, const char *text, size_t length) {
    tsh_status status = TSH_OK;
    tshi_added_piece token;
    size_t at = 0, done = 0;
    while (status == TSH_OK && tshi_added_next(&t->plain, text, length, done, &at, &token)) {
        const passage before = {.text = text + done, .length = token.start - done, .first = done == 0};
        if (before.length) status = encode_passage(t, before);
        if (status == TSH_OK) status = tshi_ids_add(t, token.id);
        done = token.end;
    }
    const passage rest = {.text = text + done, .length = length - done, .first = done == 0};
    return status == TSH_OK && rest.length ? encode_passage(t, rest) : status;
}

/* --- the template ------------------------------------------------------------------------------------------------- */

/* Adds the template's ids from place `from` on, up to the text's place; returns it. */
static int add_template(tsh_tokenizer *t, int from, tsh_status *status) {
    for (; from < t->template_count && t->template[from] >= 0; from++) {
        if (*status == TSH_OK) *status = tshi_ids_add(t, t->template[from]);
    }
    return from;
}

static tsh_status encode_all(tsh_tokenizer *t, const char *text, size_t length, bool special) {
    tsh_status status = TSH_OK;
    if (!special || !t->template) return encode_text(t, text, length);
    for (int at = add_template(t, 0, &status); status == TSH_OK && at < t->template_count;) {
        status = encode_text(t, text, length);
        at = add_template(t, at + 1, &status);
    }
    return status;
}

tsh_status tsh_tokenizer_encode(tsh_tokenizer *tokenizer, const char *text, size_t bytes, bool special,
                                const int64_t **ids, int64_t *count) {
    if (ids) *ids = NULL;
    if (count) *count = 0;
    if (!tokenizer || (!text && bytes) || !ids || !count)
        return tshi_fail(TSH_ERR_ARGUMENT, "tsh_tokenizer_encode: %s is NULL",
                         !tokenizer ? "tokenizer"
                         : !ids     ? "ids"
                         : !count   ? "count"
                                    : "text");
    if (!text) text = "";
    size_t valid = tshi_utf8_valid(text, bytes);
    if (valid < bytes)
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "tsh_tokenizer_encode: the text is not UTF-8: no character begins with byte 0x%02x at %zu",
                         (unsigned)(unsigned char)text[valid], valid);
    tokenizer->ids.count = 0;
    tsh_status status = encode_all(tokenizer, text, bytes, special);
    if (status != TSH_OK) return status;
    if (!tokenizer->ids.items) { /* an empty text, before any other */
        status = tshi_grow(&tokenizer->allocator, (void **)&tokenizer->ids.items, &tokenizer->ids.capacity, 1,
                           sizeof *tokenizer->ids.items);
        if (status != TSH_OK) return status;
    }
    *ids = tokenizer->ids.items;
    *count = tokenizer->ids.count;
    return TSH_OK;
}
