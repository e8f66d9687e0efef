/* What the file of a meeting says: one LEADER frame for each job that meets there.
 *
 * One whose process is no more is thrown out by whoever sees it; one that was left by a process of another machine,
 * when nobody there proves to know its nonce for a while. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <string.h>

bool tshi_records_possible(const tshi_records *records) {
    static const char start[4] = {'t', 'S', 'H', 'm'};
    size_t look = records->size < sizeof start ? records->size : sizeof start;
    return records->size < sizeof records->bytes && memcmp(records->bytes, start, look) == 0;
}

/* Whether a record stays; *ours, when it is of this job. */
static bool stays(const unsigned char *bytes, size_t size, const tshi_meet *meet, const unsigned char *mine,
                  const unsigned char *dead, tshi_frame *frame, bool *ours) {
    tshi_seal seal = {meet->settings->key, NULL};
    if (!tshi_wire_read(TSHI_LEADER, bytes, size, NULL, frame)) return false;
    *ours = !memcmp(frame->group, meet->group, sizeof frame->group);
    if (*ours && !tshi_wire_read(TSHI_LEADER, bytes, size, &seal, frame)) return false;
    bool other = memcmp(frame->nonce, mine, sizeof frame->nonce) && memcmp(frame->nonce, dead, sizeof frame->nonce);
    return other && !tshi_who_gone(&frame->who, &meet->me);
}

bool tshi_records_sort(tshi_records *r, const tshi_meet *meet, const unsigned char *mine, const unsigned char *dead,
                       tshi_frame *leader, bool *found) {
    size_t kept = 0, at = 0, before = r->size;
    *found = false;
    while (r->size - at >= TSHI_WIRE_HEAD) {
        tshi_frame frame;
        bool ours = false;
        const unsigned char *bytes = r->bytes + at;
        int64_t body = tshi_wire_body(bytes, TSHI_LEADER, TSHI_WIRE_MOST - TSHI_WIRE_HEAD);
        if (body < 0 || (size_t)body > r->size - at - TSHI_WIRE_HEAD) break;
        size_t size = TSHI_WIRE_HEAD + (size_t)body;
        at += size;
        if (!stays(bytes, size, meet, mine, dead, &frame, &ours)) continue;
        if (ours) *leader = frame;
        *found = *found || ours;
        memmove(r->bytes + kept, bytes, size);
        kept += size;
    }
    r->size = kept;
    return kept != before;
}

bool tshi_records_add(tshi_records *r, const tshi_meet *meet, const tshi_frame *record) {
    tshi_seal seal = {meet->settings->key, NULL};
    if (r->size + TSHI_WIRE_MOST >= sizeof r->bytes) return false;
    r->size += tshi_wire_write(TSHI_LEADER, record, &seal, r->bytes + r->size);
    return true;
}
