#include "dist/rendezvous/rendezvous.h"

#include <string.h>

static const unsigned char magic[4] = {'t', 'S', 'H', 'm'};

#define WIRE_VERSION 4

/* --- fields ------------------------------------------------------------------------------------------------------- */

void tshi_codec_field(tshi_codec *c, void *data, size_t size) {
    if (c->reads && (c->bad || (size_t)(c->end - c->at) < size)) {
        c->bad = true;
        memset(data, 0, size);
        return;
    }
    memcpy(c->reads ? data : c->at, c->reads ? c->at : data, size);
    c->at += size;
}

uint64_t tshi_codec_number(tshi_codec *c, uint64_t value, int bytes) {
    unsigned char raw[8];
    for (int i = 0; i < bytes; i++) raw[i] = (unsigned char)(value >> (8 * i));
    tshi_codec_field(c, raw, (size_t)bytes);
    value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

void tshi_codec_integer(tshi_codec *c, int *value, int bytes) {
    *value = (int)(int32_t)(uint32_t)tshi_codec_number(c, (uint32_t)*value, bytes);
}

void tshi_codec_clean(char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 32 || text[i] == 127) text[i] = '?';
    }
}

static void text(tshi_codec *c, char *out, size_t size, int length_bytes) {
    size_t length = (size_t)tshi_codec_number(c, c->reads ? 0 : strnlen(out, size - 1), length_bytes);
    if (length >= size) c->bad = true;
    if (c->bad) length = 0;
    tshi_codec_field(c, out, length);
    if (!c->reads) return;
    out[length] = '\0';
    tshi_codec_clean(out, length);
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void begin(tshi_codec *c, unsigned char *out, tshi_wire_type type) {
    const unsigned char head[TSHI_WIRE_HEAD] = {magic[0], magic[1],     magic[2],
                                                magic[3], WIRE_VERSION, (unsigned char)type};
    memcpy(out, head, sizeof head);
    *c = (tshi_codec){.start = out, .at = out + sizeof head};
}

static void make_hmac(const tshi_seal *seal, const unsigned char *frame, size_t size, unsigned char *out) {
    tshi_hmac(seal->key, TSHI_KEY_SIZE, seal->nonce, seal->nonce ? TSHI_NONCE_SIZE : 0, frame, size, out);
}

/* Sets the length, and adds the HMAC when there is a seal; returns the size of all. */
static size_t finish(tshi_codec *c, const tshi_seal *seal) {
    size_t size = (size_t)(c->at - c->start), length = size - TSHI_WIRE_HEAD + (seal ? TSHI_HASH_SIZE : 0);
    for (int i = 0; i < 4; i++) c->start[8 + i] = (unsigned char)(length >> (8 * i));
    if (seal) make_hmac(seal, c->start, size, c->at);
    return TSHI_WIRE_HEAD + length;
}

static tshi_codec reader(const unsigned char *bytes, const unsigned char *end) {
    return (tshi_codec){.reads = true, .at = (unsigned char *)(uintptr_t)bytes, .end = end};
}

int64_t tshi_wire_body(const unsigned char *head, tshi_wire_type type, size_t most) {
    tshi_codec c = reader(head + 8, head + TSHI_WIRE_HEAD);
    if (memcmp(head, magic, sizeof magic) != 0 || head[4] != WIRE_VERSION) return -1;
    if (head[5] != (unsigned char)type || head[6] || head[7]) return -1;
    uint64_t length = tshi_codec_number(&c, 0, 4);
    return length <= most ? (int64_t)length : -1;
}

/* A reader over the body of the one frame that these bytes are. With a seal the HMAC at its end has
 * to be right; it is not part of what is read then. */
static bool open_frame(tshi_codec *c, tshi_wire_type type, const unsigned char *bytes, size_t size,
                       const tshi_seal *seal, size_t hmac_size) {
    if (size < TSHI_WIRE_HEAD + hmac_size) return false;
    int64_t length = tshi_wire_body(bytes, type, TSHI_WIRE_LARGEST);
    if (length < 0 || (size_t)length != size - TSHI_WIRE_HEAD) return false;
    *c = reader(bytes + TSHI_WIRE_HEAD, bytes + size - hmac_size);
    if (!seal || !hmac_size) return true;
    unsigned char wanted[TSHI_HASH_SIZE];
    make_hmac(seal, bytes, size - hmac_size, wanted);
    return tshi_equal_secret(wanted, c->end, sizeof wanted);
}

/* True if the frame has been read to its end, and not beyond. */
static bool complete(const tshi_codec *c) {
    return !c->bad && c->at == c->end;
}

static void process_fields(tshi_codec *c, tshi_process *process) {
    tshi_codec_field(c, process->machine, sizeof process->machine);
    process->number = (uint32_t)tshi_codec_number(c, process->number, 4);
    process->start = tshi_codec_number(c, process->start, 8);
    text(c, process->host, sizeof process->host, 1);
}

static void place_fields(tshi_codec *c, tshi_frame *f) {
    f->seed = tshi_codec_number(c, f->seed, 8);
    tshi_codec_integer(c, &f->size, 4);
    tshi_codec_integer(c, &f->patience, 4);
    tshi_codec_integer(c, &f->port, 2);
    c->bad = c->bad || f->size < 0 || f->size > TSHI_MOST_RANKS || f->patience < 0;
}

/* The body of a frame; see wire.h. */
static void frame_fields(tshi_codec *c, tshi_wire_type type, tshi_frame *f) {
    if (type == TSHI_PLACE) {
        place_fields(c, f);
        return;
    }
    if (type != TSHI_HELLO) tshi_codec_field(c, f->group, sizeof f->group);
    tshi_codec_field(c, f->nonce, sizeof f->nonce);
    if (type == TSHI_CHALLENGE) tshi_codec_field(c, f->leader, sizeof f->leader);
    if (type == TSHI_HELLO) {
        for (int i = 0; i < 2; i++) tshi_codec_integer(c, &f->version[i], 2);
        f->heap_bytes = tshi_codec_number(c, f->heap_bytes, 8);
        f->seed = tshi_codec_number(c, f->seed, 8);
        f->program = tshi_codec_number(c, f->program, 8);
    }
    if (type == TSHI_HELLO || type == TSHI_ANNOUNCEMENT) {
        tshi_codec_integer(c, &f->rank, 4);
        tshi_codec_integer(c, &f->size, 4);
    }
    if (type != TSHI_CHALLENGE) process_fields(c, &f->process);
    if (type == TSHI_ANNOUNCEMENT || type == TSHI_LEADER) tshi_codec_integer(c, &f->port, 2);
    if (type == TSHI_ANNOUNCEMENT) f->leads = tshi_codec_number(c, f->leads, 1) != 0;
}

size_t tshi_wire_write(tshi_wire_type type, const tshi_frame *frame, const tshi_seal *seal,
                       unsigned char out[TSHI_WIRE_MOST]) {
    tshi_frame copy = *frame;
    tshi_codec c;
    begin(&c, out, type);
    frame_fields(&c, type, &copy);
    return finish(&c, type == TSHI_CHALLENGE ? NULL : seal);
}

bool tshi_wire_read(tshi_wire_type type, const unsigned char *bytes, size_t size, const tshi_seal *seal,
                    tshi_frame *out) {
    tshi_codec c;
    *out = (tshi_frame){0};
    if (!open_frame(&c, type, bytes, size, seal, type == TSHI_CHALLENGE ? 0 : TSHI_HASH_SIZE)) return false;
    frame_fields(&c, type, out);
    return complete(&c);
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

/* The arrays of a roster that is read are made here, for `room` ranks. */
static tsh_status roster_fields(tshi_codec *c, tshi_roster *roster, int room, const tshi_seal *seal,
                                const tsh_allocator *allocator) {
    int rank = roster->rank, size = roster->size, nodes = roster->nodes;
    tshi_codec_integer(c, &rank, 4);
    tshi_codec_integer(c, &size, 4);
    tshi_codec_integer(c, &nodes, 4);
    if (c->reads) {
        if (c->bad || size != room || rank < 0 || rank >= size || nodes < 1 || nodes > size) return TSH_ERR_SYSTEM;
        tsh_status status = tshi_roster_init(roster, size, nodes, allocator);
        if (status != TSH_OK) return status;
        roster->rank = rank;
    }
    unsigned char key[TSHI_KEY_SIZE];
    memcpy(key, roster->key, sizeof key);
    if (!c->reads) mask_key(seal, key);
    tshi_codec_field(c, key, sizeof key);
    if (c->reads) {
        mask_key(seal, key);
        memcpy(roster->key, key, sizeof key);
    }
    for (int i = 0; i < nodes; i++) text(c, roster->host[i], TSHI_HOST_SIZE, 1);
    for (int i = 0; i < size; i++) {
        tshi_codec_integer(c, &roster->node[i], 4);
        c->bad = c->bad || roster->node[i] < 0 || roster->node[i] >= nodes;
    }
    return TSH_OK;
}

size_t tshi_wire_write_answer(const tshi_wire_answer *answer, const tshi_seal *seal, unsigned char *out) {
    tshi_wire_answer copy = *answer;
    tshi_codec c;
    begin(&c, out, TSHI_ANSWER);
    tshi_codec_number(&c, (uint64_t)copy.status, 1);
    if (copy.status == TSH_OK && copy.roster.size > 0) roster_fields(&c, &copy.roster, 0, seal, NULL);
    if (copy.status != TSH_OK) text(&c, copy.message, sizeof copy.message, 2);
    return finish(&c, seal);
}

tsh_status tshi_wire_read_answer(const unsigned char *bytes, size_t size, int ranks, const tshi_seal *seal,
                                 const tsh_allocator *allocator, tshi_wire_answer *out) {
    static const char nonsense[] = "rendezvous: a malformed answer";
    tshi_codec c;
    *out = (tshi_wire_answer){0};
    if (!open_frame(&c, TSHI_ANSWER, bytes, size, seal, TSHI_HASH_SIZE)) return tshi_fail(TSH_ERR_SYSTEM, nonsense);
    out->status = (tsh_status)tshi_codec_number(&c, 0, 1);
    tsh_status status = TSH_OK;
    if (out->status == TSH_OK && ranks > 0) status = roster_fields(&c, &out->roster, ranks, seal, allocator);
    if (out->status != TSH_OK) text(&c, out->message, sizeof out->message, 2);
    if (status == TSH_OK && (!complete(&c) || (int)out->status > TSH_ERR_PEER)) status = TSH_ERR_SYSTEM;
    if (status == TSH_OK) return TSH_OK;
    tshi_roster_free(&out->roster, allocator);
    return status == TSH_ERR_MEMORY ? status : tshi_fail(status, nonsense);
}
