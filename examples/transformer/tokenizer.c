#include "tokenizer.h"
#include "numbers.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The bytes of a token, none for a special one. */
typedef struct token {
    char bytes[TOKEN_BYTES];
    unsigned char length;
} token;

struct tokenizer {
    token *tokens; /* [count] */
    int64_t count;
    bool letters;    /* tokens are bytes, written as GPT-2's letters for them */
    bool adds_blank; /* before a text that does not begin with one */
    char path[1024];
    tsh_tokenizer *library; /* NULL: the tokens above */
};

/* Bytes of the character that begins here, 0 at the end of the text. */
static size_t character_length(const char *text) {
    size_t length = text[0] != '\0';
    while (length && ((unsigned char)text[length] & 0xc0) == 0x80) length++;
    return length;
}

static bool is_special(const char *text, size_t length) {
    return length > 2 && ((text[0] == '<' && text[length - 1] == '>') || (text[0] == '[' && text[length - 1] == ']'));
}

/* The byte for which GPT-2's tokenizer writes this letter, or -1: bytes that Latin-1 prints are their own letters, the
 * others have those from U+0100 on, in their order. */
static int byte_of_letter(const char *text) {
    const unsigned char *u = (const unsigned char *)text;
    int letter = u[0] < 0x80 ? u[0] : (u[0] & 0x1f) << 6 | (u[1] & 0x3f), others = 0;
    for (int byte = 0; byte < 256; byte++) {
        bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        if (letter == (prints ? byte : 0x100 + others++)) return byte;
    }
    return -1;
}

/* False for a token that is longer than a letter. */
static bool set_letter(token *t, const char *text) {
    size_t length = strlen(text);
    int byte = length == character_length(text) && length <= 2 ? byte_of_letter(text) : -1;
    t->bytes[0] = (char)byte;
    t->length = byte >= 0;
    return byte >= 0 || is_special(text, length);
}

/* False for a token that is longer than a character. */
static bool set_token(token *t, const char *text) {
    size_t length = strlen(text);
    unsigned byte;
    char end;
    if (length == 6 && sscanf(text, "<0x%2X%c", &byte, &end) == 2 && end == '>') {
        t->bytes[0] = (char)byte;
        t->length = 1;
    } else if (length == character_length(text) && length <= TOKEN_BYTES) {
        memcpy(t->bytes, text, length);
        t->length = (unsigned char)length;
    } else {
        return is_special(text, length);
    }
    return true;
}

static bool fill(tokenizer *t, json_t *vocabulary, char words[MODEL_WORDS]) {
    const char *name;
    json_t *value;
    t->count = (int64_t)json_object_size(vocabulary);
    t->tokens = calloc((size_t)t->count + 1, sizeof *t->tokens);
    json_object_foreach(vocabulary, name, value) {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (!t->tokens || id < 0 || id >= t->count) {
            snprintf(words, MODEL_WORDS, "%s: token \"%.40s\" has no id from 0 to %lld", t->path, name,
                     (long long)t->count - 1);
            return false;
        }
        if (t->letters ? set_letter(&t->tokens[id], name) : set_token(&t->tokens[id], name)) continue;
        snprintf(
            words, MODEL_WORDS,
            "%s: its tokens, such as \"%.40s\", are longer than a character; --prompt-ids takes what its tokenizer "
            "makes of a text",
            t->path, name);
        return false;
    }
    return true;
}

static json_t *read_json(tokenizer *t, const char *folder, char words[MODEL_WORDS]) {
    json_error_t error;
    snprintf(t->path, sizeof t->path, "%s/tokenizer.json", folder);
    json_t *json = json_load_file(t->path, 0, &error);
    if (!json && error.line < 0) {
        snprintf(t->path, sizeof t->path, "%s/vocab.json", folder);
        json = json_load_file(t->path, 0, &error);
    }
    if (!json && error.line < 0) {
        snprintf(words, MODEL_WORDS, "%s has neither tokenizer.json nor vocab.json; --prompt-ids wants none", folder);
    } else if (!json) {
        snprintf(words, MODEL_WORDS, "%s: %s", t->path, error.text);
    }
    return json;
}

