/* The messages of relays: what is written is read again, and no other bytes are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/news.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static tshi_news of_rank(size_t length) {
    tshi_news news = {.kind = TSHI_NEWS_RANK, .rank = {.rank = 0x01020304, .state = TSHI_FAILED, .left = 1}};
    news.rank.recover = 0xfffffff0u;
    news.rank.agreement = UINT64_C(0x8899aabbccddeeff);
    news.rank.wait = UINT64_C(0x0123456789abcdef);
    memcpy(news.rank.call, "all_reduce", 11);
    news.rank.step = (tshi_tape_step){UINT64_C(0x1122334455667788), 5};
    memset(news.rank.reason, 'a', length);
    return news;
}

static void check_same(const tshi_news *got, const tshi_news *wanted) {
    cr_assert_eq(got->kind, wanted->kind);
    cr_assert_eq(got->machine, wanted->machine);
    cr_assert_eq(got->all_left, wanted->all_left);
    cr_assert_eq(got->rank.rank, wanted->rank.rank);
    cr_assert_eq(got->rank.state, wanted->rank.state);
    cr_assert_eq(got->rank.left, wanted->rank.left);
    cr_assert_eq(got->rank.recover, wanted->rank.recover);
    cr_assert_eq(got->rank.agreement, wanted->rank.agreement);
    cr_assert_eq(got->rank.wait, wanted->rank.wait);
    cr_assert_str_eq(got->rank.call, wanted->rank.call);
    cr_assert_eq(got->rank.step.tape, wanted->rank.step.tape);
    cr_assert_eq(got->rank.step.number, wanted->rank.step.number);
    cr_assert_str_eq(got->rank.reason, wanted->rank.reason);
    cr_assert_eq(memcmp(&got->packet, &wanted->packet, sizeof got->packet), 0);
}

static tshi_news of_packet(uint32_t length) {
    tshi_news news = {.kind = TSHI_NEWS_PACKET, .packet = {.from = 0x01020304, .to = 5, .epoch = 0xfffffff1u}};
    news.packet.group = UINT64_C(0x8877665544332211);
    news.packet.number = 0x10203;
    news.packet.at = 0x30;
    news.packet.length = length;
    news.packet.total = 0x30 + length;
    memset(news.packet.data, 'b', length);
    return news;
}

/* In memory of exactly that size, so that AddressSanitizer sees a read past it. */
static int read_exactly(const unsigned char *bytes, size_t size, tshi_news *out) {
    unsigned char *copy = malloc(size);
    if (size) memcpy(copy, bytes, size);
    int n = tshi_news_read(copy, size, out);
    free(copy);
    return n;
}

static void check_round_trip(const tshi_news *news) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news got;
    size_t size = tshi_news_write(news, bytes);
    cr_assert(size <= sizeof bytes);
    for (size_t part = 0; part < size; part++) cr_assert_eq(read_exactly(bytes, part, &got), 0, "%zu bytes", part);
    cr_assert_eq(read_exactly(bytes, size, &got), (int)size);
    check_same(&got, news);
}

Test(news, what_is_written_is_read, .timeout = 60) {
    const size_t lengths[] = {0, 1, 100, TSHI_MESSAGE_SIZE - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const tshi_news news = of_rank(lengths[i]);
        check_round_trip(&news);
    }
    for (uint32_t length = 0; length <= TSHI_PACKET_BYTES; length += length < 460 ? 92 : 1) {
        const tshi_news news = of_packet(length);
        check_round_trip(&news);
    }
    check_round_trip(&(const tshi_news){.kind = TSHI_NEWS_BEAT, .machine = 70000});
    check_round_trip(&(const tshi_news){.kind = TSHI_NEWS_FAREWELL});
    check_round_trip(&(const tshi_news){.kind = TSHI_NEWS_FAREWELL, .all_left = true});
}

