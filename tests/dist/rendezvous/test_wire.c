/* The wire format of a rendezvous: HMACs against known answers, frames written and read back, other frames refused. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/rendezvous.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char key[TSHI_KEY_SIZE] = "a key for these tests, 32 bytes";
static const unsigned char nonce[TSHI_NONCE_SIZE] = "and a nonce that it answers to.";
static const tshi_seal seal = {key, nonce};

static const char *hex(const unsigned char bytes[TSHI_HASH_SIZE]) {
    static char text[2 * TSHI_HASH_SIZE + 1];
    for (int i = 0; i < TSHI_HASH_SIZE; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static const char *sha256(const char *text, size_t size, int times) {
    unsigned char digest[TSHI_HASH_SIZE];
    tshi_sha256 hash;
    tshi_sha256_begin(&hash);
    for (int i = 0; i < times; i++) tshi_sha256_add(&hash, text, size);
    tshi_sha256_end(&hash, digest);
    return hex(digest);
}

/* FIPS 180-4's examples, and a million times "a". */
Test(wire, sha256, .timeout = 120) {
    const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    cr_assert_str_eq(sha256("", 0, 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cr_assert_str_eq(sha256("abc", 3, 1), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cr_assert_str_eq(sha256(two_blocks, strlen(two_blocks), 1),
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    cr_assert_str_eq(sha256("aaaaaaaaaa", 10, 100000),
                     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* RFC 4231, cases 1 and 2; the text in two parts. */
Test(wire, hmac, .timeout = 120) {
    unsigned char out[TSHI_HASH_SIZE], elevens[20];
    memset(elevens, 0x0b, sizeof elevens);
    tshi_hmac(elevens, sizeof elevens, "Hi ", 3, "There", 5, out);
    cr_assert_str_eq(hex(out), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    tshi_hmac((const unsigned char *)"Jefe", 4, "what do ya want ", 16, "for nothing?", 12, out);
    cr_assert_str_eq(hex(out), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

Test(wire, every_byte_of_a_secret_is_compared, .timeout = 120) {
    unsigned char a[32] = {0}, b[32] = {0};
    cr_assert(tshi_equal_secret(a, b, sizeof a));
    for (size_t i = 0; i < sizeof a; i++) {
        b[i] = 1;
        cr_assert_not(tshi_equal_secret(a, b, sizeof a));
        b[i] = 0;
    }
}

static tshi_frame example(void) {
    tshi_frame frame = {.version = {3, 14}, .rank = -1, .size = 70000, .port = 65535, .leads = true};
    memset(frame.nonce, 0xa5, sizeof frame.nonce);
    memset(frame.leader, 0x3c, sizeof frame.leader);
    memset(frame.group, 0x5a, sizeof frame.group);
    memset(frame.process.machine, 0x11, sizeof frame.process.machine);
    frame.process.number = 4000000000u;
    frame.process.start = UINT64_C(0x123456789abcdef0);
    memset(frame.process.host, 'h', sizeof frame.process.host - 1);
    return frame;
}

Test(wire, frames_there_and_back, .timeout = 120) {
    const tshi_frame in = example();
    for (int type = TSHI_CHALLENGE; type <= TSHI_LEADER; type++) {
        unsigned char bytes[TSHI_WIRE_MOST];
        tshi_frame out;
        if (type == TSHI_ANSWER) continue;
        size_t size = tshi_wire_write((tshi_wire_type)type, &in, &seal, bytes);
        cr_assert_leq(size, sizeof bytes);
        cr_assert(tshi_wire_read((tshi_wire_type)type, bytes, size, &seal, &out), "type %d", type);
        cr_assert_arr_eq(out.nonce, in.nonce, sizeof in.nonce);
        if (type == TSHI_CHALLENGE) cr_assert_arr_eq(out.leader, in.leader, sizeof in.leader);
        if (type != TSHI_HELLO) cr_assert_arr_eq(out.group, in.group, sizeof in.group);
        if (type == TSHI_HELLO) cr_assert(out.version[0] == 3 && out.version[1] == 14);
        if (type == TSHI_HELLO || type == TSHI_ANNOUNCEMENT) cr_assert(out.rank == -1 && out.size == 70000);
        if (type != TSHI_CHALLENGE) {
            cr_assert(out.process.number == in.process.number && out.process.start == in.process.start);
            cr_assert_str_eq(out.process.host, in.process.host);
        }
        if (type == TSHI_ANNOUNCEMENT || type == TSHI_LEADER) cr_assert_eq(out.port, 65535);
        if (type == TSHI_ANNOUNCEMENT) cr_assert(out.leads);
    }
}

Test(wire, places_there_and_back, .timeout = 120) {
    const tshi_frame in = {.seed = UINT64_MAX - 1, .size = 3, .patience = 2500, .port = 65535};
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame out;
    size_t size = tshi_wire_write(TSHI_PLACE, &in, &seal, bytes);
    cr_assert(tshi_wire_read(TSHI_PLACE, bytes, size, &seal, &out));
    cr_assert(out.seed == in.seed && out.size == 3 && out.patience == 2500 && out.port == 65535);
    bytes[TSHI_WIRE_HEAD] ^= 1;
    cr_assert_not(tshi_wire_read(TSHI_PLACE, bytes, size, &seal, &out));
    const tshi_frame wrong = {.size = -1};
    cr_assert_not(tshi_wire_read(TSHI_PLACE, bytes, tshi_wire_write(TSHI_PLACE, &wrong, &seal, bytes), &seal, &out));
}

/* A frame with one bit changed, or one byte less, is refused. */
Test(wire, nothing_else_is_taken, .timeout = 120) {
    const tshi_frame in = example();
    unsigned char bytes[TSHI_WIRE_MOST + 1], other_key[TSHI_KEY_SIZE] = "another";
    tshi_frame out;
    size_t size = tshi_wire_write(TSHI_HELLO, &in, &seal, bytes);
    for (size_t i = 0; i < 8 * size; i++) {
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        cr_assert_not(tshi_wire_read(TSHI_HELLO, bytes, size, &seal, &out), "bit %zu", i);
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    for (size_t n = 0; n < size; n++) cr_assert_not(tshi_wire_read(TSHI_HELLO, bytes, n, &seal, &out), "%zu bytes", n);
    cr_assert_not(tshi_wire_read(TSHI_HELLO, bytes, size + 1, &seal, &out));
    cr_assert_not(tshi_wire_read(TSHI_LEADER, bytes, size, &seal, &out));
    const tshi_seal other = {other_key, nonce}, replayed = {key, in.nonce};
    cr_assert_not(tshi_wire_read(TSHI_HELLO, bytes, size, &other, &out));
    cr_assert_not(tshi_wire_read(TSHI_HELLO, bytes, size, &replayed, &out), "an HMAC answers one nonce alone");
    cr_assert(tshi_wire_read(TSHI_HELLO, bytes, size, &seal, &out));
}

Test(wire, rosters_there_and_back, .timeout = 120) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_wire_answer in = {.status = TSH_OK}, out;
    cr_assert_eq(tshi_roster_init(&in.roster, 5, 2, &allocator), TSH_OK);
    memcpy(in.roster.host[0], "one", 4);
    memcpy(in.roster.host[1], "the\nother\x1b", 11);
    in.roster.rank = 3;
    in.roster.node[4] = 1;
    memset(in.roster.key, 0x77, sizeof in.roster.key);
    unsigned char *bytes = malloc(tshi_wire_answer_room(5));
    size_t size = tshi_wire_write_answer(&in, &seal, bytes);
    cr_assert_leq(size, tshi_wire_answer_room(5));
    cr_assert_eq(tshi_wire_read_answer(bytes, size, 5, &seal, &allocator, &out), TSH_OK, "%s", tsh_error_message());
    cr_assert(out.status == TSH_OK && out.roster.rank == 3 && out.roster.size == 5 && out.roster.nodes == 2);
    cr_assert(out.roster.node[3] == 0 && out.roster.node[4] == 1);
    cr_assert_str_eq(out.roster.host[1], "the?other?", "control characters reach no terminal");
    cr_assert_arr_eq(out.roster.key, in.roster.key, sizeof in.roster.key);
    cr_assert_null(memmem(bytes, size, in.roster.key, 4), "the world's key is sent in the clear");
    tshi_roster_free(&out.roster, &allocator);
    cr_assert_eq(tshi_wire_read_answer(bytes, size, 4, &seal, &allocator, &out), TSH_ERR_SYSTEM);
    cr_assert_eq(tshi_wire_read_answer(bytes, size - 1, 5, &seal, &allocator, &out), TSH_ERR_SYSTEM);
    /* A frame with a valid HMAC and wrong contents: a rank on a machine that is not in the list. */
    in.roster.node[2] = 2;
    size = tshi_wire_write_answer(&in, &seal, bytes);
    cr_assert_eq(tshi_wire_read_answer(bytes, size, 5, &seal, &allocator, &out), TSH_ERR_SYSTEM);
    in.roster.node[2] = 0;
    in.roster.rank = 5;
    size = tshi_wire_write_answer(&in, &seal, bytes);
    cr_assert_eq(tshi_wire_read_answer(bytes, size, 5, &seal, &allocator, &out), TSH_ERR_SYSTEM);
    tshi_roster_free(&in.roster, &allocator);
    tshi_wire_answer no = {.status = TSH_ERR_TIMEOUT, .message = "3/4 joined, missing rank 2"};
    size = tshi_wire_write_answer(&no, &seal, bytes);
    cr_assert_eq(tshi_wire_read_answer(bytes, size, 5, &seal, &allocator, &out), TSH_OK);
    cr_assert_eq(out.status, TSH_ERR_TIMEOUT);
    cr_assert_str_eq(out.message, no.message);
    free(bytes);
}
