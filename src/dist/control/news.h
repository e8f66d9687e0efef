/* The wire format between relays. Integers are little-endian.
 *
 * Invariant: no field is used before it is checked. tshi_news_read returns a message only when its kind, length, state
 * and padding are valid; its caller checks ranks and the machine against its roster.
 *
 * head      magic "tSHc", version 3, kind 1, zero 2, length of the body 4; then the body
 * BEAT      machine of the sender 4. Sent each second, often after news, and before that by the hub to each machine
 *           that connects
 * NEWS      rank 4, state 1, left 1, zero 2, recover 4, agreement 8, wait 8, call 32, step 8 + 8, reason
 *           (the rest, up to TSHI_MESSAGE_SIZE - 1)
 * PACKET    from 4, to 4, group 8, epoch 4, number 4, total 4, at 4, data (the rest, up to TSHI_PACKET_BYTES): a part
 *           of a message from a rank to another; total is at most TSHI_PACKET_MOST, and the data lies within
 * FAREWELL  all 1: the sender's last message. 1: every rank on its side of the connection has left, or never will as it
 *           is STUCK or DEAD. 0: its own ranks wait no longer for the others */
#ifndef TSHI_NEWS_H
#define TSHI_NEWS_H

#include "dist/control/packets.h"

#define TSHI_NEWS_HEAD 12
#define TSHI_NEWS_MOST (TSHI_NEWS_HEAD + 44 + TSHI_CALL_BYTES + TSHI_MESSAGE_SIZE - 1) /* bytes of a whole message */

typedef enum tshi_news_kind {
    TSHI_NEWS_BEAT = 1,
    TSHI_NEWS_RANK,
    TSHI_NEWS_FAREWELL,
    TSHI_NEWS_PACKET,
    TSHI_NEWS_KINDS
} tshi_news_kind;

typedef struct tshi_news {
    tshi_news_kind kind;
    int machine;         /* of a BEAT */
    bool all_left;       /* of a FAREWELL */
    tshi_rank_news rank; /* of NEWS; the caller checks the rank and the machine */
    tshi_packet packet;  /* of PACKET; the caller checks both ranks */
} tshi_news;

/* Returns the bytes written. */
size_t tshi_news_write(const tshi_news *news, unsigned char out[TSHI_NEWS_MOST]);
/* Reads the message at the start of `bytes` and returns its size; 0: the message is incomplete; -1: no relay writes
 * such bytes. */
int tshi_news_read(const unsigned char *bytes, size_t size, tshi_news *out);

#endif
