/* Steps that change a text. */
#include "io/tokenizer/tokenizer.h"

static void add_clean(const char *text, size_t length, tshi_bytes *out) {
    for (size_t at = 0; at < length;) {
        size_t from = at;
        while (at < length && text[at] >= ' ' && text[at] < 0x7f) at++; /* printed ASCII stays */
        tshi_bytes_add(out, text + from, at - from);
        if ((from = at) == length) return;
        uint32_t code = tshi_utf8_next(text, &at);
        if (code == 0 || code == 0xfffd || tshi_class_has(TSHI_CLASS_CONTROL, code)) continue;
        if (tshi_class_has(TSHI_CLASS_SPACE, code))
            tshi_bytes_add(out, " ", 1);
        else
            tshi_bytes_add(out, text + from, at - from);
    }
}

static void add_others(const char *text, size_t length, tshi_class members, bool spread, tshi_bytes *out) {
    for (size_t at = 0; at < length;) {
        size_t from = at;
        bool member = tshi_class_has(members, tshi_utf8_next(text, &at));
        if (member && !spread) continue;
        if (member) tshi_bytes_add(out, " ", 1);
        tshi_bytes_add(out, text + from, at - from);
        if (member) tshi_bytes_add(out, " ", 1);
    }
}

static void add_stripped(const char *text, size_t length, const tshi_text_step *step, tshi_bytes *out) {
    size_t start = 0;
    for (size_t at = 0; step->left && at < length && tshi_class_has(TSHI_CLASS_SPACE, tshi_utf8_next(text, &at));)
        start = at;
    while (step->right && length > start) {
        size_t before = tshi_utf8_before(text, length), at = before;
        if (!tshi_class_has(TSHI_CLASS_SPACE, tshi_utf8_next(text, &at))) break;
        length = before;
    }
    tshi_bytes_add(out, text + start, length - start);
}

static tsh_status add_replaced(const char *text, size_t length, const tshi_text_step *step, tshi_bytes *out) {
    size_t at = 0, copied = 0, start = 0, end = 0;
    while (at <= length) {
        bool found = false;
        tsh_status status = tshi_pattern_find(step->pattern, text, length, at, &found, &start, &end);
        if (status != TSH_OK) return status;
        if (!found) break;
        tshi_bytes_add(out, text + copied, start - copied);
        tshi_bytes_add(out, step->content.data, step->content.length);
        copied = at = end;
        if (end == start) at += end < length ? tshi_utf8_length(text[end]) : 1;
    }
    tshi_bytes_add(out, text + copied, length - copied);
    return TSH_OK;
}

static bool starts_with(const char *text, size_t length, const tshi_bytes *start) {
    return length >= start->length && (start->length == 0 || memcmp(text, start->data, start->length) == 0);
}

static bool is_ascii(const char *text, size_t length) {
    unsigned char any = 0;
    for (size_t i = 0; i < length; i++) any |= (unsigned char)text[i];
    return any < 0x80;
}

/* True if the step leaves the text unchanged. */
static bool leaves(const tshi_text_step *step, bool first, const char *text, size_t length) {
    if (length == 0) return true;
    switch (step->kind) {
    case TSHI_STEP_FORM: return is_ascii(text, length);
    case TSHI_STEP_DROP:
    case TSHI_STEP_SPREAD: return is_ascii(text, length); /* the classes have no ASCII */
    case TSHI_STEP_LEAD: return (step->first_only && !first) || starts_with(text, length, &step->content);
    default: return false;
    }
}

tsh_status tshi_step_change(tshi_text_step *step, tshi_bytes *codes, bool first, const char **text, size_t *length) {
    tshi_bytes *out = &step->made;
    tsh_status status = TSH_OK;
    if (leaves(step, first, *text, *length)) return TSH_OK;
    tshi_bytes_clear(out);
    switch (step->kind) {
    case TSHI_STEP_FORM: tshi_text_normalize(*text, *length, step->form, codes, out); break;
    case TSHI_STEP_LOWER: tshi_text_lower(*text, *length, out); break;
    case TSHI_STEP_DROP: add_others(*text, *length, step->members, false, out); break;
    case TSHI_STEP_SPREAD: add_others(*text, *length, step->members, true, out); break;
    case TSHI_STEP_CLEAN: add_clean(*text, *length, out); break;
    case TSHI_STEP_STRIP: add_stripped(*text, *length, step, out); break;
    case TSHI_STEP_REPLACE: status = add_replaced(*text, *length, step, out); break;
    case TSHI_STEP_LETTERS: tshi_text_letters(*text, *length, out); break;
    default: /* PREPEND, LEAD */
        tshi_bytes_add(out, step->content.data, step->content.length);
        tshi_bytes_add(out, *text, *length);
        break;
    }
    if (out->failed) return TSH_ERR_MEMORY;
    if (status != TSH_OK) return status;
    *text = out->length ? out->data : "";
    *length = out->length;
    return TSH_OK;
}