/* The part of the tokenizer with this type: the object under `key`, or one in its list; NULL if there is none. */
static const json_t *part_of(const json_t *json, const char *key, const char *list, const char *type) {
    const json_t *part = json_object_get(json, key), *inner;
    const char *name = json_string_value(json_object_get(part, "type"));
    if (name && strcmp(name, type) == 0) return part;
    size_t i;
    json_array_foreach(json_object_get(part, list), i, inner) {
        name = json_string_value(json_object_get(inner, "type"));
        if (name && strcmp(name, type) == 0) return inner;
    }
    return NULL;
}

/* How texts become tokens. False, with words, for a tokenizer that is not supported. */
static bool read_ways(tokenizer *t, const json_t *json, char words[MODEL_WORDS]) {
    static const char *const unknown[] = {"Metaspace", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"};
    const json_t *bytes = part_of(json, "pre_tokenizer", "pretokenizers", "ByteLevel");
    t->letters = bytes != NULL;
    t->adds_blank = json_is_true(json_object_get(bytes, "add_prefix_space"));
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        if (!part_of(json, "pre_tokenizer", "pretokenizers", unknown[i])) continue;
        snprintf(
            words, MODEL_WORDS,
            "%s: its pre_tokenizer is a %s, which is not built in; --prompt-ids takes what its tokenizer makes of a "
            "text",
            t->path, unknown[i]);
        return false;
    }
    return true;
}

/* The tokenizer of a GGUF file. */
static bool open_file(tokenizer **t, const char *path, char words[MODEL_WORDS]) {
    if (tsh_tokenizer_load(path, &(*t)->library) == TSH_OK) return true;
    snprintf(words, MODEL_WORDS, "%s", tsh_error_message());
    tokenizer_close(*t);
    *t = NULL;
    return false;
}

bool tokenizer_open(const char *folder, tokenizer **out, char words[MODEL_WORDS]) {
    tokenizer *t = *out = calloc(1, sizeof *t);
    struct stat info;
    if (t && stat(folder, &info) == 0 && S_ISREG(info.st_mode)) return open_file(out, folder, words);
    json_t *json = t ? read_json(t, folder, words) : NULL;
    json_t *inner = json_object_get(json_object_get(json, "model"), "vocab");
    json_t *vocabulary = inner ? inner : json;
    bool good = json_is_object(vocabulary) && read_ways(t, json, words) && fill(t, vocabulary, words);
    if (json && !json_is_object(vocabulary))
        snprintf(words, MODEL_WORDS, "%s: there is no object of tokens and ids; --prompt-ids takes ids", t->path);
    if (!good && inner && tsh_tokenizer_load(t->path, &t->library) != TSH_OK) {
        size_t said = strlen(words);
        snprintf(words + said, MODEL_WORDS - said, " (%.500s)", tsh_error_message());
    }
    json_decref(json);
    if (good || (t && t->library)) return true;
    tokenizer_close(t);
    *out = NULL;
    return false;
}

void tokenizer_close(tokenizer *t) {
    if (t) free(t->tokens);
    if (t) tsh_tokenizer_destroy(t->library);
    free(t);
}

static int64_t find(const tokenizer *t, const char *bytes, size_t length) {
    for (int64_t i = 0; i < t->count; i++) {
        if (t->tokens[i].length == length && memcmp(t->tokens[i].bytes, bytes, length) == 0) return i;
    }
    return -1;
}

/* The ids of one character: its own, or those of its bytes. 0 when there is neither. */
static int encode_character(const tokenizer *t, const char *text, size_t length, int64_t *ids) {
    ids[0] = length ? find(t, text, length) : -1;
    if (ids[0] >= 0) return 1;
    for (size_t i = 0; i < length; i++) {
        ids[i] = find(t, text + i, 1);
        if (ids[i] < 0) return 0;
    }
    return (int)length;
}

