/* UTF-8, character classes and Unicode normal forms, with utf8proc. */
#include "io/tokenizer/text.h"

#include <utf8proc.h>

/* --- growing ------------------------------------------------------------------------------------------------------ */

bool tshi_bytes_room(tshi_bytes *bytes, size_t more) {
    size_t needed, capacity = bytes->capacity < 64 ? 64 : bytes->capacity;
    if (bytes->failed) return false;
    if (more <= bytes->capacity - bytes->length) return true;
    bytes->failed = tshi_size_add(bytes->length, more, &needed) != TSH_OK || needed > SIZE_MAX / 4;
    while (!bytes->failed && capacity < needed) capacity *= 2;
    char *data = bytes->failed ? NULL : tshi_calloc(bytes->allocator, capacity, 1);
    bytes->failed = !data;
    if (!data) return false;
    if (bytes->length) memcpy(data, bytes->data, bytes->length);
    tshi_free(bytes->allocator, bytes->data);
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

void tshi_bytes_add_code(tshi_bytes *bytes, uint32_t code) {
    char text[4];
    size_t n = 0;
    if (code < 0x80) {
        text[n++] = (char)code;
    } else if (code < 0x800) {
        text[n++] = (char)(0xc0 | code >> 6);
        text[n++] = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        text[n++] = (char)(0xe0 | code >> 12);
        text[n++] = (char)(0x80 | (code >> 6 & 0x3f));
        text[n++] = (char)(0x80 | (code & 0x3f));
    } else {
        text[n++] = (char)(0xf0 | code >> 18);
        text[n++] = (char)(0x80 | (code >> 12 & 0x3f));
        text[n++] = (char)(0x80 | (code >> 6 & 0x3f));
        text[n++] = (char)(0x80 | (code & 0x3f));
    }
    tshi_bytes_add(bytes, text, n);
}

void tshi_bytes_free(tshi_bytes *bytes) {
    if (bytes->data) tshi_free(bytes->allocator, bytes->data);
    *bytes = (tshi_bytes){.allocator = bytes->allocator};
}

/* --- UTF-8 -------------------------------------------------------------------------------------------------------- */

uint32_t tshi_utf8_next(const char *text, size_t *at) {
    const unsigned char *u = (const unsigned char *)text + *at;
    size_t n = tshi_utf8_length((char)u[0]);
    *at += n;
    if (n == 1) return u[0];
    if (n == 2) return (u[0] & 0x1fU) << 6 | (u[1] & 0x3fU);
    if (n == 3) return (u[0] & 0xfU) << 12 | (u[1] & 0x3fU) << 6 | (u[2] & 0x3fU);
    return (u[0] & 7U) << 18 | (u[1] & 0x3fU) << 12 | (u[2] & 0x3fU) << 6 | (u[3] & 0x3fU);
}

size_t tshi_utf8_before(const char *text, size_t at) {
    do at--;
    while (at && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

/* Bytes of a valid character of more than one byte that begins here; 0 if none does. */
static size_t character_here(const char *text, size_t left) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* the smallest code point of so many bytes */
    unsigned char first = (unsigned char)text[0];
    size_t n = tshi_utf8_length(text[0]), at = 0;
    if (first < 0xc2 || first > 0xf4 || n > left) return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    }
    uint32_t code = tshi_utf8_next(text, &at);
    return code < least[n] || code > 0x10ffff || code >> 11 == 27 ? 0 : n;
}

size_t tshi_utf8_valid(const char *text, size_t length) {
    size_t at = 0;
    while (at < length) {
        uint64_t eight = UINT64_MAX;
        if (length - at >= 8) memcpy(&eight, text + at, 8);
        if ((eight & UINT64_C(0x8080808080808080)) == 0) {
            at += 8;
            continue;
        }
        size_t n = (unsigned char)text[at] < 0x80 ? 1 : character_here(text + at, length - at);
        if (n == 0) return at;
        at += n;
    }
    return length;
}

/* --- classes ------------------------------------------------------------------------------------------------------ */

static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Between 2B81F and 2B920 BERT's tokenizer leaves a gap. */
static bool is_ideograph(uint32_t c) {
    return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Most characters are ASCII, which needs no table of Unicode. */
static bool ascii_has(tshi_class kind, uint32_t c) {
    bool digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    switch (kind) {
    case TSHI_CLASS_SPACE: return is_space(c);
    case TSHI_CLASS_NUMBER: return digit;
    case TSHI_CLASS_WORD: return digit || letter || c == '_';
    case TSHI_CLASS_PUNCTUATION: return c > ' ' && c < 0x7f && !digit && !letter;
    case TSHI_CLASS_CONTROL: return (c < ' ' || c == 0x7f) && c != '\t' && c != '\n' && c != '\r';
    case TSHI_CLASS_MARK:
    case TSHI_CLASS_NONSPACING:
    case TSHI_CLASS_IDEOGRAPH: break;
    }
    return false;
}

bool tshi_class_has(tshi_class kind, uint32_t c) {
    if (c < 0x80) return ascii_has(kind, c);
    if (kind == TSHI_CLASS_SPACE) return is_space(c);
    if (kind == TSHI_CLASS_IDEOGRAPH) return is_ideograph(c);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    bool mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
    bool number = category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
    bool punctuation = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
    switch (kind) {
    case TSHI_CLASS_PUNCTUATION: return punctuation;
    case TSHI_CLASS_NUMBER: return number;
    case TSHI_CLASS_MARK: return mark;
    case TSHI_CLASS_NONSPACING: return category == UTF8PROC_CATEGORY_MN;
    case TSHI_CLASS_WORD:
        return letter || mark || (number && category != UTF8PROC_CATEGORY_NO) || category == UTF8PROC_CATEGORY_PC ||
               c == 0x200c || c == 0x200d;
    case TSHI_CLASS_CONTROL:
        return c != '\t' && c != '\n' && c != '\r' &&
               (category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                category == UTF8PROC_CATEGORY_CO);
    case TSHI_CLASS_SPACE:
    case TSHI_CLASS_IDEOGRAPH: break;
    }
    return false;
}

/* --- case and normal forms ---------------------------------------------------------------------------------------- */

void tshi_text_lower(const char *text, size_t length, tshi_bytes *out) {
    if (!tshi_bytes_room(out, length)) return;
    for (size_t at = 0; at < length;) {
        char first = text[at];
        uint32_t code = tshi_utf8_next(text, &at);
        if (code < 0x80) {
            if (first >= 'A' && first <= 'Z') first = (char)(first + 32);
            tshi_bytes_add(out, &first, 1);
        } else if (code == 0x130) { /* the one letter with a lower case of two characters */
            tshi_bytes_add(out, "i\xcc\x87", 3);
        } else {
            tshi_bytes_add_code(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
        }
    }
}

/* Appends a run in the normal form. */
static void normalize_run(const char *text, size_t length, utf8proc_option_t options, tshi_bytes *codes,
                          tshi_bytes *out) {
    const utf8proc_uint8_t *from = (const utf8proc_uint8_t *)text;
    tshi_bytes_clear(codes);
    out->failed = out->failed || !tshi_bytes_room(codes, length * 4 + 4);
    if (out->failed) return;
    utf8proc_ssize_t room = (utf8proc_ssize_t)(codes->capacity / 4 - 1);
    utf8proc_ssize_t n =
        utf8proc_decompose(from, (utf8proc_ssize_t)length, (utf8proc_int32_t *)(void *)codes->data, room, options);
    if (n > room) {
        out->failed = out->failed || !tshi_bytes_room(codes, (size_t)n * 4 + 4);
        if (out->failed) return;
        n = utf8proc_decompose(from, (utf8proc_ssize_t)length, (utf8proc_int32_t *)(void *)codes->data, n, options);
    }
    if (n >= 0) n = utf8proc_reencode((utf8proc_int32_t *)(void *)codes->data, n, options);
    if (n >= 0) tshi_bytes_add(out, codes->data, (size_t)n);
}

/* Characters below `inert` stay as they are, and compose at most with one that follows and is not inert: a run to
 * normalize is one inert character and all that follow it and are not. */
void tshi_text_normalize(const char *text, size_t length, tshi_form form, tshi_bytes *codes, tshi_bytes *out) {
    static const int options[] = {[TSHI_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                  [TSHI_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                  [TSHI_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                  [TSHI_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    unsigned char inert = form == TSHI_NFC ? 0xcc : 0x80; /* the first byte of U+0300, or of U+0080 */
    size_t last = 0, copied = 0;
    for (size_t at = 0; at < length;) {
        if ((unsigned char)text[at] < inert) {
            last = at;
            at += tshi_utf8_length(text[at]);
            continue;
        }
        while (at < length && (unsigned char)text[at] >= inert) at += tshi_utf8_length(text[at]);
        tshi_bytes_add(out, text + copied, last - copied);
        normalize_run(text + last, at - last, (utf8proc_option_t)options[form], codes, out);
        copied = last = at;
    }
    tshi_bytes_add(out, text + copied, length - copied);
}

/* --- letters for bytes -------------------------------------------------------------------------------------------- */

static bool prints(unsigned byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t tshi_letter_of_byte(unsigned char byte) {
    if (prints(byte)) return byte;
    return byte <= ' ' ? 0x100U + byte : byte == 0xad ? 0x143U : 0x100U + 33 + (byte - 0x7fU);
}

int tshi_byte_of_letter(uint32_t letter) {
    if (letter < 0x100) return prints(letter) ? (int)letter : -1;
    if (letter > 0x143) return -1;
    unsigned other = letter - 0x100;
    return other <= ' ' ? (int)other : other == 0x43 ? 0xad : (int)(other - 33 + 0x7f);
}

void tshi_text_letters(const char *text, size_t length, tshi_bytes *out) {
    if (!tshi_bytes_room(out, 2 * length)) return;
    for (size_t i = 0; i < length; i++) {
        uint32_t letter = tshi_letter_of_byte((unsigned char)text[i]);
        if (letter < 0x80) {
            out->data[out->length++] = (char)letter;
        } else {
            out->data[out->length++] = (char)(0xc0 | letter >> 6);
            out->data[out->length++] = (char)(0x80 | (letter & 0x3f));
        }
    }
}
