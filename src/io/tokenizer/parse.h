/* Parsing the parts of a tokenizer.json. Every error message names the path and the part. */
#ifndef TSHI_TOKENIZER_PARSE_H
#define TSHI_TOKENIZER_PARSE_H

#include "io/tokenizer/tokenizer.h"

#include <jansson.h>

typedef struct tshi_parse {
    tsh_tokenizer *tokenizer;
    const char *path;
} tshi_parse;

/* TSH_ERR_IO: "PATH: part is not what is wanted". */
tsh_status tshi_parse_refuse(const tshi_parse *p, const char *part, const char *wanted);
/* TSH_ERR_UNSUPPORTED: the type of a part is not built in. */
tsh_status tshi_parse_unknown(const tshi_parse *p, const char *part, const char *type, const char *built_in);
/* The text under a key; NULL if it is not a text. */
const char *tshi_parse_text(const json_t *json, const char *key);
/* The boolean under a key; `otherwise` where the key is missing. */
bool tshi_parse_truth(const json_t *json, const char *key, bool otherwise);
/* Sets bytes to the text. TSH_ERR_MEMORY. */
tsh_status tshi_parse_copy(tshi_bytes *bytes, const char *text);

tsh_status tshi_parse_model(const tshi_parse *p, const json_t *json);
tsh_status tshi_parse_added(const tshi_parse *p, const json_t *json);
tsh_status tshi_parse_normalizer(const tshi_parse *p, const json_t *json);
tsh_status tshi_parse_splitter(const tshi_parse *p, const json_t *json);
tsh_status tshi_parse_decoder(const tshi_parse *p, const json_t *json);
tsh_status tshi_parse_template(const tshi_parse *p, const json_t *json);

#endif
