/* The PMIx server of this machine's ranks. */
#ifndef HELPER_SERVER_H
#define HELPER_SERVER_H

#include "helper.h"

typedef enum helper_event_kind { HELPER_CONNECTED, HELPER_FENCE } helper_event_kind;

/* From the thread of PMIx. */
typedef struct helper_event {
    helper_event_kind kind;
    int rank;
    helper_blob part;
} helper_event;

/* Starts the server and writes the variables for its clients into text. *events can be read from. False: the reason has
 * been reported. */
bool helper_server_start(helper *h, int *events, char *text, size_t size);
/* The ranks here leave their fence, with this; the blob is the server's. */
void helper_server_release(helper_blob whole);

#endif
