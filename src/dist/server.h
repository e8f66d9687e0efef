/* Rank 0's side of the meeting. */
#ifndef TSHI_SERVER_H
#define TSHI_SERVER_H

#include "dist/channel.h"
#include "dist/rendezvous.h"

/* Fills `out`, which has room for all ranks, and sends it to the others. */
tsh_status tshi_server_run(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, int heap, int control, tshi_meeting *out);

#endif
