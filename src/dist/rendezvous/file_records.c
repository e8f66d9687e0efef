/* The records in the file of a rendezvous. A rank that reads the record of an ended process of its machine drops it;
 * the record of a process of another machine goes when nothing there knows its nonce for a while. */
#include "dist/rendezvous/file_records.h"

#include <string.h>

bool tshi_records_possible(const tshi_records *records) {
    static const char start[4] = {'t', 'S', 'H', 'm'};
    size_t look = records->size < sizeof start ? records->size : sizeof start;
    return records->size < sizeof records->bytes && memcmp(records->bytes, start, look) == 0;
}

/* The record stays; *ours when it is of this job. */
static bool stays(const unsigned char *bytes, size_t size, const tshi_rendezvous *rendezvous, const unsigned char *mine,
                  const unsigned char *dead, tshi_frame *frame, bool *ours) {
    tshi_seal seal = {rendezvous->settings->key, NULL};
    if (!tshi_wire_read(TSHI_LEADER, bytes, size, NULL, frame)) return false;
    *ours = !memcmp(frame->group, rendezvous->group, sizeof frame->group);
    if (*ours && !tshi_wire_read(TSHI_LEADER, bytes, size, &seal, frame)) return false;
    bool other = memcmp(frame->nonce, mine, sizeof frame->nonce) && memcmp(frame->nonce, dead, sizeof frame->nonce);
    return other && !tshi_process_ended(&frame->process, &rendezvous->me);
}

bool tshi_records_sort(tshi_records *r, const tshi_rendezvous *rendezvous, const unsigned char *mine,
                       const unsigned char *dead, tshi_frame *leader, bool *found) {
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
        if (!stays(bytes, size, rendezvous, mine, dead, &frame, &ours)) continue;
        if (ours) *leader = frame;
        *found = *found || ours;
        memmove(r->bytes + kept, bytes, size);
        kept += size;
    }
    r->size = kept;
    return kept != before;
}

bool tshi_records_add(tshi_records *r, const tshi_rendezvous *rendezvous, const tshi_frame *record) {
    tshi_seal seal = {rendezvous->settings->key, NULL};
    if (r->size + TSHI_WIRE_MOST >= sizeof r->bytes) return false;
    r->size += tshi_wire_write(TSHI_LEADER, record, &seal, r->bytes + r->size);
    return true;
}
