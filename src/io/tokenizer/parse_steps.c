/* Parses the steps of a tokenizer.json: normalizers, pre-tokenizers and decoders, each kind as one flat list. */
#include "io/tokenizer/parse.h"

/* The regular expression that splits a text into words as GPT-2 does. */
static const char *const gpt2_words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *const metaspace = "\xe2\x96\x81"; /* U+2581 */

/* Adds a step; NULL, with the message set, if there is no room. */
static tshi_text_step *add_step(const tshi_parse *p, tshi_text_steps *steps, tshi_step_kind kind) {
    if (steps->count == TSHI_MAX_STEPS) {
        tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: more than %d steps of one kind", p->path, TSHI_MAX_STEPS);
        return NULL;
    }
    tshi_text_step *step = &steps->items[steps->count++];
    step->kind = kind;
    step->content.allocator = step->made.allocator = &p->tokenizer->allocator;
    return step;
}

/* Adds a step with a text, which has been read from under `part`. */
static tsh_status add_text_step(const tshi_parse *p, tshi_text_steps *steps, tshi_step_kind kind, const char *part,
                                const char *text) {
    if (!text) return tshi_parse_refuse(p, part, "a text");
    tshi_text_step *step = add_step(p, steps, kind);
    return step ? tshi_parse_copy(&step->content, text) : TSH_ERR_UNSUPPORTED;
}

static tsh_status set_pattern(const tshi_parse *p, tshi_text_step *step, const char *text, bool regex) {
    char words[TSHI_MESSAGE_SIZE];
    tsh_status status = tshi_pattern_create(&p->tokenizer->allocator, text, regex, &step->pattern);
    if (status == TSH_OK || status == TSH_ERR_MEMORY) return status;
    memcpy(words, tsh_error_message(), sizeof words);
    return tshi_fail(status, "%.220s: %.260s", p->path, words);
}

/* {"String": text} or {"Regex": text}, and the replacement of a match. */
static tsh_status add_pattern_step(const tshi_parse *p, tshi_text_steps *steps, tshi_step_kind kind,
                                   const json_t *pattern, const char *content) {
    const char *literal = tshi_parse_text(pattern, "String"), *regex = tshi_parse_text(pattern, "Regex");
    if (!literal && !regex) return tshi_parse_refuse(p, "a pattern", "a String or a Regex");
    tsh_status status = add_text_step(p, steps, kind, "the content of a Replace", content);
    return status == TSH_OK ? set_pattern(p, &steps->items[steps->count - 1], literal ? literal : regex, !literal)
                            : status;
}

static tsh_status add_class_step(const tshi_parse *p, tshi_text_steps *steps, tshi_step_kind kind, tshi_class members) {
    tshi_text_step *step = add_step(p, steps, kind);
    if (step) step->members = members;
    return step ? TSH_OK : TSH_ERR_UNSUPPORTED;
}

static tsh_status add_plain_step(const tshi_parse *p, tshi_text_steps *steps, tshi_step_kind kind) {
    return add_step(p, steps, kind) ? TSH_OK : TSH_ERR_UNSUPPORTED;
}

static tsh_status add_form_step(const tshi_parse *p, tshi_text_steps *steps, tshi_form form) {
    tshi_text_step *step = add_step(p, steps, TSHI_STEP_FORM);
    if (step) step->form = form;
    return step ? TSH_OK : TSH_ERR_UNSUPPORTED;
}

typedef tsh_status parse_fn(const tshi_parse *p, const json_t *json);

/* Each step of a Sequence's list. */
static tsh_status parse_list(const tshi_parse *p, const json_t *list, const char *part, parse_fn *parse) {
    size_t i;
    const json_t *inner;
    tsh_status status = TSH_OK;
    if (!json_is_array(list)) return tshi_parse_refuse(p, part, "an array");
    json_array_foreach((json_t *)list, i, inner) {
        if (status == TSH_OK) status = parse(p, inner);
    }
    return status;
}

/* --- normalizers -------------------------------------------------------------------------------------------------- */

static tsh_status parse_bert(const tshi_parse *p, const json_t *json) {
    tshi_text_steps *steps = &p->tokenizer->normalizers;
    bool lower = tshi_parse_truth(json, "lowercase", true);
    tsh_status status = TSH_OK;
    if (tshi_parse_truth(json, "clean_text", true)) status = add_plain_step(p, steps, TSHI_STEP_CLEAN);
    if (status == TSH_OK && tshi_parse_truth(json, "handle_chinese_chars", true))
        status = add_class_step(p, steps, TSHI_STEP_SPREAD, TSHI_CLASS_IDEOGRAPH);
    if (tshi_parse_truth(json, "strip_accents", lower)) {
        if (status == TSH_OK) status = add_form_step(p, steps, TSHI_NFD);
        if (status == TSH_OK) status = add_class_step(p, steps, TSHI_STEP_DROP, TSHI_CLASS_NONSPACING);
    }
    return status == TSH_OK && lower ? add_plain_step(p, steps, TSHI_STEP_LOWER) : status;
}