/* By the library, with the special tokens of its template. */
static bool encode_by_library(const tokenizer *t, const char *text, int64_t **ids, int64_t *count,
                              char words[MODEL_WORDS]) {
    const int64_t *made;
    *ids = NULL;
    if (tsh_tokenizer_encode(t->library, text, strlen(text), true, &made, count) != TSH_OK) {
        snprintf(words, MODEL_WORDS, "%s", tsh_error_message());
        return false;
    }
    *ids = malloc((size_t)*count * sizeof **ids + 1);
    if (*ids) memcpy(*ids, made, (size_t)*count * sizeof **ids);
    if (!*ids) snprintf(words, MODEL_WORDS, "no memory for the ids");
    if (*ids && *count == 0) snprintf(words, MODEL_WORDS, "an empty text; a prompt has at least one token");
    return *ids && *count > 0;
}

bool tokenizer_encode(const tokenizer *t, const char *text, int64_t **ids, int64_t *count, char words[MODEL_WORDS]) {
    if (t->library) return encode_by_library(t, text, ids, count, words);
    *count = 0;
    *ids = calloc(strlen(text) + 2, sizeof **ids);
    if (*ids && t->adds_blank && *text && *text != ' ') *count = encode_character(t, " ", 1, *ids);
    for (const char *p = text; *ids && *p;) {
        size_t length = character_length(p);
        int made = encode_character(t, p, length, *ids + *count);
        if (!made) {
            snprintf(words, MODEL_WORDS, "%s has no token for '%.*s'", t->path, (int)length, p);
            return false;
        }
        *count += made;
        p += length;
    }
    if (*count == 0) snprintf(words, MODEL_WORDS, "an empty text; a prompt has at least one token");
    return *count > 0;
}

char *tokenizer_text(const tokenizer *t, const int64_t *ids, int64_t count, size_t *length) {
    const char *made = NULL;
    *length = 0;
    if (t->library && tsh_tokenizer_decode(t->library, ids, count, false, &made, length) != TSH_OK) return NULL;
    char *text = malloc(t->library ? *length + 1 : (size_t)count * TOKEN_BYTES + 1);
    if (text && made) memcpy(text, made, *length);
    for (int64_t i = 0; text && !made && i < count; i++) {
        if (ids[i] < 0 || ids[i] >= t->count) continue;
        const token *part = &t->tokens[ids[i]];
        memcpy(text + *length, part->bytes, part->length);
        *length += part->length;
    }
    return text;
}

tsh_tokenizer *tokenizer_library(const tokenizer *t) {
    return t ? t->library : NULL;
}

/* Skips blanks, with at most one comma among them. */
static const char *after_separator(const char *text) {
    text += strspn(text, " \t\r\n");
    if (*text != ',') return text;
    return text + 1 + strspn(text + 1, " \t\r\n");
}

bool ids_parse(const char *text, int64_t vocabulary, int64_t **ids, int64_t *count, char words[MODEL_WORDS]) {
    *count = 0;
    *ids = malloc((strlen(text) / 2 + 1) * sizeof **ids); /* two characters an id, at least */
    if (!*ids) {
        snprintf(words, MODEL_WORDS, "no memory for the ids");
        return false;
    }
    for (const char *p = text + strspn(text, " \t\r\n"); *p; p = after_separator(p)) {
        char word[24];
        size_t length = strcspn(p, ", \t\r\n");
        int64_t id = -1;
        snprintf(word, sizeof word, "%.*s", (int)(length < 23 ? length : 23), p);
        if (length == 0) {
            snprintf(words, MODEL_WORDS, "there is no id before a comma; whole numbers like 1,2,3 are wanted");
            return false;
        }
        if (length >= 20 || !parse_count(word, 0, INT64_MAX, &id)) {
            snprintf(words, MODEL_WORDS, "'%s' is no id; whole numbers like 1,2,3 are wanted", word);
            return false;
        }
        if (id >= vocabulary) {
            snprintf(words, MODEL_WORDS, "id %lld is past the vocabulary: the model has the ids 0 to %lld",
                     (long long)id, (long long)vocabulary - 1);
            return false;
        }
        (*ids)[(*count)++] = id;
        p += length;
    }
    if (*count == 0) snprintf(words, MODEL_WORDS, "there is no id; whole numbers like 1,2,3 are wanted");
    return *count > 0;
}
