/* The surroundings of the rendezvous while it is fuzzed: its code and its sockets are real, but time passes only in
 * waits, random numbers are the same in each run, and between two waits the fuzzer's script runs. stage.c replaces
 * poll, getrandom, tshi_clock and tshi_sleep. */
#ifndef TSHI_FUZZ_STAGE_H
#define TSHI_FUZZ_STAGE_H

#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

/* The script of the fuzzed connections, byte by byte; zeros behind its end. */
typedef struct script {
    const uint8_t *at, *end;
} script;

unsigned script_byte(script *s);
/* At most `most` of its bytes, into out; how many. */
size_t script_bytes(script *s, void *out, size_t most);
bool script_over(const script *s);

/* `turn` is called before every wait, with `user`. */
void stage_begin(void (*turn)(void *user), void *user);
/* Nothing is left: every descriptor that was opened since has been closed. */
void stage_end(void);
/* Let time pass without a wait. */
void stage_advance(double seconds);
/* Seconds that have been waited, other than that. */
double stage_waited(void);
/* Aborts: the fuzzer has found something. */
void stage_require(bool condition);

/* Takes what is said, and checks that it can be shown. */
extern const tsh_log_sink stage_log;

/* The key of the job, and that of another job. */
void stage_settings(tshi_settings *out, int rank, int size);
void stage_meet(tshi_rendezvous *out, const tshi_settings *settings, const tsh_allocator *allocator);

/* Where a listener of these two can be connected to. */
tshi_endpoint stage_place(int listener);
/* A connection that never waits; -1 when there is no room. */
int stage_connect(const tshi_endpoint *place);
int stage_listen(void);

#endif
