#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <string.h>

static const unsigned char magic[4] = {'t', 'S', 'H', 'm'};

#define WIRE_VERSION 3

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* Writing cannot fail: callers provide room for all that they write. */
typedef struct writer {
    unsigned char *start, *at;
} writer;

/* A read beyond the end yields zeros and sets `bad`. */
typedef struct reader {
    const unsigned char *at, *end;
    bool bad;
} reader;

static void put(writer *w, const void *bytes, size_t size) {
    memcpy(w->at, bytes, size);
    w->at += size;
}

static void put_number(writer *w, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) *w->at++ = (unsigned char)(value >> (8 * i));
}

static void put_text(writer *w, const char *text, size_t most, int length_bytes) {
    size_t length = strnlen(text, most);
    put_number(w, length, length_bytes);
    put(w, text, length);
}

static void get(reader *r, void *out, size_t size) {
    if (r->bad || (size_t)(r->end - r->at) < size) {
        r->bad = true;
        memset(out, 0, size);
        return;
    }
    memcpy(out, r->at, size);
    r->at += size;
}

static uint64_t get_number(reader *r, int bytes) {
    unsigned char raw[8];
    uint64_t value = 0;
    get(r, raw, (size_t)bytes);
    for (int i = 0; i < bytes; i++) value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

static int get_int(reader *r) {
    return (int)(int32_t)(uint32_t)get_number(r, 4);
}

/* Control characters would reach a log or a terminal: they become question marks. */
static void get_text(reader *r, char *out, size_t size, int length_bytes) {
    size_t length = (size_t)get_number(r, length_bytes);
    if (length >= size) r->bad = true;
    if (r->bad) length = 0;
    get(r, out, length);
    out[length] = '\0';
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)out[i] < 32 || out[i] == 127) out[i] = '?';
    }
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void begin(writer *w, unsigned char *out, tshi_wire_type type) {
    w->start = w->at = out;
    put(w, magic, sizeof magic);
    put_number(w, WIRE_VERSION, 1);
    put_number(w, (uint64_t)type, 1);
    put_number(w, 0, 2);
    put_number(w, 0, 4);
}

static void make_hmac(const tshi_seal *seal, const unsigned char *frame, size_t size, unsigned char *out) {
    tshi_hmac(seal->key, TSHI_KEY_SIZE, seal->nonce, seal->nonce ? TSHI_NONCE_SIZE : 0, frame, size, out);
}

/* Sets the length, and adds the HMAC when there is a seal; returns the size of all. */
static size_t finish(writer *w, const tshi_seal *seal) {
    size_t length = (size_t)(w->at - w->start) - TSHI_WIRE_HEAD + (seal ? TSHI_HASH_SIZE : 0);
    for (int i = 0; i < 4; i++) w->start[8 + i] = (unsigned char)(length >> (8 * i));
    if (seal) {
        make_hmac(seal, w->start, (size_t)(w->at - w->start), w->at);
        w->at += TSHI_HASH_SIZE;
    }
    return (size_t)(w->at - w->start);
}

int64_t tshi_wire_body(const unsigned char *head, tshi_wire_type type, size_t most) {
    reader r = {head + 8, head + TSHI_WIRE_HEAD, false};
    if (memcmp(head, magic, sizeof magic) != 0 || head[4] != WIRE_VERSION) return -1;
    if (head[5] != (unsigned char)type || head[6] || head[7]) return -1;
    uint64_t length = get_number(&r, 4);
    return length <= most ? (int64_t)length : -1;
}

/* A reader over the body of the one frame that these bytes are. With a seal the HMAC at its end has
 * to be right; it is not part of what is read then. */
