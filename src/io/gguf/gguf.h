/* GGUF files, version 3: a header of keys and tensors, then the tensors' data, aligned. A rank reads the header, and
 * only its own boxes of the data. The tensors of a Llama or Qwen2 model appear as in the model's Hugging Face folder:
 * with the same names, and with the rows of query and key in the same order. Nothing here is collective. Error messages
 * begin with the path. */
#ifndef TSHI_GGUF_H
#define TSHI_GGUF_H

#include "device/quant.h"
#include "io/safetensors.h"

/* A key's value, or the items of an array, still in the file's bytes. */
typedef struct tshi_gguf_value {
    uint32_t type; /* of an item */
    bool array;
    uint64_t count; /* of items; 1 without an array */
    const unsigned char *key, *at;
    uint64_t key_length, length; /* in bytes: of the key; from `at` on */
} tshi_gguf_value;

/* Types of values, and the bytes of each: u8, i8, u16, i16, u32, i32, f32, bool, text, array, u64, i64, f64; 0: not
 * fixed. */
enum { TSHI_GGUF_TEXT = 8, TSHI_GGUF_ARRAY = 9, TSHI_GGUF_TYPES = 13 };
extern const unsigned char tshi_gguf_type_bytes[TSHI_GGUF_TYPES];
/* A little-endian number of up to 8 bytes; 0 for NULL. */
uint64_t tshi_gguf_load_le(const unsigned char *at, unsigned bytes);

typedef struct tshi_gguf_tensor {
    tshi_safetensors_entry entry;    /* its dtype is float32 for quantized weights */
    const tshi_quant_format *format; /* NULL: elements of the dtype */
    int64_t head; /* rows of a head whose rotary pairs are adjacent in the file; 0: the rows are in order */
    char *name;   /* of the entry */
} tshi_gguf_tensor;

typedef struct tshi_gguf {
    tsh_allocator allocator;
    char *path;
    int fd;
    uint64_t file_bytes;
    unsigned char *header; /* owns the values */
    uint64_t header_bytes, fingerprint;
    tshi_gguf_value *values;
    int values_count, values_capacity;
    tshi_gguf_tensor *tensors; /* sorted by name */
    int count, capacity;
    uint64_t bytes_read;
} tshi_gguf;

/* Opens a file and checks its whole header: TSH_ERR_IO for a malformed file, _UNSUPPORTED for another version and for
 * types of tensors that cannot be read. */
TSHI_TOOLS tsh_status tshi_gguf_open(const tsh_allocator *allocator, const char *path, tshi_gguf **out);
TSHI_TOOLS void tshi_gguf_close(tshi_gguf *file);
/* True for a regular file that begins like a GGUF file. */
bool tshi_gguf_is(const char *path);

/* Parses a header of which the first `length` bytes are known: sets values and tensors of a file whose path, allocator
 * and file_bytes are set, for tshi_gguf_drop. *more: the header is longer, and nothing else is known. */
tsh_status tshi_gguf_parse(tshi_gguf *file, const unsigned char *bytes, uint64_t length, bool *more);
void tshi_gguf_drop(tshi_gguf *file);

/* --- values ------------------------------------------------------------------------------------------------------- */

/* The value of a key, or NULL. */
const tshi_gguf_value *tshi_gguf_find(const tshi_gguf *file, const char *key);
/* Moves to the next item of a value: false at its end. Begin with a copy of the value. */
typedef struct tshi_gguf_text {
    const char *at;
    size_t length;
} tshi_gguf_text;
bool tshi_gguf_next_text(tshi_gguf_value *left, tshi_gguf_text *out);
bool tshi_gguf_next_integer(tshi_gguf_value *left, int64_t *out);
bool tshi_gguf_next_number(tshi_gguf_value *left, double *out);
/* The single value of a key; false without one of that kind. Numbers are integers too, and texts have no zeros. */
bool tshi_gguf_text_of(const tshi_gguf *file, const char *key, char *out, size_t size);
bool tshi_gguf_integer_of(const tshi_gguf *file, const char *key, int64_t *out);
bool tshi_gguf_number_of(const tshi_gguf *file, const char *key, double *out);
bool tshi_gguf_flag_of(const tshi_gguf *file, const char *key, bool otherwise);

/* --- tensors ------------------------------------------------------------------------------------------------------ */

#define TSHI_GGUF_NAME 192
/* The tensor of the divisors of rotary frequencies. */
#define TSHI_GGUF_ROPE "rope_freqs.weight"

/* The tensor with that name, or NULL. */
const tshi_gguf_tensor *tshi_gguf_tensor_of(const tshi_gguf *file, const char *name);
/* Reads a box, row-major, as elements of the entry's dtype. From the file it reads whole groups of quantized weights,
 * and whole heads where rotary pairs are adjacent. */
TSHI_TOOLS tsh_status tshi_gguf_read_box(tshi_gguf *file, const tshi_gguf_tensor *tensor, const tsh_box *box,
                                         void *out);

/* Gives the tensors of a known architecture the names and the order of rows that they have in Hugging Face's
 * folders. */
tsh_status tshi_gguf_rename(tshi_gguf *file);
/* The name that a folder's tensor has in a GGUF file of the architecture, and the key whose number of heads its rows
 * are permuted by, or NULL. False if the architecture has no such tensor. */
TSHI_TOOLS bool tshi_gguf_name_of(const char *architecture, const char *name, char out[TSHI_GGUF_NAME],
                                  const char **heads);

/* --- models ------------------------------------------------------------------------------------------------------- */

/* The config.json of the file's model, as text for the caller to free(). TSH_ERR_IO for missing keys, _UNSUPPORTED for
 * an unknown architecture or an unknown feature of one, _MEMORY. */
tsh_status tshi_gguf_config(tshi_gguf *file, char **json);
/* The tokenizer.json of the file's tokenizer, as text for the caller to free(). Errors as for the configuration. */
tsh_status tshi_gguf_tokenizer(const tshi_gguf *file, char **json);

#endif
