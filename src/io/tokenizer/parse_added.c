/* Parses the added tokens of a tokenizer.json. */
#include "io/tokenizer/parse.h"

/* Tokens that are searched for in normalized texts are normalized themselves. */
static tsh_status normalize_content(tsh_tokenizer *t, const char **text, size_t *length) {
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < t->normalizers.count; i++)
        status = tshi_step_change(&t->normalizers.items[i], &t->codes, true, text, length);
    return status;
}

static tsh_status add_to_set(tsh_tokenizer *t, const json_t *json, const char *text, int32_t id) {
    bool normalized = tshi_parse_truth(json, "normalized", !tshi_parse_truth(json, "special", false));
    tshi_added_set *set = normalized ? &t->normalized : &t->plain;
    size_t length = strlen(text);
    tsh_status status = normalized ? normalize_content(t, &text, &length) : TSH_OK;
    if (status == TSH_OK)
        status = tshi_grow(&t->allocator, (void **)&set->items, &set->capacity, set->count + 1, sizeof *set->items);
    if (status != TSH_OK || length == 0) return status;
    tshi_added *added = &set->items[set->count++];
    *added = (tshi_added){.id = id,
                          .single_word = tshi_parse_truth(json, "single_word", false),
                          .lstrip = tshi_parse_truth(json, "lstrip", false),
                          .rstrip = tshi_parse_truth(json, "rstrip", false)};
    added->content.allocator = &t->allocator;
    tshi_bytes_add(&added->content, text, length);
    return added->content.failed ? TSH_ERR_MEMORY : TSH_OK;
}

static tsh_status parse_added_token(const tshi_parse *p, const json_t *json) {
    tsh_tokenizer *t = p->tokenizer;
    const char *text = tshi_parse_text(json, "content");
    const json_t *number = json_object_get(json, "id");
    json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    if (!text) return tshi_parse_refuse(p, "the content of an added token", "a text");
    if (id < 0 || id >= TSHI_TOKEN_IDS) return tshi_parse_refuse(p, "the id of an added token", "from 0 to 16777215");
    if (!text[0]) return TSH_OK;
    int32_t own = tshi_vocabulary_find(&t->model.vocabulary, text, strlen(text)); /* the model's id counts */
    if (own >= 0) id = own;
    tsh_status status = tshi_vocabulary_add(&t->added, text, strlen(text), (int32_t)id);
    if (status == TSH_OK)
        status = tshi_grow(&t->allocator, (void **)&t->special, &t->special_room, (int)id + 1, sizeof *t->special);
    if (status != TSH_OK) return status;
    t->special[id] = tshi_parse_truth(json, "special", false);
    return add_to_set(t, json, text, (int32_t)id);
}

tsh_status tshi_parse_added(const tshi_parse *p, const json_t *json) {
    size_t i;
    const json_t *token;
    if (!json || json_is_null(json)) return TSH_OK;
    if (!json_is_array(json)) return tshi_parse_refuse(p, "added_tokens", "an array");
    json_array_foreach((json_t *)json, i, token) {
        tsh_status status = parse_added_token(p, token);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}
