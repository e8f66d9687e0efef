/* The messages of a rendezvous, byte by byte. Integers are little-endian; nothing is used before it is checked.
 *
 * frame         magic "tSHm", version 1, type 1, zero 2, length of the body 4; then the body
 * CHALLENGE     the listening rank, first: group 16 (public name of its job), nonce 32 (new for each connection), the
 *               nonce 32 by which an ANNOUNCEMENT or LEADER has named it (else zeros)
 * HELLO         the connecting rank: nonce 32, library version 2 x 2, heap bytes 8, rank 4 (-1: any), size 4, process,
 *               HMAC 32
 * ANSWER        status 1; then a message, or a roster where one is due: rank 4, size 4, nodes 4, key 32 (masked),
 *               names, node of each rank 4; HMAC 32
 * ANNOUNCEMENT  a multicast datagram: group 16, nonce 32, rank 4, size 4, process, TCP port 2, leads 1, HMAC 32
 * LEADER        the record of the listening rank in a file: group 16, nonce 32, process, TCP port 2, HMAC 32
 * PLACE         to a rank that joins a running job: seed 8, size of the world 4, milliseconds to build it 4, TCP port
 *               2, HMAC 32; an ANSWER with the roster follows where the size is not 0
 * process       machine 16, number 4, start 8, host name (1 + up to 63) */
#ifndef TSHI_WIRE_H
#define TSHI_WIRE_H

#include "base/hash.h"
#include "dist/rendezvous/environment.h"

#define TSHI_WIRE_HEAD    12
#define TSHI_NONCE_SIZE   32
#define TSHI_GROUP_SIZE   16
#define TSHI_HOST_SIZE    64
#define TSHI_WIRE_MOST    320 /* bytes of any frame but ANSWER */
#define TSHI_WIRE_LARGEST ((size_t)64 << 20)

typedef enum tshi_wire_type {
    TSHI_CHALLENGE = 1,
    TSHI_HELLO,
    TSHI_ANSWER,
    TSHI_ANNOUNCEMENT,
    TSHI_LEADER,
    TSHI_PLACE
} tshi_wire_type;

/* A process, unlike any other that is or was. */
typedef struct tshi_process {
    unsigned char machine[TSHI_GROUP_SIZE]; /* equal: the two can share memory */
    uint32_t number;
    uint64_t start;
    char host[TSHI_HOST_SIZE];
} tshi_process;

/* Every frame but ANSWER: each type carries some of the fields. */
typedef struct tshi_frame {
    unsigned char nonce[TSHI_NONCE_SIZE];
    unsigned char leader[TSHI_NONCE_SIZE]; /* of a CHALLENGE */
    unsigned char group[TSHI_GROUP_SIZE];
    int version[2];
    uint64_t heap_bytes, seed, program; /* of a HELLO; program: a fingerprint of it */
    int rank, size;
    tshi_process process;
    int patience; /* of a PLACE: milliseconds */
    int port;
    bool leads;
} tshi_frame;

/* The ranks of a world. */
typedef struct tshi_roster {
    int rank, size, nodes;
    unsigned char key[TSHI_KEY_SIZE]; /* only of this world */
    int *node;                        /* [size] */
    char (*host)[TSHI_HOST_SIZE];     /* [nodes] */
} tshi_roster;

typedef struct tshi_wire_answer {
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE]; /* when it is not TSH_OK */
    tshi_roster roster;              /* else; size 0: the answer has none */
} tshi_wire_answer;

/* What the HMAC at the end of a frame is made of beside the frame: the job's key, and the nonce that the frame answers
 * (NULL: none). Both ends draw a nonce for each connection, so that a frame that was overheard and sent again is
 * refused. The key of the world is masked with an HMAC of the nonce that the answer is for: it cannot be read without
 * the job's key. An overheard frame allows keys of the job to be tried offline, and so does the CHALLENGE that any
 * program gets when it connects: a token has to be too long for that. */
typedef struct tshi_seal {
    const unsigned char *key, *nonce;
} tshi_seal;

/* Writes fields or reads them, so that each message is described once. Writing cannot fail: callers provide room for
 * all that they write. A read beyond the end yields zeros and sets `bad`. */
typedef struct tshi_codec {
    bool reads, bad;
    unsigned char *start, *at;
    const unsigned char *end; /* of what is read */
} tshi_codec;

void tshi_codec_field(tshi_codec *c, void *data, size_t size);
/* The value, or the one that is read. */
uint64_t tshi_codec_number(tshi_codec *c, uint64_t value, int bytes);
void tshi_codec_integer(tshi_codec *c, int *value, int bytes);
/* Control characters would reach a log or a terminal: they become question marks. */
void tshi_codec_clean(char *text, size_t length);

/* Length of the body that follows a head; -1 when these TSHI_WIRE_HEAD bytes are no head of `type`, or of more than
 * `most` bytes. */
int64_t tshi_wire_body(const unsigned char *head, tshi_wire_type type, size_t most);

/* One whole frame of any type but ANSWER; returns its bytes, at most TSHI_WIRE_MOST. */
size_t tshi_wire_write(tshi_wire_type type, const tshi_frame *frame, const tshi_seal *seal,
                       unsigned char out[TSHI_WIRE_MOST]);
/* False when these bytes are not exactly one frame of the type, or its HMAC is wrong. seal NULL: it is not checked. */
bool tshi_wire_read(tshi_wire_type type, const unsigned char *bytes, size_t size, const tshi_seal *seal,
                    tshi_frame *out);

/* Bytes that an answer to `size` ranks on as many nodes takes at most. */
size_t tshi_wire_answer_room(int size);
/* Returns the bytes written; room is at least tshi_wire_answer_room(roster size, or 0). */
size_t tshi_wire_write_answer(const tshi_wire_answer *answer, const tshi_seal *seal, unsigned char *out);
/* TSH_ERR_SYSTEM when it is malformed, its HMAC is wrong or it is for another number of ranks (0: it has no roster); on
 * TSH_OK the roster of a good answer is the caller's (tshi_roster_free). */
tsh_status tshi_wire_read_answer(const unsigned char *bytes, size_t size, int ranks, const tshi_seal *seal,
                                 const tsh_allocator *allocator, tshi_wire_answer *out);

#endif