static bool open_frame(reader *r, tshi_wire_type type, const unsigned char *bytes, size_t size, const tshi_seal *seal,
                       size_t hmac_size) {
    if (size < TSHI_WIRE_HEAD + hmac_size) return false;
    int64_t length = tshi_wire_body(bytes, type, TSHI_WIRE_LARGEST);
    if (length < 0 || (size_t)length != size - TSHI_WIRE_HEAD) return false;
    *r = (reader){bytes + TSHI_WIRE_HEAD, bytes + size - hmac_size, false};
    if (!seal || !hmac_size) return true;
    unsigned char wanted[TSHI_HASH_SIZE];
    make_hmac(seal, bytes, size - hmac_size, wanted);
    return tshi_equal_secret(wanted, r->end, sizeof wanted);
}

/* Everything has been read, and nothing beyond. */
static bool complete(const reader *r) {
    return !r->bad && r->at == r->end;
}

static void put_process(writer *w, const tshi_process *process) {
    put(w, process->machine, sizeof process->machine);
    put_number(w, process->number, 4);
    put_number(w, process->start, 8);
    put_text(w, process->host, sizeof process->host - 1, 1);
}

static void get_process(reader *r, tshi_process *process) {
    get(r, process->machine, sizeof process->machine);
    process->number = (uint32_t)get_number(r, 4);
    process->start = get_number(r, 8);
    get_text(r, process->host, sizeof process->host, 1);
}

size_t tshi_wire_write(tshi_wire_type type, const tshi_frame *frame, const tshi_seal *seal,
                       unsigned char out[TSHI_WIRE_MOST]) {
    writer w;
    begin(&w, out, type);
    if (type != TSHI_HELLO) put(&w, frame->group, sizeof frame->group);
    put(&w, frame->nonce, sizeof frame->nonce);
    if (type == TSHI_CHALLENGE) put(&w, frame->leader, sizeof frame->leader);
    if (type == TSHI_HELLO) {
        for (int i = 0; i < 2; i++) put_number(&w, (uint64_t)frame->version[i], 2);
        put_number(&w, frame->heap_bytes, 8);
    }
    if (type == TSHI_HELLO || type == TSHI_ANNOUNCEMENT) {
        put_number(&w, (uint32_t)frame->rank, 4);
        put_number(&w, (uint32_t)frame->size, 4);
    }
    if (type != TSHI_CHALLENGE) put_process(&w, &frame->process);
    if (type == TSHI_ANNOUNCEMENT || type == TSHI_LEADER) put_number(&w, (uint64_t)frame->port, 2);
    if (type == TSHI_ANNOUNCEMENT) put_number(&w, frame->leads, 1);
    return finish(&w, type == TSHI_CHALLENGE ? NULL : seal);
}