static tsh_status parse_strip(const tshi_parse *p, const json_t *json) {
    tshi_text_step *step = add_step(p, &p->tokenizer->normalizers, TSHI_STEP_STRIP);
    if (!step) return TSH_ERR_UNSUPPORTED;
    step->left = tshi_parse_truth(json, "strip_left", true);
    step->right = tshi_parse_truth(json, "strip_right", true);
    return TSH_OK;
}

tsh_status tshi_parse_normalizer(const tshi_parse *p, const json_t *json) {
    static const char *const forms[] = {
        [TSHI_NFC] = "NFC", [TSHI_NFD] = "NFD", [TSHI_NFKC] = "NFKC", [TSHI_NFKD] = "NFKD"};
    tshi_text_steps *steps = &p->tokenizer->normalizers;
    const char *type = tshi_parse_text(json, "type");
    if (!json || json_is_null(json)) return TSH_OK;
    for (int i = 0; type && i < 4; i++) {
        if (strcmp(type, forms[i]) == 0) return add_form_step(p, steps, (tshi_form)i);
    }
    if (type && strcmp(type, "Sequence") == 0)
        return parse_list(p, json_object_get(json, "normalizers"), "the normalizer's 'normalizers'",
                          tshi_parse_normalizer);
    if (type && strcmp(type, "BertNormalizer") == 0) return parse_bert(p, json);
    if (type && strcmp(type, "Strip") == 0) return parse_strip(p, json);
    if (type && strcmp(type, "Lowercase") == 0) return add_plain_step(p, steps, TSHI_STEP_LOWER);
    if (type && strcmp(type, "ByteLevel") == 0) return add_plain_step(p, steps, TSHI_STEP_LETTERS);
    if (type && strcmp(type, "StripAccents") == 0) return add_class_step(p, steps, TSHI_STEP_DROP, TSHI_CLASS_MARK);
    if (type && strcmp(type, "Prepend") == 0)
        return add_text_step(p, steps, TSHI_STEP_PREPEND, "the text of a Prepend", tshi_parse_text(json, "prepend"));
    if (type && strcmp(type, "Replace") == 0)
        return add_pattern_step(p, steps, TSHI_STEP_REPLACE, json_object_get(json, "pattern"),
                                tshi_parse_text(json, "content"));
    return tshi_parse_unknown(p, "normalizer", type,
                              "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, "
                              "StripAccents and Sequence are");
}

/* --- pre-tokenizers ----------------------------------------------------------------------------------------------- */

static tsh_status add_split(const tshi_parse *p, const char *pattern, bool regex, tshi_behavior behavior, bool invert) {
    tshi_text_step *step = add_step(p, &p->tokenizer->splitters, TSHI_STEP_SPLIT);
    if (!step) return TSH_ERR_UNSUPPORTED;
    step->behavior = behavior;
    step->invert = invert;
    return set_pattern(p, step, pattern, regex);
}

static tsh_status add_class_split(const tshi_parse *p, tshi_class members, tshi_behavior behavior) {
    tsh_status status = add_class_step(p, &p->tokenizer->splitters, TSHI_STEP_SPLIT_CLASS, members);
    if (status == TSH_OK) p->tokenizer->splitters.items[p->tokenizer->splitters.count - 1].behavior = behavior;
    return status;
}

/* Adds a step that prepends a prefix to texts that do not begin with it. */
static tsh_status add_lead(const tshi_parse *p, const char *text, bool first_only) {
    tshi_text_steps *steps = &p->tokenizer->splitters;
    tsh_status status = add_text_step(p, steps, TSHI_STEP_LEAD, "a replacement", text);
    if (status == TSH_OK) steps->items[steps->count - 1].first_only = first_only;
    return status;
}

static tsh_status parse_byte_level(const tshi_parse *p, const json_t *json) {
    tsh_status status = TSH_OK;
    if (tshi_parse_truth(json, "add_prefix_space", true)) status = add_lead(p, " ", false);
    if (status == TSH_OK && tshi_parse_truth(json, "use_regex", true))
        status = add_split(p, gpt2_words, true, TSHI_ISOLATED, false);
    return status == TSH_OK ? add_plain_step(p, &p->tokenizer->splitters, TSHI_STEP_LETTERS) : status;
}

