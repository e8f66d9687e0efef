/* tshard-quantize: a Hugging Face folder of a Llama or Qwen2 model as a GGUF file of quantized weights. */
#ifndef QUANTIZE_TOOL_H
#define QUANTIZE_TOOL_H

#include "io/weights.h"

/* A file's header while it is made. `failed`: without memory. */
typedef struct header {
    unsigned char *bytes;
    size_t count, capacity;
    uint64_t keys;
    bool failed;
} header;

void header_u32(header *h, const char *key, int64_t value);
void header_float(header *h, const char *key, double value);
void header_text(header *h, const char *key, const char *text, size_t length);
/* The bytes themselves, a little-endian number, and a text behind its length. */
void header_add(header *h, const void *bytes, size_t count);
void header_number(header *h, uint64_t value, unsigned bytes);
void header_string(header *h, const char *text, size_t length);

#define MODEL_PAIRS 4096

/* What FOLDER/config.json says. */
typedef struct model {
    char architecture[16];
    int64_t heads, kv_heads, pairs; /* pairs: of rotary positions with divisors, else 0 */
    float divisors[MODEL_PAIRS];
    bool tied;
} model;

/* Reads FOLDER/config.json and, if they exist, tokenizer.json and the chat template, and adds their keys. */
tsh_status model_read(const char *folder, model *out, header *h);

/* A tensor of the file. */
typedef struct tensor {
    const tshi_weight *weight; /* NULL: the model's divisors */
    char name[TSHI_GGUF_NAME];
    const tshi_quant_format *format; /* NULL: float32, or float16 with `half` */
    bool half;
    int64_t rows, cols, head; /* head: rows of a head that are permuted, or 0 */
    uint64_t offset, bytes;
} tensor;

/* Writes PATH; *quantized and *plain become the numbers of matrices that are quantized, and of those whose rows are not
 * made of whole groups. */
tsh_status write_model(const char *folder, const char *path, tshi_quant quant, int *quantized, int *plain);

#endif
