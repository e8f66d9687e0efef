/* Parses the template of a tokenizer.json: the special tokens before and after a text. */
#include "io/tokenizer/parse.h"

enum { MAX_PIECES = 256 };

/* A template while it is read. */
typedef struct ring {
    int32_t ids[MAX_PIECES]; /* -1: the text's place */
    int count;
} ring;

static tsh_status add_id(const tshi_parse *p, ring *r, const json_t *json) {
    json_int_t id = json_is_integer(json) ? json_integer_value(json) : -1;
    if (id < 0 || id >= TSHI_TOKEN_IDS)
        return tshi_parse_refuse(p, "an id of the post_processor", "from 0 to 16777215");
    if (r->count == MAX_PIECES) return tshi_parse_refuse(p, "the template of the post_processor", "of at most 256 ids");
    r->ids[r->count++] = (int32_t)id;
    return TSH_OK;
}

/* The ids of a special token in a template. */
static tsh_status add_special(const tshi_parse *p, ring *r, const json_t *tokens, const char *name) {
    const json_t *ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids"), *id;
    size_t i;
    tsh_status status = TSH_OK;
    if (!name || !json_is_array(ids))
        return tshi_parse_refuse(p, "a SpecialToken of the template", "in special_tokens, with ids");
    json_array_foreach((json_t *)ids, i, id) {
        if (status == TSH_OK) status = add_id(p, r, id);
    }
    return status;
}

static tsh_status read_template(const tshi_parse *p, const json_t *json, ring *r) {
    const json_t *pieces = json_object_get(json, "single"), *piece, *tokens = json_object_get(json, "special_tokens");
    size_t i;
    tsh_status status = TSH_OK;
    if (!json_is_array(pieces)) return tshi_parse_refuse(p, "the template 'single' of the post_processor", "an array");
    json_array_foreach((json_t *)pieces, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        if (status != TSH_OK) return status;
        if (special) {
            status = add_special(p, r, tokens, tshi_parse_text(special, "id"));
        } else if (!text) {
            status = tshi_parse_refuse(p, "a piece of the template", "a SpecialToken or a Sequence");
        } else if (r->count == MAX_PIECES) {
            status = tshi_parse_refuse(p, "the template of the post_processor", "of at most 256 ids");
        } else {
            r->ids[r->count++] = -1;
        }
    }
    return status;
}

/* BERT's and RoBERTa's: [CLS] text [SEP]. */
static tsh_status read_ends(const tshi_parse *p, const json_t *json, ring *r) {
    tsh_status status = add_id(p, r, json_array_get(json_object_get(json, "cls"), 1));
    r->ids[r->count++] = -1;
    return status == TSH_OK ? add_id(p, r, json_array_get(json_object_get(json, "sep"), 1)) : status;
}

/* Nests the template so far in r: it takes the place of r's text. */
static tsh_status surround(const tshi_parse *p, const ring *r) {
    tsh_tokenizer *t = p->tokenizer;
    const int32_t only_text = -1, *inner = t->template ? t->template : &only_text;
    int inner_count = t->template ? t->template_count : 1, count = 0;
    int32_t *made = tshi_calloc(&t->allocator, (size_t)r->count * (size_t)inner_count + 1, sizeof *made);
    if (!made) return TSH_ERR_MEMORY;
    for (int i = 0; i < r->count; i++) {
        if (r->ids[i] >= 0) made[count++] = r->ids[i];
        for (int k = 0; r->ids[i] < 0 && k < inner_count; k++) made[count++] = inner[k];
    }
    tshi_free(&t->allocator, t->template);
    t->template = made;
    t->template_count = count;
    if (count <= MAX_PIECES) return TSH_OK;
    return tshi_parse_refuse(p, "the template of the post_processor", "of at most 256 ids");
}

tsh_status tshi_parse_template(const tshi_parse *p, const json_t *json) {
    const char *type = tshi_parse_text(json, "type");
    ring r = {.count = 0};
    tsh_status status;
    if (!json || json_is_null(json) || (type && strcmp(type, "ByteLevel") == 0)) return TSH_OK;
    if (type && strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(json, "processors"), *inner;
        size_t i;
        if (!json_is_array(list)) return tshi_parse_refuse(p, "the post_processor's 'processors'", "an array");
        status = TSH_OK;
        json_array_foreach((json_t *)list, i, inner) {
            if (status == TSH_OK) status = tshi_parse_template(p, inner);
        }
        return status;
    }
    if (type && strcmp(type, "TemplateProcessing") == 0)
        status = read_template(p, json, &r);
    else if (type && (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0))
        status = read_ends(p, json, &r);
    else
        return tshi_parse_unknown(p, "post_processor", type,
                                  "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence are");
    return status == TSH_OK ? surround(p, &r) : status;
}
