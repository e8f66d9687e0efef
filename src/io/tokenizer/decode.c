/* Decoding: the decoders turn tokens into one text. */
#include "io/tokenizer/tokenizer.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

static const char *token_at(const tshi_texts *from, int i, size_t *length) {
    size_t start = i ? from->ends[i - 1] : 0;
    *length = from->ends[i] - start;
    return from->bytes.data ? from->bytes.data + start : "";
}

/* What has been appended to `to` since the last call becomes a token. */
static tsh_status end_token(const tsh_allocator *allocator, tshi_texts *to) {
    if (to->bytes.failed) return TSH_ERR_MEMORY;
    tsh_status status = tshi_grow(allocator, (void **)&to->ends, &to->capacity, to->count + 1, sizeof *to->ends);
    if (status == TSH_OK) to->ends[to->count++] = to->bytes.length;
    return status;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* The number of bytes here, at least 1, that could be the beginning of a character: one U+FFFD replaces them. */
static size_t broken_here(const unsigned char *u, size_t left) {
    unsigned low = 0x80, high = 0xbf;
    size_t n = u[0] >= 0xc2 && u[0] < 0xe0 ? 2 : u[0] >= 0xe0 && u[0] < 0xf0 ? 3 : u[0] >= 0xf0 && u[0] < 0xf5 ? 4 : 1;
    if (u[0] == 0xe0) low = 0xa0;
    if (u[0] == 0xed) high = 0x9f;
    if (u[0] == 0xf0) low = 0x90;
    if (u[0] == 0xf4) high = 0x8f;
    size_t i = 1;
    for (; i < n && i < left && u[i] >= low && u[i] <= high; i++) {
        low = 0x80;
        high = 0xbf;
    }
    return i;
}

/* Appends bytes as UTF-8. */
static void add_repaired(const char *bytes, size_t length, tshi_bytes *out) {
    while (length) {
        size_t valid = tshi_utf8_valid(bytes, length);
        tshi_bytes_add(out, bytes, valid);
        bytes += valid;
        length -= valid;
        if (length == 0) return;
        size_t broken = broken_here((const unsigned char *)bytes, length);
        tshi_bytes_add(out, replacement, 3);
        bytes += broken;
        length -= broken;
    }
}

/* Turns the letters of byte-level tokens back into bytes; a token with any other character keeps its bytes. All tokens
 * become one. */
static tsh_status decode_letters(tsh_tokenizer *t, const tshi_texts *from, tshi_texts *to) {
    tshi_bytes *bytes = &t->codes;
    tshi_bytes_clear(bytes);
    for (int i = 0; i < from->count; i++) {
        size_t length, before = bytes->length, at = 0;
        const char *token = token_at(from, i, &length);
        int byte = 0;
        while (at < length && (byte = tshi_byte_of_letter(tshi_utf8_next(token, &at))) >= 0) {
            const char c = (char)byte;
            tshi_bytes_add(bytes, &c, 1);
        }
        if (byte >= 0) continue;
        bytes->length = before;
        tshi_bytes_add(bytes, token, length);
    }
    if (bytes->failed) return TSH_ERR_MEMORY;
    add_repaired(bytes->data, bytes->length, &to->bytes);
    return end_token(&t->allocator, to);
}

static int hexadecimal(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of a token like <0x0A>, or -1. Rust reads a plus sign, too. */
static int byte_of_token(const char *token, size_t length) {
    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    int high = token[3] == '+' ? 0 : hexadecimal(token[3]), low = hexadecimal(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Appends the bytes of consecutive byte tokens if they are valid UTF-8, else U+FFFD for each byte. */
static tsh_status add_run(tsh_tokenizer *t, tshi_bytes *run, tshi_texts *to) {
    size_t length = run->length;
    run->length = 0;
    if (length == 0) return TSH_OK;
    if (tshi_utf8_valid(run->data, length) == length)
        tshi_bytes_add(&to->bytes, run->data, length);
    else
        for (size_t i = 0; i < length; i++) tshi_bytes_add(&to->bytes, replacement, 3);
    return end_token(&t->allocator, to);
}

static tsh_status decode_bytes(tsh_tokenizer *t, const tshi_texts *from, tshi_texts *to) {
    tsh_status status = TSH_OK;
    tshi_bytes *run = &t->codes;
    tshi_bytes_clear(run);
    for (int i = 0; status == TSH_OK && i < from->count; i++) {
        size_t length;
        const char *token = token_at(from, i, &length);
        int byte = byte_of_token(token, length);
        const char c = (char)byte;
        if (byte >= 0) {
            tshi_bytes_add(run, &c, 1);
            continue;
        }
        status = add_run(t, run, to);
        tshi_bytes_add(&to->bytes, token, length);
        if (status == TSH_OK) status = end_token(&t->allocator, to);
    }
    return status == TSH_OK ? add_run(t, run, to) : status;
}

/* --- other decoders ----------------------------------------------------------------------------------------------- */

/* Appends a token with each `what` replaced; `what` is not empty. */
static void add_changed(const char *token, size_t length, const char *what, size_t n, const char *by, tshi_bytes *out) {
    for (;;) {
        const char *place = n <= length ? memmem(token, length, what, n) : NULL;
        size_t kept = place ? (size_t)(place - token) : length;
        tshi_bytes_add(out, token, kept);
        if (!place) return;
        tshi_bytes_add(out, by, strlen(by));
        token += kept + n;
        length -= kept + n;
    }
}

/* Cleans up the spaces around English punctuation as BERT's decoder does, from `start` on. */
static void clean_up(tsh_tokenizer *t, tshi_bytes *out, size_t start) {
    static const char *const changes[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                             {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                             {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *what = changes[i][0];
        if (out->failed || !memmem(out->data + start, out->length - start, what, strlen(what))) continue;
        tshi_bytes_clear(&t->codes);
        add_changed(out->data + start, out->length - start, what, strlen(what), changes[i][1], &t->codes);
        out->length = start;
        tshi_bytes_add(out, t->codes.data, t->codes.length);
    }
}

static void add_wordpiece(tsh_tokenizer *t, const tshi_text_step *step, int i, const char *token, size_t length,
                          tshi_bytes *out) {
    size_t start = out->length, n = step->content.length;
    if (i > 0 && length >= n && (n == 0 || memcmp(token, step->content.data, n) == 0)) {
        token += n;
        length -= n;
    } else if (i > 0) {
        tshi_bytes_add(out, " ", 1);
    }
    tshi_bytes_add(out, token, length);
    if (step->cleanup && out->length > start) clean_up(t, out, start);
}

static void strip_token(const tshi_text_step *step, const char *token, size_t length, tshi_bytes *out) {
    size_t n = step->content.length;
    for (int64_t i = 0; i < step->start && length >= n && memcmp(token, step->content.data, n) == 0; i++) {
        token += n;
        length -= n;
    }
    for (int64_t i = 0; i < step->stop && length >= n && memcmp(token + length - n, step->content.data, n) == 0; i++)
        length -= n;
    tshi_bytes_add(out, token, length);
}

static tsh_status replace_in_token(const tshi_text_step *step, const char *token, size_t length, tshi_bytes *out) {
    size_t at = 0;
    for (bool found = true; found && at < length;) {
        size_t start = length, end = length;
        tsh_status status = tshi_pattern_find(step->pattern, token, length, at, &found, &start, &end);
        if (status != TSH_OK) return status;
        if (!found) break;
        tshi_bytes_add(out, token + at, start - at);
        tshi_bytes_add(out, step->content.data, step->content.length);
        at = end;
        if (end > start || end == length) continue;
        at += tshi_utf8_length(token[end]);
        tshi_bytes_add(out, token + end, at - end);
    }
    tshi_bytes_add(out, token + at, length - at);
    return TSH_OK;
}

/* Appends token i of `count` as the decoder makes it. */
static tsh_status decode_token(tsh_tokenizer *t, tshi_text_step *step, int i, int count, const char *token,
                               size_t length, tshi_bytes *out) {
    const char *content = step->content.data;
    bool blank = i > 0 || step->keeps_first;
    switch (step->kind) {
    case TSHI_STEP_DECODE_REPLACE: return replace_in_token(step, token, length, out);
    case TSHI_STEP_DECODE_STRIP: strip_token(step, token, length, out); break;
    case TSHI_STEP_DECODE_WORDPIECE: add_wordpiece(t, step, i, token, length, out); break;
    case TSHI_STEP_DECODE_METASPACE:
        add_changed(token, length, content, step->content.length, blank ? " " : "", out);
        break;
    case TSHI_STEP_DECODE_SUFFIX:
        add_changed(token, length, content, step->content.length, i + 1 < count ? " " : "", out);
        break;
    default: tshi_bytes_add(out, token, length); break; /* FUSE */
    }
    return TSH_OK;
}

static tsh_status decode_each(tsh_tokenizer *t, tshi_text_step *step, const tshi_texts *from, tshi_texts *to) {
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < from->count; i++) {
        size_t length;
        const char *token = token_at(from, i, &length);
        status = decode_token(t, step, i, from->count, token, length, &to->bytes);
        if (status == TSH_OK && step->kind != TSHI_STEP_DECODE_FUSE) status = end_token(&t->allocator, to);
    }
    return status == TSH_OK && step->kind == TSHI_STEP_DECODE_FUSE ? end_token(&t->allocator, to) : status;
}

static tsh_status decode_step(tsh_tokenizer *t, tshi_text_step *step, const tshi_texts *from, tshi_texts *to) {
    to->count = 0;
    tshi_bytes_clear(&to->bytes);
    if (step->kind == TSHI_STEP_DECODE_LETTERS) return decode_letters(t, from, to);
    if (step->kind == TSHI_STEP_DECODE_BYTES) return decode_bytes(t, from, to);
    return decode_each(t, step, from, to);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

const char *tshi_tokenizer_token(const tsh_tokenizer *t, int64_t id, bool special, size_t *length) {
    const char *token = tshi_vocabulary_text(&t->added, id, length);
    if (!token) return tshi_vocabulary_text(&t->model.vocabulary, id, length);
    return t->special[id] && !special ? NULL : token;
}

static tsh_status look_up(tsh_tokenizer *t, const int64_t *ids, int64_t count, bool special, tshi_texts *to) {
    tsh_status status = TSH_OK;
    to->count = 0;
    tshi_bytes_clear(&to->bytes);
    for (int64_t i = 0; status == TSH_OK && i < count; i++) {
        size_t length = 0;
        if (ids[i] < 0)
            return tshi_fail(TSH_ERR_RANGE, "decode: id %lld at place %lld is negative", (long long)ids[i],
                             (long long)i);
        const char *token = tshi_tokenizer_token(t, ids[i], special, &length);
        if (!token) continue;
        if (!t->decodes && to->count) tshi_bytes_add(&to->bytes, " ", 1);
        tshi_bytes_add(&to->bytes, token, length);
        status = end_token(&t->allocator, to);
    }
    return status;
}

tsh_status tshi_tokenizer_decode(tsh_tokenizer *t, const int64_t *ids, int64_t count, bool special) {
    tshi_texts *from = &t->texts[0], *to = &t->texts[1];
    tsh_status status = look_up(t, ids, count, special, from);
    for (int i = 0; status == TSH_OK && i < t->decoders.count; i++) {
        tshi_texts *made = to;
        status = decode_step(t, &t->decoders.items[i], from, to);
        to = from;
        from = made;
    }
    if (status != TSH_OK) return status;
    tshi_bytes_clear(&t->text);
    tshi_bytes_add(&t->text, from->bytes.data, from->bytes.length);
    tshi_bytes_add(&t->text, "", 1);
    if (t->text.failed) return TSH_ERR_MEMORY;
    t->text.length--;
    return TSH_OK;
}

tsh_status tsh_tokenizer_decode(tsh_tokenizer *tokenizer, const int64_t *ids, int64_t count, bool special,
                                const char **text, size_t *bytes) {
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    if (!tokenizer || !text || count < 0 || (count && !ids))
        return tshi_fail(TSH_ERR_ARGUMENT, "tsh_tokenizer_decode: %s",
                         !tokenizer  ? "tokenizer is NULL"
                         : !text     ? "text is NULL"
                         : count < 0 ? "count is negative"
                                     : "ids is NULL");
    tsh_status status = tshi_tokenizer_decode(tokenizer, ids, count, special);
    if (status != TSH_OK) return status;
    *text = tokenizer->text.data;
    if (bytes) *bytes = tokenizer->text.length;
    return TSH_OK;
}
