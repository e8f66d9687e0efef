#include "dist/control/news.h"
#include "dist/rendezvous/wire.h"

#include <string.h>

static const unsigned char magic[5] = {'t', 'S', 'H', 'c', 3};

enum { BEAT_BYTES = 4, FAREWELL_BYTES = 1, RANK_BYTES = 44 + TSHI_CALL_BYTES, PACKET_BYTES = 32 };

static void rank_fields(tshi_codec *c, tshi_rank_news *n) {
    tshi_codec_integer(c, &n->rank, 4);
    n->state = (uint32_t)tshi_codec_number(c, n->state, 1);
    n->left = (uint32_t)tshi_codec_number(c, n->left, 1);
    bool padded = tshi_codec_number(c, 0, 2) == 0;
    n->recover = (uint32_t)tshi_codec_number(c, n->recover, 4);
    n->agreement = tshi_codec_number(c, n->agreement, 8);
    n->wait = tshi_codec_number(c, n->wait, 8);
    tshi_codec_field(c, n->call, sizeof n->call);
    n->call[sizeof n->call - 1] = '\0';
    tshi_codec_clean(n->call, strlen(n->call));
    n->step.tape = tshi_codec_number(c, n->step.tape, 8);
    n->step.number = tshi_codec_number(c, n->step.number, 8);
    size_t length = c->reads ? (size_t)(c->end - c->at) : strnlen(n->reason, sizeof n->reason - 1);
    tshi_codec_field(c, n->reason, length);
    tshi_codec_clean(n->reason, length);
    c->bad = c->bad || !padded || n->state > TSHI_DEAD || n->left > 1;
}

static void packet_fields(tshi_codec *c, tshi_packet *p) {
    tshi_codec_integer(c, &p->from, 4);
    tshi_codec_integer(c, &p->to, 4);
    p->group = tshi_codec_number(c, p->group, 8);
    p->epoch = (uint32_t)tshi_codec_number(c, p->epoch, 4);
    p->number = (uint32_t)tshi_codec_number(c, p->number, 4);
    p->total = (uint32_t)tshi_codec_number(c, p->total, 4);
    p->at = (uint32_t)tshi_codec_number(c, p->at, 4);
    if (c->reads) p->length = (uint32_t)(c->end - c->at);
    tshi_codec_field(c, p->data, p->length);
    c->bad = c->bad || p->total > TSHI_PACKET_MOST || p->at > p->total || p->length > p->total - p->at;
}

static void news_fields(tshi_codec *c, tshi_news *news) {
    switch (news->kind) {
    case TSHI_NEWS_BEAT: tshi_codec_integer(c, &news->machine, 4); return;
    case TSHI_NEWS_RANK: rank_fields(c, &news->rank); return;
    case TSHI_NEWS_PACKET: packet_fields(c, &news->packet); return;
    default: {
        uint64_t all = tshi_codec_number(c, news->all_left, 1);
        news->all_left = all == 1;
        c->bad = c->bad || all > 1;
    }
    }
}

size_t tshi_news_write(const tshi_news *news, unsigned char out[TSHI_NEWS_MOST]) {
    tshi_news copy = *news;
    tshi_codec c = {.start = out, .at = out};
    tshi_codec_field(&c, (void *)(uintptr_t)magic, sizeof magic);
    tshi_codec_number(&c, news->kind, 3);
    c.at = out + TSHI_NEWS_HEAD;
    news_fields(&c, &copy);
    size_t size = (size_t)(c.at - out);
    c.at = out + TSHI_NEWS_HEAD - 4;
    tshi_codec_number(&c, size - TSHI_NEWS_HEAD, 4);
    return size;
}

static bool is_length(tshi_news_kind kind, uint64_t length) {
    switch (kind) {
    case TSHI_NEWS_BEAT: return length == BEAT_BYTES;
    case TSHI_NEWS_RANK: return length >= RANK_BYTES && length <= TSHI_NEWS_MOST - TSHI_NEWS_HEAD;
    case TSHI_NEWS_FAREWELL: return length == FAREWELL_BYTES;
    case TSHI_NEWS_PACKET: return length >= PACKET_BYTES && length <= PACKET_BYTES + TSHI_PACKET_BYTES;
    default: return false;
    }
}

int tshi_news_read(const unsigned char *bytes, size_t size, tshi_news *out) {
    *out = (tshi_news){0};
    if (memcmp(bytes, magic, size < sizeof magic ? size : sizeof magic) != 0) return -1;
    if (size < TSHI_NEWS_HEAD) return 0;
    tshi_codec c = {
        .reads = true, .at = (unsigned char *)(uintptr_t)bytes + sizeof magic, .end = bytes + TSHI_NEWS_HEAD};
    uint64_t kind = tshi_codec_number(&c, 0, 3), length = tshi_codec_number(&c, 0, 4);
    out->kind = (tshi_news_kind)kind;
    if (kind > TSHI_NEWS_PACKET || !is_length(out->kind, length)) return -1;
    if (size < TSHI_NEWS_HEAD + length) return 0;
    c.end += length;
    news_fields(&c, out);
    return c.bad ? -1 : (int)(TSHI_NEWS_HEAD + length);
}
