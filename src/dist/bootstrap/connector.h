/* A rank that connects to the listening one. */
#ifndef TSHI_CONNECTOR_H
#define TSHI_CONNECTOR_H

#include "dist/bootstrap/rendezvous.h"
#include "dist/bootstrap/sockets.h"

typedef enum tshi_connect_end {
    TSHI_CONNECT_ANSWERED, /* *status holds: the roster, or an error that the listening rank sent or that is final */
    TSHI_CONNECT_FAILED,   /* nothing listens, or it went away: try again */
    TSHI_CONNECT_OTHER,    /* another program listens, or another job, which may share the address */
} tshi_connect_end;

/* Receives the one frame that its sender has sent: all that it may have sent, for more is lost. Its size, or 0 with
 * errno set (0: the connection ended, or that is no frame of the type). */
size_t tshi_connector_receive(int fd, tshi_wire_type type, unsigned char bytes[TSHI_WIRE_MOST], double deadline);
/* Takes the challenge of the listening rank and answers it with a HELLO, whose nonce its answer's HMAC will need.
 * `leader`, where not NULL, is the nonce by which that rank was announced. TSHI_CONNECT_ANSWERED when it was sent. */
tshi_connect_end tshi_connector_greet(tshi_rendezvous *r, int fd, const unsigned char *leader,
                                      unsigned char nonce[TSHI_NONCE_SIZE], char *reason, size_t size);
/* Waits until the answer begins, a moment past the deadline: the listening rank knows better which ranks are
 * missing, so it speaks first. False when nothing has come. */
bool tshi_connector_wait(tshi_rendezvous *r, int fd);

/* One attempt at one endpoint, to connect within `patience` seconds. Where it fails the reason is written. */
tshi_connect_end tshi_connector_try(tshi_rendezvous *r, const tshi_endpoint *endpoint, const unsigned char *leader,
                                    double patience, tsh_status *status, tshi_roster *out, char *reason, size_t size);
/* All endpoints, again and again until the deadline. */
tsh_status tshi_connector_run(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, tshi_roster *out);

#endif