static const char *prepend_scheme(const json_t *json) {
    const char *scheme = tshi_parse_text(json, "prepend_scheme");
    if (scheme) return scheme;
    return tshi_parse_truth(json, "add_prefix_space", true) ? "always" : "never";
}

static tsh_status parse_metaspace(const tshi_parse *p, const json_t *json) {
    const char *text = tshi_parse_text(json, "replacement"), *scheme = prepend_scheme(json);
    tshi_text_steps *steps = &p->tokenizer->splitters;
    bool first = strcmp(scheme, "first") == 0;
    if (!text) text = metaspace;
    if (!first && strcmp(scheme, "always") != 0 && strcmp(scheme, "never") != 0)
        return tshi_parse_refuse(p, "the prepend_scheme of a Metaspace", "always, first or never");
    tsh_status status = add_text_step(p, steps, TSHI_STEP_REPLACE, "a replacement", text);
    if (status == TSH_OK) status = set_pattern(p, &steps->items[steps->count - 1], " ", false);
    if (status == TSH_OK && strcmp(scheme, "never") != 0) status = add_lead(p, text, first);
    if (status == TSH_OK && tshi_parse_truth(json, "split", true))
        status = add_split(p, text, false, TSHI_MERGED_WITH_NEXT, false);
    return status;
}

/* The behavior of a Split or a Punctuation; false for another word. */
static bool read_behavior(const char *word, tshi_behavior *out) {
    static const char *const names[][2] = {[TSHI_REMOVED] = {"Removed", "removed"},
                                           [TSHI_ISOLATED] = {"Isolated", "isolated"},
                                           [TSHI_MERGED_WITH_PREVIOUS] = {"MergedWithPrevious", "merged_with_previous"},
                                           [TSHI_MERGED_WITH_NEXT] = {"MergedWithNext", "merged_with_next"},
                                           [TSHI_CONTIGUOUS] = {"Contiguous", "contiguous"}};
    for (int i = 0; word && i < 5; i++) {
        *out = (tshi_behavior)i;
        if (strcmp(word, names[i][0]) == 0 || strcmp(word, names[i][1]) == 0) return true;
    }
    return false;
}

static tsh_status parse_split(const tshi_parse *p, const json_t *json) {
    const json_t *pattern = json_object_get(json, "pattern");
    const char *literal = tshi_parse_text(pattern, "String"), *regex = tshi_parse_text(pattern, "Regex");
    tshi_behavior behavior;
    if (!literal && !regex) return tshi_parse_refuse(p, "the pattern of a Split", "a String or a Regex");
    if (!read_behavior(tshi_parse_text(json, "behavior"), &behavior))
        return tshi_parse_refuse(p, "the behavior of a Split", "one that is known");
    return add_split(p, literal ? literal : regex, !literal, behavior, tshi_parse_truth(json, "invert", false));
}

static tsh_status parse_punctuation(const tshi_parse *p, const json_t *json) {
    tshi_behavior behavior = TSHI_ISOLATED;
    const char *word = tshi_parse_text(json, "behavior");
    if (word && !read_behavior(word, &behavior))
        return tshi_parse_refuse(p, "the behavior of a Punctuation", "one that is known");
    return add_class_split(p, TSHI_CLASS_PUNCTUATION, behavior);
}

static tsh_status parse_splitter_class(const tshi_parse *p, const json_t *json, const char *type) {
    if (strcmp(type, "WhitespaceSplit") == 0) return add_class_split(p, TSHI_CLASS_SPACE, TSHI_REMOVED);
    if (strcmp(type, "Whitespace") == 0)
        return add_split(p, "[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+", true, TSHI_REMOVED, true);
    if (strcmp(type, "Punctuation") == 0) return parse_punctuation(p, json);
    if (strcmp(type, "Digits") == 0)
        return add_class_split(p, TSHI_CLASS_NUMBER,
                               tshi_parse_truth(json, "individual_digits", false) ? TSHI_ISOLATED : TSHI_CONTIGUOUS);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        tsh_status status = add_class_split(p, TSHI_CLASS_SPACE, TSHI_REMOVED);
        return status == TSH_OK ? add_class_split(p, TSHI_CLASS_PUNCTUATION, TSHI_ISOLATED) : status;
    }
    return tshi_parse_unknown(p, "pre_tokenizer", type,
                              "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace, "
                              "WhitespaceSplit and Sequence are");
}

