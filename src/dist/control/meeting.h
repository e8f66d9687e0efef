/* How ranks of other machines reach the control page of the first machine in tsh_world_continue: its ranks listen at
 * the address and port of the rendezvous, and do what a rank asks for. Any of them serves, as all have one page; so a
 * rank that dies or stops in the meantime only makes its peers ask again.
 *
 * A rank that connects gets a nonce, sends its change with a nonce of its own, and gets the page's part. The change and
 * the reply end with an HMAC, under the key of the world, of what has been sent so far: programs without the key can
 * neither change nor read anything. */
#ifndef TSHI_MEETING_H
#define TSHI_MEETING_H

#include "dist/control/standings.h"
#include "dist/world.h"

#define TSHI_MEETING_LISTENERS 16

/* Where the ranks of the first machine listen. */
typedef struct tshi_meeting {
    int listener[TSHI_MEETING_LISTENERS], n;
    void *reply; /* memory for one */
} tshi_meeting;

/* On the first machine. */
tsh_status tshi_meeting_open(const tsh_world *world, tshi_meeting *out);
void tshi_meeting_close(const tsh_world *world, tshi_meeting *meeting);
/* Serves one rank that has connected, at each listener; waits for none. */
void tshi_meeting_serve(const tsh_world *world, tshi_meeting *meeting);

/* On another machine: makes the change there, and reads the page afterwards. False when no rank has answered in a
 * second. */
bool tshi_meeting_ask(const tsh_world *world, tshi_standing_change change, uint32_t round, int64_t step,
                      tshi_standings *out);

#endif