bool tshi_wire_read(tshi_wire_type type, const unsigned char *bytes, size_t size, const tshi_seal *seal,
                    tshi_frame *out) {
    reader r;
    *out = (tshi_frame){0};
    if (!open_frame(&r, type, bytes, size, seal, type == TSHI_CHALLENGE ? 0 : TSHI_HASH_SIZE)) return false;
    if (type != TSHI_HELLO) get(&r, out->group, sizeof out->group);
    get(&r, out->nonce, sizeof out->nonce);
    if (type == TSHI_CHALLENGE) get(&r, out->leader, sizeof out->leader);
    if (type == TSHI_HELLO) {
        for (int i = 0; i < 2; i++) out->version[i] = (int)get_number(&r, 2);
        out->heap_bytes = get_number(&r, 8);
    }
    if (type == TSHI_HELLO || type == TSHI_ANNOUNCEMENT) {
        out->rank = get_int(&r);
        out->size = get_int(&r);
    }
    if (type != TSHI_CHALLENGE) get_process(&r, &out->process);
    if (type == TSHI_ANNOUNCEMENT || type == TSHI_LEADER) out->port = (int)get_number(&r, 2);
    if (type == TSHI_ANNOUNCEMENT) out->leads = get_number(&r, 1) != 0;
    return complete(&r);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

size_t tshi_wire_answer_room(int size) {
    size_t roster = (size_t)size * (TSHI_HOST_SIZE + 4);
    return TSHI_WIRE_HEAD + 64 + TSHI_KEY_SIZE + TSHI_MESSAGE_SIZE + roster + TSHI_HASH_SIZE;
}

/* A mask is used once: for the world's key, in the answer to the one HELLO that has this nonce. */
static void mask_key(const tshi_seal *seal, unsigned char key[TSHI_KEY_SIZE]) {
    static const unsigned char purpose[] = "world key";
    unsigned char mask[TSHI_HASH_SIZE];
    tshi_hmac(seal->key, TSHI_KEY_SIZE, purpose, sizeof purpose, seal->nonce, TSHI_NONCE_SIZE, mask);
    for (int i = 0; i < TSHI_KEY_SIZE; i++) key[i] ^= mask[i];
}

static void put_roster(writer *w, const tshi_roster *roster, const tshi_seal *seal) {
    unsigned char key[TSHI_KEY_SIZE];
    memcpy(key, roster->key, sizeof key);
    mask_key(seal, key);
    put_number(w, (uint32_t)roster->rank, 4);
    put_number(w, (uint32_t)roster->size, 4);
    put_number(w, (uint32_t)roster->nodes, 4);
    put(w, key, sizeof key);
    for (int i = 0; i < roster->nodes; i++) put_text(w, roster->host[i], TSHI_HOST_SIZE - 1, 1);
    for (int i = 0; i < roster->size; i++) put_number(w, (uint32_t)roster->node[i], 4);
}

size_t tshi_wire_write_answer(const tshi_wire_answer *answer, const tshi_seal *seal, unsigned char *out) {
    writer w;
    begin(&w, out, TSHI_ANSWER);
    put_number(&w, (uint64_t)answer->status, 1);
    if (answer->status == TSH_OK && answer->roster.size > 0) put_roster(&w, &answer->roster, seal);
    if (answer->status != TSH_OK) put_text(&w, answer->words, sizeof answer->words - 1, 2);
    return finish(&w, seal);
}

static tsh_status get_roster(reader *r, int ranks, const tshi_seal *seal, const tsh_allocator *allocator,
                             tshi_roster *out) {
    int rank = get_int(r), size = get_int(r), nodes = get_int(r);
    if (r->bad || size != ranks || rank < 0 || rank >= size || nodes < 1 || nodes > size) return TSH_ERR_SYSTEM;
    tsh_status status = tshi_roster_init(out, size, nodes, allocator);
    if (status != TSH_OK) return status;
    out->rank = rank;
    get(r, out->key, sizeof out->key);
    mask_key(seal, out->key);
    for (int i = 0; i < nodes; i++) get_text(r, out->host[i], TSHI_HOST_SIZE, 1);
    for (int i = 0; i < size; i++) {
        out->node[i] = get_int(r);
        if (out->node[i] < 0 || out->node[i] >= nodes) r->bad = true;
    }
    return TSH_OK;
}

tsh_status tshi_wire_read_answer(const unsigned char *bytes, size_t size, int ranks, const tshi_seal *seal,
                                 const tsh_allocator *allocator, tshi_wire_answer *out) {
    static const char nonsense[] = "rendezvous: an answer that makes no sense";
    reader r;
    *out = (tshi_wire_answer){0};
    if (!open_frame(&r, TSHI_ANSWER, bytes, size, seal, TSHI_HASH_SIZE)) return tshi_fail(TSH_ERR_SYSTEM, nonsense);
    out->status = (tsh_status)get_number(&r, 1);
    tsh_status status = TSH_OK;
    if (out->status == TSH_OK && ranks > 0) status = get_roster(&r, ranks, seal, allocator, &out->roster);
    if (out->status != TSH_OK) get_text(&r, out->words, sizeof out->words, 2);
    if (status == TSH_OK && (!complete(&r) || (int)out->status > TSH_ERR_PEER)) status = TSH_ERR_SYSTEM;
    if (status == TSH_OK) return TSH_OK;
    tshi_roster_free(&out->roster, allocator);
    return status == TSH_ERR_MEMORY ? status : tshi_fail(status, nonsense);
}
