/* Rank 0's side of the rendezvous. */
#ifndef TSHI_SERVER_H
#define TSHI_SERVER_H

#include "dist/bootstrap/memory_exchange.h"
#include "dist/bootstrap/unix_socket.h"

/* Fills `meeting`, which has room for all ranks, has it make the memory, and sends that to the others. */
tsh_status tshi_server_run(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, tshi_meeting *meeting, int *memory);

#endif
