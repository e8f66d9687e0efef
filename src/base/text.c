/* Texts: appended to, and copied. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

char *tshi_append(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
    if (length < 0) text[used] = '\0';
    if (length >= 0 && (size_t)length >= size - used && size > 4) memcpy(text + size - 4, "...", 4);
    return text;
}

char *tshi_copy_text(const tsh_allocator *allocator, const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = tshi_calloc(allocator, size, 1);
    return copy ? memcpy(copy, text, size) : NULL;
}
