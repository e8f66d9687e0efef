/* Any bytes, read as the index of a model in several files: no byte beyond the end is read, nothing leaks, and an
 * accepted index names files of its folder alone. */
#include "io/weights.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *name;
    json_t *file;
    void *json = NULL;
    char *text = malloc(size ? size : 1);
    require(text != NULL);
    memcpy(text, data, size);
    if (tshi_weights_parse("fuzzed", text, size, &json) == TSH_OK) {
        json_t *map = json_object_get(json, "weight_map");
        require(json_is_object(map));
        json_object_foreach(map, name, file) {
            const char *plain = json_string_value(file);
            require(plain && plain[0] && !strchr(plain, '/') && strcmp(plain, "..") != 0);
        }
    }
    json_decref(json);
    free(text);
    return 0;
}
