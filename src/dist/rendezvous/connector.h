/* A rank that connects to the listening one. */
#ifndef TSHI_CONNECTOR_H
#define TSHI_CONNECTOR_H

#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

typedef enum tshi_connect_end {
    TSHI_CONNECT_ANSWERED, /* the status holds: the roster, or an error that the listening rank sent or that is final */
    TSHI_CONNECT_FAILED,   /* nothing listens, or it went away: try again */
    TSHI_CONNECT_OTHER,    /* another program listens, or another job, which may share the address */
} tshi_connect_end;

/* A try of some endpoints. */
typedef struct tshi_attempt {
    const unsigned char *leader; /* the nonce by which the listening rank was announced; NULL: it was not */
    double patience;             /* seconds to connect to each */
    tshi_roster *out;
    tsh_status status;       /* of an attempt that was ANSWERED */
    char reasons[TSHI_LINE]; /* "127.0.0.1:29500: Connection refused; [::1]:29500: ..." */
    char reason[160];        /* of one endpoint */
} tshi_attempt;

/* Receives a frame of the type. Its size, or 0 with errno set (0: the connection ended, or that is no frame of the
 * type). */
size_t tshi_connector_receive(int fd, tshi_wire_type type, unsigned char bytes[TSHI_WIRE_MOST], double deadline);
/* Receives the rest of a frame of at most `most` bytes, whose head has come. All of it, the caller's; NULL with errno
 * set. */
unsigned char *tshi_connector_rest(const tshi_rendezvous *r, int fd, const unsigned char head[TSHI_WIRE_HEAD],
                                   tshi_wire_type type, size_t most, double deadline, size_t *size);
/* Answers the challenge with a HELLO, with a nonce that is drawn for it. False with errno set. */
bool tshi_connector_hello(const tshi_rendezvous *r, int fd, const tshi_frame *challenge,
                          unsigned char nonce[TSHI_NONCE_SIZE]);
/* Sends an ANSWER with this rank's status, for the HELLO or the CHALLENGE of that nonce. False with errno set. */
bool tshi_connector_report(const tshi_rendezvous *r, int fd, const unsigned char *nonce, tsh_status status);
/* A whole answer, the caller's, and the descriptor that came with it or -1; NULL when none has come by the rendezvous'
 * deadline, with errno set. */
unsigned char *tshi_connector_answer(tshi_rendezvous *r, int fd, size_t *size, int *descriptor);
/* Tries each endpoint once, until one is ANSWERED. */
tshi_connect_end tshi_connector_try(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, tshi_attempt *attempt);
/* All endpoints, again and again until the deadline. */
tsh_status tshi_connector_run(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, tshi_roster *out);

#endif
