/* Strict readers of environment variables. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/settings.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool tshi_parse_switch(const char *text, bool *out) {
    static const char *const words[] = {"0", "1", "off", "on", "no", "yes", "false", "true"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i % 2 == 1;
        return true;
    }
    return false;
}

/* --- variables ---------------------------------------------------------------------------------------------------- */

const char *tshi_variable(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

static const char *look(const char *name, bool *found) {
    const char *text = tshi_variable(name);
    if (found) *found = text != NULL;
    return text;
}

tsh_status tshi_variable_int(const char *name, int low, int high, int *out, bool *found) {
    const char *text = look(name, found);
    if (!text || tshi_parse_int(text, low, high, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be a whole number from %d to %d", name, text, low,
                     high);
}

tsh_status tshi_variable_number(const char *name, uint64_t *out, bool *found) {
    const char *text = look(name, found);
    if (!text || tshi_parse_uint64(text, 0, UINT64_MAX, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be a whole number of at most 64 bits", name, text);
}

tsh_status tshi_variable_bytes(const char *name, size_t low, size_t *out, bool *found) {
    const char *text = look(name, found);
    int64_t value;
    if (!text) return TSH_OK;
    if (!tshi_parse_bytes(text, (int64_t)low, INT64_MAX, &value)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be bytes, or a number like 512M or 4G%s", name,
                         text, low > 0 ? "" : ", or 0");
    }
    *out = (size_t)value;
    return TSH_OK;
}

tsh_status tshi_variable_seconds(const char *name, double high, double *out, bool *found) {
    const char *text = look(name, found);
    double value;
    if (!text) return TSH_OK;
    if (!tshi_parse_real(text, 0, high, &value) || value == 0) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "%s is \"%.64s\"; it must be a positive number of seconds, like 30 or 0.5, of at most %.0f",
                         name, text, high);
    }
    *out = value;
    return TSH_OK;
}

tsh_status tshi_variable_switch(const char *name, bool *out) {
    const char *text = tshi_variable(name);
    if (!text || tshi_parse_switch(text, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be 0 or 1 (off or on, no or yes, false or true)", name,
                     text);
}

tsh_status tshi_variable_text(const char *name, char *out, size_t size, bool *found) {
    const char *text = look(name, found);
    if (!text) return TSH_OK;
    size_t length = strlen(text);
    if (length >= size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s has %zu characters; it must have at most %zu", name, length, size - 1);
    }
    memcpy(out, text, length + 1);
    return TSH_OK;
}

tsh_status tshi_variable_choice(const char *name, const char *const *words, int n, int *out, bool *found) {
    char list[TSHI_MESSAGE_SIZE / 4];
    size_t used = 0;
    const char *text = look(name, found);
    list[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (text && !strcmp(text, words[i])) *out = i;
        if (!text || !strcmp(text, words[i])) return TSH_OK;
        if (used >= sizeof list) continue;
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0      ? ""
                                 : i + 1 < n ? ", "
                                             : " or ",
                                 words[i]);
    }
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be %s", name, text, list);
}
