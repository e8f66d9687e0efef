/* What ranks say while they meet, byte by byte. Integers are little-endian; nothing is believed before it is checked.
 *
 *   frame      magic "tSHm", version 1, type 1, zero 2, length of the body 4; then the body
 *   CHALLENGE  the one that listens, first: group 16 (so that a rank sees at once whether it is at its job's), nonce 32
 *              (another for each connection), the nonce 32 by which NEWS or LEADER have announced it (else zeros)
 *   HELLO      the one that comes: nonce 32, library version 2 x 2, rank 4 (-1: any), size 4, who, proof 32
 *   ANSWER     status 1; then words, or a roster: rank 4, size 4, nodes 4, key 32 (masked), names, node of each rank 4; proof
 *              32
 *   NEWS       a datagram to many: group 16, nonce 32, rank 4, size 4, who, TCP port 2, leading 1, proof 32
 *   LEADER     what a file says of the one that listens: group 16, nonce 32, who, TCP port 2, proof 32
 *   who        host's id 16, process 4, its start 8, host's name (1 + up to 63)
 *
 * A proof is the HMAC, under the job's key, of the nonce that it answers and of all of the frame before it. Both ends
 * draw a nonce for each connection, so that a frame that was overheard and sent again proves nothing. The world's key
 * in an answer is masked with an HMAC of the nonce that the answer is for: it is never to be read without the job's key.
 * An overheard frame allows keys of the job to be guessed offline: a token has to be too long for that. */
#ifndef TSHI_WIRE_H
#define TSHI_WIRE_H

#include "base/hash.h"
#include "dist/bootstrap/environment.h"

#define TSHI_WIRE_HEAD    12
#define TSHI_NONCE_SIZE   32
#define TSHI_GROUP_SIZE   16
#define TSHI_HOST_SIZE    64
#define TSHI_WIRE_MOST    320 /* a frame that is no ANSWER */
#define TSHI_WIRE_LARGEST ((size_t)64 << 20)

typedef enum tshi_wire_type { TSHI_CHALLENGE = 1, TSHI_HELLO, TSHI_ANSWER, TSHI_NEWS, TSHI_LEADER } tshi_wire_type;

/* A process, told apart from all others that are or were. */
typedef struct tshi_who {
    unsigned char host_id[TSHI_GROUP_SIZE]; /* equal: they can share memory */
    uint32_t process;
    uint64_t start;
    char host[TSHI_HOST_SIZE];
} tshi_who;

/* Challenge, greeting, news and leader's record: each uses what its type carries. */
typedef struct tshi_frame {
    unsigned char nonce[TSHI_NONCE_SIZE];
    unsigned char leader[TSHI_NONCE_SIZE]; /* of a challenge */
    unsigned char group[TSHI_GROUP_SIZE];
    int version[2];
    int rank, size;
    tshi_who who;
    int port;
    bool leading;
} tshi_frame;

/* The ranks that have met. */
typedef struct tshi_roster {
    int rank, size, nodes;
    unsigned char key[TSHI_KEY_SIZE]; /* of this world alone */
    int *node;                        /* [size] */
    char (*host)[TSHI_HOST_SIZE];     /* [nodes] */
} tshi_roster;

typedef struct tshi_wire_answer {
    tsh_status status;
    char words[TSHI_MESSAGE_SIZE]; /* when it is not TSH_OK */
    tshi_roster roster;            /* else */
} tshi_wire_answer;

/* What a proof is made with: the job's key, and the nonce it answers (NULL: none). */
typedef struct tshi_seal {
    const unsigned char *key, *nonce;
} tshi_seal;

/* Length of the body that follows a head; -1 when these TSHI_WIRE_HEAD bytes are no head of `type`, or of more than
 * `most` bytes. */
int64_t tshi_wire_body(const unsigned char *head, tshi_wire_type type, size_t most);

/* One whole frame of any type but ANSWER; returns its bytes, at most TSHI_WIRE_MOST. */
size_t tshi_wire_write(tshi_wire_type type, const tshi_frame *frame, const tshi_seal *seal,
                       unsigned char out[TSHI_WIRE_MOST]);
/* False when these bytes are not exactly one frame of the type, or the proof is wrong. seal NULL: do not look. */
bool tshi_wire_read(tshi_wire_type type, const unsigned char *bytes, size_t size, const tshi_seal *seal,
                    tshi_frame *out);

/* Room that an answer to `size` ranks on as many nodes takes at most. */
size_t tshi_wire_answer_room(int size);
/* The bytes written; room is at least tshi_wire_answer_room(roster size, or 0). */
size_t tshi_wire_write_answer(const tshi_wire_answer *answer, const tshi_seal *seal, unsigned char *out);
/* TSH_ERR_SYSTEM when it makes no sense, is not proven or is for another number of ranks; on TSH_OK the roster of a
 * good answer is the caller's (tshi_roster_free). */
tsh_status tshi_wire_read_answer(const unsigned char *bytes, size_t size, int ranks, const tshi_seal *seal,
                                 const tsh_allocator *allocator, tshi_wire_answer *out);

/* Arrays of the roster; nodes at most size. */
tsh_status tshi_roster_init(tshi_roster *roster, int size, int nodes, const tsh_allocator *allocator);
void tshi_roster_free(tshi_roster *roster, const tsh_allocator *allocator);

#endif
