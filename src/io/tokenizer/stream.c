/* Stream decoding: with each id, all ids since the last place where the text was complete are decoded again, and the
 * part of their text that has been given already is left out. */
#include "io/tokenizer/tokenizer.h"

/* More ids than this at the end that form no complete character are garbage. */
#define MAX_WINDOW 64

struct tsh_text_stream {
    tsh_tokenizer *tokenizer;
    bool special;
    int64_t ids[MAX_WINDOW];
    int count;
    int mark; /* ids before it are the context of those behind: a token's text can depend on what is before it */
    tshi_bytes shown; /* what has been given of the ids' text */
    tshi_bytes out;
};

tsh_status tsh_text_stream_create(tsh_tokenizer *tokenizer, bool special, tsh_text_stream **out) {
    if (out) *out = NULL;
    if (!tokenizer || !out)
        return tshi_fail(TSH_ERR_ARGUMENT, "tsh_text_stream_create: %s is NULL", tokenizer ? "out" : "tokenizer");
    tsh_text_stream *stream = tshi_calloc(&tokenizer->allocator, 1, sizeof *stream);
    if (!stream) return TSH_ERR_MEMORY;
    stream->tokenizer = tokenizer;
    stream->special = special;
    stream->shown.allocator = stream->out.allocator = &tokenizer->allocator;
    *out = stream;
    return TSH_OK;
}

void tsh_text_stream_destroy(tsh_text_stream *stream) {
    if (!stream) return;
    const tsh_allocator allocator = stream->tokenizer->allocator;
    tshi_bytes_free(&stream->shown);
    tshi_bytes_free(&stream->out);
    tshi_free(&allocator, stream);
}

/* The length of a text without U+FFFD at its end: at most three, which one character's bytes can be. */
static size_t certain_length(const char *text, size_t length) {
    for (int i = 0; i < 3 && length >= 3 && memcmp(text + length - 3, "\xef\xbf\xbd", 3) == 0; i++) length -= 3;
    return length;
}

static size_t common_length(const tshi_bytes *a, const tshi_bytes *b) {
    size_t n = 0, least = a->length < b->length ? a->length : b->length;
    while (n < least && a->data[n] == b->data[n]) n++;
    return n;
}

/* Gives the text of the ids up to `end` that has not been given yet. Text that an id has changed cannot be taken back:
 * byte tokens whose run is no UTF-8 are U+FFFD each, and the next one may repair them, unless the text is `over`. */
static bool give(tsh_text_stream *stream, size_t end, bool over) {
    const tshi_bytes *text = &stream->tokenizer->text;
    size_t from = stream->shown.length;
    bool changed = common_length(&stream->shown, text) < from;
    if ((changed && !over) || from >= end) return true;
    while (from < end && ((unsigned char)text->data[from] & 0xc0) == 0x80) from++;
    tshi_bytes_add(&stream->out, text->data + from, end - from);
    tshi_bytes_clear(&stream->shown);
    tshi_bytes_add(&stream->shown, text->data, end);
    return !stream->out.failed && !stream->shown.failed;
}

/* All text of the window has been given: the ids after the mark become the context. */
static tsh_status move_window(tsh_text_stream *stream) {
    stream->count -= stream->mark;
    memmove(stream->ids, stream->ids + stream->mark, (size_t)stream->count * sizeof *stream->ids);
    stream->mark = stream->count;
    tsh_status status = tshi_tokenizer_decode(stream->tokenizer, stream->ids, stream->count, stream->special);
    if (status != TSH_OK) return status;
    tshi_bytes_clear(&stream->shown);
    tshi_bytes_add(&stream->shown, stream->tokenizer->text.data, stream->tokenizer->text.length);
    return stream->shown.failed ? TSH_ERR_MEMORY : TSH_OK;
}

static tsh_status add_id(tsh_text_stream *stream, int64_t id) {
    size_t length;
    const tshi_bytes *text = &stream->tokenizer->text;
    if (id >= 0 && !tshi_tokenizer_token(stream->tokenizer, id, stream->special, &length)) return TSH_OK;
    stream->ids[stream->count++] = id;
    tsh_status status = tshi_tokenizer_decode(stream->tokenizer, stream->ids, stream->count, stream->special);
    if (status != TSH_OK) {
        stream->count--;
        return status;
    }
    bool full = stream->count == MAX_WINDOW;
    size_t end = full ? text->length : certain_length(text->data, text->length);
    bool more = text->length > stream->shown.length;
    if (!give(stream, end, end == text->length)) {
        stream->count--;
        return TSH_ERR_MEMORY;
    }
    if (!full && (end < text->length || !more)) return TSH_OK;
    if (full && stream->mark == 0) stream->mark = stream->count - 1;
    return move_window(stream);
}

static tsh_status hand_out(tsh_text_stream *stream, tsh_status status, const char **text, size_t *bytes) {
    if (status != TSH_OK) return status;
    tshi_bytes_add(&stream->out, "", 1);
    if (stream->out.failed) return TSH_ERR_MEMORY;
    *text = stream->out.data;
    if (bytes) *bytes = stream->out.length - 1;
    return TSH_OK;
}

tsh_status tsh_text_stream_add(tsh_text_stream *stream, int64_t id, const char **text, size_t *bytes) {
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    if (!stream || !text)
        return tshi_fail(TSH_ERR_ARGUMENT, "tsh_text_stream_add: %s is NULL", stream ? "text" : "stream");
    tshi_bytes_clear(&stream->out);
    return hand_out(stream, add_id(stream, id), text, bytes);
}

tsh_status tsh_text_stream_end(tsh_text_stream *stream, const char **text, size_t *bytes) {
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    if (!stream || !text)
        return tshi_fail(TSH_ERR_ARGUMENT, "tsh_text_stream_end: %s is NULL", stream ? "text" : "stream");
    tshi_bytes_clear(&stream->out);
    tsh_status status = tshi_tokenizer_decode(stream->tokenizer, stream->ids, stream->count, stream->special);
    if (status == TSH_OK && !give(stream, stream->tokenizer->text.length, true)) status = TSH_ERR_MEMORY;
    stream->count = stream->mark = 0;
    tshi_bytes_clear(&stream->shown);
    return hand_out(stream, status, text, bytes);
}