Test(news, bytes_are_in_the_order_that_the_header_says, .timeout = 60) {
    const unsigned char wanted[] = {
        't',  'S',  'H',  'c',  3,    2,    0,    0,    78,   0,    0,    0,    4,    3,    2,    1,    1,    1,
        0,    0,    0xf0, 255,  255,  255,  0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88, 0xef, 0xcd, 0xab, 0x89,
        0x67, 0x45, 0x23, 0x01, 'a',  'l',  'l',  '_',  'r',  'e',  'd',  'u',  'c',  'e',  0,    0,    0,    0,
        0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 5,    0,    0,    0,    0,    0,    0,    0,    'a',  'a'};
    unsigned char bytes[TSHI_NEWS_MOST];
    const tshi_news news = of_rank(2);
    cr_assert_eq(tshi_news_write(&news, bytes), sizeof wanted);
    cr_assert_arr_eq(bytes, wanted, sizeof wanted);
    const unsigned char packet[] = {'t', 'S', 'H', 'c', 3, 4,    0,    0,    33,   0,    0,    0,    4,    3,    2,
                                    1,   5,   0,   0,   0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xf1, 255,
                                    255, 255, 3,   2,   1, 0,    0x31, 0,    0,    0,    0x30, 0,    0,    0,    'b'};
    const tshi_news other = of_packet(1);
    cr_assert_eq(tshi_news_write(&other, bytes), sizeof packet);
    cr_assert_arr_eq(bytes, packet, sizeof packet);
}

static void check_packet_refused(size_t at, unsigned char value) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news news = of_packet(8);
    size_t size = tshi_news_write(&news, bytes);
    bytes[at] = value;
    cr_assert_eq(tshi_news_read(bytes, size, &news), -1, "byte %zu is %u", at, value);
}

static void check_refused(size_t at, unsigned char value) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news news = of_rank(8);
    size_t size = tshi_news_write(&news, bytes);
    bytes[at] = value;
    cr_assert_eq(tshi_news_read(bytes, size, &news), -1, "byte %zu is %u", at, value);
}

Test(news, other_bytes_are_refused, .timeout = 60) {
    for (size_t at = 0; at < 4; at++) check_refused(at, 'x');
    check_refused(4, 1);  /* version */
    check_refused(5, 0);  /* kind */
    check_refused(5, 1);  /* a beat of 84 bytes */
    check_refused(5, 3);  /* a farewell of 84 bytes */
    check_refused(5, 5);  /* kind */
    check_refused(6, 1);  /* zero */
    check_refused(8, 75); /* shorter than a record */
    check_refused(9, 3);  /* longer than any reason */
    check_refused(11, 255);
    check_refused(16, TSHI_DEAD + 1);
    check_refused(17, 2);
    check_refused(18, 1);
    check_packet_refused(5, 3);     /* a farewell of 40 bytes */
    check_packet_refused(8, 31);    /* shorter than its head */
    check_packet_refused(9, 3);     /* longer than any packet */
    check_packet_refused(36, 0x37); /* data past the end of the message */
    check_packet_refused(40, 0x31);
    check_packet_refused(43, 255);
    check_packet_refused(39, 0x80); /* a message of 2 GiB */
}

Test(news, a_farewell_says_whether_all_have_left, .timeout = 60) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news news = {.kind = TSHI_NEWS_FAREWELL};
    size_t size = tshi_news_write(&news, bytes);
    bytes[size - 1] = 2;
    cr_assert_eq(tshi_news_read(bytes, size, &news), -1);
}

/* Whatever comes, it is read within its bounds and is no message that could not have been written. */
Test(news, random_bytes_do_no_harm, .timeout = 120) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news got;
    srand(7);
    for (int i = 0; i < 200000; i++) {
        const bool packet = rand() % 2;
        const tshi_news news = packet ? of_packet((uint32_t)rand() % 64) : of_rank((size_t)rand() % 64);
        size_t size = tshi_news_write(&news, bytes), cut = (size_t)rand() % (size + 1);
        for (int k = rand() % 4; k > 0; k--) bytes[(size_t)rand() % size] = (unsigned char)rand();
        int n = read_exactly(bytes, cut, &got);
        cr_assert(n >= -1 && n <= (int)cut);
        if (n > 0)
            cr_assert(got.packet.at + got.packet.length <= got.packet.total && got.packet.length <= TSHI_PACKET_BYTES);
        if (n > 0) cr_assert(got.rank.state <= TSHI_DEAD && got.rank.left <= 1 && strlen(got.rank.reason) < 512);
    }
}
