/* Texts in UTF-8: growing buffers, characters, and the Unicode classes that tokenizers need. */
#ifndef TSHI_TOKENIZER_TEXT_H
#define TSHI_TOKENIZER_TEXT_H

#include "base/base.h"

/* A growing buffer of bytes, zero-initialised except for the allocator; tshi_bytes_free frees its memory. */
typedef struct tshi_bytes {
    const tsh_allocator *allocator;
    char *data;
    size_t length, capacity;
    bool failed; /* memory was exhausted, and the message is set: what was appended since is missing */
} tshi_bytes;

/* Empties the buffer, after a failure too. */
static inline void tshi_bytes_clear(tshi_bytes *bytes) {
    bytes->length = 0;
    bytes->failed = false;
}
/* Makes room for `more` bytes after the length; false if memory is exhausted. */
bool tshi_bytes_room(tshi_bytes *bytes, size_t more);
static inline void tshi_bytes_add(tshi_bytes *bytes, const char *text, size_t length) {
    if (bytes->capacity - bytes->length < length && !tshi_bytes_room(bytes, length)) return;
    if (length) memcpy(bytes->data + bytes->length, text, length);
    bytes->length += length;
}
/* Appends the character `code` in UTF-8. */
void tshi_bytes_add_code(tshi_bytes *bytes, uint32_t code);
void tshi_bytes_free(tshi_bytes *bytes);

/* The character at text[*at], which is valid UTF-8; *at moves to the next one. */
uint32_t tshi_utf8_next(const char *text, size_t *at);
/* The start of the character before `at`, which is not 0. */
size_t tshi_utf8_before(const char *text, size_t at);
/* Bytes of the character that begins here, in valid UTF-8. */
static inline size_t tshi_utf8_length(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
/* The length of the valid UTF-8 that the text begins with. */
size_t tshi_utf8_valid(const char *text, size_t length);

/* Classes of characters. */
typedef enum tshi_class {
    TSHI_CLASS_SPACE,       /* Unicode's White_Space */
    TSHI_CLASS_PUNCTUATION, /* P, and what ASCII has of symbols */
    TSHI_CLASS_NUMBER,      /* N */
    TSHI_CLASS_CONTROL,     /* Cc, Cf, Co but for tab, newline and carriage return */
    TSHI_CLASS_MARK,        /* M */
    TSHI_CLASS_NONSPACING,  /* Mn */
    TSHI_CLASS_IDEOGRAPH,   /* what BERT surrounds by spaces */
    TSHI_CLASS_WORD         /* L, M, Nd, Nl, Pc and joiners */
} tshi_class;
bool tshi_class_has(tshi_class kind, uint32_t code);

/* Appends the lower case of the text, character by character. */
void tshi_text_lower(const char *text, size_t length, tshi_bytes *out);

/* Normal forms. */
typedef enum tshi_form { TSHI_NFC, TSHI_NFD, TSHI_NFKC, TSHI_NFKD } tshi_form;
/* Appends the text in a normal form. codes is scratch memory. */
void tshi_text_normalize(const char *text, size_t length, tshi_form form, tshi_bytes *codes, tshi_bytes *out);

/* Byte-level tokenizers write each byte as a letter: bytes that are printable in Latin-1 as themselves, the others as
 * U+0100 and up, in order. These are the letter of a byte, and the byte of a letter, or -1. */
uint32_t tshi_letter_of_byte(unsigned char byte);
int tshi_byte_of_letter(uint32_t letter);
/* Appends the letters of the text's bytes. */
void tshi_text_letters(const char *text, size_t length, tshi_bytes *out);

#endif
