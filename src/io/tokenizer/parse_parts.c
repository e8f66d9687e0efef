/* Helpers for parsing all parts of a tokenizer.json. */
#include "io/tokenizer/parse.h"

tsh_status tshi_parse_refuse(const tshi_parse *p, const char *part, const char *wanted) {
    return tshi_fail(TSH_ERR_IO, "%.220s: %.100s is not %.100s", p->path, part, wanted);
}

tsh_status tshi_parse_unknown(const tshi_parse *p, const char *part, const char *type, const char *built_in) {
    if (!type) return tshi_fail(TSH_ERR_IO, "%.220s: %.60s has no type", p->path, part);
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: the %.60s is '%.60s', which is not built in; %s", p->path, part,
                     type, built_in);
}

const char *tshi_parse_text(const json_t *json, const char *key) {
    return json_string_value(json_object_get(json, key));
}

bool tshi_parse_truth(const json_t *json, const char *key, bool otherwise) {
    const json_t *value = json_object_get(json, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

tsh_status tshi_parse_copy(tshi_bytes *bytes, const char *text) {
    tshi_bytes_clear(bytes);
    tshi_bytes_add(bytes, text, strlen(text));
    return bytes->failed ? TSH_ERR_MEMORY : TSH_OK;
}
