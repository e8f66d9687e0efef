/* Any bytes, read as the beginning of a GGUF file: no byte beyond the end is read, nothing leaks, and of an accepted
 * header the tensors lie in the file, do not overlap and can be found; its configuration and tokenizer.json are JSON.
 * The first byte says how much longer than its header the file is, in units of 4,096 bytes. */
#include "io/gguf/gguf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void check_tensors(const tshi_gguf *file) {
    for (int i = 0; i < file->count; i++) {
        const tshi_gguf_tensor *t = &file->tensors[i];
        require(i == 0 || strcmp(file->tensors[i - 1].name, t->name) < 0);
        require(tshi_gguf_tensor_of(file, t->name) == t && t->entry.name == t->name);
        require(t->entry.ndim >= 0 && t->entry.ndim <= 4 && t->entry.bytes <= file->file_bytes);
        require(t->entry.offset >= file->header_bytes && t->entry.offset <= file->file_bytes - t->entry.bytes);
        require(t->head == 0 || (t->head > 1 && t->entry.shape[0] % t->head == 0));
        for (int k = 0; k < i; k++) {
            const tshi_safetensors_entry *a = &t->entry, *b = &file->tensors[k].entry;
            require(a->bytes == 0 || b->bytes == 0 || a->offset >= b->offset + b->bytes ||
                    b->offset >= a->offset + a->bytes);
        }
    }
}

/* Every item of every value. */
static void read_values(const tshi_gguf *file) {
    for (int i = 0; i < file->values_count; i++) {
        tshi_gguf_value texts = file->values[i], integers = texts, numbers = texts;
        tshi_gguf_text text;
        int64_t integer;
        double number;
        size_t bytes = 0;
        while (tshi_gguf_next_text(&texts, &text)) bytes += text.length;
        require(bytes <= file->header_bytes);
        while (tshi_gguf_next_integer(&integers, &integer)) bytes++;
        while (tshi_gguf_next_number(&numbers, &number)) bytes++;
    }
}

static void check_json(tsh_status status, char *json) {
    json_t *read = json ? json_loads(json, JSON_ALLOW_NUL, NULL) : NULL;
    require((status == TSH_OK) == (json != NULL));
    json_decref(read);
    free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    bool more;
    char *json;
    /* Memory of exactly this size, so that a read of one byte more is noticed. */
    unsigned char *header = malloc(size > 1 ? size - 1 : 1);
    require(header != NULL);
    memcpy(header, data + 1, size - 1);
    tshi_gguf file = {.allocator = tshi_allocator_resolve(NULL), .path = (char *)"fuzzed", .fd = -1};
    file.file_bytes = size - 1 + 4096 * (uint64_t)data[0];
    if (tshi_gguf_parse(&file, header, size - 1, &more) == TSH_OK && !more) {
        check_tensors(&file);
        read_values(&file);
        tsh_status status = tshi_gguf_config(&file, &json);
        check_json(status, json);
        status = tshi_gguf_tokenizer(&file, &json);
        check_json(status, json);
    }
    tshi_gguf_drop(&file);
    free(header);
    return 0;
}
