#include "dist/control/news.h"

#include <string.h>

static const unsigned char magic[5] = {'t', 'S', 'H', 'c', 2};

enum { BEAT_BYTES = 4, FAREWELL_BYTES = 1, RANK_BYTES = 44, PACKET_BYTES = 32 };

static unsigned char *put_number(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) *at++ = (unsigned char)(value >> (8 * i));
    return at;
}

static uint64_t get_number(const unsigned char **at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

static unsigned char *put_rank(unsigned char *at, const tshi_rank_news *news) {
    size_t length = strnlen(news->reason, sizeof news->reason - 1);
    at = put_number(at, (uint32_t)news->rank, 4);
    at = put_number(at, news->state, 1);
    at = put_number(at, news->left, 1);
    at = put_number(at, 0, 2);
    at = put_number(at, news->recover, 4);
    at = put_number(at, news->agreement, 8);
    at = put_number(at, news->wait, 8);
    at = put_number(at, news->step.tape, 8);
    at = put_number(at, news->step.number, 8);
    memcpy(at, news->reason, length);
    return at + length;
}

static unsigned char *put_packet(unsigned char *at, const tshi_packet *packet) {
    at = put_number(at, (uint32_t)packet->from, 4);
    at = put_number(at, (uint32_t)packet->to, 4);
    at = put_number(at, packet->group, 8);
    at = put_number(at, packet->epoch, 4);
    at = put_number(at, packet->number, 4);
    at = put_number(at, packet->total, 4);
    at = put_number(at, packet->at, 4);
    memcpy(at, packet->data, packet->length);
    return at + packet->length;
}

size_t tshi_news_write(const tshi_news *news, unsigned char out[TSHI_NEWS_MOST]) {
    unsigned char *at = out + TSHI_NEWS_HEAD;
    if (news->kind == TSHI_NEWS_BEAT) at = put_number(at, (uint32_t)news->machine, 4);
    if (news->kind == TSHI_NEWS_FAREWELL) at = put_number(at, news->all_left, 1);
    if (news->kind == TSHI_NEWS_RANK) at = put_rank(at, &news->rank);
    if (news->kind == TSHI_NEWS_PACKET) at = put_packet(at, &news->packet);
    size_t size = (size_t)(at - out);
    memcpy(out, magic, sizeof magic);
    put_number(out + sizeof magic, news->kind, 3);
    put_number(out + 8, size - TSHI_NEWS_HEAD, 4);
    return size;
}

/* A body of that length is possible for this kind. */
static bool is_length(tshi_news_kind kind, uint64_t length) {
    switch (kind) {
    case TSHI_NEWS_BEAT: return length == BEAT_BYTES;
    case TSHI_NEWS_RANK: return length >= RANK_BYTES && length <= TSHI_NEWS_MOST - TSHI_NEWS_HEAD;
    case TSHI_NEWS_FAREWELL: return length == FAREWELL_BYTES;
    case TSHI_NEWS_PACKET: return length >= PACKET_BYTES && length <= PACKET_BYTES + TSHI_PACKET_BYTES;
    default: return false;
    }
}

/* Control characters become question marks, since the reason goes to logs and terminals. */
static bool get_rank(const unsigned char *at, const unsigned char *end, tshi_rank_news *out) {
    out->rank = (int32_t)(uint32_t)get_number(&at, 4);
    out->state = (uint32_t)get_number(&at, 1);
    out->left = (uint32_t)get_number(&at, 1);
    bool good = get_number(&at, 2) == 0 && out->state <= TSHI_DEAD && out->left <= 1;
    out->recover = (uint32_t)get_number(&at, 4);
    out->agreement = get_number(&at, 8);
    out->wait = get_number(&at, 8);
    out->step.tape = get_number(&at, 8);
    out->step.number = get_number(&at, 8);
    for (char *to = out->reason; at < end; at++) *to++ = *at < 32 || *at == 127 ? '?' : (char)*at;
    return good;
}

static bool get_packet(const unsigned char *at, const unsigned char *end, tshi_packet *out) {
    out->from = (int32_t)(uint32_t)get_number(&at, 4);
    out->to = (int32_t)(uint32_t)get_number(&at, 4);
    out->group = get_number(&at, 8);
    out->epoch = (uint32_t)get_number(&at, 4);
    out->number = (uint32_t)get_number(&at, 4);
    out->total = (uint32_t)get_number(&at, 4);
    out->at = (uint32_t)get_number(&at, 4);
    out->length = (uint32_t)(end - at);
    memcpy(out->data, at, out->length);
    return out->total <= TSHI_PACKET_MOST && out->at <= out->total && out->length <= out->total - out->at;
}

int tshi_news_read(const unsigned char *bytes, size_t size, tshi_news *out) {
    const unsigned char *at = bytes + sizeof magic;
    *out = (tshi_news){0};
    if (memcmp(bytes, magic, size < sizeof magic ? size : sizeof magic) != 0) return -1;
    if (size < TSHI_NEWS_HEAD) return 0;
    uint64_t kind = get_number(&at, 3), length = get_number(&at, 4);
    out->kind = (tshi_news_kind)kind;
    if (kind > TSHI_NEWS_PACKET || !is_length(out->kind, length)) return -1;
    if (size < TSHI_NEWS_HEAD + length) return 0;
    const unsigned char *body = at;
    if (out->kind == TSHI_NEWS_BEAT) out->machine = (int)(int32_t)(uint32_t)get_number(&at, 4);
    if (out->kind == TSHI_NEWS_FAREWELL && *body > 1) return -1;
    if (out->kind == TSHI_NEWS_FAREWELL) out->all_left = *body == 1;
    if (out->kind == TSHI_NEWS_PACKET && !get_packet(body, body + length, &out->packet)) return -1;
    if (out->kind == TSHI_NEWS_RANK && !get_rank(body, body + length, &out->rank)) return -1;
    return (int)(TSHI_NEWS_HEAD + length);
}
