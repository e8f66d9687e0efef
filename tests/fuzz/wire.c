/* Any bytes, read as each kind of frame: no byte beyond the end is read, no resource leaks, and an accepted frame is
 * equal after it is written and read again. The first byte chooses the kind, and whether the HMAC is made valid first,
 * so that the code behind the check is reached as well. */
#include "dist/rendezvous/rendezvous.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const unsigned char key[TSHI_KEY_SIZE] = "the key of the fuzzer's own job";
static const unsigned char nonce[TSHI_NONCE_SIZE] = "a nonce that is always the same";

static void require(bool condition) {
    if (!condition) abort();
}

/* Writes a head with the right length in front, and the HMAC behind, where there is room. */
static void make_valid(unsigned char *bytes, size_t size, tshi_wire_type type) {
    static const unsigned char head[8] = {'t', 'S', 'H', 'm', 3, 0, 0, 0};
    if (size < TSHI_WIRE_HEAD + TSHI_HASH_SIZE) return;
    memcpy(bytes, head, sizeof head);
    bytes[5] = (unsigned char)type;
    size_t body = size - TSHI_WIRE_HEAD;
    for (int i = 0; i < 4; i++) bytes[8 + i] = (unsigned char)(body >> (8 * i));
    if (type == TSHI_CHALLENGE) return;
    tshi_hmac(key, sizeof key, nonce, sizeof nonce, bytes, size - TSHI_HASH_SIZE, bytes + size - TSHI_HASH_SIZE);
}

static void try_frame(tshi_wire_type type, const unsigned char *bytes, size_t size) {
    const tshi_seal seal = {key, nonce};
    unsigned char again[TSHI_WIRE_MOST];
    tshi_frame frame, second;
    if (!tshi_wire_read(type, bytes, size, &seal, &frame)) return;
    size_t n = tshi_wire_write(type, &frame, &seal, again);
    require(n <= sizeof again);
    require(tshi_wire_read(type, again, n, &seal, &second));
    require(!memcmp(frame.leader, second.leader, sizeof frame.leader));
    require(!memcmp(frame.nonce, second.nonce, sizeof frame.nonce) && frame.rank == second.rank &&
            frame.size == second.size && frame.port == second.port && !strcmp(frame.process.host, second.process.host));
}

static void try_answer(const unsigned char *bytes, size_t size, int ranks) {
    const tshi_seal seal = {key, nonce};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_wire_answer answer, second;
    if (tshi_wire_read_answer(bytes, size, ranks, &seal, &allocator, &answer) != TSH_OK) return;
    unsigned char *again = malloc(tshi_wire_answer_room(ranks));
    require(again != NULL);
    size_t n = tshi_wire_write_answer(&answer, &seal, again);
    require(n <= tshi_wire_answer_room(ranks));
    require(tshi_wire_read_answer(again, n, ranks, &seal, &allocator, &second) == TSH_OK);
    require(answer.status == second.status && answer.roster.rank == second.roster.rank);
    require(!memcmp(answer.roster.key, second.roster.key, sizeof answer.roster.key));
    tshi_roster_free(&answer.roster, &allocator);
    tshi_roster_free(&second.roster, &allocator);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    tshi_wire_type type = (tshi_wire_type)(1 + data[0] % 5);
    int ranks = 1 + data[0] / 32;
    unsigned char *bytes = malloc(size); /* memory of exactly this size, so that a read of one byte more is noticed */
    require(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 16) make_valid(bytes, size - 1, type);
    /* The byte behind the end is there only to keep malloc(0) out. */
    unsigned char *exact = realloc(bytes, size > 1 ? size - 1 : 1);
    require(exact != NULL);
    if (size - 1 >= TSHI_WIRE_HEAD) tshi_wire_body(exact, type, TSHI_WIRE_MOST);
    if (type == TSHI_ANSWER)
        try_answer(exact, size - 1, ranks);
    else
        try_frame(type, exact, size - 1);
    free(exact);
    return 0;
}