tsh_status tshi_parse_splitter(const tshi_parse *p, const json_t *json) {
    const char *type = tshi_parse_text(json, "type");
    if (!json || json_is_null(json)) return TSH_OK;
    if (!type) return tshi_parse_unknown(p, "pre_tokenizer", NULL, "");
    if (strcmp(type, "Sequence") == 0)
        return parse_list(p, json_object_get(json, "pretokenizers"), "the pre_tokenizer's 'pretokenizers'",
                          tshi_parse_splitter);
    if (strcmp(type, "ByteLevel") == 0) return parse_byte_level(p, json);
    if (strcmp(type, "Metaspace") == 0) return parse_metaspace(p, json);
    if (strcmp(type, "Split") == 0) return parse_split(p, json);
    return parse_splitter_class(p, json, type);
}

/* --- decoders ----------------------------------------------------------------------------------------------------- */

static tsh_status parse_wordpiece_decoder(const tshi_parse *p, const json_t *json) {
    tshi_text_steps *steps = &p->tokenizer->decoders;
    const char *prefix = tshi_parse_text(json, "prefix");
    tsh_status status = add_text_step(p, steps, TSHI_STEP_DECODE_WORDPIECE, "a prefix", prefix ? prefix : "##");
    if (status == TSH_OK) steps->items[steps->count - 1].cleanup = tshi_parse_truth(json, "cleanup", true);
    return status;
}

static tsh_status parse_metaspace_decoder(const tshi_parse *p, const json_t *json) {
    tshi_text_steps *steps = &p->tokenizer->decoders;
    const char *text = tshi_parse_text(json, "replacement");
    bool keeps = strcmp(prepend_scheme(json), "never") == 0;
    tsh_status status =
        add_text_step(p, steps, TSHI_STEP_DECODE_METASPACE, "a replacement", text && text[0] ? text : metaspace);
    if (status == TSH_OK) steps->items[steps->count - 1].keeps_first = keeps;
    return status;
}

static tsh_status parse_strip_decoder(const tshi_parse *p, const json_t *json) {
    tshi_text_steps *steps = &p->tokenizer->decoders;
    const char *text = tshi_parse_text(json, "content");
    if (!text || !text[0] || text[tshi_utf8_length(text[0])])
        return tshi_parse_refuse(p, "the content of a Strip", "a character");
    tsh_status status = add_text_step(p, steps, TSHI_STEP_DECODE_STRIP, "the content of a Strip", text);
    if (status != TSH_OK) return status;
    steps->items[steps->count - 1].start = json_integer_value(json_object_get(json, "start"));
    steps->items[steps->count - 1].stop = json_integer_value(json_object_get(json, "stop"));
    return TSH_OK;
}

tsh_status tshi_parse_decoder(const tshi_parse *p, const json_t *json) {
    tshi_text_steps *steps = &p->tokenizer->decoders;
    const char *type = tshi_parse_text(json, "type"), *suffix = tshi_parse_text(json, "suffix");
    if (!json || json_is_null(json)) return TSH_OK;
    p->tokenizer->decodes = true;
    if (!type) return tshi_parse_unknown(p, "decoder", NULL, "");
    if (strcmp(type, "Sequence") == 0)
        return parse_list(p, json_object_get(json, "decoders"), "the decoder's 'decoders'", tshi_parse_decoder);
    if (strcmp(type, "ByteLevel") == 0) return add_plain_step(p, steps, TSHI_STEP_DECODE_LETTERS);
    if (strcmp(type, "ByteFallback") == 0) return add_plain_step(p, steps, TSHI_STEP_DECODE_BYTES);
    if (strcmp(type, "Fuse") == 0) return add_plain_step(p, steps, TSHI_STEP_DECODE_FUSE);
    if (strcmp(type, "WordPiece") == 0) return parse_wordpiece_decoder(p, json);
    if (strcmp(type, "Metaspace") == 0) return parse_metaspace_decoder(p, json);
    if (strcmp(type, "Strip") == 0) return parse_strip_decoder(p, json);
    if (strcmp(type, "BPEDecoder") == 0)
        return add_text_step(p, steps, TSHI_STEP_DECODE_SUFFIX, "a suffix", suffix && suffix[0] ? suffix : "</w>");
    if (strcmp(type, "Replace") == 0)
        return add_pattern_step(p, steps, TSHI_STEP_DECODE_REPLACE, json_object_get(json, "pattern"),
                                tshi_parse_text(json, "content"));
    return tshi_parse_unknown(p, "decoder", type,
                              "BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip, WordPiece and "
                              "Sequence are");
}
