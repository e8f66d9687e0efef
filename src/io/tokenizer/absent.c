/* Stands in for the tokenizers of a build without PCRE2 or utf8proc. */
#include "base/base.h"
#include "tshard/tokenizer.h"

static tsh_status refuse(void) {
    return tshi_fail(TSH_ERR_UNSUPPORTED, "tshard was built without tokenizers, which need PCRE2 10.42 and utf8proc: "
                                          "install libpcre2-dev and libutf8proc-dev, and build it again");
}

tsh_status tsh_tokenizer_load(const char *path, tsh_tokenizer **out) {
    (void)path;
    if (out) *out = NULL;
    return refuse();
}

void tsh_tokenizer_destroy(tsh_tokenizer *tokenizer) {
    (void)tokenizer;
}

int64_t tsh_tokenizer_size(const tsh_tokenizer *tokenizer) {
    (void)tokenizer;
    return 0;
}

int64_t tsh_tokenizer_id(const tsh_tokenizer *tokenizer, const char *token) {
    (void)tokenizer;
    (void)token;
    return -1;
}

tsh_status tsh_tokenizer_encode(tsh_tokenizer *tokenizer, const char *text, size_t bytes, bool special,
                                const int64_t **ids, int64_t *count) {
    (void)tokenizer;
    (void)text;
    (void)bytes;
    (void)special;
    if (ids) *ids = NULL;
    if (count) *count = 0;
    return refuse();
}

tsh_status tsh_tokenizer_decode(tsh_tokenizer *tokenizer, const int64_t *ids, int64_t count, bool special,
                                const char **text, size_t *bytes) {
    (void)tokenizer;
    (void)ids;
    (void)count;
    (void)special;
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    return refuse();
}

tsh_status tsh_text_stream_create(tsh_tokenizer *tokenizer, bool special, tsh_text_stream **out) {
    (void)tokenizer;
    (void)special;
    if (out) *out = NULL;
    return refuse();
}

void tsh_text_stream_destroy(tsh_text_stream *stream) {
    (void)stream;
}

tsh_status tsh_text_stream_add(tsh_text_stream *stream, int64_t id, const char **text, size_t *bytes) {
    (void)stream;
    (void)id;
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    return refuse();
}

tsh_status tsh_text_stream_end(tsh_text_stream *stream, const char **text, size_t *bytes) {
    (void)stream;
    if (text) *text = NULL;
    if (bytes) *bytes = 0;
    return refuse();
}
